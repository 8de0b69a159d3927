"""The CPU backend's product of one vector against plain NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, inner_product
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.window import Window


@pytest.fixture(params=[1, 2, 3])
def on_the_pool(request, monkeypatch):
    monkeypatch.setattr(inner_product, "LARGE", 0)
    set_num_threads(request.param)
    yield
    set_num_threads(None)


@pytest.mark.usefixtures("on_the_pool")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("outputs", [1, 3, 17])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_one_vector(outputs, dtype, transposed, bias, rng):
    x = rng.standard_normal((1, 29)).astype(dtype)
    w = rng.standard_normal((29, outputs) if transposed else (outputs, 29)).astype(dtype)
    w = w.T if transposed else w
    b = rng.standard_normal(outputs).astype(dtype) if bias else None
    expected = w.astype(float) @ x[0].astype(float) + (0 if b is None else b)
    for ops in (CpuOps(), Ops()):
        out = np.full((1, outputs), np.nan, dtype)
        assert ops.conv_forward(x, w, b, Window(()), 1, out) is out
        np.testing.assert_allclose(out[0], expected, rtol=1e-4, atol=1e-5)


def test_of_a_size_for_the_pool(rng):
    x = rng.standard_normal((1, 4200)).astype(np.float32)
    w = rng.standard_normal((2003, 4200)).astype(np.float32)
    assert w.size >= inner_product.LARGE
    out = np.empty((1, 2003), np.float32)
    CpuOps().conv_forward(x, w, None, Window(()), 1, out)
    np.testing.assert_allclose(out, x @ w.T, atol=1e-3)
