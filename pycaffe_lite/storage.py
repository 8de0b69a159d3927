"""Where do values live? Flat storage with one copy a place, brought up to date on use.

Reading and writing are declared by the caller of `SyncedArray.on`; both are the default, so that a
forgotten declaration costs a copy and never gives a wrong number.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from .ops.base import Array, Ops


class _Copy:
    """The storage as one place holds it; `fresh` where its values are the current ones."""

    __slots__ = ("buffer", "fresh", "ops")

    def __init__(self, ops: Ops, buffer: Array, fresh: bool) -> None:
        self.ops, self.buffer, self.fresh = ops, buffer, fresh


class SyncedArray:
    """Flat storage of `count` elements with at most one copy a place, brought up to date on use.

    The first touch allocates zeros, as many as the count is then. Growing beyond that drops the
    copies (their arrays live on, stale, with whoever holds them); shrinking keeps them, and what
    lies past the new end comes back with it. `version` counts the accesses that may have written;
    while `is_exposed`, somebody may write without one.
    """

    __slots__ = (
        "_copies",
        "_lent",
        "_tail",
        "capacity",
        "count",
        "dtype",
        "keeps_pointer",
        "version",
    )

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.count = self.capacity = self.version = 0
        self._tail = 0  # up to here copies may differ past `count`
        self._copies: dict[str, _Copy] = {}
        self._lent: weakref.ref[Array] | None = None
        self.keeps_pointer = False  # a raw address was given out, for good

    @property
    def nbytes(self) -> int:
        """Bytes that one copy takes, allocated or not."""
        return self.capacity * self.dtype.itemsize

    def resize(self, count: int) -> None:
        """Hold `count` elements; where no copy has room for them, all of them become zero."""
        if count > self.capacity or not self._copies:
            self.capacity = count
            self._copies.clear()
            self._lent = None
            self.version += 1
            self._tail = 0
        elif count < self.count:
            self._tail = max(self._tail, self.count)
        self.count = count

    def on(self, ops: Ops, *, read: bool = True, write: bool = True) -> Array:
        """The flat buffer (`capacity` elements) of that backend's place.

        Values are copied over from a fresh place only where `read` and stale; `write` makes every
        other place stale. With `read=False` the caller promises to write all it hands on.
        """
        copy = self._copies.get(ops.place)
        if copy is None:
            fresh = not self._copies
            self._tail = 0 if fresh else self.capacity
            copy = _Copy(ops, ops.allocate(self.capacity, self.dtype), fresh)
            self._copies[ops.place] = copy
        if not copy.fresh and (read or self._tail > self.count):
            self._pull(copy, 0 if read else self.count)
        if write:
            self.version += 1
            if len(self._copies) > 1:
                for other in self._copies.values():
                    other.fresh = False
            copy.fresh = True
        return copy.buffer

    @property
    def is_exposed(self) -> bool:
        """True while an array made over `lend` lives, or a view of one."""
        return self.keeps_pointer or self._lent is not None and self._lent() is not None

    def lend(self, buffer: Array) -> Array:
        """The host buffer as an array for the user: it lives as long as any view of it.

        NumPy lets views of views refer to the first array alone, and the death of the user's would
        say nothing of what was sliced from it; what lies on a memoryview is such a first array.
        """
        lent = self._lent() if self._lent is not None else None
        if lent is None:
            lent = np.asarray(memoryview(buffer))
            self._lent = weakref.ref(lent)
        return lent

    def _pull(self, target: _Copy, start: int) -> None:
        """Bring `target` up to date from element `start` on."""
        source = next(c for c in self._copies.values() if c.fresh)
        part = slice(start, max(self.count, self._tail))
        ours, theirs = target.buffer[part], source.buffer[part]
        if source.ops.place == "cpu":
            target.ops.upload(theirs, ours)
        elif target.ops.place == "cpu":
            source.ops.download(theirs, ours)
        else:
            target.ops.upload(source.ops.download(theirs, np.empty(len(ours), self.dtype)), ours)
        target.fresh = start == 0
        if all(c is target or c.fresh for c in self._copies.values()):
            self._tail = 0
