"""The compiled CPU backend: kernels written for LLVM where NumPy and BLAS make detours."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from ..base import Array
from ..cpu import CpuOps, threads
from ..window import Window

log = logging.getLogger("pycaffe_lite")


class JitOps(CpuOps):
    """The CPU backend with kernels compiled for this CPU; needs llvmlite."""

    name = "jit"
    priority = 10

    @classmethod
    def available(cls) -> bool:
        """True where llvmlite is installed and the CPU's vector registers are known."""
        return _is_available()

    def running(self) -> AbstractContextManager[Any]:
        """Scope in which BLAS has one thread: its others, waiting busily, would take our CPUs."""
        return threads.limited()

    def conv_forward(
        self, x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), w (O, C/G, *K), b (O) or None -> out (N, O, *P), in registers."""
        if not _compiles():
            return super().conv_forward(x, w, b, window, group, out)
        from . import convolution

        if not convolution.applies(x, w, group, out):
            return super().conv_forward(x, w, b, window, group, out)
        convolution.forward(x, w, b, window, group, out, self.scratch)
        return out


@cache
def _is_available() -> bool:
    if find_spec("llvmlite") is None:
        log.debug("llvmlite is not installed: the NumPy kernels run on the CPU")
        return False
    from .code import lanes

    if not lanes():
        log.debug("the compiled kernels do not know this CPU: the NumPy kernels run")
    return lanes() > 0


@cache
def _compiles() -> bool:
    """Compile the kernels; False, and a line in the log, where that fails."""
    from . import phases, tile, winograd

    try:
        for make in (tile.run, winograd.run, winograd.check_sum, partial(phases.run, 1)):
            make()
    except Exception as error:
        log.warning("the compiled kernels failed, the NumPy kernels run instead: %s", error)
        return False
    return True
