"""Convolution without the whole column matrix: tiles of it, in scratch that stays in the cache.

A tile is the columns of some output positions, (C/G * taps, positions), multiplied straight into
the output by one `np.matmul`. Below `SMALL` the calling thread gathers and BLAS's own threads
multiply; above, tasks on a pool do both, with BLAS held to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..window import Window
from .columns import Box, boxes, gather, lengths, span
from .pool import Begin, run
from .threads import is_limited, limited

Array = Any
Scratch = Callable[[str, tuple[int, ...], Any], Array]

# Bytes of scratch a thread: together below 8 MB, whatever the image.
COLUMNS = 4 << 20
PRODUCT = 1 << 20
WEIGHTS = 1 << 18

SMALL = 1e9
"""Multiplications below which the calling thread gathers and BLAS keeps its own threads.

On two CPUs that share a cache the pool loses far above a millisecond of work: pool / alone in ms is
0.95 / 0.60 for 35 million multiplications, 2.5 / 1.9 for 138, 6.2 / 4.0 for 346, 9.1 / 7.4 for 546
and 24.5 / 26.9 for 1849. Its threads wake up, or wait for the interpreter, in 20 to 65 us, several
times. Where the two CPUs share no cache (a virtual machine may move between the two states), BLAS's
second thread fetches columns that the first has just written, and the calling thread takes about
1.5 times the pool's time; nothing tells that from here.  benchmarks/conv_thresholds.py
"""

POOLED = 100e6
"""What `SMALL` is where BLAS is held to one thread anyway: AlexNet takes 23.3 ms on two quiet CPUs
so, 29.0 with `SMALL`, ResNet-50 99 and 113. (To hold BLAS to one thread for the smallest
convolutions helps where others keep the CPUs busy, and costs SqueezeNet a third where not.)"""

MANY, BATCH = 16, 15e6
"""Images, and multiplications, from which a batch goes to the pool: a task is a few long calls for
many images, while BLAS alone has one thread for the product of one."""

NARROW = 64
"""Positions of a tile at least, where its columns are not cut."""

NEVER = 1 << 62


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

    @property
    def is_batch(self) -> bool:
        """True for work enough for several threads in images enough for each."""
        return self.cols[0] >= MANY and self.work >= BATCH


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
    """y = w * x + b, by tiles or, for a pointwise window, straight from x."""
    bias = None if b is None else b.reshape(conv.w.shape[0], -1, 1)
    if conv.is_batch or conv.work >= (POOLED if is_limited() else SMALL):
        with limited() as count:
            _forward(conv, bias, scratch, count)
        return
    _forward(conv, bias, scratch, 1)


def _forward(conv: Sizes, bias: Array | None, scratch: Scratch, count: int) -> None:
    group, outputs = conv.w.shape[:2]
    if conv.window.is_pointwise and is_flat(conv.x):
        begin, most = _pointwise(conv, bias), NEVER
    else:
        # Even where that means to cut the column matrix's rows too, a tile has some positions.
        least = max(1, min(NARROW, PRODUCT // conv.x.itemsize // outputs))
        begin = _block(conv, bias, scratch)
        most = max(COLUMNS // conv.x.itemsize // conv.depth, least)
    run(begin, _tiles(group, outputs, conv.cols, most, count, _pieces(conv.work, count)), count)


def _pieces(work: int, count: int) -> int:
    """Tasks to cut a convolution into: one to four a thread, each of about a millisecond or more.

    A third of that cost 12 % for 138 million multiplications on two threads (2.08, 1.83 ms).
    """
    return count * min(max(work // (count * 60_000_000), 1), 4)


@lru_cache(maxsize=64)
def _tiles(
    group: int, outputs: int, cols: tuple[int, ...], most: int, count: int, pieces: int
) -> list[Tile]:
    """Tiles of at most `most` positions, and at least two a thread where there is enough."""
    positions = prod(cols)
    parts = 1
    if count > 1:
        share = -(-positions * group // pieces)
        most = min(most, max(share, 200))
        parts = min(-(-count // (group * -(-positions // most))), max(1, outputs // 16))
    return [
        Tile(g, o, box)
        for box in boxes(cols, most)
        for g in range(group)
        for (o,) in boxes((outputs,), -(-outputs // parts))
    ]


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


class _Cut(NamedTuple):
    """Rows of a tile's column matrix that fit into the scratch."""

    rows: Box
    depth: int
    shape: tuple[int, ...]
    """The cut's columns: (images, C', *K', *P')"""
    at: slice
    """The same rows as columns of the weights."""


@lru_cache(maxsize=256)
def _cuts(rows: tuple[int, ...], cols: Box, itemsize: int) -> list[_Cut]:
    """The cuts of a tile at `cols` (images, *positions) of a matrix with `rows` (C/G, *K)."""
    images, *positions = lengths(cols)
    most = COLUMNS // itemsize // (images * prod(positions))
    return [
        _Cut(box, prod(lengths(box)), (images, *lengths(box), *positions), span(box, rows))
        for box in boxes(rows, most)
    ]


def _block(conv: Sizes, bias: Array | None, scratch: Scratch) -> Begin[Tile]:
    w, ones = _weights(conv, bias, scratch)
    y = conv.y.reshape(*conv.y.shape[:3], -1)
    sizes = conv.cols[1:]

    def multiply(tile: Tile) -> None:
        g, outputs, cols = tile
        o = slice(outputs.start, outputs.stop)
        i = slice(cols[0].start, cols[0].stop)
        part = y[i, g, o, span(cols[1:], sizes)]
        target = part
        for cut in _cuts(conv.rows, cols, part.itemsize):
            shape = (part.shape[0], cut.depth + ones, part.shape[2])
            col = scratch("columns", shape, part.dtype)
            columns = col[:, : cut.depth].reshape(cut.shape)
            gather(conv.x[i, g], conv.window, cut.rows, cols[1:], columns, scratch)
            if ones:
                col[:, cut.depth] = 1
            np.matmul(w[g, o] if ones else w[g, o, cut.at], col, out=target)
            if target is not part:
                part += target
            elif cut.depth < conv.depth:
                target = scratch("product", part.shape, part.dtype)
        if bias is not None and not ones:
            part += bias[g, o]

    return lambda tile: partial(multiply, tile)


def _weights(conv: Sizes, bias: Array | None, scratch: Scratch) -> tuple[Array, int]:
    """(G, O/G, C/G * taps), and 1 where the bias is one more column that meets a row of ones."""
    group, outputs = conv.w.shape[:2]
    w = conv.w.reshape(group, outputs, conv.depth)
    if bias is None or w.nbytes > WEIGHTS or conv.depth * NARROW * w.itemsize > COLUMNS:
        return w, 0
    extended = scratch("weights", (group, outputs, conv.depth + 1), w.dtype)
    extended[..., :-1] = w
    extended[..., -1:] = bias
    return extended, 1
