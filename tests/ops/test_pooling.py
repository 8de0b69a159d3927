"""Pooling and its gradients: loops == generic, generic == every backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, pooling
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.window import Window

P = [
    [35, 1, 6, 26, 19, 24],
    [3, 32, 7, 21, 23, 25],
    [31, 9, 2, 22, 27, 20],
    [8, 28, 33, 17, 10, 15],
    [30, 5, 34, 12, 14, 16],
    [4, 36, 29, 13, 18, 11],
]
WINDOWS = [
    ((7,), Window((3,), (2,), (1,))),
    ((6, 5), Window((3, 2), (2, 1))),
    ((6, 5), Window((2, 3), (2, 3), (1, 2))),
    ((5, 7), Window((3, 4), (1, 2), (2, 1))),
    ((4, 3), Window((1, 2), (3, 4))),
    ((4, 5, 6), Window((2, 3, 1), (1, 2, 3), (1, 0, 0))),
]


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> type:
    return request.param


def windows(
    window: Window, spatial: tuple[int, ...], pooled: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]], int]]:
    """Each pooled position, the image positions in its window in order, and Caffe's divisor."""
    for p in np.ndindex(*pooled):
        starts = [i * s - pad for i, s, pad in zip(p, window.stride, window.pad, strict=True)]
        stops = [
            min(start + k, size + pad)
            for start, k, size, pad in zip(starts, window.kernel, spatial, window.pad, strict=True)
        ]
        inside = itertools.product(
            *(
                range(max(a, 0), min(b, size))
                for a, b, size in zip(starts, stops, spatial, strict=True)
            )
        )
        divisor = 1
        for start, stop in zip(starts, stops, strict=True):
            divisor *= max(stop - start, 1)
        yield p, list(inside), divisor


def max_loops(x: np.ndarray, window: Window) -> tuple[np.ndarray, np.ndarray]:
    spatial = x.shape[2:]
    pooled = window.pool_shape(spatial)
    lowest = np.finfo(x.dtype).min
    y = np.full((*x.shape[:2], *pooled), lowest, x.dtype)
    mask = np.full(y.shape, -1, np.int32)
    for n, c in np.ndindex(*x.shape[:2]):
        for p, inside, _ in windows(window, spatial, pooled):
            for at in inside:
                if x[(n, c, *at)] > y[(n, c, *p)]:
                    y[(n, c, *p)] = x[(n, c, *at)]
                    mask[(n, c, *p)] = np.ravel_multi_index(at, spatial)
    return y, mask


def ave_loops(x: np.ndarray, window: Window) -> np.ndarray:
    pooled = window.pool_shape(x.shape[2:])
    y = np.zeros((*x.shape[:2], *pooled))
    for n, c in np.ndindex(*x.shape[:2]):
        for p, inside, divisor in windows(window, x.shape[2:], pooled):
            y[(n, c, *p)] = sum(float(x[(n, c, *at)]) for at in inside) / divisor
    return y


def pool_max(
    ops: Ops, x: np.ndarray, window: Window, with_mask: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    shape = (*x.shape[:2], *window.pool_shape(x.shape[2:]))
    out = ops.from_host(np.full(shape, np.nan, x.dtype))
    mask = ops.from_host(np.full(shape, 77, np.int32)) if with_mask else None
    assert ops.pool_max(ops.from_host(x), window, out, mask) is out
    return ops.to_host(out), None if mask is None else ops.to_host(mask)


def pool_ave(ops: Ops, x: np.ndarray, window: Window) -> np.ndarray:
    shape = (*x.shape[:2], *window.pool_shape(x.shape[2:]))
    out = ops.from_host(np.full(shape, np.nan, x.dtype))
    assert ops.pool_ave(ops.from_host(x), window, out) is out
    return ops.to_host(out)


@pytest.mark.parametrize(("spatial", "window"), WINDOWS)
def test_max(
    ops: Ops, rng: np.random.Generator, spatial: tuple[int, ...], window: Window, dtype: type
) -> None:
    """Few distinct values: ties are the rule."""
    x = rng.integers(-3, 3, (2, 3, *spatial)).astype(dtype)
    y, mask = max_loops(x, window)
    got, got_mask = pool_max(ops, x, window)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, y)
    np.testing.assert_array_equal(got_mask, mask)
    np.testing.assert_array_equal(pool_max(ops, x, window, with_mask=False)[0], y)


def test_max_never_takes_nan(ops: Ops, rng: np.random.Generator, dtype: type) -> None:
    x = rng.standard_normal((2, 3, 6, 5)).astype(dtype)
    x[rng.random(x.shape) < 0.4] = np.nan
    x[0, 0], x[0, 1, 2], x[1, 2, 3:] = np.nan, -np.inf, np.inf
    window = Window((2, 3), (1, 2), (1, 0))
    got, got_mask = pool_max(ops, x, window)
    y, mask = max_loops(x, window)
    np.testing.assert_array_equal(got, y)
    np.testing.assert_array_equal(got_mask, mask)
    assert (got_mask[0, 0] == -1).all()
    assert (got[0, 0] == np.finfo(dtype).min).all()


