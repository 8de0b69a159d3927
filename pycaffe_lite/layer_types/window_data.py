"""Windows of images as R-CNN trains on them. Needs OpenCV, at the first layer built."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..blob import describe
from ..data_transformer import DataTransformer
from ..errors import MissingFileError, ModelError
from ..image import decode_pixels, read_content, resize_pixels
from ..prefetch import Batch, Source
from ..window_file import read_window_file
from .data_layer import PrefetchingData

log = logging.getLogger("pycaffe_lite")

_CHANNELS = 3  # images are always read in colour


class WindowData(PrefetchingData):
    """Two tops, windows (batch_size, 3, crop_size, crop_size) and their labels (batch_size,).

    `window_data_param { source }` lists windows of images (see window_file.py). Windows that
    overlap an object by `fg_threshold` or more are foreground, those by less than `bg_threshold`
    background, with label 0; the rest are not used. A batch has the background ones first, then
    the share `fg_fraction` (rounded down) of foreground, each drawn by chance from all of its kind.

    A window is cut out and resized to transform_param's crop_size. With `context_pad` it is first
    made larger about its middle, so that this many pixels of the result are around it; with
    `crop_mode` "square" also its shorter side made as long as the other. What of that lies outside
    the image is 0 in the result. `mirror` flips every other window. Of the mean image the middle is
    taken off, and the result is multiplied by `scale` of window_data_param; that of transform_param
    says nothing here, as in Caffe. `root_folder` is put before each name as it is. With
    `cache_images` the files are read once, at setup.
    """

    tops = (2, 2)

    def make_source(self, top: Any, seed: int) -> Source:
        transform = self.spec.transform_param
        if transform.HasField("scale"):
            log.warning(
                "layer %r (WindowData) multiplies by scale of window_data_param, %g; scale of"
                " transform_param, %g, is not used, as in Caffe",
                self.name, self.param.scale, transform.scale,
            )  # fmt: skip
        mean = DataTransformer(transform, self.phase).mean
        if mean is not None:
            mean = _middle(mean, transform.crop_size, transform.mean_file)
        framing = Framing(transform.crop_size, self.param.context_pad, self.param.crop_mode)
        return _Windows(self.param, framing, transform.mirror, mean, top[0].dtype, seed)


# ---- one window --------------------------------------------------------------------------------


class _Span(NamedTuple):
    """Along one axis: the part `start` to `end` (inside) of the image becomes `size` pixels, with
    `before` pixels of border before it and `after` behind it."""

    start: int
    end: int
    size: int
    before: int = 0
    after: int = 0


class Framing:
    """How a window becomes a square of `crop_size` pixels, with `context_pad` of them around it.

    Raises ModelError where the three do not go together.
    """

    def __init__(self, crop_size: int, context_pad: int, crop_mode: str) -> None:
        if crop_size < 1:
            raise ModelError("WindowData needs transform_param { crop_size } above 0")
        if 2 * context_pad >= crop_size:
            raise ModelError(
                f"context_pad {context_pad} on both sides leaves nothing of crop_size {crop_size}"
            )
        if crop_mode not in ("warp", "square"):
            raise ModelError(f'unknown crop_mode {crop_mode!r}: "warp" or "square"')
        self.crop_size = crop_size
        self._square = crop_mode == "square"
        self._exact = not (context_pad or self._square)
        # In single precision, as all of the arithmetic below: Caffe rounds to pixels after it.
        self._grow = np.float32(crop_size) / np.float32(crop_size - 2 * context_pad)

    def __call__(
        self, image: np.ndarray, box: tuple[int, int, int, int], mirrored: bool
    ) -> tuple[np.ndarray, int, int]:
        """The window `box` (x1, y1, x2, y2, the corners inside) of an image (H, W, C).

        Gives its pixels (h, w, C), and the row and column of the square where they belong; around
        them is border. Raises ModelError where the box is not in the image, or nothing of it.
        """
        (x1, y1, x2, y2), (height, width) = box, image.shape[:2]
        if x2 < x1 or y2 < y1:
            raise ModelError("the box ends before it begins")
        if self._exact:
            if x1 < 0 or y1 < 0 or x2 >= width or y2 >= height:
                raise ModelError("the box lies outside of the image; context_pad would allow that")
            across, down = _Span(x1, x2, self.crop_size), _Span(y1, y2, self.crop_size)
        else:
            across, down = self._spans(box, width, height)
        column = across.after if mirrored else across.before
        size = (
            min(down.size, self.crop_size - down.before),
            min(across.size, self.crop_size - column),
        )
        part = image[down.start : down.end + 1, across.start : across.end + 1]
        pixels = resize_pixels(part, size)
        return pixels[:, ::-1] if mirrored else pixels, down.before, column

    def _spans(
        self, box: tuple[int, int, int, int], width: int, height: int
    ) -> tuple[_Span, _Span]:
        """Of the box with its context, across and down."""
        x1, y1, x2, y2 = box
        half_width, half_height = (
            np.float32(n) / np.float32(2) for n in (x2 - x1 + 1, y2 - y1 + 1)
        )
        middle_x, middle_y = np.float32(x1) + half_width, np.float32(y1) + half_height
        if self._square:
            half_width = half_height = max(half_width, half_height)
        return (
            self._span(middle_x, half_width * self._grow, width),
            self._span(middle_y, half_height * self._grow, height),
        )

    def _span(self, middle: Any, reach: Any, limit: int) -> _Span:
        start, end = _rounded(middle - reach), _rounded(middle + reach)
        scale = np.float32(self.crop_size) / np.float32(end - start + 1)
        before, after = max(0, -start), max(0, end - limit + 1)
        start, end = start + before, end - after
        if end < start:
            raise ModelError("the box lies outside of the image")
        sizes = (_rounded(np.float32(n) * scale) for n in (end - start + 1, before, after))
        return _Span(start, end, *sizes)


def _rounded(value: Any) -> int:
    """To the nearest whole number, halves away from 0, as C's round."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))


