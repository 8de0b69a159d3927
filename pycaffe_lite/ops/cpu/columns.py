"""Which part of the column matrix does a tile need? Blocks of it, gathered from an image.

A column matrix has a row for each (channel, tap) and a column for each output position; a block is
a range of every row axis times a range of every position axis. Padding is never copied: what lies
outside the image is written as zeros into the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..window import Window

Array = Any
Box = tuple[range, ...]


def boxes(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Ranges that cover `shape` in row-major order, each box contiguous and of <= `most` entries.

    All of the trailing axes that fit, an even part of the one before, one index of the rest.
    """
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= most:
        axis -= 1
        inner *= shape[axis]
    whole = tuple(range(n) for n in shape[axis:])
    if axis == 0:
        yield whole
        return
    size = shape[axis - 1]
    parts = -(-size // max(1, most // max(1, inner)))
    step = -(-size // parts)
    for lead in itertools.product(*(range(n) for n in shape[: axis - 1])):
        first = tuple(range(i, i + 1) for i in lead)
        for start in range(0, size, step):
            yield (*first, range(start, min(start + step, size)), *whole)


def lengths(box: Box) -> tuple[int, ...]:
    """Entries of each range."""
    return tuple(len(r) for r in box)


def span(box: Box, shape: Sequence[int]) -> slice:
    """Where a contiguous box lies in the flattened `shape`."""
    start = 0
    for r, n in zip(box, shape, strict=True):
        start = start * n + r.start
    return slice(start, start + prod(lengths(box)))


def gather(x: Array, window: Window, rows: Box, cols: Box, out: Array) -> None:
    """x (N, C, *S) -> out (N, C', *K', *P'): the values at `rows` (C, *K) and `cols` (*P).

    One strided copy where the block lies inside the image (a fifth to a third faster than a copy a
    tap: 48 against 67 us for 11 taps of a 227 x 227 image at stride 1), else a copy a tap.
    """
    x = x[:, rows[0].start : rows[0].stop]
    low = [
        p.start * s - pad + t.start * d
        for p, t, s, pad, d in zip(
            cols, rows[1:], window.stride, window.pad, window.dilation, strict=True
        )
    ]
    reach = zip(low, cols, rows[1:], window.stride, window.dilation, x.shape[2:], strict=True)
    if all(
        at >= 0 and at + (len(p) - 1) * s + (len(t) - 1) * d < size
        for at, p, t, s, d, size in reach
    ):
        corner = x[_inner(slice(at, None) for at in low)]
        steps = x.strides[2:]
        taps = (step * d for step, d in zip(steps, window.dilation, strict=True))
        positions = (step * s for step, s in zip(steps, window.stride, strict=True))
        np.copyto(out, as_strided(corner, out.shape, (*x.strides[:2], *taps, *positions)))
        return
    for tap, image, inside, outside in tap_slices(window, rows[1:], cols, x.shape[2:]):
        block = out[_inner(tap)]
        for edge in outside:
            block[_inner(edge)] = 0
        block[_inner(inside)] = x[_inner(image)]


def _inner(index: Iterable[Any]) -> tuple[Any, ...]:
    """An index of the axes behind the first two."""
    return (slice(None), slice(None), *index)


Slices = tuple[slice, ...]


def tap_slices(
    window: Window, taps: Box, cols: Box, spatial: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Slices, Slices, list[Slices]]]:
    """For each tap of a block: its index, the part of the image that its positions read, which
    positions of the block those are, and the slabs of positions that lie outside the image."""
    axes = [
        [_clip(t * d - pad, s, p, size) for t in tap_range]
        for tap_range, p, s, pad, d, size in zip(
            taps, cols, window.stride, window.pad, window.dilation, spatial, strict=True
        )
    ]
    for tap in itertools.product(*(range(len(t)) for t in taps)):
        parts = [axis[t] for axis, t in zip(axes, tap, strict=True)]
        image = tuple(part[0] for part in parts)
        inside = tuple(part[1] for part in parts)
        outside = [(*(slice(None),) * i, edge) for i, part in enumerate(parts) for edge in part[2]]
        yield tap, image, inside, outside


def _clip(
    offset: int, stride: int, positions: range, size: int
) -> tuple[slice, slice, list[slice]]:
    """One axis: positions p with 0 <= p * stride + offset < size, as slices of image and block."""
    count = len(positions)
    low = min(max(-(offset // stride) - positions.start, 0), count)
    high = max(min(-((offset - size) // stride) - positions.start, count), low)
    start = (positions.start + low) * stride + offset
    image = slice(start, start + (high - low - 1) * stride + 1, stride) if high > low else slice(0)
    edges = [edge for edge in (slice(0, low), slice(high, count)) if edge.start < edge.stop]
    return image, slice(low, high), edges
