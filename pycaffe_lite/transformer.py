"""What happens to an image before a net sees it? Resizing, cropping, and pycaffe's Transformer.

Public as `pycaffe_lite.io`. Images are (H, W, C); what a net takes is (C, H, W).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .errors import ModelError, did_you_mean

Shape = tuple[int, ...]


def resize_image(im: np.ndarray, new_dims: Sequence[int], interp_order: int = 1) -> np.ndarray:
    """An image (H, W, C) of any dtype -> float32 (new_dims[0], new_dims[1], C), range kept.

    `interp_order` is the degree of the spline: 0 nearest, 1 linear, up to 5. The two paths are
    Caffe's. With 1 or 3 channels pixels are areas: shrinking blurs first, and beyond the edge lies
    the image's minimum, so growing darkens the rim. With any other number the corner pixels stay in
    the corners and nothing blurs; integers then give rounded values. Raises ModelError.
    """
    im = np.asarray(im)
    height, width = (int(n) for n in new_dims)
    if im.ndim != 3 or not im.size or height < 1 or width < 1:
        raise ModelError(
            f"cannot resize an image of shape {im.shape} to {height} x {width}: it has to be"
            " (H, W, C), and no dimension 0"
        )
    if im.shape[2] not in (1, 3):
        return _resize_corners(im, (height, width), interp_order)
    low, high = float(im.min()), float(im.max())
    if not high > low:  # NaN lands here too, as in Caffe
        return np.full((height, width, im.shape[2]), low, np.float32)
    unit = (im.astype(np.float64) - low) / (high - low)
    return (_resize_areas(unit, (height, width), interp_order) * (high - low) + low).astype("f4")


def _resize_areas(unit: np.ndarray, dims: tuple[int, int], order: int) -> np.ndarray:
    """As skimage.transform.resize(unit, dims, order, mode='constant'), values in 0..1."""
    from scipy import ndimage

    shrink = [old / new for old, new in zip(unit.shape, dims, strict=False)]
    blurred = unit
    if max(shrink) > 1:
        sigma = [max(0.0, (factor - 1) / 2) for factor in shrink]
        blurred = ndimage.gaussian_filter(unit, (*sigma, 0), mode="constant")
    zoom = (*(1 / factor for factor in shrink), 1)
    out = ndimage.zoom(blurred, zoom, order=order, mode="grid-constant", grid_mode=True)
    clipped: np.ndarray = np.clip(out, 0, 1)  # splines above degree 1 overshoot
    return clipped


def _resize_corners(im: np.ndarray, dims: tuple[int, int], order: int) -> np.ndarray:
    from scipy import ndimage

    if im.dtype == np.float16 or im.dtype == bool:  # SciPy takes neither
        im = im.astype(np.float32)
    zoom = (dims[0] / im.shape[0], dims[1] / im.shape[1], 1)
    out: np.ndarray = ndimage.zoom(im, zoom, order=order)
    return out.astype(np.float32)


def oversample(images: Sequence[np.ndarray], crop_dims: Sequence[int]) -> np.ndarray:
    """Ten crops of each of N images (H, W, C) -> float32 (10 N, crop_dims[0], crop_dims[1], C).

    Of each image: top left, top right, bottom left, bottom right, centre; then these five mirrored
    left to right. Raises ModelError where images differ in shape or are smaller than the crop.
    """
    height, width = (int(n) for n in crop_dims)
    shapes = sorted({np.shape(image) for image in images})
    if len(shapes) != 1 or len(shapes[0]) != 3:
        raise ModelError(f"oversample takes images (H, W, C) of one shape, got {shapes}")
    (shape,) = shapes
    spare_h, spare_w = shape[0] - height, shape[1] - width
    if min(spare_h, spare_w) < 0 or min(height, width) < 1:
        raise ModelError(f"cannot crop {height} x {width} out of images of shape {shape}")
    corners = [(0, 0), (0, spare_w), (spare_h, 0), (spare_h, spare_w), (spare_h // 2, spare_w // 2)]
    crops = np.empty((len(images), 10, height, width, shape[2]), np.float32)
    for image, ten in zip(images, crops, strict=True):
        for crop, (top, left) in zip(ten, corners, strict=False):
            crop[...] = image[top : top + height, left : left + width]
    crops[:, 5:] = crops[:, :5, :, ::-1]
    return crops.reshape(-1, *crops.shape[2:])


class Transformer:
    """Images to what the input blobs of a net take, and back; pycaffe's.

    `inputs` maps the names of blobs to their shapes (N, C, H, W). For each blob there are six steps
    in this order, each left out unless set: resize to (H, W) where the size differs, transpose,
    channel swap, times the raw scale, minus the mean, times the input scale. So a pixel 0.5 with
    raw scale 255, mean 100 and input scale 0.01 becomes 0.275.

    What is set is kept by blob in `transpose`, `channel_swap`, `raw_scale`, `mean`, `input_scale`;
    None stands for not set. Arrays of the caller are never changed, unlike in Caffe, which writes
    into float32 images of the right size. Setters raise ModelError for a name not in `inputs`.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs: dict[str, Shape] = {
            name: tuple(int(n) for n in shape) for name, shape in inputs.items()
        }
        self.transpose: dict[str, Sequence[int] | None] = {}
        self.channel_swap: dict[str, Sequence[int] | None] = {}
        self.raw_scale: dict[str, float | None] = {}
        self.mean: dict[str, np.ndarray | None] = {}
        self.input_scale: dict[str, float | None] = {}

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Order of the image's axes in the blob: (2, 0, 1) turns (H, W, C) into (C, H, W).

        Raises ModelError where it is no permutation of the blob's axes but the first.
        """
        axes = len(self._shape(in_)) - 1
        if sorted(order) != list(range(axes)):
            raise ModelError(
                "Transpose order needs to have the same number of dimensions as the input: blob"
                f" {in_!r} has {axes} after the batch, each to name once, got {tuple(order)}"
            )
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Which channel of the image becomes each channel of the blob: (2, 1, 0) for RGB to BGR.

        A channel may be named twice: (0, 0, 0) makes three of a grey image's one. Raises ModelError
        where there are not as many as the blob has channels.
        """
        channels = self._shape(in_)[1]
        if len(order) != channels:
            raise ModelError(
                "Channel swap needs to have the same number of dimensions as the input channels:"
                f" {len(order)} vs. {channels} of blob {in_!r}"
            )
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float | None) -> None:
        """Factor before the mean is taken off: 255 for images in 0..1 and a mean in 0..255."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """What is subtracted, in the blob's order of channels and at the raw scale.

        One value a channel (C,), or one a pixel (C, H, W), which is resized to the blob where H or
        W differ, or (H, W) for a blob of one channel and that size. Raises ModelError with the
        phrases "Mean channels incompatible with input" and "Mean shape invalid".
        """
        shape = self._shape(in_)
        mean = np.array(mean)  # later changes to the caller's do not reach here
        if not np.issubdtype(mean.dtype, np.floating):
            mean = mean.astype(np.float64)
        wanted = shape[1:]
        if mean.ndim == 2 and mean.shape == wanted[1:] and wanted[0] == 1:
            mean = mean[np.newaxis]
        if mean.ndim not in (1, 3):
            raise ModelError(
                f"Mean shape invalid: {mean.shape} for blob {in_!r} of shape {shape}; it has to be"
                f" ({wanted[0]},) or {wanted}"
            )
        if mean.shape[0] != wanted[0]:
            raise ModelError(_wrong_channels(in_, mean.shape, shape))
        if mean.ndim == 1:
            mean = mean.reshape(-1, *(1 for _ in wanted[1:]))
        elif mean.shape != wanted:
            if len(wanted) != 3:
                raise ModelError(f"Mean shape invalid: {mean.shape} for blob {in_!r} of {shape}")
            mean = resize_image(mean.transpose(1, 2, 0), wanted[1:]).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float | None) -> None:
        """Factor after the mean is taken off; 0.017, say, for the MobileNets."""
        self._shape(in_)
        self.input_scale[in_] = scale

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """An image (H, W, C) -> new float32 array (C, H, W) for blob `in_`, no batch axis.

        It is (C, H, W) if a transpose says so. Blobs that have not four axes are never resized.
        Raises ModelError where the image does not fit what was set, and for unknown blobs.
        """
        shape = self._shape(in_)
        out = np.array(data, dtype=np.float32)
        if len(shape) == 4 and out.shape[:2] != shape[2:]:
            out = resize_image(out, shape[2:])
        order, swap = self.transpose.get(in_), self.channel_swap.get(in_)
        try:
            if order is not None:
                out = out.transpose(order)
            if swap is not None:
                out = out[list(swap)]
            return self._scaled(in_, out)
        except (ValueError, IndexError) as error:
            raise ModelError(
                f"an array of shape {np.shape(data)} does not fit blob {in_!r} of shape {shape},"
                f" transpose {order}, channel swap {swap}: {error}"
            ) from error

    def _scaled(self, in_: str, out: np.ndarray) -> np.ndarray:
        """In place: raw scale, mean, input scale."""
        if (raw_scale := self.raw_scale.get(in_)) is not None:
            out *= raw_scale
        if (mean := self.mean.get(in_)) is not None:
            out -= mean
        if (input_scale := self.input_scale.get(in_)) is not None:
            out *= input_scale
        return out

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """The inverse of `preprocess` but for the size: (C, H, W), or a batch of one -> (H, W, C).

        A new array; axes of size 1 are dropped, so a grey image is (H, W). Floating dtypes stay,
        others become float32. Raises ModelError for an array of other axes than the blob's.
        """
        out = self._one(in_, np.asarray(data))
        out = out.astype(out.dtype if np.issubdtype(out.dtype, np.floating) else np.float32)
        if (input_scale := self.input_scale.get(in_)) is not None:
            out /= input_scale
        if (mean := self.mean.get(in_)) is not None:
            out += mean
        if (raw_scale := self.raw_scale.get(in_)) is not None:
            out /= raw_scale
        if (swap := self.channel_swap.get(in_)) is not None:
            out = out[np.argsort(swap)]
        if (order := self.transpose.get(in_)) is not None:
            out = out.transpose(np.argsort(order))
        return out.squeeze()

    def _one(self, in_: str, data: np.ndarray) -> np.ndarray:
        """The array without its batch axis of 1, and with the blob's axes of 1 where they went."""
        shape = self._shape(in_)
        if [n for n in data.shape if n != 1] == [n for n in shape[1:] if n != 1]:
            return data.reshape(shape[1:])
        while data.ndim >= len(shape) and data.shape[0] == 1:
            data = data[0]
        if data.ndim != len(shape) - 1:
            raise ModelError(
                f"deprocess takes one of a batch: an array of shape {data.shape} is none of blob"
                f" {in_!r} of shape {shape}"
            )
        return data

    def _shape(self, in_: str) -> Shape:
        if in_ not in self.inputs:
            raise ModelError(
                f"{in_!r} is not one of the net inputs: {self.inputs}"
                f"{did_you_mean(str(in_), self.inputs)}"
            )
        return self.inputs[in_]


def _wrong_channels(in_: str, mean: Shape, shape: Shape) -> str:
    text = (
        f"Mean channels incompatible with input: {mean[0]} vs. {shape[1]}; the mean has shape"
        f" {mean}, blob {in_!r} has {shape}"
    )
    if len(mean) == 3 and mean[2] == shape[1]:
        text += "; is the mean (H, W, C)? mean.transpose(2, 0, 1) is what is wanted"
    return text
