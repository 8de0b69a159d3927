"""How is an image laid out for a convolution? With its pad, split by stride; see convolution.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from llvmlite import ir

from ..cpu.pool import run as run_tasks
from ..window import Window
from . import tile
from .code import F32, I64, Code, compiled, lanes

Array = Any
Scratch = Callable[[str, tuple[int, ...], Any], Array]

FIELDS = ("x", "image", "line", "phases", "rows", "out", "phase", "pitch")
"""Integers for `run`: addresses, the bytes of a plane and a row of x, the number of phases (rows
times columns) and of their rows, the address, a phase's bytes and a row's bytes of the result."""

THREADED = 1 << 18
"""Values from which more than one thread works."""


def split(x: Array, window: Window, size: tuple[int, int], threads: int, scratch: Scratch) -> Array:
    """x (C, H, W) -> (C, *stride, *size), zeros for the pad, with room behind it for a tile.

    [c, fy, fx, r, q] is x[c, r * sy + fy - py, q * sx + fx - px].
    """
    shape = (len(x), *window.stride, *size)
    count, room = prod(shape), lanes() * tile.WIDEST
    flat = scratch("phases", (count + room,), np.float32)
    flat[count:] = 0
    rows, columns = _table(window, x.shape[1:], size)
    values = {
        "x": x.ctypes.data, "image": x[0].nbytes, "line": x[0, 0].nbytes,
        "phases": prod(window.stride), "rows": size[0], "out": flat.ctypes.data,
        "phase": 4 * prod(size), "pitch": 4 * size[1],
    }  # fmt: skip
    fields = np.array([values[name] for name in FIELDS], np.int64)
    kernel = run(window.stride[1])

    def work(part: tuple[int, int]) -> None:
        kernel(fields.ctypes.data, rows.ctypes.data, columns.ctypes.data, *part)

    threads = min(threads, len(x)) if count >= THREADED else 1
    cuts = [len(x) * i // threads for i in range(threads + 1)]
    tasks = [(cuts[i], cuts[i + 1]) for i in range(threads)]
    run_tasks(lambda task: partial(work, task), tasks, threads)
    return flat[:count].reshape(shape)


@lru_cache(maxsize=256)
def _table(window: Window, spatial: tuple[int, int], size: tuple[int, int]) -> tuple[Array, Array]:
    """For each phase (row first) and row of it the row of x, or -1; for each phase where its
    columns in x begin and end, in bytes, and the byte of x that the first is."""
    (sy, sx), (py, px) = window.stride, window.pad
    rows, columns = [], []
    for fy in range(sy):
        for fx in range(sx):
            lines = np.arange(size[0]) * sy + fy - py
            rows.append(np.where((lines >= 0) & (lines < spatial[0]), lines, -1))
            start = max(-(-(px - fx) // sx), 0)
            stop = max(min(-(-(spatial[1] + px - fx) // sx), size[1]), start)
            start, stop = min(start, size[1]), min(stop, size[1])
            columns.append((4 * start, 4 * stop, 4 * (start * sx + fx - px)))
    return np.array(rows, np.int64), np.array(columns, np.int64)


@cache
def run(stride: int) -> Callable[..., None]:
    """run(fields, rows, columns, first channel, last) for a stride along rows; see `_table`."""
    module = ir.Module("phases")
    c = Code.begin(module, "run", 5)
    base, rows, columns, first, last = c.function.args
    f = {name: c.field(base, i) for i, name in enumerate(FIELDS)}
    with c.loop(first, last) as channel, c.loop(I64(0), f["phases"]) as phase:
        source = c.add(f["x"], c.mul(channel, f["image"]))
        own = c.add(c.mul(channel, f["phases"]), phase)
        target = c.add(f["out"], c.mul(own, f["phase"]))
        at = c.add(columns, c.mul(phase, I64(24)))
        start, stop, begin = c.field(at, 0), c.field(at, 1), c.field(at, 2)
        lines = c.add(rows, c.mul(c.mul(phase, f["rows"]), I64(8)))
        with c.loop(I64(0), f["rows"]) as row:
            to = c.add(target, c.mul(row, f["pitch"]))
            line = c.load(c.at(c.add(lines, c.mul(row, I64(8))), I64))
            with c.if_else(c.icmp_signed("<", line, I64(0))) as (outside, inside):
                with outside:
                    _zeros(c, to, I64(0), f["pitch"])
                with inside:
                    _zeros(c, to, I64(0), start)
                    origin = c.add(c.add(source, c.mul(line, f["line"])), begin)
                    _row(c, origin, c.add(to, start), c.sub(stop, start), stride)
                    _zeros(c, to, stop, f["pitch"])
    c.ret_void()
    return compiled(module, "run", 5)


def _zeros(c: Code, address: Any, start: Any, stop: Any) -> None:
    with c.loop(start, stop, 4) as at:
        c.store(ir.Constant(F32, 0.0), c.at(c.add(address, at), F32))


def _row(c: Code, source: Any, target: Any, length: Any, stride: int) -> None:
    """Every `stride`-th value of the source, `length` bytes of them."""
    size = 4 * lanes()
    whole = c.and_(length, I64(-size)) if stride == 1 else I64(0)
    if stride == 1:
        with c.loop(I64(0), whole, size) as at:
            c.put(c.floats(c.add(source, at)), c.add(target, at))
    with c.loop(whole, length, 4) as at:
        value = c.load(c.at(c.add(source, c.mul(at, I64(stride))), F32))
        c.store(value, c.at(c.add(target, at), F32))
