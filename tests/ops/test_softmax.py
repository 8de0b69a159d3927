"""Softmax and its gradient, against sums over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops

SHAPE = (2, 5, 3, 4)


def softmax_loops(x: np.ndarray, axis: int) -> np.ndarray:
    y = np.empty(x.shape)
    for index in np.ndindex(*x.shape):
        line = x[(*index[:axis], slice(None), *index[axis + 1 :])]
        y[index] = 1 / math.fsum(math.exp(float(v) - float(x[index])) for v in line)
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_softmax(ops: Ops, rng: np.random.Generator, axis: int, dtype: type) -> None:
    x = rng.standard_normal(SHAPE).astype(dtype)
    out = ops.from_host(np.full(SHAPE, np.nan, dtype))
    assert ops.softmax(ops.from_host(x), axis, out) is out
    tolerance = 1e-6 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(ops.to_host(out), softmax_loops(x, axis), rtol=tolerance)


def test_softmax_in_place_of_large_values(ops: Ops) -> None:
    x = np.array([[1000.0, 1000.0, -1000.0]], np.float32)
    array = ops.from_host(x)
    ops.softmax(array, 1, array)
    np.testing.assert_array_equal(ops.to_host(array), [[0.5, 0.5, 0]])


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_softmax_backward(ops: Ops, rng: np.random.Generator, axis: int, in_place: bool) -> None:
    """The directional derivative, by a central difference of the loops."""
    x, u, dy = rng.standard_normal((3, *SHAPE))
    step = 1e-5
    change = (softmax_loops(x + step * u, axis) - softmax_loops(x - step * u, axis)) / (2 * step)
    y, diff = ops.from_host(softmax_loops(x, axis)), ops.from_host(dy.copy())
    out = diff if in_place else ops.from_host(np.full(SHAPE, np.nan))
    assert ops.softmax_backward(y, diff, axis, out) is out
    np.testing.assert_allclose((ops.to_host(out) * u).sum(), (dy * change).sum(), rtol=1e-7)
