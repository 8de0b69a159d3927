"""Convolution without the whole column matrix: tiles of it, in the cache of the thread at work.

Two ways to cut a tile, both written straight into the output by one `np.matmul`:

* **block**: the columns of some positions, all rows: (C/G * taps, positions).
* **band**: the columns of the kernel's *trailing* axes for a band of input rows, laid out as
  (input row, channel, trailing taps, positions of one output row). The matrix of output row i is
  then the view that starts at input row i * stride: consecutive output rows share what they have in
  common, and each value is gathered k / k0 times instead of k. For 11 x 11 on a 227 x 227 image the
  gather falls from 11 ms to 0.05 ms, and the products run as fast as a single one
  (stride 1: 13.9 against 14.7 ms in one thread).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..window import Window
from .columns import Box, boxes, gather, lengths, span
from .pool import Begin, run
from .threads import limited

Array = Any
Scratch = Callable[[str, tuple[int, ...], Any], Array]

# Bytes of scratch a thread: together below 8 MB, whatever the image.
COLUMNS = 4 << 20
PRODUCT = 1 << 20
WEIGHTS = 2 << 20

# What benchmarks/conv_thresholds.py prints on two CPUs, OpenBLAS 0.3.31 with AVX-512.
SMALL = 150e6
"""Multiplications below which the calling thread works alone and BLAS keeps its own threads.

Pool / alone: 0.99 / 0.46 ms for 22 million, 1.15 / 0.75 for 43, 3.99 / 2.43 for 116. The pool costs
0.3 ms: threads that wake up or wait for the interpreter do so in 20 to 65 us, several times.
"""

SMALL_BANDS = 30e6
"""The same for bands, whose products are too small for BLAS's threads: about even at 35 million."""

NEVER = 1 << 62

SMALL_PRODUCT = 900_000
"""Multiplications of one matrix product that OpenBLAS does without packing (below a million)."""

BAND = 24
"""Positions of an output row from which bands beat blocks: by 1.4 at 28 for 5 x 5 on 16 channels,
by 1.5 to 2 at 112 for 7 x 7 of stride 2 on 3."""


class Sizes(NamedTuple):
    """One convolution's arrays with the group axis apart, and what follows from them."""

    x: Array
    """(N, G, C/G, *S)"""
    w: Array
    """(G, O/G, C/G, *K)"""
    y: Array
    """(N, G, O/G, *P)"""
    window: Window

    @property
    def rows(self) -> tuple[int, ...]:
        """(C/G, *K)"""
        return self.w.shape[2:]

    @property
    def depth(self) -> int:
        """Rows of the column matrix."""
        return prod(self.rows)

    @property
    def cols(self) -> tuple[int, ...]:
        """(N, *P)"""
        return (self.y.shape[0], *self.y.shape[3:])

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.y.size * self.depth


class Tile(NamedTuple):
    """One task: some output channels of one group at some positions."""

    group: int
    outputs: range
    cols: Box


