"""Fixtures of the kernels' tests: GpuOps at three depths, none of which needs a GPU."""

from __future__ import annotations

import sys

import cuda_shim
import pytest
from fake_gpu import FakeGpuOps
from host_cupy import HostCupy

from pycaffe_lite.ops import gpu


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    if cuda_shim.compiler() is None:
        pytest.skip("no g++ to compile the CUDA source for the host with")
    return cuda_shim.Shim(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(params=["formulas", "compiled", "cupy"])
def gpu_ops(request, monkeypatch):
    """GpuOps's Python code over formulas, over the compiled source, and down to CuPy's calls."""
    if request.param == "formulas":
        return FakeGpuOps()
    shim = request.getfixturevalue("shim")
    if request.param == "compiled":
        return FakeGpuOps(kernels=shim)
    monkeypatch.setitem(sys.modules, "cupy", HostCupy(shim))
    return gpu.GpuOps()
