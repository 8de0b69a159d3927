"""How do the windows of images become batches? Drawn by chance, foreground and background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..blob import describe
from ..errors import MissingFileError, ModelError
from .framing import Framing
from .image import decode_pixels, read_content
from .prefetch import Batch, Source
from .transformer import DataTransformer
from .window_file import read_window_file

_CHANNELS = 3  # images are always read in colour


class WindowSource(Source):
    """Batches of windows (batch_size, 3, crop_size, crop_size) and labels (batch_size,).

    `param` is a WindowDataParameter, `transform` a TransformationParameter; the arrays are of
    `dtype`. Raises ModelError where the two, the window file and a mean do not go together, and
    MissingFileError.
    """

    def __init__(self, param: Any, transform: Any, phase: int, dtype: Any, seed: int) -> None:
        super().__init__(seed)
        if param.batch_size < 1:
            raise ModelError(f"batch_size must be positive, got {param.batch_size}")
        self._framing = Framing(transform.crop_size, param.context_pad, param.crop_mode)
        self._mean = _mean(transform, phase)
        self._mirror: bool = transform.mirror
        self._batch_size, self._scale, self._dtype = param.batch_size, param.scale, dtype
        self._file: str = param.source
        images, windows = read_window_file(param.source)
        self._count = len(windows)
        self._draws = _draws(windows, param)
        # As text: a root folder without a slash at its end is the beginning of a name. Beside the
        # working directory of now: a thread reads later, when it may be another.
        self._paths = [Path.cwd() / (param.root_folder + name) for name in images]
        self._contents = [read_content(path) for path in self._paths] if param.cache_images else []

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


def _mean(transform: Any, phase: int) -> np.ndarray | None:
    """What is taken off: (3 or 1, crop_size or 1, crop_size or 1)."""
    mean, size = DataTransformer(transform, phase).mean, transform.crop_size
    if mean is None:
        return None
    if not transform.mean_file:
        if len(mean) not in (1, _CHANNELS):
            raise ModelError(
                "mean_value: specify either 1 or as many as channels:"
                f" {len(mean)} values vs. {_CHANNELS} channels"
            )
        return mean
    start = (mean.shape[2] - size) // 2  # down as far as across: Caffe's mean image is a square
    stop = start + size
    if mean.shape[0] != _CHANNELS or start < 0 or stop > mean.shape[1]:
        raise ModelError(
            f"the mean of {transform.mean_file} has shape `{describe(mean.shape)}`; {_CHANNELS}"
            f" channels and crop_size {size} must fit into it"
        )
    return mean[:, start:stop, start:stop]
