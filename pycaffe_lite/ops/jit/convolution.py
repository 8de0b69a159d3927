"""Convolution over two axes without a column matrix: the input laid out so that taps are offsets.

The image is copied once, with its pad, split by stride into phases: plane (fy, fx) holds the
positions whose coordinates leave these remainders. Position p of the output, counted along rows of
the phases' width, then reads tap k at p + offset[k], so a register of neighbouring positions is one
load. Positions counted past a row's end are computed and dropped: 2 of 58 for 3 x 3 over 56.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..cpu.pool import run as run_tasks
from ..cpu.threads import get_num_threads
from ..window import Window
from . import phases, tile, winograd
from .code import lanes

Array = Any
Scratch = Callable[[str, tuple[int, ...], Any], Array]

THREADED = 2e7
"""Multiplications, a quarter of a millisecond, from which more than one thread works: from a tenth
of it on the pool's round trips cost GoogLeNet 43.5 ms where these take 39.5."""

TURN = 4e7
"""Multiplications, half a millisecond, of a piece at least: threads that come for the next one wait
for each other's Python."""

BLOCK = 1 << 19
"""Bytes of the input that are read again for each row of tiles: they stay in a core's own cache."""


class Layout(NamedTuple):
    """How an image lies in memory, and where a tile of positions finds its taps."""

    size: tuple[int, int]
    """Rows and columns of a phase's plane."""
    tiles: Array
    segments: Array
    offsets: Array
    """int64 (C/G * taps): bytes from a position to each of its taps."""


def applies(x: Array, w: Array, group: int, out: Array) -> bool:
    """True for what the kernel covers: float32 over two axes, all C contiguous, and groups of
    outputs that fill half a tile (one channel a group is better off with ops/cpu/depthwise.py)."""
    arrays = (x, w, out)
    return (
        x.ndim == 4
        and (group == 1 or 2 * len(w) >= tile.rows() * group)
        and out.size > 0
        and w.size > 0
        and all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
    )


def forward(
    x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array, scratch: Scratch
) -> None:
    """x (N, C, H, W), w (O, C/G, KH, KW), b (O) or None -> out (N, O, OH, OW)."""
    bias = _bias(b, len(w), scratch)
    if winograd.applies(w, window, group, out.shape[2:]):
        maps, tiles = winograd.map_weights(w, group), winograd.layout(out.shape[2:])
        for image, top in zip(x, out, strict=True):
            source = phases.split(
                image, winograd.phases_window(window), tiles.size, get_num_threads(), scratch
            )
            winograd.image(source, w, maps, bias, group, top, scratch)
        return
    layout = _layout(window, x.shape[2:], out.shape[2:], w.shape[1])
    for image, top in zip(x, out, strict=True):
        source = image
        if not (window.is_pointwise and _has_slack(x)):
            source = phases.split(image, window, layout.size, get_num_threads(), scratch)
        _image(source, w, bias, group, top, layout)


def _bias(b: Array | None, outputs: int, scratch: Scratch) -> Array:
    bias = scratch("bias", (outputs,), np.float32)
    bias[...] = 0 if b is None else b
    return bias


def _has_slack(x: Array) -> bool:
    """May a register be read that ends behind x? Blobs have room there, a user's array has not."""
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    end = x.ctypes.data + x.nbytes + 4 * lanes() * tile.WIDEST
    return bool(root.ctypes.data + root.nbytes >= end)


def _image(x: Array, w: Array, bias: Array, group: int, out: Array, layout: Layout) -> None:
    outputs, channels = len(w) // group, len(x) // group
    work = out.size * w[0].size
    count = get_num_threads() if work >= THREADED else 1
    size, planes = tile.rows(), channels * x[0].nbytes
    pieces = max(-(-count * _turns(work, count) // group), planes // BLOCK, 1)
    calls: list[tile.Call] = []
    for g in range(group):
        part, o = w[g * outputs :], g * outputs
        values = {
            "depth": w[0].size, "weights": part.ctypes.data, "pitch": w[0].nbytes,
            "offsets": layout.offsets.ctypes.data, "x": x.ctypes.data + g * planes,
            "y": out[o:].ctypes.data, "plane": out[0].nbytes, "outputs": outputs,
            "bias": bias[o:].ctypes.data, "low": tile.low_bits(-np.inf),
            "tiles": layout.tiles.ctypes.data, "segments": layout.segments.ctypes.data,
        }  # fmt: skip
        fields = np.array([values[name] for name in tile.FIELDS], np.int64)
        calls += tile.cut(fields, len(layout.tiles), -(-outputs // size), pieces)
    run_tasks(lambda call: partial(_work, *call), calls, count)


def _turns(work: int, count: int) -> int:
    """Pieces for each thread: one for each half millisecond, 4 at most."""
    return min(max(int(work // (count * TURN)), 1), 4)


def _work(fields: Array, first: int, last: int, top: int, bottom: int) -> None:
    room = np.empty(tile.rows() * tile.WIDEST * lanes() + lanes(), np.float32)
    tile.run()(fields.ctypes.data, first, last, top, bottom, room.ctypes.data)


@lru_cache(maxsize=256)
def _layout(
    window: Window, spatial: tuple[int, int], positions: tuple[int, int], channels: int
) -> Layout:
    reach = [(e - 1) // s for e, s in zip(window.extent, window.stride, strict=True)]
    size = (positions[0] + reach[0], positions[1] + reach[1])
    if window.is_pointwise:
        size = spatial
    offsets = [
        ((c * window.stride[0] + y % window.stride[0]) * window.stride[1] + x % window.stride[1])
        * prod(size)
        + y // window.stride[0] * size[1]
        + x // window.stride[1]
        for c in range(channels)
        for y in range(0, window.extent[0], window.dilation[0])
        for x in range(0, window.extent[1], window.dilation[1])
    ]
    tiles, segments = _tiles(positions, size[1])
    return Layout(size, tiles, segments, 4 * np.array(offsets, np.int64))


def _tiles(positions: tuple[int, int], pitch: int) -> tuple[Array, Array]:
    """Tiles (start, registers, first segment, last) over all positions, and their segments."""
    tiles: list[tuple[int, ...]] = []
    segments: list[tuple[int, int, int]] = []
    for start, width, parts in tile.runs(*positions, pitch):
        first = len(segments)
        for lane, row, column, length in parts:
            segments.append((4 * lane, 4 * (row * positions[1] + column), 4 * length))
        tiles.append((4 * start, width, first, len(segments)))
    return np.array(tiles, np.int64), np.array(segments, np.int64)
