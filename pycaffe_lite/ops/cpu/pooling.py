"""Max pooling by whole-array maxima, axis by axis, instead of masked copies.

A masked copy takes 4 ns a value and tap, as its branch is a coin toss, `fmax` a fraction: 3 x 3 of
stride 2 on (96, 55, 55) falls from 2.3 to 0.3 ms, with the mask from 4.3 to 0.5 ms; 2 x 2 on 64 x
(20, 24, 24) with the mask to 0.9 ms; all of 16 x (256, 13, 13) from 7.6 (a pass for each of 169
taps) to 1.0 ms. Without the mask, blocks that fit into the cache gained nothing on top.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..window import Window
from .columns import Box, boxes
from .pool import run
from .threads import limited

Array = Any
Shape = tuple[int, ...]

BLOCK = 1 << 18
"""Values of the images that are pooled at once with a mask, so that the passes are in the cache."""


PLANES = 1 << 17
"""Values of the planes that are pooled at once without one."""

MANY = 1 << 21
"""Values, a millisecond or two, from which several threads pool."""


SOME = 1 << 18
"""Values, half a millisecond, from which several threads pool with a mask."""


def largest_by_blocks(x: Array, pad: Callable[[Array], Array], window: Window, out: Array) -> None:
    """x (N, C, *S) -> out (N, C, *P), as `largest` of pad(x), by blocks of planes."""
    blocks = list(boxes(x.shape[:2], max(1, PLANES // max(1, prod(x.shape[2:])))))

    def work(block: Box) -> None:
        part = tuple(slice(r.start, r.stop) for r in block)
        largest(pad(x[part]), window, out[part])

    if x.size < MANY:
        run(lambda block: partial(work, block), blocks, 1)
        return
    with limited() as count:
        run(lambda block: partial(work, block), blocks, count)


def by_images(x: Array, work: Callable[[slice], None]) -> None:
    """work(part) for parts of the images of x (N, ...), on all threads where there are many values.

    2 x 2 on 64 x (20, 24, 24) with a mask: 0.9 ms in one thread, 0.6 on two.
    """
    step = max(1, BLOCK // max(1, prod(x.shape[1:])))
    if x.size < SOME:
        for i in range(0, len(x), step):
            work(slice(i, i + step))
        return
    with limited() as count:
        step = min(step, -(-len(x) // (2 * count)))
        parts = [slice(i, i + step) for i in range(0, len(x), step)]
        run(lambda part: partial(work, part), parts, count)


def largest(padded: Array, window: Window, out: Array) -> None:
    """padded (N, C, *S) -> out (N, C, *P): the largest number of each window, at least the lowest
    finite one; NaN counts for nothing."""
    value = padded
    for axis, (stride, kernel) in enumerate(zip(window.stride, window.kernel, strict=True)):
        count = out.shape[2 + axis]
        before = (slice(None),) * (2 + axis)
        slices = (slice(t, t + (count - 1) * stride + 1, stride) for t in range(kernel))
        taps = [value[before + (part,)] for part in slices]
        value = np.fmax(taps[0], taps[-1])
        for tap in taps[1:-1]:
            np.fmax(value, tap, out=value)
    np.fmax(value, np.finfo(out.dtype).min, out=out)


def largest_at(padded: Array, window: Window, spatial: Shape, out: Array, mask: Array) -> None:
    """The same, and mask (N, C, *P): where in its window each largest number lies, counted as in
    the plane (rows further down are `spatial`'s width apart); of equals the first.

    Two passes an axis and tap, and integers as small as the window allows: `fmax` differs from
    what it replaces only where the new value is greater or the first number, and of two places the
    later is the greater number. Needs `counts_in_order`.
    """
    value, place = padded, None
    for axis in reversed(range(len(window.kernel))):
        value, place = _largest_along(value, place, window, axis, out.shape[2 + axis], spatial)
    np.fmax(value, np.finfo(out.dtype).min, out=out)
    mask[...] = place


def _largest_along(
    value: Array, place: Array | None, window: Window, axis: int, count: int, spatial: Shape
) -> tuple[Array, Array]:
    """Values and places (None: all 0) reduced to `count` windows along one spatial axis."""
    stride, step = window.stride[axis], prod(spatial[axis + 1 :])
    before = (slice(None),) * (2 + axis)
    taps = [
        (*before, slice(t, t + (count - 1) * stride + 1, stride))
        for t in range(window.kernel[axis])
    ]
    best, dtype = value[taps[0]].copy(), np.min_scalar_type(reach(window, spatial))
    at = np.zeros(best.shape, dtype) if place is None else place[taps[0]].copy()
    larger, is_new, later = np.empty_like(best), np.empty(best.shape, bool), np.empty_like(at)
    is_strided = stride > 1 and axis == len(window.kernel) - 1
    for t, tap in enumerate(taps[1:], start=1):
        # A maximum of every second value takes twice as long as copying them first.
        np.fmax(best, value[tap].copy() if is_strided else value[tap], out=larger)
        np.not_equal(larger, best, out=is_new)
        if place is None:
            np.multiply(is_new.view(np.uint8), dtype.type(t * step), out=later)
        else:
            np.add(place[tap], dtype.type(t * step), out=later)
            np.multiply(later, is_new.view(np.uint8), out=later)
        np.maximum(at, later, out=at)
        best, larger = larger, best
    return best, at


def reach(window: Window, spatial: Shape) -> int:
    """Places from the first to the last of a window, as `largest_at` counts them."""
    return sum((k - 1) * prod(spatial[axis + 1 :]) for axis, k in enumerate(window.kernel))


def counts_in_order(window: Window, spatial: Shape) -> bool:
    """False where windows are wider than the plane: a place of one row is one of the next, then."""
    return all(k <= size for k, size in zip(window.kernel[1:], spatial[1:], strict=True))
