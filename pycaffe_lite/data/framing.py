"""How does a window of an image become a square of pixels? Cut out, with context, and resized."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from .image import resize_pixels


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
