"""GpuOps without a GPU: its own Python code and its CUDA source against the generic kernels."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from fake_device import FakeOps
from fake_gpu import FakeGpuOps

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.window import Window

GENERIC = Ops()

# name: (N, C, O, group, spatial, window)
CONVOLUTIONS = {
    "plain": (2, 3, 4, 1, (5, 7), Window((3, 2))),
    "one image": (1, 3, 5, 1, (6, 7), Window((3, 2), (2, 1), (1, 0))),
    "stride, pad, dilation": (3, 2, 5, 1, (9, 11), Window((2, 3), (3, 2), (2, 1), (2, 3))),
    "groups": (3, 4, 6, 2, (5, 6), Window((2, 3), (1, 2), (1, 2))),
    "depthwise": (2, 5, 5, 5, (6, 4), Window((3, 3), (1, 1), (1, 1))),
    "pointwise": (3, 4, 5, 1, (6, 7), Window((1, 1))),
    "pointwise, groups": (3, 4, 6, 2, (3, 5), Window((1, 1))),
    "pointwise, groups, one image": (1, 4, 6, 2, (3, 5), Window((1, 1))),
    "pointwise with stride": (2, 3, 4, 1, (5, 7), Window((1, 1), (2, 3))),
    "covers all": (4, 3, 5, 1, (5, 2), Window((5, 2))),
    "single": (2, 1, 1, 1, (3, 4), Window((2, 2))),
    "1 axis": (3, 2, 5, 1, (11,), Window((4,), (2,), (3,), (2,))),
    "3 axes": (2, 3, 4, 1, (4, 5, 6), Window((2, 3, 1), (1, 2, 3), (1, 0, 2), (2, 1, 1))),
    "4 axes": (2, 1, 3, 1, (3, 2, 4, 5), Window((2, 1, 2, 3))),
}

POOLINGS = {
    "plain": ((2, 3, 5, 7), Window((2, 3), (2, 2))),
    "overlap": ((2, 3, 6, 7), Window((3, 3), (2, 1))),
    "pad": ((3, 2, 7, 5), Window((3, 2), (2, 3), (1, 1))),
    "gaps": ((2, 3, 8, 9), Window((2, 1), (3, 4))),
    "past the pad": ((1, 2, 6, 5), Window((3, 4), (2, 3), (2, 1))),
    "1 axis": ((3, 4, 9), Window((3,), (2,), (1,))),
    "3 axes": ((2, 3, 4, 5, 6), Window((2, 3, 2), (2, 1, 3), (1, 2, 0))),
    "4 axes": ((2, 1, 3, 4, 2, 5), Window((2, 2, 1, 3), (1, 2, 1, 2))),
}


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    return request.param


def _random(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def _run(ops, kernel, *args, out):
    """The kernel on `ops` and as the generic one; `out` as both left it."""
    there = [ops.from_host(a) if isinstance(a, np.ndarray) else a for a in args]
    filled = ops.from_host(out)
    # The net makes the device current for what is left to the generic kernels.
    with ops.running() if out.ndim > 5 else nullcontext():
        assert getattr(ops, kernel)(*there, filled) is filled
    return ops.to_host(filled), getattr(GENERIC, kernel)(*args, out.copy())


def _check(ops, kernel, *args, out):
    got, wanted = _run(ops, kernel, *args, out=out)
    tolerance = {4: 2e-5, 8: 1e-12}[out.itemsize]
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("workspace", [2**29, 1])
def test_convolution(gpu_ops, rng, dtype, case, workspace):
    n, c, o, group, spatial, window = case
    gpu_ops.workspace = workspace
    x = _random(rng, dtype, n, c, *spatial)
    w = _random(rng, dtype, o, c // group, *window.kernel)
    dy = _random(rng, dtype, n, o, *window.conv_shape(spatial))
    nan = np.full_like(dy, np.nan)
    _check(gpu_ops, "conv_forward", x, w, _random(rng, dtype, o), window, group, out=nan)
    _check(gpu_ops, "conv_forward", x, w, None, window, group, out=nan)
    _check(gpu_ops, "conv_backward_data", dy, w, window, group, out=np.full_like(x, np.nan))
    _check(
        gpu_ops, "conv_backward_weights", x, dy, window, group, out=_random(rng, dtype, *w.shape)
    )


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_columns(gpu_ops, rng, dtype, case):
    n, c, _, _, spatial, window = case
    x = _random(rng, dtype, n, c, *spatial)
    col = _random(rng, dtype, n, c, *window.kernel, *window.conv_shape(spatial))
    got, wanted = _run(gpu_ops, "im2col", x, window, out=np.full_like(col, np.nan))
    np.testing.assert_array_equal(got, wanted)
    _check(gpu_ops, "col2im", col, window, out=np.full_like(x, np.nan))


@pytest.mark.parametrize("case", POOLINGS.values(), ids=POOLINGS)
def test_pooling(gpu_ops, rng, dtype, case):
    shape, window = case
    # Few different values: equal maxima are common, and one plane has none at all.
    x = np.floor(_random(rng, dtype, *shape) * 2)
    x[0, 0] = np.nan
    x[-1, -1].flat[::2] = -np.inf
    pooled = (*shape[:2], *window.pool_shape(shape[2:]))
    mask = gpu_ops.from_host(np.full(pooled, 9, np.int32))
    out = gpu_ops.from_host(np.full(pooled, np.nan, dtype))
    want, want_mask = np.empty(pooled, dtype), np.empty(pooled, np.int32)
    with gpu_ops.running() if x.ndim > 5 else nullcontext():
        assert gpu_ops.pool_max(gpu_ops.from_host(x), window, out, mask) is out
    GENERIC.pool_max(x, window, want, want_mask)
    np.testing.assert_array_equal(gpu_ops.to_host(out), want)
    np.testing.assert_array_equal(gpu_ops.to_host(mask), want_mask)
    with gpu_ops.running() if x.ndim > 5 else nullcontext():
        gpu_ops.pool_max(gpu_ops.from_host(x), window, out, None)
    np.testing.assert_array_equal(gpu_ops.to_host(out), want)

    dy = _random(rng, dtype, *pooled)
    _check(gpu_ops, "pool_max_backward", dy, want_mask, window, out=np.full_like(x, np.nan))
    x = _random(rng, dtype, *shape)
    _check(gpu_ops, "pool_ave", x, window, out=np.full_like(dy, np.nan))
    _check(gpu_ops, "pool_ave_backward", dy, window, out=np.full_like(x, np.nan))


def test_random_windows(shim, rng):
    """Fifty windows nobody chose, all kernels, 64-bit indices too."""
    wide = FakeGpuOps(kernels=lambda *args: shim(*args, wide=True))
    ops = FakeGpuOps(kernels=shim)
    done = 0
    while done < 50:
        kernel, stride, pad, dilation, size = (rng.integers(*r, 2) for r in RANGES)
        window = Window(*(tuple(int(v) for v in p) for p in (kernel, stride, pad, dilation)))
        spatial = tuple(int(v) for v in size)
        try:
            positions = window.conv_shape(spatial)
        except ValueError:
            continue
        done += 1
        x = rng.standard_normal((2, 3, *spatial))
        col = rng.standard_normal((2, 3, *window.kernel, *positions))
        pool = Window(window.kernel, window.stride, window.pad)
        for each in (ops, wide):
            _check(each, "im2col", x, window, out=np.full_like(col, np.nan))
            _check(each, "col2im", col, window, out=np.full_like(x, np.nan))
            pooled = np.full((2, 3, *pool.pool_shape(spatial)), np.nan)
            _check(each, "pool_ave", x, pool, out=pooled)
            _check(each, "pool_ave_backward", np.ones_like(pooled), pool, out=np.full_like(x, 9))


RANGES = [(1, 5), (1, 5), (0, 4), (1, 4), (1, 12)]


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(np.float16),
    ],
    ids=["not contiguous", "half"],
)
def test_other_arrays_take_the_generic_way(rng, arrange):
    window, xs = Window((2, 3), (1, 1), (1, 1)), rng.random((2, 3, 5, 6))
    x = arrange(xs)
    gpu_ops, plain = FakeGpuOps(), FakeOps()
    got = []
    for ops in (gpu_ops, plain):
        there = ops.from_host(x)
        if not x.flags.c_contiguous:
            there = ops.from_host(np.ascontiguousarray(x.T)).T
        out = ops.from_host(np.ones((len(x), 3, 6, 6), x.dtype))
        w = ops.from_host(np.ones((3, 3, 2, 3), x.dtype))
        got.append(ops.to_host(ops.conv_forward(there, w, None, window, 1, out)))
        ops.pool_ave(there, window, out)
        got.append(ops.to_host(out))
    assert gpu_ops.calls == []
    np.testing.assert_array_equal(got[0], got[2])
    np.testing.assert_array_equal(got[1], got[3])
