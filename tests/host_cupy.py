"""What does GpuOps say to CuPy itself? A module that stands for cupy, with host memory behind it.

It has the few names that GpuOps uses and NumPy's besides. Compiled kernels are those of a
`cuda_shim.Shim`; cuBLAS works on bare addresses, as the library does.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np
from cuda_shim import Shim
from numpy.lib.stride_tricks import as_strided

from pycaffe_lite.ops.gpu import cuda

HANDLE = 4711


class HostArray(np.ndarray):
    """An array with the parts of cupy.ndarray in use."""

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(self.shape, self.dtype) if out is None else out
        assert out.flags.c_contiguous
        out[...] = self.view(np.ndarray)
        return out

    def set(self, source: np.ndarray) -> None:
        assert (source.shape, source.dtype) == (self.shape, self.dtype)
        self[...] = source


class HostCupy(types.ModuleType):
    """The module; `devices` are the ones now current, `log` what was asked of CUDA and cuBLAS."""

    __version__ = "0"

    def __init__(self, shim: Shim, count: int = 1) -> None:
        super().__init__("cupy")
        self.devices: list[int] = []
        self.log: list[Any] = []
        self.shim = shim
        nvrtc = types.SimpleNamespace(getVersion=lambda: (13, 0))
        runtime = types.SimpleNamespace(getDeviceCount=lambda: count)
        self.cuda = types.SimpleNamespace(
            Device=self._device, runtime=runtime, nvrtc=nvrtc, cublas=self,
            get_cublas_handle=lambda: HANDLE,
        )  # fmt: skip
        self.random = types.SimpleNamespace(default_rng=np.random.default_rng)
        self.broadcast_to = lambda a, shape: np.broadcast_to(a, shape, subok=True)
        self.CUBLAS_DEFAULT_MATH = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def _device(self, device_id: int) -> Any:
        module = self

        class Device:
            def __enter__(self) -> None:
                module.devices.append(device_id)

            def __exit__(self, *error: Any) -> None:
                module.devices.pop()

            def synchronize(self) -> None:
                module.log.append("synchronize")

        return Device()

    def _made(self, array: np.ndarray) -> HostArray:
        assert self.devices, "an allocation without a current device"
        return array.view(HostArray)

    def empty(self, shape: Any, dtype: Any) -> HostArray:
        return self._made(np.full(shape, 77, dtype))

    def zeros(self, shape: Any, dtype: Any) -> HostArray:
        return self._made(np.zeros(shape, dtype))

    def array(self, values: np.ndarray) -> HostArray:
        return self._made(np.array(values))

    def RawModule(self, code: str, options: tuple[str, ...], backend: str) -> Any:  # noqa: N802
        assert (code, backend) == (cuda.source(), "nvrtc")
        self.log.append(options)
        wide = options[1] == "-DWIDE=1"
        dtype = np.float64 if options[0] == "-DREAL=double" else np.float32
        library = self.shim.library(dtype, wide)
        return types.SimpleNamespace(get_function=lambda name: self._kernel(library, name, wide))

    def _kernel(self, library: Any, name: str, wide: bool) -> Any:
        whole = np.int64 if wide else np.int32
        convert = {whole: np.ctypeslib.as_ctypes_type(whole), np.uint64: ctypes.c_void_p}

        def kernel(grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
            assert self.devices, "a launch without a current device"
            assert block == (cuda.THREADS,)
            assert 1 <= grid[0] * cuda.THREADS < int(args[0]) + cuda.THREADS
            values = [
                ctypes.c_void_p(a.data.ptr)
                if isinstance(a, HostArray)
                else convert[type(a)](int(a))
                for a in args
            ]
            library.stand_at(0, 0, 1, 1)
            getattr(library, name)(*values)
            self.log.append(name)

        return kernel

    # ---- cuBLAS ---------------------------------------------------------------------------------

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        assert handle == HANDLE
        self.log.append(f"math mode {mode}")

    def sgemmStridedBatched(self, *args: Any) -> None:  # noqa: N802
        self._gemm(np.float32, *args)

    def dgemmStridedBatched(self, *args: Any) -> None:  # noqa: N802
        self._gemm(np.float64, *args)

    def _gemm(
        self, dtype: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int,
        alpha: int, a: int, lda: int, stride_a: int, b: int, ldb: int, stride_b: int,
        beta: int, c: int, ldc: int, stride_c: int, batch: int,
    ) -> None:  # fmt: skip
        """C = alpha * op(A) op(B) + beta * C on `batch` column-major matrices in memory."""
        assert handle == HANDLE
        assert self.devices, "a product without a current device"
        assert lda >= (k if transa else m)
        assert ldb >= (n if transb else k)
        assert ldc >= m

        def matrices(at: int, trans: int, rows: int, columns: int, ld: int, stride: int) -> Any:
            stored = (columns, rows) if trans else (rows, columns)
            last = (batch - 1) * stride + (stored[1] - 1) * ld + stored[0]
            kind = np.ctypeslib.as_ctypes_type(dtype)
            memory = np.ctypeslib.as_array((kind * last).from_address(at))
            item = memory.itemsize
            view = as_strided(memory, (batch, *stored), (stride * item, item, ld * item))
            return view.swapaxes(1, 2) if trans else view

        one, factor = (np.ctypeslib.as_array((np.ctypeslib.as_ctypes_type(dtype) * 1)
                       .from_address(p))[0] for p in (alpha, beta))  # fmt: skip
        left = matrices(a, transa, m, k, lda, stride_a)
        right = matrices(b, transb, k, n, ldb, stride_b)
        result = matrices(c, 0, m, n, ldc, stride_c)
        # cuBLAS does not read C where beta is 0: what lies there may be NaN.
        before = factor * result if factor else 0
        result[...] = one * (left @ right) + before
        self.log.append("gemm")
