"""Would this code run on a GPU? A strict pretend device: NumPy inside, CuPy's rules outside.

Its arrays (fake_array) refuse to meet host arrays, its array module (fake_xp) has what CuPy has,
and it counts what costs time on a device: launches, copies and syncs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from fake_array import Counters, FakeArray, check_pair, unwrap
from fake_xp import FakeXp

from pycaffe_lite.ops.base import Ops

__all__ = ["Counters", "FakeArray", "FakeMovement", "FakeOps"]


class FakeMovement(Ops):
    """The array half of a fake backend: memory of its own, every copy counted."""

    kind = "gpu"
    counters: Counters

    @classmethod
    def available(cls) -> bool:
        return True

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def rng(self, seed: int) -> Any:
        return self.xp.random.default_rng(seed)

    def allocate(self, count: int, dtype: Any) -> FakeArray:
        self.counters.allocations += 1
        return FakeArray(Ops.allocate(self, count, dtype), self.counters)

    def upload(self, source: np.ndarray, out: FakeArray) -> FakeArray:
        if not isinstance(source, np.ndarray) or not isinstance(out, FakeArray):
            raise TypeError(f"upload of {type(source).__name__} into {type(out).__name__}")
        unwrap(self.counters, out)
        out.set(source)
        return out

    def download(self, source: FakeArray, out: np.ndarray) -> np.ndarray:
        if not isinstance(source, FakeArray) or not isinstance(out, np.ndarray):
            raise TypeError(f"download of {type(source).__name__} into {type(out).__name__}")
        check_pair(source, out)
        out[...] = unwrap(self.counters, source)
        self.counters.downloads += 1
        self.counters.download_elements += out.size
        return out

    def to_host(self, array: FakeArray) -> np.ndarray:
        return self.download(array, np.empty(array.shape, array.dtype))

    def from_host(self, array: np.ndarray) -> FakeArray:
        device = self.allocate(array.size, array.dtype).reshape(array.shape)
        return self.upload(array, device)

    def synchronize(self) -> None:
        self.counters.waits += 1

    def first_outside(
        self, array: FakeArray, low: int, high: int, also: int | None = None
    ) -> float | None:
        """One wait on purpose, not a hidden download; its launches count as ever."""
        before = self.counters.downloads, self.counters.download_elements
        found = super().first_outside(array, low, high, also)
        self.counters.downloads, self.counters.download_elements = before
        self.counters.waits += 1
        return found


class FakeOps(FakeMovement):
    """The generic kernels on the fake device: what every layer's test runs on."""

    name = "fake"

    def __init__(self, place: str = "fake:0") -> None:
        self.counters = Counters()
        super().__init__(FakeXp(self.counters), place)