@pytest.mark.parametrize(("spatial", "window"), WINDOWS)
def test_max_backward(
    ops: Ops, rng: np.random.Generator, spatial: tuple[int, ...], window: Window, dtype: type
) -> None:
    x = rng.integers(-3, 3, (2, 3, *spatial)).astype(dtype)
    _, mask = max_loops(x, window)
    mask[0, 1] = -1
    dy = rng.standard_normal(mask.shape).astype(dtype)
    expected = np.zeros((2, 3, x[0, 0].size))
    for index in np.ndindex(*mask.shape):
        if mask[index] >= 0:
            expected[(*index[:2], mask[index])] += dy[index]
    out = ops.from_host(np.full(x.shape, np.nan, dtype))
    assert ops.pool_max_backward(ops.from_host(dy), ops.from_host(mask), window, out) is out
    np.testing.assert_allclose(ops.to_host(out), expected.reshape(x.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("spatial", "window"), WINDOWS)
def test_ave(
    ops: Ops, rng: np.random.Generator, spatial: tuple[int, ...], window: Window, dtype: type
) -> None:
    x = rng.standard_normal((2, 3, *spatial)).astype(dtype)
    got = pool_ave(ops, x, window)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, ave_loops(x, window), rtol=1e-5, atol=1e-6)


def test_ave_spreads_nan_and_inf(ops: Ops, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 6, 5))
    x[0, 1, 2, 3], x[1, 0, 4, 0] = np.nan, np.inf
    window = Window((3, 2), (2, 1), (1, 1))
    got, expected = pool_ave(ops, x, window), ave_loops(x, window)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("spatial", "window"), WINDOWS)
def test_ave_backward_is_the_transpose(
    ops: Ops, rng: np.random.Generator, spatial: tuple[int, ...], window: Window, dtype: type
) -> None:
    x = rng.standard_normal((2, 3, *spatial)).astype(dtype)
    y = ave_loops(x, window)
    dy = rng.standard_normal(y.shape).astype(dtype)
    out = ops.from_host(np.full(x.shape, np.nan, dtype))
    assert ops.pool_ave_backward(ops.from_host(dy), window, out) is out
    inner = (ops.to_host(out).astype(float) * x).sum()
    np.testing.assert_allclose(inner, (dy * y).sum(), rtol=1e-4, atol=1e-5)


def uneven(seed: int) -> tuple[np.ndarray, Window]:
    """Windows of all sizes, wider than the image too; few distinct values, NaN, infinity."""
    rng = np.random.default_rng(seed)
    dims = int(rng.integers(1, 4))
    kernel = tuple(int(k) for k in rng.integers(1, 7, dims))
    pad = tuple(int(rng.integers(0, k)) for k in kernel)
    window = Window(kernel, tuple(int(s) for s in rng.integers(1, 5, dims)), pad)
    least = (max(1, k - 2 * p) for k, p in zip(kernel, pad, strict=True))
    spatial = tuple(size + int(rng.integers(0, 9)) for size in least)
    x = rng.integers(-2, 3, (2, 3, *spatial)).astype(np.float32)
    for value, share in ((np.nan, 0.1 * (seed % 3)), (-np.inf, 0.1), (np.inf, 0.02)):
        x[rng.random(x.shape) < share] = value
    return x, window


@pytest.mark.parametrize("seed", range(40))
def test_uneven_shapes(ops: Ops, seed: int) -> None:
    x, window = uneven(seed)
    y, mask = pool_max(Ops(), x, window)
    got, got_mask = pool_max(ops, x, window)
    np.testing.assert_array_equal(got, y)
    np.testing.assert_array_equal(got_mask, mask)
    dy = np.random.default_rng(seed).standard_normal(y.shape).astype(np.float32)
    expected, out = np.empty_like(x), ops.from_host(np.full(x.shape, np.nan, x.dtype))
    Ops().pool_max_backward(dy, mask, window, expected)
    ops.pool_max_backward(ops.from_host(dy), ops.from_host(mask), window, out)
    np.testing.assert_allclose(ops.to_host(out), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spatial", [(13, 11), (40, 31), (290, 260)])
def test_whole_planes(rng: np.random.Generator, spatial: tuple[int, ...]) -> None:
    """Places in the window of 8, 16 and 32 bits, on the CPU."""
    x = rng.standard_normal((2, 3, *spatial)).astype(np.float32)
    x[1, 2, -1, -1], x[1, 1] = 9, np.nan
    got, mask = pool_max(CpuOps(), x, Window(spatial))
    flat = np.nan_to_num(x.reshape(2, 3, -1), nan=-np.inf)
    expected = flat.argmax(axis=2)
    expected[1, 1] = -1
    np.testing.assert_array_equal(mask[..., 0, 0], expected)
    np.testing.assert_array_equal(got[..., 0, 0], np.maximum(flat.max(axis=2), np.finfo("f").min))


@pytest.mark.parametrize("shape", [(1, 96, 55, 54), (3, 40, 57, 60)])
@pytest.mark.parametrize("window", [Window((3, 3), (2, 2)), Window((3, 2), (1, 2), (1, 0))])
def test_large_planes(
    ops: Ops, rng: np.random.Generator, shape: tuple[int, ...], window: Window
) -> None:
    """Sizes at which a backend cuts the work; a transposed input too."""
    x = rng.standard_normal(shape).astype(np.float32)
    expected, expected_mask = pool_max(Ops(), x, window)
    got, mask = pool_max(ops, x, window)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(mask, expected_mask)
    np.testing.assert_allclose(
        pool_ave(ops, x, window), pool_ave(Ops(), x, window), rtol=1e-5, atol=1e-6
    )
    turned = np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3)
    np.testing.assert_array_equal(pool_max(ops, turned, window)[0], expected)


