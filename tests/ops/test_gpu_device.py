"""Does GpuOps drive CuPy, cuBLAS and the chosen device rightly? Without any of them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from host_cupy import HostArray, HostCupy

from pycaffe_lite.ops import gpu
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.gpu import cuda
from pycaffe_lite.ops.window import Window


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    return request.param


def _random(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "shape", [(3, 2, 4, 5), (1, 1, 4, 1), (2, 3, 1, 1), (2, 1, 1, 4), (2, 5, 3, 1)]
)
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_product(gpu_ops, rng, dtype, shape, turned):
    batch, m, k, n = shape
    a, b = (
        _random(rng, dtype, batch, c, r).swapaxes(1, 2) if t else _random(rng, dtype, batch, r, c)
        for t, (r, c) in zip(turned, ((m, k), (k, n)), strict=True)
    )
    out = _random(rng, dtype, batch, m, n)
    wanted = a @ b + out
    there = [
        gpu_ops.from_host(np.ascontiguousarray(v.swapaxes(1, 2))).swapaxes(1, 2)
        if t
        else gpu_ops.from_host(v)
        for t, v in zip(turned, (a, b), strict=True)
    ]
    result = gpu_ops.from_host(out)
    gpu_ops._gemm(*there, result, beta=1)
    np.testing.assert_allclose(gpu_ops.to_host(result), wanted, rtol=1e-4, atol=1e-5)


def test_product_refuses_what_cublas_cannot_read():
    a = np.zeros((2, 6, 8))[:, ::2, ::2]
    with pytest.raises(ValueError, match="contiguous"):
        cuda.gemm_arguments(a, np.zeros((2, 4, 5)), np.zeros((2, 3, 5)))
    with pytest.raises(ValueError, match="cannot multiply"):
        cuda.gemm_arguments(np.zeros((2, 3, 4)), np.zeros((2, 5, 5)), np.zeros((2, 3, 5)))


@pytest.fixture
def cupy(shim, monkeypatch):
    cupy = HostCupy(shim)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def test_everything_happens_on_the_chosen_device(cupy):
    ops = gpu.GpuOps(3)
    assert ops.place == "gpu:3"
    with ops.running():
        assert cupy.devices == [3]
    ops.upload(np.ones(4, np.float32), ops.allocate(4, np.float32))
    ops.synchronize()
    assert cupy.devices == []
    assert cupy.log == ["synchronize"]


def test_movement(cupy):
    ops = gpu.GenericGpuOps()
    array = ops.allocate(6, np.float32)
    assert isinstance(array, HostArray)
    assert (array.shape, array.base.size) == ((6,), 70)
    host = np.arange(6, dtype=np.float32)
    assert ops.upload(host, array) is array
    out = np.zeros((6, 2), np.float32)[:, 0]
    assert ops.download(array, out) is out
    np.testing.assert_array_equal(out, host)
    np.testing.assert_array_equal(ops.to_host(ops.from_host(host)), host)
    assert ops.scratch("a", (2, 3), np.float32).shape == (2, 3)
    assert ops.rng(1).random(3, dtype=np.float32).shape == (3,)


def test_a_kernel_is_compiled_once(cupy):
    ops = gpu.GpuOps()
    x, out = (ops.from_host(np.ones((1, 2, 3, 4), np.float32)) for _ in range(2))
    for _ in range(3):
        ops.pool_ave(x, Window((1, 1)), out)
    assert cupy.log == [("-DREAL=float", "-DWIDE=0"), *["pool_ave"] * 3]


def test_tf32_only_where_asked_for(cupy):
    ops = gpu.GpuOps()
    assert not ops.tf32
    a, b, c = (ops.from_host(np.ones((1, 2, 2), np.float32)) for _ in range(3))
    ops._gemm(a, b, c)
    assert cupy.log == ["gemm"]
    ops.tf32 = True
    ops._gemm(a, b, c)
    assert cupy.log == ["gemm", "math mode 3", "gemm", "math mode 0"]


def test_large_arrays_get_wide_indices():
    large = SimpleNamespace(size=2**31)
    assert cuda.is_wide(10, (large, 3))
    assert cuda.is_wide(2**31, ())
    assert not cuda.is_wide(10, (SimpleNamespace(size=2**29), 2**40))
    assert cuda.options(np.float64, True) == ("-DREAL=double", "-DWIDE=1")
    # The last position plus a grid's stride still is an int.
    assert cuda._WIDE_FROM + cuda.MOST_BLOCKS * cuda.THREADS < 2**31


def test_missing_says_which(monkeypatch, shim):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "pip install 'pycaffe-lite[cuda12]'" in gpu.missing()
    assert not gpu.GpuOps.available()

    cupy = HostCupy(shim)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert gpu.missing() is None
    assert gpu.GpuOps.available()
    assert gpu.GenericGpuOps.available()

    def fail():
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    cupy.cuda.nvrtc.getVersion = fail
    assert "a CUDA library cannot be loaded: RuntimeError" in gpu.missing()
    cupy.cuda.runtime.getDeviceCount = fail
    assert "installed but no NVIDIA device or driver can be used: cudaError" in gpu.missing()
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    assert "finds no NVIDIA device" in gpu.missing()
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert "installed but" in gpu.missing()


def test_a_broken_cupy_is_reported(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cupy.py").write_text("raise OSError('libcuda.so.1 is not there')")
    assert "cannot be imported: OSError: libcuda.so.1 is not there" in gpu.missing()
    (tmp_path / "cupy.py").write_text("import no_such_part_of_cupy")
    sys.path_importer_cache.clear()
    assert "cannot be imported: ModuleNotFoundError" in gpu.missing()


def test_importing_the_backend_imports_no_cupy():
    code = "import sys, pycaffe_lite.ops.gpu; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_public_name_beyond_ops():
    public = {n for n in dir(gpu.GpuOps) if not n.startswith("_")}
    assert public - set(dir(Ops)) == {"workspace", "tf32"}
