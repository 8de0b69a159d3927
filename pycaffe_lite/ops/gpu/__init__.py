"""The GPU's backends: CuPy for the arrays, our own CUDA kernels and cuBLAS for the hot ones.

CuPy is imported where it is first needed and never with this module.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np

from ..base import Array
from ..window import Window
from . import cuda
from .arrays import GenericGpuOps, missing
from .launch import Launcher

__all__ = ["GenericGpuOps", "GpuOps", "missing"]


class GpuOps(GenericGpuOps):
    """One launch a kernel and one cuBLAS call a convolution, whatever the number of images.

    `workspace`: bytes that a convolution's columns may take; more images than fit run in several
    goes (at least one image each). `tf32`: let cuBLAS round float32 factors to TF32, off unless
    CuPy's CUPY_TF32 asks for it.
    """

    name = "gpu"
    priority = 5
    workspace = 512 * 2**20
    tf32 = os.environ.get("CUPY_TF32", "0") not in ("", "0")

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self._launcher = Launcher(self.xp, self.running)

    # ---- convolution --------------------------------------------------------------------------

    def im2col(self, x: Array, window: Window, out: Array) -> Array:
        """(N, C, *S) -> out (N, C, *K, *P), one launch."""
        if not _fits(window, x, out):
            return super().im2col(x, window, out)
        positions = out.shape[2 + len(window.kernel) :]
        rows = x.shape[1] * window.taps
        self._columns_into(x, window, positions, out, rows * prod(positions), prod(positions))
        return out

    def col2im(self, col: Array, window: Window, out: Array) -> Array:
        """(N, C, *K, *P) -> out (N, C, *S), one launch, the same sum in every run."""
        if not _fits(window, col, out):
            return super().col2im(col, window, out)
        positions = col.shape[2 + len(window.kernel) :]
        rows = out.shape[1] * window.taps
        self._image_from(col, window, positions, out, rows * prod(positions), prod(positions))
        return out

    def conv_forward(
        self, x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), w (O, C/G, *K), b (O) or None -> out (N, O, *P).

        The images of a go stand side by side in one matrix a group: columns, product, and one
        launch that puts the result into the images' order and adds the bias.
        """
        if not _fits(window, x, w, out, *(() if b is None else (b,))):
            return super().conv_forward(x, w, b, window, group, out)
        n, outputs = out.shape[:2]
        places = prod(out.shape[2:])
        if window.is_pointwise and group == 1:
            factor = self.xp.broadcast_to(w.reshape(1, outputs, -1), (n, outputs, x.shape[1]))
            self._gemm(factor, x.reshape(n, -1, places), out.reshape(n, outputs, places))
            self._add_bias(out, b)
            return out
        w = w.reshape(group, outputs // group, -1)
        for part in self._goes(x, window, out):
            y = out[part]
            images = y.shape[0]
            wide = y if images == 1 else self._empty((outputs, images, places), x.dtype)
            columns = self._side_by_side(x[part], window, group, out.shape[2:])
            self._gemm(w, columns, wide.reshape(group, outputs // group, -1))
            if images == 1:
                self._add_bias(y, b)
            else:
                self._launch("swap", y.size, wide, b, y, images, outputs, places)
        return out

    def conv_backward_data(
        self, dy: Array, w: Array, window: Window, group: int, out: Array
    ) -> Array:
        """dy (N, O, *P), w (O, C/G, *K) -> out (N, C, *S): one product and one launch a go."""
        if not _fits(window, dy, w, out):
            return super().conv_backward_data(dy, w, window, group, out)
        n, outputs = dy.shape[:2]
        channels, places = out.shape[1], prod(dy.shape[2:])
        if window.is_pointwise and group == 1:
            factor = self.xp.broadcast_to(w.reshape(1, outputs, -1), (n, outputs, channels))
            dy = dy.reshape(n, outputs, places)
            self._gemm(factor.swapaxes(1, 2), dy, out.reshape(n, channels, places))
            return out
        w = w.reshape(group, outputs // group, -1).swapaxes(1, 2)
        for part in self._goes(out, window, dy):
            images = out[part].shape[0]
            factor = self._outputs_first(dy[part], group)
            col = self._empty((group, w.shape[1], images * places), dy.dtype)
            self._gemm(w, factor, col)
            self._image_from(col, window, dy.shape[2:], out[part], places, images * places)
        return out

    def conv_backward_weights(
        self, x: Array, dy: Array, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), dy (N, O, *P) -> out (O, C/G, *K), **added into** what it holds.

        One product a go sums over its images; their order is the same in every run.
        """
        if not _fits(window, x, dy, out):
            return super().conv_backward_weights(x, dy, window, group, out)
        total = out.reshape(group, out.shape[0] // group, -1)
        for part in self._goes(x, window, dy):
            columns = self._side_by_side(x[part], window, group, dy.shape[2:])
            factor = self._outputs_first(dy[part], group)
            self._gemm(factor, columns.swapaxes(1, 2), total, beta=1)
        return out

    def _goes(self, x: Array, window: Window, y: Array) -> list[slice]:
        """The images of x (N, C, *S) and y (N, O, *P) in parts that the workspace holds."""
        elements = (x.shape[1] * window.taps + y.shape[1]) * prod(y.shape[2:])
        return cuda.fitting(x.shape[0], elements, x.itemsize, self.workspace)

    def _side_by_side(
        self, x: Array, window: Window, group: int, positions: tuple[int, ...]
    ) -> Array:
        """x (N, C, *S) -> (G, C/G * taps, N * positions); a view where x is that already."""
        images, channels = x.shape[:2]
        places = prod(positions)
        if images > 1 or not window.is_pointwise:
            col = self._empty((channels * window.taps, images * places), x.dtype)
            self._columns_into(x, window, positions, col, places, images * places)
            x = col
        return x.reshape(group, channels // group * window.taps, images * places)

    def _outputs_first(self, dy: Array, group: int) -> Array:
        """dy (N, O, *P) -> (G, O/G, N * positions); a view where N is 1."""
        images, outputs, places = dy.shape[0], dy.shape[1], prod(dy.shape[2:])
        if images > 1:
            swapped = self._empty((outputs, images, places), dy.dtype)
            self._launch("swap", dy.size, dy, None, swapped, outputs, images, places)
            dy = swapped
        return dy.reshape(group, outputs // group, images * places)

    def _columns_into(
        self, x: Array, window: Window, positions: tuple[int, ...], col: Array, image: int, tap: int
    ) -> None:
        """im2col with `image` and `tap` the steps in `col` from one image, one tap, to the next."""
        n, channels = x.shape[:2]
        shape = cuda.window_arguments(window, x.shape[2:], positions)
        count = n * channels * prod(positions)
        self._launch("im2col", count, x, col, n, channels, *shape, image, tap)

    def _image_from(
        self,
        col: Array,
        window: Window,
        positions: tuple[int, ...],
        out: Array,
        image: int,
        tap: int,
    ) -> None:
        """col2im with the steps of `_columns_into`."""
        shape = cuda.window_arguments(window, out.shape[2:], positions)
        self._launch("col2im", out.size, col, out, out.shape[1], *shape, image, tap)

    # ---- pooling ------------------------------------------------------------------------------

    def pool_max(self, x: Array, window: Window, out: Array, mask: Array | None) -> Array:
        """(N, C, *S) -> out (N, C, *P), mask int32 (N, C, *P) or None, one launch."""
        if not _fits(window, x, out, pooling=True, mask=mask):
            return super().pool_max(x, window, out, mask)
        shape = cuda.window_arguments(window, x.shape[2:], out.shape[2:])
        self._launch("pool_max", out.size, x, out, mask, *shape)
        return out

    def pool_max_backward(self, dy: Array, mask: Array, window: Window, out: Array) -> Array:
        """dy, mask (N, C, *P) -> out (N, C, *S), one launch, the same sum in every run."""
        if not _fits(window, dy, out, pooling=True, mask=mask):
            return super().pool_max_backward(dy, mask, window, out)
        shape = cuda.window_arguments(window, out.shape[2:], dy.shape[2:])
        self._launch("pool_max_backward", out.size, dy, mask, out, *shape)
        return out

    def pool_ave(self, x: Array, window: Window, out: Array) -> Array:
        """(N, C, *S) -> out (N, C, *P), one launch."""
        if not _fits(window, x, out, pooling=True):
            return super().pool_ave(x, window, out)
        shape = cuda.window_arguments(window, x.shape[2:], out.shape[2:])
        self._launch("pool_ave", out.size, x, out, *shape)
        return out

    def pool_ave_backward(self, dy: Array, window: Window, out: Array) -> Array:
        """dy (N, C, *P) -> out (N, C, *S), one launch, the same sum in every run."""
        if not _fits(window, dy, out, pooling=True):
            return super().pool_ave_backward(dy, window, out)
        shape = cuda.window_arguments(window, out.shape[2:], dy.shape[2:])
        self._launch("pool_ave_backward", out.size, dy, out, *shape)
        return out

    # ---- the two ways to the device, and memory ------------------------------------------------

    def _launch(self, name: str, count: int, *args: Any) -> None:
        self._launcher.launch(name, count, *args)

    def _gemm(self, a: Array, b: Array, out: Array, beta: int = 0) -> None:
        self._launcher.gemm(a, b, out, beta, self.tf32)

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Workspace from CuPy's pool, back in it as soon as the kernel returns."""
        with self.running():
            return self.xp.empty(shape, dtype=dtype)

    def _add_bias(self, y: Array, b: Array | None) -> None:
        """y (N, O, *P) += b (O)."""
        if b is not None:
            self._launch("bias", y.size, y, b, y.shape[1], prod(y.shape[2:]))


def _fits(window: Window, *arrays: Array, pooling: bool = False, mask: Array | None = None) -> bool:
    """True where our kernels apply: up to three axes, one float type, plain non-empty arrays."""
    if len(window.kernel) > cuda.AXES or not window.kernel:
        return False
    if pooling and any(d != 1 for d in window.dilation):
        return False
    if mask is not None and (mask.dtype != np.int32 or not mask.flags.c_contiguous):
        return False
    dtype = arrays[0].dtype
    return dtype.char in "fd" and all(
        a.dtype == dtype and a.flags.c_contiguous and a.size for a in arrays
    )
