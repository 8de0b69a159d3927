"""Products of two matrices in parts, a part a thread, with BLAS held to one.

BLAS's own threads are not to be had behind a large convolution, and those that it has woken wait
busily beside the pool's. One vector through an inner product does little but read memory, and one
thread does not get all that the memory gives: on two threads (4096, 9216) takes 7.6 to 11.0 ms,
11.5 in one; (4096, 4096) 1.65, 2.79 in one. Parts and so results depend on sizes and the number of
threads alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .pool import run
from .threads import limited

Array = Any

LARGE = 1 << 23
"""Multiplications, a fraction of a millisecond, from which a pool is worth waking up."""

NARROW = 32
"""Rows or columns of a part at least."""


def matmul(a: Array, b: Array, out: Array) -> Array:
    """a (M, K), b (K, N) -> out (M, N); each part is a range of its rows or of its columns."""
    (rows, depth), columns = a.shape, b.shape[1]
    if rows * depth * columns < LARGE or max(rows, columns) < 2 * NARROW:
        return np.matmul(a, b, out=out)
    with limited() as count:
        if rows == 1:  # as matrix times vector, which BLAS reads row by row
            w, x, y = b.T, a[0], out[0]
            parts = [partial(np.matmul, w[p], x, out=y[p]) for p in _parts(columns, 2 * count)]
        elif columns >= rows:
            parts = [partial(np.matmul, a, b[:, p], out=out[:, p]) for p in _parts(columns, count)]
        else:
            parts = [partial(np.matmul, a[p], b, out=out[p]) for p in _parts(rows, count)]
        run(lambda part: part, parts, count)
    return out


def _parts(length: int, count: int) -> list[slice]:
    count = min(count, length // NARROW)
    cuts = [length * i // count for i in range(count + 1)]
    return [slice(a, z) for a, z in zip(cuts, cuts[1:], strict=False)]
