"""What does a net say that images show? pycaffe's Classifier: resize, crop, preprocess, run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .errors import ModelError
from .net import TEST, Net
from .transformer import Transformer, resize_image
from .transformer import oversample as ten_crops

PathLike = str | os.PathLike[str]


class Classifier(Net):
    """A net in phase TEST for images (H, W, K): `Classifier('deploy.prototxt', 'x.caffemodel')`.

    Images are resized to `image_dims` (H, W), by default the size of the net's input, and cropped
    to that size. `mean`, `input_scale`, `raw_scale` and `channel_swap` are a Transformer's. What is
    set stays as `image_dims`, `crop_dims` and `transformer`, and may be changed there. Raises
    ModelError where the net has other than one input (N, K, H, W) or a setting does not fit it, and
    all that Net raises.
    """

    def __init__(
        self,
        model_file: PathLike,
        pretrained_file: PathLike,
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.image_dims = self.crop_dims if image_dims is None else np.array(image_dims, dtype=int)

    def predict(
        self, inputs: Sequence[np.ndarray] | np.ndarray, oversample: bool = True
    ) -> np.ndarray:
        """The net's first output (in ASCII order) for N images (H, W, K) of any size, or for one.

        By default the mean over ten crops of each image, the corners, the centre and these
        mirrored, as (N, values): not what `forward` gives for the image itself. With
        `oversample=False` the output for the centre crop, (N, ...) as the net has it. Float32, a
        copy. Raises ModelError where there is no image, or one does not fit.
        """
        images = self._resized(inputs)
        size = [int(n) for n in self.crop_dims]
        crops = ten_crops(list(images), size) if oversample else _centres(images, size)
        arrays = np.stack([net_input(self, self.transformer, crop) for crop in crops])
        predictions = first_output(self, arrays)
        if not oversample:
            return predictions
        means: np.ndarray = predictions.reshape(len(images), 10, -1).mean(1)
        return means

    def _resized(self, inputs: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """All images at image_dims: float32 (N, H, W, K)."""
        one = isinstance(inputs, np.ndarray) and inputs.ndim == 3
        images = [np.asarray(image) for image in ([inputs] if one else inputs)]
        if not images:
            raise ModelError("predict takes at least one image (H, W, K), got none")
        shapes = [image.shape for image in images]
        if {len(shape) for shape in shapes} != {3} or len({shape[2] for shape in shapes}) != 1:
            raise ModelError(
                "predict takes images (H, W, K) that have one number of channels, got shapes"
                f" {sorted(set(shapes))}"
            )
        size = [int(n) for n in self.image_dims]
        return np.stack([resize_image(image, size) for image in images])


def _centres(images: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """The centre of each image (N, H, W, K), of the size (height, width)."""
    height, width = size
    top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
    if min(top, left) < 0:
        raise ModelError(f"cannot crop {height} x {width} out of images of {images.shape[1:]}")
    return images[:, top : top + height, left : left + width]


def image_transformer(
    net: Net,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Iterable[int] | None,
) -> Transformer:
    """The Transformer for images (H, W, K) into the net's input; None stands for not set.

    Raises ModelError unless the net has one input of four axes that the settings fit.
    """
    if len(net.inputs) != 1 or len(net.blobs[net.inputs[0]].shape) != 4:
        found = {name: net.blobs[name].shape for name in net.inputs}
        raise ModelError(f"a net with one input (N, K, H, W) is needed; this one's inputs: {found}")
    (name,) = net.inputs
    transformer = Transformer({name: net.blobs[name].shape})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, tuple(channel_swap))
    return transformer


def net_input(net: Net, transformer: Transformer, image: np.ndarray) -> np.ndarray:
    """An image (H, W, K) -> float32 (K, H, W) for the net's input. Raises ModelError."""
    name = net.inputs[0]
    array = transformer.preprocess(name, image)
    shape = net.blobs[name].shape
    if array.shape != shape[1:]:
        raise ModelError(
            f"an image of shape {image.shape} becomes {array.shape}, and input {name!r} is {shape}"
        )
    return array


def first_output(net: Net, arrays: np.ndarray) -> np.ndarray:
    """The first of the net's outputs, in ASCII order, for any number of samples (N, K, H, W).

    (N, ...), a copy. Raises ModelError where the net gives other than one result a sample.
    """
    inputs: dict[str, Any] = {net.inputs[0]: arrays}
    out = net.forward_all(**inputs)
    if not net.outputs:
        raise ModelError("the net has no output to predict with")
    result = out[net.outputs[0]]
    if len(result) != len(arrays):
        raise ModelError(
            f"output {net.outputs[0]!r} has {len(result)} results for {len(arrays)} samples"
        )
    return result
