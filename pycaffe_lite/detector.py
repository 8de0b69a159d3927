"""What does a net say that parts of an image show? pycaffe's Detector: crop windows, classify.

A window is (ymin, xmin, ymax, xmax) in pixels, the last row and column not included.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .classifier import PathLike, first_output, image_transformer, net_input
from .errors import ModelError
from .io import load_image
from .net import TEST, Net
from .transformer import resize_image

Detection = dict[str, Any]
_SELECTIVE_SEARCH = "selective_search_ijcv_with_python"


class Detector(Net):
    """A net in phase TEST for windows of images: `Detector('deploy.prototxt', 'x.caffemodel')`.

    `mean`, `input_scale`, `raw_scale` and `channel_swap` are a Transformer's; the mean may be one
    value a channel. With `context_pad`, crops show what is around their window, that many pixels of
    the net's input on each side; beyond the image lies the mean. Raises ModelError where the net
    has other than one input (N, K, H, W) or a setting does not fit it, and all that Net raises.
    """

    def __init__(
        self,
        model_file: PathLike,
        pretrained_file: PathLike,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(
        self, images_windows: Iterable[tuple[PathLike, Iterable[Sequence[float]]]]
    ) -> list[Detection]:
        """Run the net on windows of image files, given as (file name, windows) pairs.

        One dict a window, in order: 'window' as given, 'prediction' its row of the net's first
        output (in ASCII order), 'filename' as given. Images are loaded as `io.load_image` does, in
        grey where the net's input has one channel. Raises MissingFileError, and ModelError for a
        window with nothing of the image in it.
        """
        crops = self._crops(images_windows)
        batch = max(1, self.blobs[self.inputs[0]].shape[0])
        detections = []
        while some := list(islice(crops, batch)):
            predictions = first_output(self, np.stack([array for _, array in some]))
            for (detection, _), prediction in zip(some, predictions, strict=True):
                detections.append(detection | {"prediction": prediction})
        return detections

    def _crops(
        self, images_windows: Iterable[tuple[PathLike, Iterable[Sequence[float]]]]
    ) -> Iterator[tuple[Detection, np.ndarray]]:
        """What is known of each window, and the net's input (K, H, W) for it."""
        for filename, windows in images_windows:
            image = load_image(filename, color=int(self.crop_dims[2]) != 1)
            for window in windows:
                try:
                    array = net_input(self, self.transformer, self.crop(image, window))
                except ModelError as error:
                    raise ModelError(f"{os.fspath(filename)}: {error}") from error
                yield {"window": window, "filename": filename}, array

    def detect_selective_search(self, image_fnames: Iterable[PathLike]) -> list[Detection]:
        """As detect_windows, on windows that selective search proposes for each file.

        Needs MATLAB and the module selective_search_ijcv_with_python, else RuntimeError. The
        detections' 'filename' is absolute.
        """
        try:
            search = importlib.import_module(_SELECTIVE_SEARCH)
        except ImportError as error:
            raise RuntimeError(
                f"detect_selective_search needs the module {_SELECTIVE_SEARCH} (and MATLAB): put"
                " https://github.com/sergeyk/selective_search_ijcv_with_python where Python finds"
                " it, or give windows of your own to detect_windows"
            ) from error
        names = [str(Path(name).absolute()) for name in image_fnames]  # MATLAB runs elsewhere
        windows = search.get_windows(names, cmd="selective_search_rcnn")
        return self.detect_windows(zip(names, windows, strict=True))

    # ---- crops ---------------------------------------------------------------------------------

    def configure_crop(self, context_pad: int | None) -> None:
        """Show `context_pad` pixels of the net's input around windows; None or 0: the window alone.

        Sets `crop_dims`, the net's input as (H, W, K), and with a pad `crop_mean`, the mean in the
        space of images, for what lies beyond them. To be called again where the transformer's mean
        has changed. Raises ModelError where the pad leaves no room for the window.
        """
        name = self.inputs[0]
        shape = self.blobs[name].shape
        self.crop_dims = np.array([shape[2], shape[3], shape[1]])
        self.context_pad = context_pad
        if not context_pad:
            return
        if context_pad < 0 or 2 * context_pad >= min(shape[2:]):
            raise ModelError(
                f"context_pad {context_pad} leaves no room for a window in input {name!r} of shape"
                f" {shape}"
            )
        self.crop_mean = self._image_mean(name)

    def _image_mean(self, name: str) -> np.ndarray:
        """The transformer's mean as images have it: float32 (H, W, K) or (1, 1, K)."""
        mean = self.transformer.mean.get(name)
        if mean is None:
            return np.zeros((1, 1, self.crop_dims[2]), np.float32)
        image = mean.transpose(1, 2, 0).astype(np.float32)
        swap = self.transformer.channel_swap.get(name)
        if swap is not None:
            by_channel = np.zeros_like(image)
            by_channel[:, :, list(swap)] = image
            image = by_channel
        raw_scale = self.transformer.raw_scale.get(name)
        return image if raw_scale is None else image / np.float32(raw_scale)

    def crop(self, im: np.ndarray, window: Sequence[float]) -> np.ndarray:
        """The window of an image (H, W, K), cut off at the image's edges.

        With a context pad it is float32 of the shape `crop_dims`, the window and its surroundings
        resized into it as in R-CNN. Raises ModelError where nothing of the image is left.
        """
        box = np.asarray(window, dtype=np.float64)
        if box.shape != (4,) or not np.isfinite(box).all():
            raise ModelError(f"a window is (ymin, xmin, ymax, xmax), got {window}")
        try:
            if self.context_pad:
                return self._crop_with_context(im, box)
            rows, columns = (_inside(box[k], box[k + 2], im.shape[k]) for k in (0, 1))
        except ModelError as error:
            raise ModelError(
                f"window {box.tolist()} of an image of shape {im.shape}: {error}"
            ) from None
        return im[rows, columns]

    def _crop_with_context(self, im: np.ndarray, box: np.ndarray) -> np.ndarray:
        (rows, into_rows), (columns, into_columns) = (
            self._context(box[k], box[k + 2], im.shape[k], int(self.crop_dims[k])) for k in (0, 1)
        )
        size = (into_rows.stop - into_rows.start, into_columns.stop - into_columns.start)
        crop = np.empty(self.crop_dims, np.float32)
        crop[...] = self.crop_mean
        crop[into_rows, into_columns] = resize_image(im[rows, columns], size)
        return crop

    def _context(self, first: float, last: float, length: int, size: int) -> tuple[slice, slice]:
        """Along one axis, first to last: the pixels of the image's `length`, and of the crop's
        `size` those that they fill.

        As in Caffe, `last` counts as part of the window for the scale and not for what is cut out,
        and halves are rounded to even.
        """
        half = (last - first + 1) / 2
        reach = size / (size - 2.0 * (self.context_pad or 0)) * half
        begin, end = np.round(first + half - reach), np.round(first + half + reach)
        pixels = _inside(begin, end, length)
        scale = size / (end - begin + 1)
        start = int(np.round(max(0.0, -begin) * scale))
        stop = min(size, start + int(np.round((pixels.stop - pixels.start + 1) * scale)))
        if stop <= start:
            raise ModelError("too little of it is in the image")
        return pixels, slice(start, stop)


def _inside(first: float, last: float, length: int) -> slice:
    """The pixels from first up to last that are among `length`; ModelError where none is."""
    begin, end = (min(max(int(n), 0), length) for n in (first, last))
    if begin >= end:
        raise ModelError("none of it is in the image")
    return slice(begin, end)
