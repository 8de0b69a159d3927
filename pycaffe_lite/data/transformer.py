"""What does transform_param do to an image? Crop, mirror, minus a mean, times a scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..blob import describe
from ..errors import MissingFileError, ModelError
from ..proto import caffe_pb2
from ..weights.stored_blob import from_message

_APPLIED = {
    "scale", "mirror", "crop_size", "mean_file", "mean_value", "force_color", "force_gray",
}  # fmt: skip


class DataTransformer:
    """(x - mean) * scale of an image (C, H, W), cut out and flipped, as a TransformationParameter
    says.

    `crop_size` cuts out a square: in phase TRAIN (0) at a random place, in TEST (1) in the middle,
    the upper left one of two. `mirror` flips every other image left to right, by chance, in either
    phase, as Caffe does. The mean is one value, or one a channel, or an image of its own from
    `mean_file` (a binary BlobProto, of the size of the whole images), whose pixel is taken off the
    same pixel of the image before that is cut or flipped. `force_color` and `force_gray` are for
    who decodes images.

    Raises ModelError where the message asks for what does not go together or is not known here,
    where it has a mean that does not fit, and MissingFileError for a mean file that is not there.
    """

    def __init__(self, param: Any, phase: int) -> None:
        unknown = [field.name for field, _ in param.ListFields() if field.name not in _APPLIED]
        if unknown:
            raise ModelError(f"transform_param {{ {unknown[0]} }} is not supported")
        if param.mean_file and len(param.mean_value):
            raise ModelError("cannot specify mean_file and mean_value at the same time")
        if param.force_color and param.force_gray:
            raise ModelError("cannot set both force_color and force_gray")
        self.force_color: bool = param.force_color
        self.force_gray: bool = param.force_gray
        self._random_place = phase == caffe_pb2.TRAIN
        self._crop: int = param.crop_size
        self._mirror: bool = param.mirror
        self._scale: float = param.scale
        self.mean: np.ndarray | None = None
        """What is taken off images: (C or 1, H or 1, W or 1) float32."""
        self._mean_file: str = param.mean_file
        if self._mean_file:
            self.mean = _read_mean(self._mean_file)
        elif len(param.mean_value):
            self.mean = np.array(param.mean_value, dtype=np.float32)[:, None, None]

    def output_shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        """(C, h, w) of what an image (C, H, W) becomes; ModelError where it cannot be done."""
        channels, height, width = image_shape
        if self._crop > min(height, width):
            raise ModelError(
                f"crop_size {self._crop} is larger than the image: height {height}, width {width}"
            )
        if self.mean is not None:
            self._check_mean(self.mean, image_shape)
        return (channels, self._crop or height, self._crop or width)

    def _check_mean(self, mean: np.ndarray, image_shape: tuple[int, ...]) -> None:
        if self._mean_file:
            if mean.shape != image_shape:
                raise ModelError(
                    f"the mean of {self._mean_file} has shape `{describe(mean.shape)}`, the image"
                    f" `{describe(image_shape)}`"
                )
        elif len(mean) not in (1, image_shape[0]):
            raise ModelError(
                "mean_value: specify either 1 or as many as channels:"
                f" {len(mean)} values vs. {image_shape[0]} channels"
            )

    def __call__(self, image: np.ndarray, out: np.ndarray, rng: np.random.Generator) -> None:
        """Write the image (C, H, W), of any real dtype, into `out` (`output_shape`, floats).

        `rng` draws whether it is flipped, then where it is cut. Raises ModelError as
        `output_shape` does.
        """
        self.output_shape(image.shape)
        flipped = self._mirror and bool(rng.integers(2))
        mean = self.mean
        if self._crop:
            window = self._window(image.shape, rng)
            image = image[window]
            mean = mean[window] if self._mean_file and mean is not None else mean
        target = out[..., ::-1] if flipped else out
        if mean is None:
            target[...] = image
        else:
            np.subtract(image, mean, out=target, dtype=out.dtype)
        if self._scale != 1:
            out *= self._scale

    def _window(self, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[slice, ...]:
        rooms = (shape[1] - self._crop, shape[2] - self._crop)
        if self._random_place:
            starts = [int(rng.integers(room + 1)) for room in rooms]
        else:
            starts = [room // 2 for room in rooms]
        return (slice(None), *(slice(start, start + self._crop) for start in starts))


def _read_mean(path: str) -> np.ndarray:
    """The image in a mean file: (C, H, W) float32."""
    from google.protobuf.message import DecodeError

    blob = caffe_pb2.BlobProto()
    try:
        blob.ParseFromString(Path(path).read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"could not open mean_file {path} (file not found)") from None
    except (OSError, DecodeError) as error:
        raise ModelError(f"failed to parse mean_file {path}: {error}") from error
    values = from_message(blob).array().astype(np.float32)
    image = values.reshape(values.shape[1:]) if values.shape[:1] == (1,) else values
    if image.ndim != 3:
        raise ModelError(
            f"mean_file {path} must hold one image of 3 axes, not `{describe(values.shape)}`"
        )
    return image
