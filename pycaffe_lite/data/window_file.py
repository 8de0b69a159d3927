"""Which windows of which images does a window file list? The format of R-CNN's training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import MissingFileError, ModelError

WINDOW = np.dtype(
    [
        *((name, np.int32) for name in ("image", "label", "x1", "y1", "x2", "y2", "line")),
        ("overlap", np.float32),
    ]
)
"""A window: `image` counts the file's images from 0; the box's corners are both inside, in pixels
from 0; `overlap` is with the object of class `label`; `line` is the file's, from 1."""

_COLUMNS = ("label", "overlap", "x1", "y1", "x2", "y2")


class WindowFile(NamedTuple):
    """The names of images as a file has them, and its windows, an array of WINDOW."""

    images: list[str]
    windows: np.ndarray


def read_window_file(path: str | os.PathLike[str]) -> WindowFile:
    """All images and windows of a file.

    For each image it has, a line each: "#" and a number (not read: images are counted), the name,
    channels, height and width (not read either: the image itself tells), the number of windows, and
    the windows, "label overlap x1 y1 x2 y2". Empty lines are left out. Raises MissingFileError, and
    ModelError with the number of a line that is something else, or where there is no image.
    """
    name = os.fspath(path)
    images, windows = list[str](), [np.empty(0, WINDOW)]
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            lines = _Lines(name, file)
            while (head := lines.next_or_none()) is not None:
                lines.check_head(head if images else head.removeprefix("\ufeff"))
                images.append(lines.next("the name of an image"))
                for what in ("channels", "height", "width"):
                    lines.number(what)
                count = lines.number("the number of windows")
                windows.append(lines.windows(count, len(images) - 1))
    except FileNotFoundError:
        raise MissingFileError(f"failed to open window file {name}: no such file") from None
    except OSError as error:
        raise ModelError(f"failed to open window file {name}: {error.strerror}") from error
    if not images:
        raise ModelError(f"window file {name} is empty: it lists no image")
    return WindowFile(images, np.concatenate(windows))


class _Lines:
    """A file's lines that are not empty, with the number of the last."""

    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self._path, self._number = path, 0
        self._lines = ((k, line.strip()) for k, line in enumerate(lines, 1) if line.strip())

    def next_or_none(self) -> str | None:
        self._number, line = next(self._lines, (self._number, None))
        return line

    def next(self, what: str) -> str:
        line = self.next_or_none()
        if line is None:
            raise ModelError(
                f"window file {self._path} ends after line {self._number}, before {what}"
            )
        return line

    def number(self, what: str) -> int:
        line = self.next(what)
        if not (line.isascii() and line.isdigit() and len(line) < 10):
            raise self._wrong(self._number, what, line)
        return int(line)

    def check_head(self, line: str) -> None:
        mark, number = line[:1], line[1:].strip()
        if mark != "#" or not (number.isascii() and number.isdigit()):
            raise self._wrong(self._number, '"#" and the number of an image', line)

    def windows(self, count: int, image: int) -> np.ndarray:
        """The next `count` lines as an array of WINDOW."""
        found = list(islice(self._lines, count))
        numbers = [number for number, _ in found]
        self._number = numbers[-1] if numbers else self._number
        if len(found) < count:
            self.next(f"window {len(found) + 1} of {count} of its image")
        rows = _rows([line for _, line in found])
        if rows is None:
            wrong = next(k for k, (_, line) in enumerate(found) if _rows([line]) is None)
            raise self._wrong(numbers[wrong], " ".join(_COLUMNS), found[wrong][1])
        windows = np.empty(count, WINDOW)
        windows["image"], windows["line"] = image, numbers
        for name, column in zip(_COLUMNS, rows.T, strict=True):
            windows[name] = column
        return windows

    def _wrong(self, number: int, expected: str, line: str) -> ModelError:
        return ModelError(f"{self._path} line {number}: expected {expected}, got {line!r}")


def _rows(lines: list[str]) -> np.ndarray | None:
    """The numbers (len(lines), 6) in lines of windows; None where one is not as it should be."""
    if not lines:
        return np.empty((0, len(_COLUMNS)))
    try:
        rows = np.array([line.split() for line in lines], dtype=np.float64)
    except ValueError:  # a word, or lines of several lengths
        return None
    if rows.ndim != 2 or rows.shape[1] != len(_COLUMNS) or not np.isfinite(rows).all():
        return None
    whole = np.delete(rows, _COLUMNS.index("overlap"), axis=1)
    fits = (whole == np.trunc(whole)).all() and np.abs(rows).max() < 2**31
    return rows if fits else None