def sizes(x: Array, w: Array, y: Array, window: Window, group: int) -> Sizes | None:
    """The arrays grouped, or None where the kernels here do not apply."""
    if x.ndim < 3 or x.dtype not in (np.float32, np.float64) or not y.size or not w.size:
        return None
    if not x.dtype == w.dtype == y.dtype or not y.flags.c_contiguous:
        return None
    n, channels = x.shape[:2]
    outputs = w.shape[0]
    return Sizes(
        x.reshape(n, group, channels // group, *x.shape[2:]),
        w.reshape(group, outputs // group, *w.shape[1:]),
        y.reshape(n, group, outputs // group, *y.shape[2:]),
        window,
    )


def is_small(conv: Sizes) -> bool:
    """True where the generic kernel is as good: little work, and a pad, which it copies at once.

    Tile by tile, padding costs a few copies a tap: 0.27 against 0.19 ms for 5 x 5 on (3, 32, 32).
    """
    if conv.work >= SMALL or not any(conv.window.pad):
        return False
    n, group, channels, *spatial = conv.x.shape
    padded = prod(s + 2 * p for s, p in zip(spatial, conv.window.pad, strict=True))
    columns = max(conv.window.taps * prod(conv.cols[1:]), padded) * n * group * channels
    return columns * conv.x.itemsize <= COLUMNS


def is_flat(x: Array) -> bool:
    """True where each channel's positions are one contiguous run."""
    run = x.itemsize
    for size, step in zip(x.shape[:2:-1], x.strides[:2:-1], strict=True):
        if size != 1 and step != run:
            return False
        run *= size
    return True


# ---- forward ------------------------------------------------------------------------------------


def forward(conv: Sizes, b: Array | None, scratch: Scratch) -> None:
    """y = w * x + b, by bands, blocks or, for a pointwise window, straight from x."""
    bias = None if b is None else b.reshape(conv.w.shape[0], -1, 1)
    if conv.work < (SMALL_BANDS if _banded(conv) else SMALL):
        _forward(conv, bias, scratch, 1)
        return
    with limited() as count:
        _forward(conv, bias, scratch, count)


def _forward(conv: Sizes, bias: Array | None, scratch: Scratch, count: int) -> None:
    if conv.window.is_pointwise and is_flat(conv.x):
        run(_pointwise(conv, bias), list(_blocks(conv, NEVER, count)), count)
    elif _banded(conv):
        run(_bands(conv, bias, scratch), list(_band_tiles(conv, count)), count)
    else:
        most = max(COLUMNS // conv.x.itemsize // conv.depth, _least(conv))
        run(_block(conv, bias, scratch), list(_blocks(conv, most, count)), count)


def _pieces(conv: Sizes, count: int) -> int:
    """Tasks to cut a convolution into: one to four a thread, each of about a millisecond or more.

    A third of that cost 12 % for 138 million multiplications on two threads (2.08, 1.83 ms).
    """
    return count * min(max(conv.work // (count * 60_000_000), 1), 4)


def _least(conv: Sizes) -> int:
    """Positions a tile has even where that means to cut the column matrix's rows too."""
    outputs = conv.w.shape[1]
    return max(1, min(64, PRODUCT // conv.x.itemsize // outputs))


def _blocks(conv: Sizes, most: int, count: int) -> Iterator[Tile]:
    """Tiles of at most `most` positions, and at least two a thread where there is enough."""
    group, outputs = conv.w.shape[:2]
    positions = prod(conv.cols)
    parts = 1
    if count > 1:
        share = -(-positions * group // _pieces(conv, count))
        most = min(most, max(share, 200))
        parts = min(-(-count // (group * -(-positions // most))), max(1, outputs // 16))
    for cols in boxes(conv.cols, most):
        for g in range(group):
            for (o,) in boxes((outputs,), -(-outputs // parts)):
                yield Tile(g, o, cols)


def _pointwise(conv: Sizes, bias: Array | None) -> Begin[Tile]:
    n, group, channels = conv.x.shape[:3]
    w = conv.w.reshape(group, -1, channels)
    x = conv.x.reshape(n, group, channels, -1)
    y = conv.y.reshape(n, group, w.shape[1], -1)

    def multiply(tile: Tile) -> None:
        g, outputs, (images, *cols) = tile
        at = span(tuple(cols), conv.cols[1:])
        o = slice(outputs.start, outputs.stop)
        i = slice(images.start, images.stop)
        part = y[i, g, o, at]
        np.matmul(w[g, o], x[i, g, :, at], out=part)
        if bias is not None:
            part += bias[g, o]

    return lambda tile: partial(multiply, tile)


def _block(conv: Sizes, bias: Array | None, scratch: Scratch) -> Begin[Tile]:
    group, outputs = conv.w.shape[:2]
    w = conv.w.reshape(group, outputs, -1)
    y = conv.y.reshape(*conv.y.shape[:3], -1)

    def multiply(tile: Tile) -> None:
        g, outputs, (images, *positions) = tile
        cols = tuple(positions)
        o = slice(outputs.start, outputs.stop)
        i = slice(images.start, images.stop)
        part = y[i, g, o, span(cols, conv.cols[1:])]
        most = COLUMNS // conv.x.itemsize // (len(images) * prod(lengths(cols)))
        target = part
        for rows in boxes(conv.rows, most):
            shape = (len(images), *lengths(rows), *lengths(cols))
            col = scratch("columns", shape, part.dtype)
            gather(conv.x[i, g], conv.window, rows, cols, col)
            col = col.reshape(len(images), -1, part.shape[2])
            np.matmul(w[g, o, span(rows, conv.rows)], col, out=target)
            if target is not part:
                part += target
            elif len(rows) and col.shape[1] < conv.depth:
                target = scratch("product", part.shape, part.dtype)
        if bias is not None:
            part += bias[g, o]

    return lambda tile: partial(multiply, tile)


# ---- bands --------------------------------------------------------------------------------------


def _banded(conv: Sizes) -> bool:
    """True where bands apply and share enough of their rows to be worth it."""
    window = conv.window
    if len(window.kernel) < 2 or window.dilation[0] != 1 or window.kernel[0] <= window.stride[0]:
        return False
    if prod(conv.cols[2:]) < BAND:
        return False
    if conv.w.size * 2 * conv.w.itemsize > WEIGHTS:
        return False
    # More weights than that are packed again for each row: (64, 576) gains nothing, (128, 864)
    # loses 14 %.
    return _step(conv) < NEVER and conv.depth * BAND * conv.x.itemsize <= COLUMNS // 2


def _band_tiles(conv: Sizes, count: int) -> Iterator[Tile]:
    group, outputs = conv.w.shape[:2]
    stride, kernel = conv.window.stride[0], conv.window.kernel[0]
    line = conv.depth // kernel
    budget = COLUMNS // 4 // conv.x.itemsize
    width = max(BAND, budget // (line * (kernel + 3 * stride)))
    share = -(-prod(conv.cols[:2]) * group // _pieces(conv, count)) if count > 1 else NEVER
    for cols in boxes(conv.cols[2:], width):
        rows = min((budget // (line * prod(lengths(cols))) - kernel) // stride + 1, share)
        for images, band in boxes(conv.cols[:2], max(1, rows)):
            for g in range(group):
                yield Tile(g, range(outputs), (images, band, *cols))


def _bands(conv: Sizes, bias: Array | None, scratch: Scratch) -> Begin[Tile]:
    kernel, stride = conv.window.kernel[0], conv.window.stride[0]
    channels, *taps = conv.w.shape[2], *conv.window.kernel[1:]
    line = Window((1, *taps), (1, *conv.window.stride[1:]), conv.window.pad, conv.window.dilation)
    depth, ones = channels * prod(taps), int(bias is not None)
    step = _step(conv)
    w = _band_weights(conv, bias, scratch)
    y = conv.y.reshape(*conv.y.shape[:4], -1)
    rows = (range(channels), *(range(k) for k in line.kernel))

    def begin(tile: Tile) -> Callable[[], None]:
        g, _, (images, band, *positions) = tile
        cols = tuple(positions)
        i = slice(images.start, images.stop)
        first, count = band.start * stride, (len(band) - 1) * stride + kernel
        n = prod(lengths(cols))
        col = scratch("columns", (len(images), count, depth + ones, n), conv.x.dtype)
        target = col[:, :, :depth].reshape(len(images), count, channels, 1, *taps, *lengths(cols))
        target = np.moveaxis(target, 1, 3 + len(taps))
        lines = (range(first, first + count), *cols)
        image, row, *inner = col.strides
        shape = (len(images), len(band), kernel * (depth + ones), n)
        view = as_strided(col, shape, (image, stride * row, *inner))
        part = y[i, g, :, band.start : band.stop, span(cols, conv.cols[2:])].swapaxes(1, 2)

        def multiply() -> None:
            gather(conv.x[i, g], line, rows, lines, target)
            col[:, :, depth:] = 1
            for start in range(0, n, step):
                at = (..., slice(start, start + step))
                np.matmul(w[g], view[at], out=part[at])

        return multiply

    return begin


def _step(conv: Sizes) -> int:
    """Positions of one product: as many as OpenBLAS multiplies without packing, or all.

    It packs from a million multiplications on (its kernels for AVX-512 and SVE; elsewhere always).
    For (96, 132) @ (132, 217) steps of 64 gain 13 %, for 109 columns 22 %; steps below 48 would
    cost too much where it packs each time.
    """
    step = SMALL_PRODUCT // (conv.w.shape[1] * conv.depth) // 16 * 16
    return step if step >= 48 else NEVER


def _band_weights(conv: Sizes, bias: Array | None, scratch: Scratch) -> Array:
    """(G, O/G, k0 * (C/G * trailing taps + 1)): in the order of a band's rows, with the bias.

    The one more column of each k0 meets the row of ones: the bias first, then zeros.
    """
    group, outputs, channels, kernel = conv.w.shape[:4]
    depth, ones = conv.depth // kernel, int(bias is not None)
    w = scratch("weights", (group, outputs, kernel, depth + ones), conv.w.dtype)
    ordered = w[..., :depth].reshape(group, outputs, kernel, channels, *conv.w.shape[4:])
    ordered[...] = conv.w.swapaxes(2, 3)
    if bias is not None:
        w[..., depth] = 0
        w[:, :, 0, depth] = bias[..., 0]
    return w.reshape(group, outputs, -1)
