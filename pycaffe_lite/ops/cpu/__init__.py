"""The CPU backend: NumPy and BLAS, by tiles that stay in the cache and on all cores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..base import Array, Ops
from ..window import Window
from . import convolution, threads


class CpuOps(Ops):
    """NumPy with the kernels below in place of the generic ones; needs nothing else."""

    name = "cpu"
    priority = 5

    def running(self) -> AbstractContextManager[Any]:
        """Scope in which BLAS, once limited to one thread by a large kernel, stays so."""
        return threads.running()

    def conv_forward(
        self, x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), w (O, C/G, *K), b (O) or None -> out (N, O, *P), by tiles of positions."""
        conv = convolution.sizes(x, w, out, window, group)
        if conv is None:
            return super().conv_forward(x, w, b, window, group, out)
        convolution.forward(conv, b, self.scratch)
        return out
