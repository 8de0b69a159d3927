"""Convolution of each channel by itself: the channels are the innermost axis of everything.

One product a channel would be tiny. Here a block of channels is copied to (rows, columns, channels)
first, the columns of each phase of the stride side by side: every tap then is one multiplication
and one addition over runs of positions x channels, in blocks that stay in the cache. 3 x 3 in one
thread, ms before (a product a channel) and after: 512 x 14 x 14 from 6.8 to 0.5, 1024 x 7 x 7 from
12.5 to 0.3, 256 x 28 x 28 from 3.9 to 0.9, 128 x 56 x 56 from 2.5 to 1.7, with stride 2 to 0.6.
Products with banded matrices take 0.7 to 1.2 of that time where rows are short, but spread a NaN
over its whole row. Nothing is kept between calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from .convolution import WEIGHTS, Array, Scratch, Sizes
from .pool import run
from .threads import limited

IMAGE = 1 << 20
"""Bytes of scratch for the copy of a block of channels."""

ROWS = 1 << 17
"""Bytes of the rows that are summed at once."""

WIDEST = 64
"""Positions of a row up to which this is faster at stride 1: (32, 112, 112) takes 1.7 ms, by a
product a channel 1.3."""

LEAST = 16
"""Channels of a block at least; shorter runs cost a call each."""

ALONE = 3e6
"""Multiplications, about a millisecond, below which the calling thread does everything."""

Part = tuple[slice, ...]


class _Frame(NamedTuple):
    """The copy of a block: (rows, phases, columns of a phase), and the taps in it."""

    rows: int
    phases: int
    columns: int
    taps: tuple[tuple[int, int, int], ...]
    """First row, phase and column of each tap."""


def _frame(conv: Sizes) -> _Frame:
    """The frame that all of a block's output needs."""
    (kh, kw), (_, stride), (dh, dw) = conv.window.kernel, conv.window.stride, conv.window.dilation
    height, width = conv.y.shape[3:]
    taps = tuple((i * dh, *divmod(j * dw, stride)[::-1]) for i in range(kh) for j in range(kw))
    rows = (height - 1) * conv.window.stride[0] + conv.window.extent[0]
    return _Frame(rows, stride, taps[-1][2] + width, taps)


def applies(conv: Sizes) -> bool:
    """True for a channel a group, two spatial axes and rows and channels that make it faster."""
    if conv.x.shape[1] < LEAST or conv.x.shape[2] != 1 or len(conv.window.kernel) != 2:
        return False
    if conv.y.shape[-1] > WIDEST and conv.window.stride[1] == 1:
        return False
    row = conv.y.shape[-1] * conv.window.taps * conv.x.itemsize
    return not conv.window.is_pointwise and min(_most(conv), WEIGHTS // row) >= LEAST


def _most(conv: Sizes) -> int:
    """Channels whose copies fit into the scratch."""
    frame = _frame(conv)
    return IMAGE // (frame.rows * frame.phases * frame.columns * conv.x.itemsize)


def forward(conv: Sizes, b: Array | None, scratch: Scratch) -> None:
    """y = w * x + b; a task for each image and block of channels."""
    if conv.work < ALONE:
        _forward(conv, b, scratch, 1)
        return
    with limited() as count:
        _forward(conv, b, scratch, count)


def _forward(conv: Sizes, b: Array | None, scratch: Scratch, count: int) -> None:
    n, channels = conv.x.shape[:2]
    row = conv.y.shape[-1] * conv.window.taps * conv.x.itemsize
    most = min(_most(conv), WEIGHTS // row, max(LEAST, -(-channels * n // count)))
    parts = -(-channels // most)
    step = -(-channels // parts)
    blocks = [slice(c, min(c + step, channels)) for c in range(0, channels, step)]
    bias = None if b is None else b.reshape(channels, -1)
    tasks = list(itertools.product(range(n), blocks))
    run(lambda task: partial(_block, conv, bias, scratch, *task), tasks, count)


def _block(conv: Sizes, bias: Array | None, scratch: Scratch, image: int, channels: slice) -> None:
    frame, x = _frame(conv), conv.x[image, channels, 0]
    shape = (frame.rows, frame.phases, frame.columns, len(x))
    source = scratch("phases", shape, x.dtype)
    source[...] = 0
    for target, part in _fills(conv, frame):
        source[target] = x.transpose(1, 2, 0)[part]
    source = source.reshape(frame.rows, frame.phases, -1)
    for k in range(conv.y.shape[2]):
        w = conv.w[channels, k, 0].reshape(len(x), -1)
        y = conv.y[image, channels, k]
        _sum_taps(source, frame, w, y, conv.window.stride[0], scratch)
        if bias is not None:
            y += bias[channels, k].reshape(-1, 1, 1)


def _fills(conv: Sizes, frame: _Frame) -> Iterator[tuple[tuple[slice | int, ...], Part]]:
    """Where in the copy each phase goes, from where in the plane; the rest of the copy is pad."""
    (above, before), stride = conv.window.pad, frame.phases
    height, width = conv.x.shape[3:]
    count = min(height, frame.rows - above)
    for phase in range(stride):
        first = max(-((phase - before) // stride), 0)
        start = first * stride + phase - before
        columns = min(frame.columns - first, -(-(width - start) // stride))
        if columns > 0 and count > 0:
            plane = slice(start, start + (columns - 1) * stride + 1, stride)
            target = (slice(above, above + count), phase, slice(first, first + columns))
            yield target, (slice(count), plane)


def _sum_taps(
    source: Array, frame: _Frame, w: Array, y: Array, stride: int, scratch: Scratch
) -> None:
    """y (channels, *P): the sum of source's taps times w (channels, taps)."""
    channels, height, width = y.shape
    weights = scratch("weights", (w.shape[1], width, channels), w.dtype)
    weights[...] = w.T[:, None]
    weights = weights.reshape(w.shape[1], -1)
    run_length = width * channels
    step = max(1, ROWS // (run_length * w.itemsize))
    for top in range(0, height, step):
        rows = min(step, height - top)
        total = scratch("columns", (rows, run_length), y.dtype)
        product = scratch("product", (rows, run_length), y.dtype)
        for tap, (row, phase, column) in enumerate(frame.taps):
            at = top * stride + row
            values = source[at : at + (rows - 1) * stride + 1 : stride, phase]
            values = values[:, column * channels : column * channels + run_length]
            np.multiply(values, weights[tap], out=product if tap else total)
            if tap:
                total += product
        y[:, top : top + rows] = total.reshape(rows, width, channels).transpose(2, 0, 1)
