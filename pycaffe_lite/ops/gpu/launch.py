"""How does work get to the device? A CUDA kernel or a matrix product, one call each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..base import Array
from . import cuda

_TF32_MATH = 3
"""CUBLAS_TF32_TENSOR_OP_MATH"""


class Launcher:
    """Compiles the kernels, runs them and cuBLAS on the device that `running()` makes current."""

    def __init__(self, cupy: Any, running: Callable[[], AbstractContextManager[Any]]) -> None:
        self.cupy = cupy
        self.running = running
        self._kernels: dict[tuple[str, str, bool], Any] = {}
        self._compiling = threading.Lock()

    def launch(self, name: str, count: int, *args: Any) -> None:
        """Run a kernel of kernels.cu over `count` elements; arrays, counts and None (NULL) go in.

        The first argument's dtype chooses float or double.
        """
        wide = cuda.is_wide(count, args)
        index = np.int64 if wide else np.int32
        values = [
            np.uint64(0) if a is None else index(a) if isinstance(a, int) else a for a in args
        ]
        with self.running():
            kernel = self._kernel(name, args[0].dtype, wide)
            kernel((cuda.grid(count),), (cuda.THREADS,), (index(count), *values))

    def _kernel(self, name: str, dtype: Any, wide: bool) -> Any:
        """The compiled kernel; CuPy keeps the binary on disk for the next process."""
        key = (name, np.dtype(dtype).char, wide)
        with self._compiling:
            if key not in self._kernels:
                module = self.cupy.RawModule(
                    code=cuda.source(), options=cuda.options(dtype, wide), backend="nvrtc"
                )
                self._kernels[key] = module.get_function(name)
            return self._kernels[key]

    def gemm(self, a: Array, b: Array, out: Array, beta: int = 0, tf32: bool = False) -> None:
        """out (B, M, N) = a (B, M, K) @ b (B, K, N) + beta * out, one strided-batched call.

        xp.matmul would copy transposed factors, and needs several launches for broadcast ones.
        """
        g = cuda.gemm_arguments(a, b, out)
        cublas = self.cupy.cuda.cublas
        multiply = cublas.sgemmStridedBatched if out.itemsize == 4 else cublas.dgemmStridedBatched
        # Scalars on the host, read before the call returns.
        one, factor = np.ones(1, out.dtype), np.full(1, beta, out.dtype)
        with self.running():
            handle = self.cupy.cuda.get_cublas_handle()
            if tf32:
                cublas.setMathMode(handle, _TF32_MATH)
            multiply(
                handle, g.transa, g.transb, g.m, g.n, g.k, one.ctypes.data,
                b.data.ptr, g.lda, g.stride_a, a.data.ptr, g.ldb, g.stride_b,
                factor.ctypes.data, out.data.ptr, g.ldc, g.stride_c, g.batch,
            )  # fmt: skip
            if tf32:
                cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
