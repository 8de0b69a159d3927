"""What is a convolution's inner loop? A tile of outputs in registers, summed over all taps.

`run` computes some output channels (rows) at some positions (lanes). The input needs no column
matrix: tap k of all positions of a tile is one run of values, `offsets[k]` behind the tile's start,
in an input whose rows are as wide as needed (see convolution.py). The weights are read where the
user has them, so there is no packed copy that could grow old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir

from .code import F32, I32, I64, Code, compiled, lanes, registers

WIDEST = 3
"""Registers of positions in a tile; a tile of less has its own inner loop."""

FIELDS = ("depth", "weights", "pitch", "offsets", "x", "y", "plane", "outputs", "bias", "low",
          "tiles", "segments")  # fmt: skip
"""What `run` reads: integers in an array, addresses and byte counts among them."""


def rows() -> int:
    """Output channels of a tile: as many as leave registers for the input and a weight."""
    return (registers() - WIDEST - 1) // WIDEST // 4 * 4


@cache
def run() -> Callable[..., None]:
    """run(fields, first tile, last, first row tile, last, scratch), ends excluded.

    Scratch has `rows() * WIDEST * lanes()` float32. A tile is (start in bytes, registers, first
    segment, last), a segment (lane, position of y in bytes, length in bytes).
    """
    module = ir.Module("tile")
    by_width = {width: inner(module, width) for width in range(1, WIDEST + 1)}
    c = Code.begin(module, "run", 6)
    base, first, last, top, bottom, scratch = c.function.args
    f = {name: c.field(base, i) for i, name in enumerate(FIELDS)}
    with c.loop(top, bottom) as row, c.loop(first, last) as tile:
        at = c.add(f["tiles"], c.mul(tile, I64(32)))
        start, width = c.field(at, 0), c.field(at, 1)
        channel = c.mul(row, I64(rows()))
        for count, function in by_width.items():
            with c.if_then(c.icmp_signed("==", width, I64(count))):
                c.call(
                    function,
                    [f["depth"], f["weights"], f["pitch"], f["offsets"], c.add(f["x"], start),
                     scratch, f["bias"], channel, f["outputs"], f["low"]],
                )  # fmt: skip
        _scatter(c, f, channel, c.field(at, 2), c.field(at, 3), scratch)
    c.ret_void()
    return compiled(module, "run", 6)


def inner(module: ir.Module, width: int) -> ir.Function:
    """The sum over taps for a tile of `rows()` channels and `width` registers, into scratch."""
    c = Code.begin(module, f"tile{width}", 10)
    c.function.attributes.add("noinline")
    depth, weights, pitch, offsets, x, scratch, bias, channel, outputs, low = c.function.args
    w, sums = [], []
    for i in range(rows()):
        # Rows past the last channel repeat it: they are computed and dropped.
        own = c.add(channel, I64(i))
        own = c.select(c.icmp_signed("<", own, outputs), own, c.sub(outputs, I64(1)))
        w.append(c.add(weights, c.mul(own, pitch)))
        b = c.load(c.at(c.add(bias, c.mul(own, I64(4))), F32))
        sums.append([c.repeat(b)] * width)
    sums = _sum(c, depth, w, offsets, x, sums)
    bound = c.low(low)
    for i, row in enumerate(sums):
        for j, value in enumerate(row):
            c.put(c.at_least(value, bound), c.add(scratch, I64(4 * lanes() * (i * WIDEST + j))))
    c.ret_void()
    return c.function


def _sum(c: Code, depth: Any, w: list[Any], offsets: Any, x: Any, sums: list[list[Any]]) -> Any:
    before, loop = c.block, c.append_basic_block("taps")
    after = c.append_basic_block("end")
    c.branch(loop)
    c.position_at_end(loop)
    k = c.phi(I64)
    k.add_incoming(I64(0), before)
    total = [[c.phi(c.vector) for _ in row] for row in sums]
    source = c.add(x, c.load(c.at(c.add(offsets, c.shl(k, I64(3))), I64)))
    values = [c.floats(c.add(source, I64(4 * lanes() * j))) for j in range(len(sums[0]))]
    for i, row in enumerate(total):
        weight = c.repeat(c.load(c.gep(c.at(w[i], F32), [k])))
        for j, phi in enumerate(row):
            phi.add_incoming(sums[i][j], before)
            phi.add_incoming(c.fused(weight, values[j], phi), loop)
    following = c.add(k, I64(1))
    k.add_incoming(following, loop)
    c.cbranch(c.icmp_signed("<", following, depth), loop, after)
    c.position_at_end(after)
    return [[phi.incomings[1][0] for phi in row] for row in total]


def _scatter(c: Code, f: dict[str, Any], channel: Any, first: Any, last: Any, tile: Any) -> None:
    """The tile's values that are positions of the output, to where they belong."""
    most = c.sub(f["outputs"], channel)
    most = c.select(c.icmp_signed("<", most, I64(rows())), most, I64(rows()))
    with c.loop(first, last) as segment:
        at = c.add(f["segments"], c.mul(segment, I64(24)))
        source, target, length = c.add(tile, c.field(at, 0)), c.field(at, 1), c.field(at, 2)
        with c.loop(I64(0), most) as i:
            own = c.add(f["y"], c.mul(c.add(channel, i), f["plane"]))
            copy(c, c.add(source, c.mul(i, I64(4 * lanes() * WIDEST))), c.add(own, target), length)


