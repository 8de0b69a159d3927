"""Where do a GPU's arrays live? In CuPy's memory on one device, if there is a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import numpy as np

from ..base import Array, Ops


def missing() -> str | None:
    """None where a GPU can be used, else what is missing for it: CuPy, a device or a library."""
    try:
        cupy = import_module("cupy")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            return (
                "CuPy is not installed: pip install 'pycaffe-lite[cuda12]'"
                " (or [cuda13], as the driver wants)"
            )
        return f"CuPy is installed but cannot be imported: {type(error).__name__}: {error}"
    found = f"CuPy {getattr(cupy, '__version__', '')} is installed but"
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return f"{found} finds no NVIDIA device"
    except Exception as error:
        return f"{found} no NVIDIA device or driver can be used: {error}"
    try:
        cupy.cuda.nvrtc.getVersion()
        _ = cupy.cuda.cublas
    except Exception as error:
        return (
            f"{found} a CUDA library cannot be loaded: {type(error).__name__}: {error}"
            " (the CUDA toolkit has it, or from CuPy 14 on: pip install 'cupy-cuda12x[ctk]' or"
            " 'cupy-cuda13x[ctk]')"
        )
    return None


class GenericGpuOps(Ops):
    """The plain definition over CuPy: arrays of one device, the generic kernels."""

    name = "generic"
    kind = "gpu"
    priority = 0

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(import_module("cupy"), f"gpu:{device_id}")
        self._device_id = device_id

    @classmethod
    def available(cls) -> bool:
        """True where CuPy and a device are there."""
        return missing() is None

    def running(self) -> AbstractContextManager[Any]:
        """Makes the device the thread's current one."""
        # A new Device each time: entering one keeps state on it.
        device: AbstractContextManager[Any] = self.xp.cuda.Device(self._device_id)
        return device

    def allocate(self, count: int, dtype: Any) -> Array:
        """A 1-D array of `count` zeros, with 64 elements of slack behind it."""
        with self.running():
            return self.xp.zeros(count + 64, dtype=dtype)[:count]

    def upload(self, source: np.ndarray, out: Array) -> Array:
        """Host array -> `out` of this device; the host array may change once the call returns."""
        with self.running():
            # CUDA has staged pageable memory by the time the call returns.
            out.set(source)
        return out

    def download(self, source: Array, out: np.ndarray) -> np.ndarray:
        """Array of this device -> host array `out`; complete when the call returns."""
        with self.running():
            if out.flags.c_contiguous:
                source.get(out=out)
            else:
                out[...] = source.get()
        return out

    def to_host(self, array: Array) -> np.ndarray:
        """A copy on the host, complete when the call returns."""
        with self.running():
            host: np.ndarray = array.get()
        return host

    def from_host(self, array: np.ndarray) -> Array:
        """A copy on this device."""
        with self.running():
            return self.xp.array(array)

    def synchronize(self) -> None:
        """Return when the device has done all work handed to it."""
        self.xp.cuda.Device(self._device_id).synchronize()

    def rng(self, seed: int) -> Any:
        """cupy.random.Generator: fewer methods than NumPy's (`random`, `uniform`, `integers`,
        `standard_normal` are there, `normal` is not)."""
        with self.running():
            return super().rng(seed)
