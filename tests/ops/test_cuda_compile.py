"""Does the CUDA source compile? By NVRTC itself, which needs no device, for old and new ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pycaffe_lite.ops.gpu import cuda

KERNELS = re.findall(r"__global__ void (\w+)\(", cuda.source())


@pytest.fixture(scope="module")
def nvrtc():
    """The compiler of the wheels cuda-bindings and nvidia-cuda-nvrtc."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    try:
        status, *_ = nvrtc.nvrtcVersion()
    except (RuntimeError, ImportError) as error:
        pytest.skip(f"nvidia-cuda-nvrtc is not installed: {error}")
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return nvrtc


def _compile(nvrtc, source, options):
    """The device's code, or an AssertionError with the compiler's words."""

    def done(result, *values):
        return result == nvrtc.nvrtcResult.NVRTC_SUCCESS, *values

    _, program = done(*nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    flags = [o.encode() for o in options]
    (compiled,) = done(*nvrtc.nvrtcCompileProgram(program, len(flags), flags))
    _, size = done(*nvrtc.nvrtcGetProgramLogSize(program))
    log = bytearray(size)  # NVRTC writes into it, so it must not be bytes: those can be shared
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode().rstrip("\0 ")
    assert compiled, text
    _, size = done(*nvrtc.nvrtcGetCUBINSize(program))
    code = bytearray(size)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return code, text


@pytest.mark.parametrize("wide", [False, True], ids=["int", "long"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("arch", [75, 90, 100])
def test_every_kernel_compiles(nvrtc, arch, dtype, wide):
    options = (*cuda.options(dtype, wide), f"--gpu-architecture=sm_{arch}")
    code, log = _compile(nvrtc, cuda.source(), options)
    assert log == ""
    for name in KERNELS:
        assert f".text.{name}\0".encode() in code


def test_a_mistake_does_not_compile(nvrtc):
    source = cuda.source().replace("out[i] = sum;", "out[i] = sums;", 1)
    with pytest.raises(AssertionError, match='"sums" is undefined'):
        _compile(nvrtc, source, cuda.options(np.float32, False))


def test_every_kernel_is_found():
    assert len(KERNELS) == cuda.source().count("__global__") == len(set(KERNELS)) == 8
