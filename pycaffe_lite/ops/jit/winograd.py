"""3 x 3 convolution with a quarter of the multiplications: Winograd's F(4 x 4, 3 x 3), compiled.

The maps are those of ops/cpu/winograd.py, whose docstring says what they are and how exact; here a
thread takes a block of tiles, one a lane, through all three: input to 36 numbers a channel,
products of each with the weights', and back to 4 x 4 outputs. The input lies in phases of 4 x 4
(see convolution.py), where neighbouring tiles are neighbours.

The weights' maps are kept, with a check sum of the weights that each call compares: whoever changes
them, in whatever way, gets what they say.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from ..cpu.pool import run as run_tasks
from ..cpu.threads import get_num_threads
from ..cpu.winograd import INPUT, OUTPUT, WEIGHTS
from ..window import Window
from . import tile
from .code import F32, I64, Code, compiled, lanes

Array = Any
Scratch = Callable[[str, tuple[int, ...], Any], Array]

LEAST = 32
"""Channels and outputs of a group from which the maps are worth their time."""

FEWEST = 33
"""Tiles from which reading the weights' maps, four times the weights, pays."""

PAD = 320
"""Bytes between the 36 parts of a block, which else would share a few sets of the cache."""

FIELDS = (
    "channels", "weights", "pitch", "offsets", "zeros", "x", "plane", "row", "y", "image", "line",
    "outputs", "row tiles", "bias", "low", "blocks", "segments", "maps", "products", "part",
    "outs",
)  # fmt: skip
PARTS = 36


class Layout(NamedTuple):
    """Where tiles lie: counted along rows of phases that are one tile wider than the output."""

    size: tuple[int, int]
    blocks: Array
    """(start in bytes, registers, first segment, last)"""
    segments: Array
    """(position among a block's outputs, of y, length, all in bytes; rows)"""


