"""One vector through an inner product: as many threads as it takes to read the weights.

Such a product does little but read memory, and one thread does not get all that the memory gives;
BLAS's own threads are not to be had behind a large convolution, which holds BLAS to one. On two
threads (4096, 9216) takes 7.6 to 11.0 ms, 11.5 in one; (4096, 4096) 1.65, 2.79 in one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .pool import run
from .threads import limited

Array = Any

LARGE = 1 << 23
"""Weights, about a millisecond of reading, from which a pool is worth waking up."""


def forward(x: Array, w: Array, b: Array | None, out: Array) -> None:
    """x (K), w (O, K), b (O) or None -> out (O); each thread has rows of w of its own."""
    if w.size < LARGE:
        np.matmul(w, x, out=out)
    else:
        with limited() as count:
            cuts = [len(w) * i // (2 * count) for i in range(2 * count + 1)]
            rows = [slice(a, z) for a, z in zip(cuts, cuts[1:], strict=False) if a < z]
            run(lambda part: partial(np.matmul, w[part], x, out=out[part]), rows, count)
    if b is not None:
        out += b
