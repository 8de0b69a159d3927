"""The column matrix and its transpose, against loops and against each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.window import Window

CASES = [
    ((2, 3, 7), Window((3,), (2,), (1,), (2,))),
    ((2, 3, 6, 5), Window((3, 2), (2, 1), (1, 2), (1, 3))),
    ((1, 2, 7, 4), Window((2, 1), (3, 2), (0, 1))),
    ((3, 2, 4, 5, 6), Window((2, 1, 3), (1, 3, 2), (1, 0, 2), (2, 1, 1))),
    ((2, 3, 5, 4), Window((1, 1))),
]
DTYPES = [np.float32, np.float64]


def each(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(n) for n in shape))


def im2col_loops(x: np.ndarray, window: Window) -> np.ndarray:
    positions = window.conv_shape(x.shape[2:])
    col = np.zeros((*x.shape[:2], *window.kernel, *positions))
    for k in each(window.kernel):
        for p in each(positions):
            at = tuple(
                i * s - pad + t * d
                for i, s, pad, t, d in zip(
                    p, window.stride, window.pad, k, window.dilation, strict=True
                )
            )
            if all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True)):
                col[(slice(None), slice(None), *k, *p)] = x[(slice(None), slice(None), *at)]
    return col


def im2col(ops: Ops, x: np.ndarray, window: Window) -> np.ndarray:
    shape = (*x.shape[:2], *window.kernel, *window.conv_shape(x.shape[2:]))
    out = ops.from_host(np.full(shape, np.nan, x.dtype))
    assert ops.im2col(ops.from_host(x), window, out) is out
    return ops.to_host(out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "window"), CASES)
def test_im2col(
    ops: Ops, rng: np.random.Generator, shape: tuple[int, ...], window: Window, dtype: type
) -> None:
    x = rng.standard_normal(shape).astype(dtype)
    col = im2col(ops, x, window)
    assert col.dtype == dtype
    np.testing.assert_array_equal(col, im2col_loops(x, window))


@pytest.mark.parametrize(("shape", "window"), CASES)
def test_col2im_is_the_transpose(
    ops: Ops, rng: np.random.Generator, shape: tuple[int, ...], window: Window
) -> None:
    x = rng.standard_normal(shape)
    col = im2col(ops, x, window)
    other = rng.standard_normal(col.shape)
    out = ops.from_host(np.full(shape, np.nan))
    assert ops.col2im(ops.from_host(other), window, out) is out
    np.testing.assert_allclose((col * other).sum(), (x * ops.to_host(out)).sum(), rtol=1e-10)


@pytest.mark.parametrize(("h", "w"), [(3, 3), (5, 3)])
def test_recorded_channels(ops: Ops, rng: np.random.Generator, h: int, w: int) -> None:
    """The first position of channel c of the flat result is x[c // hw, c // w % h, c % w]."""
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    col = im2col(ops, x, Window((h, w), (2, 2)))
    flat = col.reshape(2, 3 * h * w, *col.shape[4:])
    for c in range(3 * h * w):
        np.testing.assert_array_equal(flat[:, c, 0, 0], x[:, c // (h * w), c // w % h, c % w])
