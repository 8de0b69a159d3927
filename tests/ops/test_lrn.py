"""The kernels of local response normalisation, against loops over single channels."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops

# size, alpha, beta, k; shape
CASES = [
    ((5, 1.0, 0.75, 1.0), (2, 7, 3, 4)),
    ((3, 2.0, 0.5, 2.0), (3, 4, 2)),
    ((9, 0.5, 1.0, 1.0), (2, 3, 5, 4)),
    ((1, 1.0, 0.6, 1.0), (4, 3)),
    ((5, 1e-4, 0.75, 1.0), (2, 19, 7, 11)),
]


def lrn_loops(
    x: np.ndarray, size: int, alpha: float, beta: float, k: float
) -> tuple[np.ndarray, np.ndarray]:
    scale = np.empty(x.shape)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + size // 2 + 1].astype(np.float64)
        scale[:, c] = k + alpha / size * (near**2).sum(axis=1)
    return x * scale**-beta, scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("params", "shape"), CASES)
def test_lrn(
    ops: Ops,
    rng: np.random.Generator,
    params: tuple[int, float, float, float],
    shape: tuple[int, ...],
    in_place: bool,
    dtype: type,
) -> None:
    x = rng.standard_normal(shape).astype(dtype)
    y, scale = lrn_loops(x, *params)
    tolerance = 5e-6 if dtype == np.float32 else 1e-13
    for wants_scale in (True, False):
        source = ops.from_host(x.copy())
        out = source if in_place else ops.from_host(np.full(shape, np.nan, dtype))
        kept = ops.from_host(np.full(shape, np.nan, dtype)) if wants_scale else None
        assert ops.lrn(source, *params, out, kept) is out
        np.testing.assert_allclose(ops.to_host(out), y, rtol=tolerance)
        if kept is not None:
            np.testing.assert_allclose(ops.to_host(kept), scale, rtol=tolerance)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("params", "shape"), CASES)
def test_lrn_backward(
    ops: Ops,
    rng: np.random.Generator,
    params: tuple[int, float, float, float],
    shape: tuple[int, ...],
    in_place: bool,
) -> None:
    """The directional derivative, by a central difference of the loops."""
    x, u, dy = rng.standard_normal((3, *shape))
    step = 1e-5
    ends = [lrn_loops(x + sign * step * u, *params)[0] for sign in (1, -1)]
    change = (ends[0] - ends[1]) / (2 * step)
    scale = ops.from_host(lrn_loops(x, *params)[1])
    diff = ops.from_host(dy.copy())
    out = diff if in_place else ops.from_host(np.full(shape, np.nan))
    assert ops.lrn_backward(ops.from_host(x), scale, diff, *params[:3], out) is out
    np.testing.assert_allclose((ops.to_host(out) * u).sum(), (dy * change).sum(), rtol=1e-7)


def test_lrn_backward_in_single_precision(ops: Ops, rng: np.random.Generator) -> None:
    x, dy = rng.standard_normal((2, 2, 19, 7, 11))
    params = (5, 1.0, 0.75, 1.0)
    scale = lrn_loops(x, *params)[1]
    wanted = np.empty(x.shape)
    Ops().lrn_backward(x, scale, dy, *params[:3], wanted)
    arrays = [ops.from_host(a.astype(np.float32)) for a in (x, scale, dy)]
    out = ops.from_host(np.full(x.shape, np.nan, np.float32))
    ops.lrn_backward(*arrays, *params[:3], out)
    np.testing.assert_allclose(ops.to_host(out), wanted, rtol=1e-5, atol=1e-6)