@pytest.mark.parametrize("planes", [1, 400, 2000])
@pytest.mark.parametrize("seed", range(40, 50))
def test_max_by_blocks_on_two_threads(
    seed: int, planes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "PLANES", planes)
    monkeypatch.setattr(pooling, "MANY", 0)
    window = Window((1 + seed % 4, 3), (2, 1 + seed % 3), (0, seed % 3))
    x = rng.standard_normal((3, 5, 9 + seed % 5, 11)).astype(np.float32)
    x[1, 2] = np.nan
    pooled = (3, 5, *window.pool_shape(x.shape[2:]))
    got, expected = (np.empty(pooled, np.float32) for _ in range(2))
    set_num_threads(2)
    try:
        CpuOps().pool_max(x[::-1], window, got, None)
    finally:
        set_num_threads(None)
    Ops().pool_max(x[::-1], window, expected, None)
    np.testing.assert_array_equal(got, expected)


def test_empty_batch(ops: Ops) -> None:
    x, window = np.empty((0, 3, 6, 5), np.float32), Window((3, 2), (2, 2))
    got, mask = pool_max(ops, x, window)
    assert got.shape == (0, 3, 3, 3)
    assert pool_ave(ops, x, window).shape == got.shape
    out = ops.from_host(np.empty(x.shape, np.float32))
    assert ops.pool_max_backward(ops.from_host(got), ops.from_host(mask), window, out) is out
    assert ops.pool_ave_backward(ops.from_host(got), window, out) is out


# ---- recorded figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plane", "window", "expected", "mask"),
    [
        (
            [[1, 2, 5, 2, 3], [9, 4, 1, 4, 8], [1, 2, 5, 2, 3]],
            Window((2, 2)),
            [[9, 5, 5, 8], [9, 5, 5, 8]],
            [[5, 2, 2, 9], [5, 12, 12, 9]],
        ),
        (
            P,
            Window((3, 2)),
            [
                [35, 32, 26, 27, 27],
                [32, 33, 33, 27, 27],
                [31, 34, 34, 27, 27],
                [36, 36, 34, 18, 18],
            ],
            [[0, 7, 3, 16, 16], [7, 20, 20, 16, 16], [12, 26, 26, 16, 16], [31, 31, 26, 34, 34]],
        ),
        (
            P,
            Window((2, 3)),
            [
                [35, 32, 26, 26],
                [32, 32, 27, 27],
                [33, 33, 33, 27],
                [34, 34, 34, 17],
                [36, 36, 34, 18],
            ],
            [[0, 7, 3, 3], [7, 7, 16, 16], [20, 20, 20, 16], [26, 26, 26, 21], [31, 31, 26, 34]],
        ),
        (
            [[1, 2, 4], [2, 3, 2], [4, 2, 1]],
            Window((3, 3), (2, 2), (2, 2)),
            [[1, 4, 4], [4, 4, 4], [4, 4, 1]],
            None,
        ),
    ],
)
def test_recorded_max(
    ops: Ops, plane: list[list[int]], window: Window, expected: list[list[int]], mask: object
) -> None:
    x = np.broadcast_to(np.array(plane, np.float32), (2, 3, *np.shape(plane))).copy()
    got, got_mask = pool_max(ops, x, window)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))
    if mask is not None:
        np.testing.assert_array_equal(got_mask, np.broadcast_to(mask, got.shape))


def test_recorded_ave(ops: Ops) -> None:
    x = np.full((1, 2, 3, 3), 2, np.float32)
    corner, edge = 8 / 9, 4 / 3
    expected = [[corner, edge, corner], [edge, 2, edge], [corner, edge, corner]]
    got = pool_ave(ops, x, Window((3, 3), (), (1, 1)))
    np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape), rtol=1e-6)


def test_the_average_of_a_large_plane_keeps_its_digits(ops: Ops) -> None:
    """Sums of equal values round the same way: taken one after the other 2e-4 would be lost."""
    x = np.full((1, 2, 129, 127), 0.4718, np.float32)
    out = np.empty((1, 2, 1, 1), np.float32)
    on_device = ops.from_host(x), ops.from_host(out)
    found = ops.to_host(ops.pool_ave(on_device[0], Window((129, 127)), on_device[1]))
    np.testing.assert_allclose(found, 0.4718, rtol=1e-6)
