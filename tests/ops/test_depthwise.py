"""The CPU backend's convolution of channels by themselves against the generic kernel."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, convolution, depthwise
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.window import Window


@pytest.fixture(autouse=True, params=[1, 2])
def threads(request, monkeypatch):
    monkeypatch.setattr(depthwise, "ALONE", 0)
    set_num_threads(request.param)
    yield
    set_num_threads(None)


def arrays(n, channels, multiplier, spatial, window, dtype=np.float32):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, channels, *spatial)).astype(dtype)
    w = rng.standard_normal((channels * multiplier, 1, *window.kernel)).astype(dtype)
    b = rng.standard_normal(channels * multiplier).astype(dtype)
    return x, w, b


def forward(ops, x, w, b, window):
    out = np.full((len(x), len(w), *window.conv_shape(x.shape[2:])), np.nan, x.dtype)
    assert ops.conv_forward(x, w, b, window, x.shape[1], out) is out
    return out


def taken(x, w, window):
    """Does the backend take the path that is tested here?"""
    out = np.empty((len(x), len(w), *window.conv_shape(x.shape[2:])), x.dtype)
    conv = convolution.sizes(x, w, out, window, x.shape[1])
    return conv is not None and depthwise.applies(conv)


def uneven(seed):
    rng = np.random.default_rng(seed)

    def draw(low, high):
        return tuple(int(v) for v in rng.integers(low, high, 2))

    window = Window(draw(1, 6), draw(1, 4), draw(0, 5), draw(1, 4))
    axes = zip(window.extent, window.pad, draw(0, 14), strict=True)
    spatial = tuple(max(1, extent - 2 * pad) + more for extent, pad, more in axes)
    return (int(rng.integers(1, 4)), int(rng.integers(16, 70)), 1 + seed % 3, spatial, window)


@pytest.mark.parametrize("rows", [1, 1 << 17])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(30))
def test_uneven_shapes(seed, dtype, rows, monkeypatch):
    monkeypatch.setattr(depthwise, "ROWS", rows)
    window = uneven(seed)[-1]
    x, w, b = arrays(*uneven(seed), dtype)
    assert taken(x, w, window) or window.is_pointwise
    b = b if seed % 2 else None
    got, expected = (forward(ops, x, w, b, window) for ops in (CpuOps(), Ops()))
    assert abs(got - expected).max() <= (1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "w", "b"])
def test_nan_and_inf_spread_as_in_the_generic_kernel(bad, where):
    window = Window((3, 2), (1, 2), (1, 1))
    given = dict(zip("xwb", arrays(2, 17, 2, (6, 9), window), strict=True))
    given[where].reshape(-1)[7] = bad
    with np.errstate(invalid="ignore"):
        got, expected = (forward(ops, *given.values(), window) for ops in (CpuOps(), Ops()))
    assert taken(given["x"], given["w"], window)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))


def test_inputs_of_any_layout():
    window = Window((2, 3), (), (0, 2))
    x, w, b = arrays(2, 19, 1, (7, 11), window)
    odd = np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)[..., ::-1]
    assert taken(odd, w, window)
    got = forward(CpuOps(), odd, w[::-1], b, window)
    expected = forward(Ops(), odd.copy(), w[::-1].copy(), b, window)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_same_result_every_time_and_bounded_scratch():
    window = Window((3, 5), (1, 2), (1, 2))
    x, w, b = arrays(3, 130, 1, (29, 61), window)
    used = {}

    class Counting(CpuOps):
        def scratch(self, tag, shape, dtype):
            out = super().scratch(tag, shape, dtype)
            used[tag] = max(used.get(tag, 0), out.nbytes)
            return out

    ops = Counting()
    first = forward(ops, x, w, b, window)
    assert taken(x, w, window)
    for _ in range(5):
        np.testing.assert_array_equal(forward(ops, x, w, b, window), first)
    assert 0 < sum(used.values()) <= 3 << 20
