"""The CPU backend's 3 x 3 convolution with fewer multiplications against the generic kernel."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, convolution, winograd
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.window import Window


@pytest.fixture(autouse=True, params=[1, 2])
def everywhere(request, monkeypatch):
    """Wherever it is possible, on one thread and on two."""
    for name in ("LEAST", "TILES", "WORK"):
        monkeypatch.setattr(winograd, name, 0)
    monkeypatch.delenv("PYCAFFE_LITE_WINOGRAD", raising=False)
    set_num_threads(request.param)
    yield
    set_num_threads(None)


@pytest.fixture(params=["whole", "parts"])
def scratch(request, monkeypatch):
    """Blocks of a whole batch, or of a row of tiles and a few channels."""
    if request.param == "parts":
        for name, size in {"BLOCK": 1, "GATHERED": 500, "PRODUCT": 700}.items():
            monkeypatch.setattr(winograd, name, size)
        monkeypatch.setattr(winograd, "IMAGE", 36 * 40)


def arrays(n, channels, outputs, group, spatial, dtype=np.float32):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, channels, *spatial)).astype(dtype)
    w = rng.standard_normal((outputs, channels // group, 3, 3)).astype(dtype)
    return x, w, rng.standard_normal(outputs).astype(dtype)


def forward(ops, x, w, b, pad, group=1):
    window = Window((3, 3), (), pad)
    out = np.full((len(x), len(w), *window.conv_shape(x.shape[2:])), np.nan, x.dtype)
    assert ops.conv_forward(x, w, b, window, group, out) is out
    return out


def taken(x, w, pad, group=1):
    window = Window((3, 3), (), pad)
    out = np.empty((len(x), len(w), *window.conv_shape(x.shape[2:])), x.dtype)
    conv = convolution.sizes(x, w, out, window, group)
    return conv is not None and winograd.applies(conv)


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(24))
def test_uneven_shapes(seed, dtype):
    rng = np.random.default_rng(seed)
    n, group, inputs, outputs = (int(v) for v in rng.integers(1, [4, 4, 10, 14]))
    pad = tuple(int(v) for v in rng.integers(0, 7, 2))
    spatial = tuple(int(v) for v in rng.integers(3, 15, 2))
    x, w, b = arrays(n, group * inputs, group * outputs, group, spatial, dtype)
    assert taken(x, w, pad, group) or winograd.IMAGE < 1 << 20
    b = b if seed % 2 else None
    got, expected = (forward(ops, x, w, b, pad, group) for ops in (CpuOps(), Ops()))
    tolerance = 2e-5 if dtype == np.float32 else 1e-13
    assert abs(got - expected).max() <= tolerance * abs(expected).max()
    np.testing.assert_array_equal(forward(CpuOps(), x, w, b, pad, group), got)


def test_sizes_of_nets(monkeypatch):
    """With the thresholds that the backend has, and every layer's scratch below 16 MB a thread."""
    monkeypatch.undo()
    ops, used = CpuOps(), {}
    plain = ops.scratch

    def scratch(tag, shape, dtype):
        out = plain(tag, shape, dtype)
        key = (threading.get_ident(), tag)
        used[key] = max(used.get(key, 0), out.nbytes)
        return out

    monkeypatch.setattr(ops, "scratch", scratch)
    for n, channels, outputs, spatial in [(1, 64, 70, (57, 60)), (9, 60, 50, (19, 18))]:
        x, w, b = arrays(n, channels, outputs, 1, spatial)
        assert taken(x, w, (1, 1))
        got, expected = (forward(o, x, w, b, (1, 1)) for o in (ops, Ops()))
        assert abs(got - expected).max() <= 1e-5 * abs(expected).max()
    for thread in {thread for thread, _ in used}:
        assert sum(size for (one, _), size in used.items() if one == thread) < 16e6


def test_follows_weights_that_change():
    x, w, b = arrays(2, 5, 7, 1, (9, 14))
    ops = CpuOps()
    forward(ops, x, w, b, (1, 1))
    w[3, 2, 1, 0] += 10
    got, expected = (forward(o, x, w, b, (1, 1)) for o in (ops, Ops()))
    assert abs(got - expected).max() <= 2e-5 * abs(expected).max()


def test_turned_off(monkeypatch):
    x, w, b = arrays(2, 5, 7, 1, (9, 14))
    monkeypatch.setenv("PYCAFFE_LITE_WINOGRAD", "0")
    assert not taken(x, w, (1, 1))
    x[0, 1, 4, 6] = np.inf
    with np.errstate(invalid="ignore"):
        got, expected = (forward(ops, x, w, b, (1, 1)) for ops in (CpuOps(), Ops()))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    assert np.isinf(got).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_stays_so_and_spreads_over_tiles_at_most(bad):
    """What is documented: every output that is not finite by definition, others of its tiles."""
    x, w, b = arrays(2, 5, 7, 1, (13, 22))
    x[1, 3, 6, 9] = bad
    with np.errstate(invalid="ignore"):
        got, expected = (forward(ops, x, w, b, (1, 1)) for ops in (CpuOps(), Ops()))
    touched = np.zeros(got.shape, bool)
    touched[1, :, 4:8, 8:12] = True  # rows 5 to 7 and columns 8 to 10 read it
    finite = np.isfinite(got)
    assert not finite[~np.isfinite(expected)].any()
    assert finite[~touched].all()
    assert np.allclose(got[~touched], expected[~touched], atol=1e-4)


def test_inputs_of_any_layout():
    x, w, b = arrays(2, 3, 4, 1, (6, 17))
    odd = np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)[..., ::-1]
    got = forward(CpuOps(), odd, w[::-1], b, (0, 1))
    expected = forward(Ops(), odd.copy(), w[::-1].copy(), b, (0, 1))
    np.testing.assert_allclose(got, expected, atol=1e-4)