def copy(c: Code, source: Any, target: Any, length: Any) -> None:
    """`length` bytes; the source may be read a register further, the target is not written so."""
    size = 4 * lanes()
    whole = c.and_(length, I64(-size))
    with c.loop(I64(0), whole, size) as at:
        c.put(c.floats(c.add(source, at)), c.add(target, at))
    rest = c.lshr(c.sub(length, whole), I64(2))
    bits = ir.VectorType(ir.IntType(1), lanes())
    count = ir.VectorType(I32, lanes())
    with c.if_then(c.icmp_signed(">", rest, I64(0))):
        number = ir.Constant(count, list(range(lanes())))
        empty = ir.Constant(count, ir.Undefined)
        zero = ir.Constant(count, [0] * lanes())
        all_rest = c.shuffle_vector(
            c.insert_element(empty, c.trunc(rest, I32), I32(0)), empty, zero
        )
        mask = c.icmp_signed("<", number, all_rest)
        kind = c.vector.as_pointer()
        name = f"llvm.masked.store.v{lanes()}f32.p0"
        store = c.intrinsic(name, ir.VoidType(), [c.vector, kind, I32, bits])
        value = c.floats(c.add(source, whole))
        c.call(store, [value, c.at(c.add(target, whole), c.vector), I32(4), mask])


Call = tuple[np.ndarray, int, int, int, int]
"""Arguments of `run`, but for the scratch."""


def cut(fields: np.ndarray, tiles: int, rows: int, pieces: int) -> list[Call]:
    """The tiles in as many pieces, each one run of positions for all rows, or of rows for all."""
    by_tiles = tiles >= pieces or tiles >= rows
    total = tiles if by_tiles else rows
    cuts = [total * i // pieces for i in range(pieces + 1)]
    parts = [(a, b) for a, b in pairwise(cuts) if a < b]
    if by_tiles:
        return [(fields, a, b, 0, rows) for a, b in parts]
    return [(fields, 0, tiles, a, b) for a, b in parts]


def widths(count: int) -> list[int]:
    """`count` registers in tiles: widest ones, and where one would be left two of two."""
    whole, rest = divmod(count, WIDEST)
    if rest == 1 and whole:
        return [WIDEST] * (whole - 1) + [2, 2]
    return [WIDEST] * whole + [rest] * (rest > 0)


Part = tuple[int, int, int, int]
"""Lane, row, column and number of neighbouring positions that are the output's."""


def runs(rows: int, columns: int, pitch: int) -> Iterator[tuple[int, int, list[Part]]]:
    """Tiles over `rows` x `columns` positions in rows of `pitch`: (start, registers, parts)."""
    total, start = (rows - 1) * pitch + columns, 0
    for width in widths(-(-total // lanes())):
        stop, parts = min(start + width * lanes(), total), []
        for row in range(start // pitch, -(-stop // pitch)):
            low, high = max(start, row * pitch), min(stop, row * pitch + columns)
            if low < high:
                parts.append((low - start, row, low - row * pitch, high - low))
        yield start, width, parts
        start = stop


def low_bits(low: float) -> int:
    """A float32 as the integer that `low` wants."""
    return int(np.float32(low).view(np.uint32))
