"""Do the CUDA kernels compute what they should? Their very source, compiled for the host by g++.

A header gives it the few words of CUDA it uses; a grid of two blocks of three threads is walked one
thread after the other, so the grid-stride loops are exercised as well.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_lite.ops.gpu import cuda

_HEADER = """
#define __global__
#define __device__
static struct { unsigned x; } blockIdx, threadIdx, blockDim, gridDim;
extern "C" void stand_at(unsigned block, unsigned thread, unsigned blocks, unsigned threads)
{
    blockIdx.x = block; threadIdx.x = thread; gridDim.x = blocks; blockDim.x = threads;
}
"""
_BLOCKS, _THREADS = 2, 3


def compiler() -> str | None:
    """The path of g++, None where there is none."""
    return shutil.which("g++")


class Shim:
    """The kernels as host code, compiled into `folder` when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[tuple[str, ...], ctypes.CDLL] = {}

    def library(self, dtype: Any, wide: bool) -> ctypes.CDLL:
        """The kernels with the very options that the device's compiler gets."""
        options = cuda.options(dtype, wide)
        if options not in self._libraries:
            stem = "-".join(o.lstrip("-").replace("=", "") for o in options)
            (self._folder / "shim.h").write_text(_HEADER)
            (self._folder / "kernels.cu").write_text(cuda.source())
            command = [compiler() or "g++", "-O1", "-Wall", "-Wextra", "-Werror", "-shared"]
            command += ["-Wno-unused-parameter"]  # pooling takes a window without its dilation
            command += ["-fPIC", *options, "-include", "shim.h", "-x", "c++", "kernels.cu"]
            command += ["-o", f"{stem}.so"]
            done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            self._libraries[options] = ctypes.CDLL(str(self._folder / f"{stem}.so"))
        return self._libraries[options]

    def __call__(self, name: str, count: int, *args: Any, wide: bool = False) -> None:
        """One launch on NumPy arrays, counts and None."""
        library = self.library(args[0].dtype, wide)
        whole = ctypes.c_longlong if wide else ctypes.c_int
        values = [whole(count)]
        for value in args:
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                values.append(ctypes.c_void_p(value.ctypes.data))
            else:
                values.append(ctypes.c_void_p(0) if value is None else whole(value))
        for block in range(_BLOCKS):
            for thread in range(_THREADS):
                library.stand_at(block, thread, _BLOCKS, _THREADS)
                getattr(library, name)(*values)