def applies(w: Array, window: Window, group: int, positions: tuple[int, ...]) -> bool:
    """True for a 3 x 3 convolution of stride 1 that this makes faster."""
    outputs, channels = len(w) // group, w.shape[1]
    return (
        (window.kernel, window.stride, window.dilation) == ((3, 3), (1, 1), (1, 1))
        and min(outputs, channels) >= LEAST
        and os.environ.get("PYCAFFE_LITE_WINOGRAD", "1") != "0"
        and prod(-(-p // 4) for p in positions) >= FEWEST
    )


@lru_cache(maxsize=256)
def layout(positions: tuple[int, int]) -> Layout:
    """The tiles of an output of that size, in blocks."""
    rows, columns = (-(-p // 4) for p in positions)
    pitch = columns + 1
    blocks: list[tuple[int, ...]] = []
    segments: list[tuple[int, ...]] = []
    for start, width, parts in tile.runs(rows, columns, pitch):
        first = len(segments)
        for lane, row, column, length in parts:
            left = 4 * column
            wide = min(4 * length, positions[1] - left)
            tall = min(4, positions[0] - 4 * row)
            segments.append((16 * lane, 4 * (4 * row * positions[1] + left), 4 * wide, tall))
        blocks.append((4 * start, width, first, len(segments)))
    return Layout((rows + 1, pitch), np.array(blocks, np.int64), np.array(segments, np.int64))


def phases_window(window: Window) -> Window:
    """The window in whose phases the input must lie."""
    return Window((8, 8), (4, 4), window.pad)


def image(
    x: Array, w: Array, maps: Array, bias: Array, group: int, y: Array, scratch: Scratch
) -> None:
    """x (C, 4, 4, *size) in phases, w (O, C/G, 3, 3) and its `maps` -> y (O, OH, OW)."""
    outputs, channels = len(w) // group, w.shape[1]
    tiles, size = layout(y.shape[1:]), tile.rows()
    count = get_num_threads()
    rows, blocks = -(-outputs // size), len(tiles.blocks)
    offsets = _offsets(channels)
    calls: list[tile.Call] = []
    for g in range(group):
        o = g * outputs
        values = {
            "channels": channels, "weights": maps[g].ctypes.data, "pitch": 4 * channels,
            "offsets": offsets.ctypes.data, "zeros": _ZEROS.ctypes.data,
            "x": x[g * channels :].ctypes.data, "plane": x[0, 0, 0].nbytes,
            "row": x[0, 0, 0, 0].nbytes, "y": y[o:].ctypes.data, "image": y[0].nbytes,
            "outputs": outputs, "bias": bias[o:].ctypes.data, "low": tile.low_bits(-np.inf),
            "blocks": tiles.blocks.ctypes.data, "segments": tiles.segments.ctypes.data,
            "line": y[0, 0].nbytes, "row tiles": rows, **_room(channels, rows),
        }  # fmt: skip
        fields = np.array([values[name] for name in FIELDS], np.int64)
        calls += tile.cut(fields, blocks, rows, -(-count // group) * (1 + (blocks >= 2 * count)))
    run_tasks(lambda call: partial(_work, scratch, *call), calls, count)


_ZEROS = np.zeros(64, np.float32)


@lru_cache(maxsize=64)
def _offsets(channels: int) -> Array:
    return np.arange(channels, dtype=np.int64) * (4 * lanes() * tile.WIDEST)


def _room(channels: int, rows: int) -> dict[str, int]:
    """Bytes of a map of the input, where in a thread's scratch the products begin, bytes of one of
    the 36, where the outputs begin."""
    register = 4 * lanes() * tile.WIDEST
    maps, part = channels * register + PAD, rows * tile.rows() * register + PAD
    return {"maps": maps, "products": PARTS * maps, "part": part, "outs": PARTS * (maps + part)}


def _work(scratch: Scratch, fields: Array, first: int, last: int, top: int, bottom: int) -> None:
    size = int(fields[FIELDS.index("outs")]) // 4 + 16 * lanes() * tile.WIDEST + lanes()
    room = scratch("winograd", (size,), np.float32)
    run()(fields.ctypes.data, first, last, top, bottom, room.ctypes.data)


# ---- the weights --------------------------------------------------------------------------------

_known: dict[tuple[int, tuple[int, ...]], tuple[Any, bytes, Array]] = {}


def map_weights(w: Array, group: int) -> Array:
    """w (O, C/G, 3, 3) -> (G, 36, O/G in row tiles, C/G), zeros past a group's last output."""
    key = (w.ctypes.data, (group, *w.shape))
    root = w
    while isinstance(root.base, np.ndarray):
        root = root.base
    total = _check_sum(w)
    known = _known.get(key)
    if known is not None and known[0]() is root and known[1] == total:
        return known[2]
    outputs, channels, size = len(w) // group, w.shape[1], tile.rows()
    maps = np.zeros((group, PARTS, -(-outputs // size) * size, channels), np.float32)
    both = np.kron(WEIGHTS, WEIGHTS).astype(np.float32)
    for g, own in enumerate(w.reshape(group, outputs, channels, 9)):
        for o in range(0, outputs, size):
            part = np.matmul(own[o : o + size], both.T)
            maps[g, :, o : o + len(part)] = part.transpose(2, 0, 1)
    _known[key] = (weakref.ref(root, lambda _: _known.pop(key, None)), total, maps)
    return maps


def _check_sum(w: Array) -> bytes:
    total = np.zeros(4 * lanes(), np.uint32)
    whole = w.size // total.size * total.size
    check_sum()(w.ctypes.data, 4 * whole, total.ctypes.data)
    return total.tobytes() + w.reshape(-1)[whole:].tobytes()


@cache
def check_sum() -> Callable[..., None]:
    """check_sum(address, bytes, total): 4 registers of 32-bit sums that see places and values.

    Each lane is (sum ^ value) * odd number, rotated, value after value: a step that two different
    values never take alike. Without the rotation what differs in the highest bit alone stays there,
    and the change of two signs would go unseen.
    """
    module = ir.Module("check_sum")
    c = Code.begin(module, "check_sum", 3)
    address, length, total = c.function.args
    kind = ir.VectorType(ir.IntType(32), lanes())
    size = 4 * lanes()
    prime = ir.Constant(kind, [0x9E3779B1] * lanes())
    left, right = (ir.Constant(kind, [bits] * lanes()) for bits in (15, 17))
    before = c.block
    head, after = c.append_basic_block("head"), c.append_basic_block("after")
    start = [ir.Constant(kind, list(range(1, lanes() + 1)))] * 4
    c.cbranch(c.icmp_signed(">", length, I64(0)), head, after)
    c.position_at_end(head)
    at = c.phi(I64)
    at.add_incoming(I64(0), before)
    sums = [c.phi(kind) for _ in range(4)]
    new = []
    for j, one in enumerate(sums):
        one.add_incoming(start[j], before)
        place = c.at(c.add(address, c.add(at, I64(size * j))), kind)
        value = c.mul(c.xor(one, c.load(place, align=4)), prime)
        new.append(c.or_(c.shl(value, left), c.lshr(value, right)))
        one.add_incoming(new[j], head)
        c.store(new[j], c.at(c.add(total, I64(size * j)), kind), align=4)
    following = c.add(at, I64(4 * size))
    at.add_incoming(following, head)
    c.cbranch(c.icmp_signed("<", following, length), head, after)
    c.position_at_end(after)
    c.ret_void()
    return compiled(module, "check_sum", 3)


# ---- the compiled function ----------------------------------------------------------------------


@cache
def run() -> Callable[..., None]:
    """run(fields, first block, last, first row tile, last, scratch), ends excluded."""
    module = ir.Module("winograd")
    inner = {width: tile.inner(module, width) for width in range(1, tile.WIDEST + 1)}
    maps, back = _map_input(module), _map_back(module)
    c = Code.begin(module, "run", 6)
    base, first, last, top, bottom, scratch = c.function.args
    f = {name: c.field(base, i) for i, name in enumerate(FIELDS)}
    with c.loop(first, last) as block:
        at = c.add(f["blocks"], c.mul(block, I64(32)))
        start, width = c.field(at, 0), c.field(at, 1)
        c.call(maps, [base, c.add(f["x"], start), width, scratch])
        with c.loop(I64(0), I64(PARTS)) as part, c.loop(top, bottom) as row:
            own = c.add(c.mul(part, f["row tiles"]), row)
            weights = c.mul(c.mul(own, I64(tile.rows())), f["pitch"])
            target = c.add(c.mul(part, f["part"]), c.mul(row, I64(_row())))
            for count, function in inner.items():
                with c.if_then(c.icmp_signed("==", width, I64(count))):
                    c.call(
                        function,
                        [f["channels"], c.add(f["weights"], weights), f["pitch"], f["offsets"],
                         c.add(scratch, c.mul(part, f["maps"])),
                         c.add(c.add(scratch, f["products"]), target),
                         f["zeros"], I64(0), I64(tile.rows()), f["low"]],
                    )  # fmt: skip
        with c.loop(top, bottom) as row:
            c.call(back, [base, row, width, c.field(at, 2), c.field(at, 3), scratch])
    c.ret_void()
    return compiled(module, "run", 6)


def _row() -> int:
    """Bytes of a row tile's products."""
    return 4 * lanes() * tile.WIDEST * tile.rows()


def _map_input(module: ir.Module) -> ir.Function:
    """(fields, first tile, registers, scratch): 6 x 6 inputs of each tile to 36 numbers."""
    c = Code.begin(module, "map_input", 4)
    base, x, width, scratch = c.function.args
    f = {name: c.field(base, i) for i, name in enumerate(FIELDS)}
    with c.loop(I64(0), f["channels"]) as channel, c.loop(I64(0), width) as j:
        own = c.add(x, c.mul(j, I64(4 * lanes())))
        own = c.add(own, c.mul(channel, c.mul(f["plane"], I64(16))))
        values = []
        for row in range(6):
            line = c.add(own, c.mul(f["plane"], I64(row % 4 * 4)))
            line = c.add(line, f["row"]) if row > 3 else line
            planes = [c.add(line, c.mul(f["plane"], I64(column))) for column in range(4)]
            planes += [c.add(plane, I64(4)) for plane in planes[:2]]
            values.append([c.floats(plane) for plane in planes])
        target = c.add(c.mul(channel, I64(4 * lanes() * tile.WIDEST)), c.mul(j, I64(4 * lanes())))
        target = c.add(scratch, target)
        for part, value in enumerate(_both(c, INPUT, values)):
            c.put(value, c.add(target, c.mul(f["maps"], I64(part))))
    c.ret_void()
    return c.function


def _map_back(module: ir.Module) -> ir.Function:
    """(fields, row tile, registers, first segment, last, scratch): products to 4 x 4 outputs."""
    c = Code.begin(module, "map_back", 6)
    base, row, width, first, last, scratch = c.function.args
    f = {name: c.field(base, i) for i, name in enumerate(FIELDS)}
    products, lines = c.add(scratch, f["products"]), c.add(scratch, f["outs"])
    products = c.add(products, c.mul(row, I64(_row())))
    size = 4 * lanes() * tile.WIDEST
    channel = c.mul(row, I64(tile.rows()))
    most = c.sub(f["outputs"], channel)
    most = c.select(c.icmp_signed("<", most, I64(tile.rows())), most, I64(tile.rows()))
    bound = c.low(f["low"])
    with c.loop(I64(0), most) as i:
        own = c.add(channel, i)
        bias = c.repeat(c.load(c.at(c.add(f["bias"], c.mul(own, I64(4))), F32)))
        with c.loop(I64(0), width) as j:
            source = c.add(c.mul(i, I64(size)), c.mul(j, I64(4 * lanes())))
            source = c.add(products, source)
            values = [
                [c.floats(c.add(source, c.mul(f["part"], I64(6 * a + b)))) for b in range(6)]
                for a in range(6)
            ]
            out = [c.at_least(c.fadd(v, bias), bound) for v in _both(c, OUTPUT, values)]
            for line in range(4):
                target = c.add(lines, c.mul(j, I64(16 * lanes())))
                c.interleave(out[4 * line : 4 * line + 4], c.add(target, I64(4 * size * line)))
        with c.loop(first, last) as segment:
            at = c.add(f["segments"], c.mul(segment, I64(32)))
            target = c.add(c.add(f["y"], c.mul(own, f["image"])), c.field(at, 1))
            with c.loop(I64(0), c.field(at, 3)) as line:
                tile.copy(
                    c,
                    c.add(c.add(lines, c.field(at, 0)), c.mul(line, I64(4 * size))),
                    c.add(target, c.mul(line, f["line"])),
                    c.field(at, 2),
                )
    c.ret_void()
    return c.function


def _both(c: Code, matrix: Array, values: list[list[Any]]) -> list[Any]:
    """matrix @ values @ matrix.T for a square of registers, row after row."""
    columns = [_combine(c, matrix, list(column)) for column in zip(*values, strict=True)]
    return [value for row in zip(*columns, strict=True) for value in _combine(c, matrix, list(row))]


def _combine(c: Code, matrix: Array, values: list[Any]) -> list[Any]:
    """matrix @ values for a column of registers."""
    result = []
    for row in matrix:
        total = None
        for number, value in sorted(zip(row, values, strict=True), key=lambda pair: pair[0] != 1):
            if number == 0:
                continue
            if total is None:
                total = value if number == 1 else c.fmul(c.constant(number), value)
            elif number == 1:
                total = c.fadd(total, value)
            else:
                total = c.fused(c.constant(number), value, total)
        result.append(total)
    return result