def _middle(mean: np.ndarray, crop_size: int, path: str) -> np.ndarray:
    """What is taken off: (3 or 1, crop_size or 1, crop_size or 1)."""
    if not path:
        if len(mean) not in (1, _CHANNELS):
            raise ModelError(
                "mean_value: specify either 1 or as many as channels:"
                f" {len(mean)} values vs. {_CHANNELS} channels"
            )
        return mean
    # Caffe goes down as far as across: a mean image is a square.
    start = (mean.shape[2] - crop_size) // 2
    stop = start + crop_size
    if mean.shape[0] != _CHANNELS or start < 0 or stop > mean.shape[1]:
        raise ModelError(
            f"the mean of {path} has shape `{describe(mean.shape)}`; {_CHANNELS} channels and"
            f" crop_size {crop_size} must fit into it"
        )
    return mean[:, start:stop, start:stop]


# ---- batches -----------------------------------------------------------------------------------


class _Windows(Source):
    def __init__(
        self, param: Any, framing: Framing, mirror: bool, mean: Any, dtype: Any, seed: int
    ) -> None:
        super().__init__(seed)
        if param.batch_size < 1:
            raise ModelError(f"batch_size must be positive, got {param.batch_size}")
        self._batch_size, self._scale, self._dtype = param.batch_size, param.scale, dtype
        self._framing, self._mirror, self._mean = framing, mirror, mean
        self._file: str = param.source
        images, windows = read_window_file(param.source)
        self._count = len(windows)
        # As text: a root folder without a slash at its end is the beginning of a name. Beside the
        # working directory of now: a thread reads later, when it may be another.
        self._paths = [Path.cwd() / (param.root_folder + name) for name in images]
        self._contents = [read_content(path) for path in self._paths] if param.cache_images else []
        self._draws = _draws(windows, param)

    def shapes(self) -> list[tuple[int, ...]]:
        side = self._framing.crop_size
        return [(self._batch_size, _CHANNELS, side, side), (self._batch_size,)]

    def read(self) -> Batch:
        images, labels = (np.zeros(shape, self._dtype) for shape in self.shapes())
        drawn = [kind[self.rng.integers(len(kind))] for kind, n in self._draws for _ in range(n)]
        for k, window in enumerate(drawn):
            try:
                self._write(window, images[k])
            except (ModelError, MissingFileError) as error:
                raise type(error)(f"{self._file} line {window['line']}: {error}") from error
            labels[k] = window["label"]
        return [images, labels]

    def _write(self, window: Any, out: np.ndarray) -> None:
        """Write a window into `out` (3, crop_size, crop_size), which is 0."""
        mirrored = self._mirror and bool(self.rng.integers(2))
        image = self._image(int(window["image"]))
        x1, y1, x2, y2 = (int(window[name]) for name in ("x1", "y1", "x2", "y2"))
        pixels, row, column = self._framing(image, (x1, y1, x2, y2), mirrored)
        rows = slice(row, row + pixels.shape[0])
        columns = slice(column, column + pixels.shape[1])
        target = out[:, rows, columns]
        target[...] = pixels.transpose(2, 0, 1)
        if self._mean is not None:
            whole = np.broadcast_to(self._mean, out.shape)
            target -= whole[:, rows, columns]
        target *= self._scale

    def _image(self, index: int) -> np.ndarray:
        path = self._paths[index]
        content = self._contents[index] if self._contents else read_content(path)
        return decode_pixels(content, True, str(path))

    def position(self) -> dict[str, Any]:
        return {"windows": self._count}

    def seek(self, position: dict[str, Any]) -> None:
        if position["windows"] != self._count:
            raise ModelError(
                f"{self._file} lists {self._count} windows; when the state was kept there were"
                f" {position['windows']}"
            )


def _draws(windows: np.ndarray, param: Any) -> list[tuple[np.ndarray, int]]:
    """The background windows and how many of them a batch has, then the foreground's."""
    overlap = windows["overlap"]
    is_foreground = overlap >= np.float32(param.fg_threshold)
    foreground = windows[is_foreground]
    background = windows[~is_foreground & (overlap < np.float32(param.bg_threshold))]
    background["label"] = 0
    wrong = foreground[foreground["label"] < 1]
    if len(wrong):
        raise ModelError(
            f"{param.source} line {wrong[0]['line']}: a foreground window needs a label above 0,"
            f" got {wrong[0]['label']}"
        )
    # In single precision, as Caffe counts.
    count = int(np.float32(param.batch_size) * np.float32(param.fg_fraction))
    if not 0 <= count <= param.batch_size:
        raise ModelError(f"fg_fraction must be from 0 to 1, got {param.fg_fraction:g}")
    draws = [(background, param.batch_size - count), (foreground, count)]
    for (kind, number), name in zip(draws, ("background", "foreground"), strict=True):
        if number and not len(kind):
            raise ModelError(f"{param.source} lists no {name} windows; a batch has {number}")
    return draws
