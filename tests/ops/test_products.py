"""The CPU backend's products in parts against plain NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, products
from pycaffe_lite.ops.cpu.threads import set_num_threads


@pytest.fixture(params=[1, 2, 3])
def on_the_pool(request, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "NARROW", 2)
    set_num_threads(request.param)
    yield
    set_num_threads(None)


@pytest.mark.usefixtures("on_the_pool")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 17), (1, 3), (5, 17), (17, 5), (2, 3), (4, 1)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("depth", [29, 0])
def test_products(rows, columns, depth, dtype, transposed, rng):
    a, b = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    expected = np.array([[sum(x * y for x, y in zip(r, c, strict=True)) for c in b.T] for r in a])
    a, b = a.astype(dtype), b.astype(dtype)
    a = np.ascontiguousarray(a.T).T if "a" in transposed else a
    b = np.ascontiguousarray(b.T).T if "b" in transposed else b
    for ops in (CpuOps(), Ops()):
        out = np.full((rows, columns), np.nan, dtype)
        assert ops.matmul(a, b, out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 2003), (64, 500), (500, 64)])
def test_of_a_size_for_the_pool(rows, columns, rng):
    a = rng.standard_normal((rows, 4200)).astype(np.float32)
    b = rng.standard_normal((columns, 4200)).astype(np.float32).T
    assert rows * columns * 4200 >= products.LARGE
    out = CpuOps().matmul(a, b, np.empty((rows, columns), np.float32))
    np.testing.assert_allclose(out, a.astype(float) @ b.astype(float), atol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.usefixtures("on_the_pool")
def test_what_is_not_finite_stays_in_its_row(bad, rng):
    a = rng.standard_normal((5, 7)).astype(np.float32)
    a[3, 2] = bad
    with np.errstate(invalid="ignore"):
        out = CpuOps().matmul(a, np.ones((7, 11), np.float32), np.empty((5, 11), np.float32))
    assert (np.isfinite(out).all(axis=1) == [True, True, True, False, True]).all()
