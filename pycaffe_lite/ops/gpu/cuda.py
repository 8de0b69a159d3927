"""What do CUDA and cuBLAS get to see? Source, compiler options and arguments, without CuPy."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from ..window import Window

THREADS = 256
MOST_BLOCKS = 2**20
AXES = 3
"""Spatial axes that the kernels handle."""

# Below it no sum of a position and a grid's stride overflows an int.
_WIDE_FROM = 2**30


@cache
def source() -> str:
    """The CUDA source of every kernel."""
    return files(__package__).joinpath("kernels.cu").read_text(encoding="utf-8")


def options(dtype: Any, wide: bool) -> tuple[str, ...]:
    """The compiler's options for kernels on float32 or float64; `wide`: with 64-bit indices."""
    real = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    return (f"-DREAL={real}", f"-DWIDE={int(wide)}")


def is_wide(count: int, args: tuple[Any, ...]) -> bool:
    """True where an array of the launch, or its count, is too large for 32-bit indices."""
    return max([count, *(getattr(a, "size", 0) for a in args)]) >= _WIDE_FROM


def grid(count: int) -> int:
    """Blocks of THREADS threads for `count` elements."""
    return min(-(-count // THREADS), MOST_BLOCKS)


def window_arguments(
    window: Window, spatial: tuple[int, ...], positions: tuple[int, ...]
) -> tuple[int, ...]:
    """WINDOW of the CUDA source: size, kernel, stride, pad, dilation, positions on three axes."""
    missing = AXES - len(spatial)
    ones, zeros = (1,) * missing, (0,) * missing
    return (
        *ones, *spatial,
        *ones, *window.kernel,
        *ones, *window.stride,
        *zeros, *window.pad,
        *ones, *window.dilation,
        *ones, *positions,
    )  # fmt: skip


class Gemm(NamedTuple):
    """Arguments of cuBLAS's strided-batched product, in its order and its column-major view."""

    transa: int
    transb: int
    m: int
    n: int
    k: int
    lda: int
    stride_a: int
    ldb: int
    stride_b: int
    ldc: int
    stride_c: int
    batch: int


def gemm_arguments(a: Any, b: Any, out: Any) -> Gemm:
    """a (B, M, K) @ b (B, K, N) -> out (B, M, N), row-major, as out^T = b^T @ a^T in column-major.

    a and b may be transposed views, and broadcast along the batch. cuBLAS's A is b, its B is a.
    """
    batch, rows, columns = out.shape
    (ta, lda), (tb, ldb), (tc, ldc) = _layout(a), _layout(b), _layout(out)
    if tc or a.shape != (batch, rows, a.shape[2]) or b.shape != (batch, a.shape[2], columns):
        raise ValueError(f"cannot multiply {a.shape} and {b.shape} into {out.shape}")
    step = [array.strides[0] // array.itemsize for array in (a, b, out)]
    return Gemm(tb, ta, columns, rows, a.shape[2], ldb, step[1], lda, step[0], ldc, step[2], batch)


def _layout(matrices: Any) -> tuple[int, int]:
    """(B, R, C) -> (transposed, leading dimension)."""
    rows, columns = matrices.shape[1:]
    down, right = (s // matrices.itemsize for s in matrices.strides[1:])
    if right == 1 or columns == 1:
        return 0, max(down, columns)
    if down == 1 or rows == 1:
        return 1, max(right, rows)
    raise ValueError(f"neither axis of {matrices.shape} is contiguous (strides {down}, {right})")


def fitting(images: int, elements: int, itemsize: int, workspace: int) -> list[slice]:
    """Slices of `images` so that each, with `elements` of workspace an image, stays in the limit.

    At least one image a slice, and slices as even as they can be.
    """
    most = max(workspace // max(elements * itemsize, 1), 1)
    parts = max(-(-images // most), 1)
    size = -(-images // parts)
    return [slice(i, min(i + size, images)) for i in range(0, images, max(size, 1))]
