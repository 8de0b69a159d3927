"""Does GpuOps ask the device for the right things? Its own Python code, on the pretend device.

Kernels run as plain formulas or, given a `cuda_shim.Shim`, as the CUDA source compiled for the
host; matrix products follow cuBLAS's column-major rules to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from fake_array import Counters, unwrap
from fake_device import FakeMovement
from fake_xp import FakeXp
from numpy.lib.stride_tricks import as_strided

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.gpu import GpuOps, cuda
from pycaffe_lite.ops.window import Window


class FakeLauncher:
    """Stands where GpuOps keeps its way to CUDA: every call is one launch."""

    def __init__(self, counters: Counters, kernels: Callable[..., None]) -> None:
        self._counters, self._kernels = counters, kernels
        self.calls: list[str] = []

    def launch(self, name: str, count: int, *args: Any) -> None:
        assert count > 0
        self._counters.launches += 1
        self.calls.append(name)
        self._kernels(name, count, *(unwrap(self._counters, a) for a in args))

    def gemm(self, a: Any, b: Any, out: Any, beta: int = 0, tf32: bool = False) -> None:
        self._counters.launches += 1
        self.calls.append("gemm")
        cublas_product(*(unwrap(self._counters, v) for v in (a, b, out)), beta)


class FakeGpuOps(FakeMovement, GpuOps):
    """GpuOps without CuPy; `kernels` runs a launch on NumPy arrays."""

    name = "fake-gpu"

    def __init__(self, place: str = "fake:0", kernels: Callable[..., None] | None = None) -> None:
        self.counters = Counters()
        Ops.__init__(self, FakeXp(self.counters), place)
        self._launcher = FakeLauncher(self.counters, kernels or formulas)

    @property
    def calls(self) -> list[str]:
        """The kernels launched so far, "gemm" among them."""
        return self._launcher.calls


def cublas_product(a: np.ndarray, b: np.ndarray, out: np.ndarray, beta: int) -> None:
    """What cuBLAS makes of `gemm_arguments`, as its manual defines them: it sees memory alone."""
    g = cuda.gemm_arguments(a, b, out)
    # cuBLAS's A is b, its B is a.
    left = _columns_first(b, g.transa, g.m, g.k, g.lda, g.stride_a, g.batch)
    right = _columns_first(a, g.transb, g.k, g.n, g.ldb, g.stride_b, g.batch)
    result = _columns_first(out, 0, g.m, g.n, g.ldc, g.stride_c, g.batch)
    result[...] = left @ right + (beta * result if beta else 0)


def _columns_first(
    memory: np.ndarray, trans: int, rows: int, columns: int, ld: int, stride: int, batch: int
) -> np.ndarray:
    """op(X) of `batch` column-major matrices: X[i, j] lies at i + j * ld."""
    assert ld >= max(1, columns if trans else rows), "cuBLAS: leading dimension too small"
    item = memory.itemsize
    down, right = (ld, 1) if trans else (1, ld)
    steps = (stride * item, down * item, right * item)
    return as_strided(memory, (batch, rows, columns), steps)


# ---- the kernels of kernels.cu as formulas ------------------------------------------------------


def formulas(name: str, count: int, *args: Any) -> None:
    """One launch, computed by the generic kernels."""
    _FORMULAS[name](count, *args)


def _window(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Window, tuple[int, ...]]:
    size, kernel, stride, pad, dilation, at = (shape[i : i + 3] for i in range(0, 18, 3))
    return size, Window(kernel, stride, pad, dilation), at


def _steps(col: np.ndarray, n: int, rows: int, places: int, image: int, tap: int) -> np.ndarray:
    """col as (images, channels * taps, positions), wherever they lie."""
    item = col.itemsize
    return as_strided(col, (n, rows, places), (image * item, tap * item, item))


def _im2col(count: int, x: Any, col: Any, n: int, channels: int, *rest: int) -> None:
    size, window, at = _window(rest[:18])
    values = np.empty((n, channels, *window.kernel, *at), x.dtype)
    Ops().im2col(x.reshape(n, channels, *size), window, values)
    rows, places = channels * window.taps, prod(at)
    _steps(col, n, rows, places, *rest[18:])[...] = values.reshape(n, rows, places)


def _col2im(count: int, col: Any, out: Any, channels: int, *rest: int) -> None:
    size, window, at = _window(rest[:18])
    n = count // channels // prod(size)
    values = _steps(col, n, channels * window.taps, prod(at), *rest[18:])
    values = values.reshape(n, channels, *window.kernel, *at)
    Ops().col2im(values, window, out.reshape(n, channels, *size))


def _swap(count: int, x: Any, b: Any, out: Any, rows: int, columns: int, places: int) -> None:
    y = out.reshape(rows, columns, places)
    y[...] = x.reshape(columns, rows, places).swapaxes(0, 1)
    if b is not None:
        y += b.reshape(-1, 1)


def _bias(count: int, y: Any, b: Any, channels: int, places: int) -> None:
    flat = y.reshape(-1, channels, places)
    flat += b.reshape(-1, 1)


def _pool_max(count: int, x: Any, out: Any, mask: Any, *shape: int) -> None:
    size, window, at = _window(shape)
    planes = [None if a is None else a.reshape(1, -1, *at) for a in (out, mask)]
    Ops().pool_max(x.reshape(1, -1, *size), window, *planes)


def _pool_max_backward(count: int, dy: Any, mask: Any, out: Any, *shape: int) -> None:
    size, window, at = _window(shape)
    dy, mask = (a.reshape(1, -1, *at) for a in (dy, mask))
    Ops().pool_max_backward(dy, mask, window, out.reshape(1, -1, *size))


def _pool_ave(count: int, x: Any, out: Any, *shape: int) -> None:
    size, window, at = _window(shape)
    Ops().pool_ave(x.reshape(1, -1, *size), window, out.reshape(1, -1, *at))


def _pool_ave_backward(count: int, dy: Any, out: Any, *shape: int) -> None:
    size, window, at = _window(shape)
    Ops().pool_ave_backward(dy.reshape(1, -1, *at), window, out.reshape(1, -1, *size))


_FORMULAS = {
    "im2col": _im2col,
    "col2im": _col2im,
    "swap": _swap,
    "bias": _bias,
    "pool_max": _pool_max,
    "pool_max_backward": _pool_max_backward,
    "pool_ave": _pool_ave,
    "pool_ave_backward": _pool_ave_backward,
}
