"""What are bottoms, tops and parameters? Blobs as the user sees them, views as a layer does."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from . import device
from .errors import ModelError
from .ops.base import Array, Ops
from .storage import SyncedArray

INT_MAX = 2**31 - 1
MAX_AXES = 32

_HOST = Ops()
_dtype: Any = np.float32


@contextmanager
def precision(dtype: Any) -> Iterator[None]:
    """Blobs made inside have this dtype. For gradient tests only: Caffe nets are float32."""
    global _dtype
    before, _dtype = _dtype, dtype
    try:
        yield
    finally:
        _dtype = before


class _Shaped(NamedTuple):
    buffer: Array
    array: Array


class Blob:
    """An array and its gradient as pycaffe shows them: `data` and `diff`, float32, any shape.

    A Blob knows nothing of names, layers or nets. Raises ModelError where a shape has a negative
    dimension, more than 32 axes, or more than INT_MAX elements.
    """

    def __init__(self, shape: Sequence[int] = (), dtype: Any = None) -> None:
        dtype = _dtype if dtype is None else dtype
        self._data, self._diff = SyncedArray(dtype), SyncedArray(dtype)
        self._shaped: dict[tuple[bool, str, bool], _Shaped] = {}
        self._shape: tuple[int, ...] = ()
        self._count = -1
        self.reshape(*shape)

    # ---- the user's face -----------------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The values: a live, writable host view, made anew each time; brings them to the host."""
        self.array(_HOST)  # refuses storage that has become too small
        lent = self._data.lend(self._data.on(_HOST))
        return lent[: self._count].reshape(self._shape)

    @data.setter
    def data(self, value: Any) -> None:
        raise AttributeError("can't set attribute 'data'; write into it: blob.data[...] = values")

    @property
    def diff(self) -> np.ndarray:
        """The gradient: a live, writable host view, made anew each time."""
        return self.array(_HOST, diff=True)[...]

    @diff.setter
    def diff(self, value: Any) -> None:
        raise AttributeError("can't set attribute 'diff'; write into it: blob.diff[...] = values")

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions; `reshape` changes them."""
        return self._shape

    @property
    def count(self) -> int:
        """The number of elements."""
        return self._count

    @property
    def dtype(self) -> np.dtype:
        """Of values and gradient: float32 in every net of Caffe's."""
        return self._data.dtype

    @property
    def num(self) -> int:
        """shape[0], 1 where there is none. Blobs of more than 4 axes raise ModelError."""
        return self._legacy(0)

    @property
    def channels(self) -> int:
        """shape[1], 1 where there is none; see `num`."""
        return self._legacy(1)

    @property
    def height(self) -> int:
        """shape[2], 1 where there is none; see `num`."""
        return self._legacy(2)

    @property
    def width(self) -> int:
        """shape[3], 1 where there is none; see `num`."""
        return self._legacy(3)

    def reshape(self, *dims: SupportsIndex | Sequence[SupportsIndex]) -> None:
        """Change the shape: `reshape(1, 3, 8, 9)` or one sequence; no dims make a scalar.

        Values stay where the memory they have suffices for the new shape; else they are zeros.
        """
        given: Any = dims
        if len(dims) == 1 and not isinstance(dims[0], int | np.integer):
            given = dims[0]
        shape = tuple(map(operator.index, given))
        if shape == self._shape and self._count >= 0:
            return
        count = _checked_count(shape)
        self._shape, self._count = shape, count
        self._data.resize(count)
        self._diff.resize(count)
        self._shaped.clear()

    def __repr__(self) -> str:
        return f"<Blob {describe(self._shape)}>"

    # ---- the net's face ------------------------------------------------------------------------

    def array(
        self, ops: Ops, *, diff: bool = False, read: bool = True, write: bool = True
    ) -> Array:
        """data (or diff) at the place of `ops`, in the blob's shape; see `SyncedArray.on`.

        On the host an array that may not be written is flagged so. Raises ModelError where a blob
        that this one shares its storage with has since become smaller.
        """
        storage = self._diff if diff else self._data
        if storage.capacity < self._count:
            raise ModelError(
                f"blob of shape `{describe(self._shape)}` shares the storage of one that was"
                f" reshaped to {storage.count} elements; call net.reshape() first"
            )
        buffer = storage.on(ops, read=read, write=write)
        key = (diff, ops.place, write)
        shaped = self._shaped.get(key)
        if shaped is None or shaped.buffer is not buffer:
            array = buffer[: self._count].reshape(self._shape)
            if not write and ops.kind == "cpu":
                array.flags.writeable = False
            shaped = self._shaped[key] = _Shaped(buffer, array)
        return shaped.array

    def share_data(self, other: Blob | View) -> None:
        """From now on the values are those of `other`, of equal count; shapes may differ."""
        self._data = _blob(other)._data
        self._shaped.clear()

    def share_diff(self, other: Blob | View) -> None:
        """From now on the gradient is that of `other`, of equal count; shapes may differ."""
        self._diff = _blob(other)._diff
        self._shaped.clear()

    def own_data(self) -> None:
        """End `share_data`: values of its own from now on, zeros at first."""
        self._data = SyncedArray(self.dtype)
        self._data.resize(self._count)
        self._shaped.clear()

    def shares_data(self, other: Blob | View) -> bool:
        """True where both have one storage for their values."""
        return self._data is _blob(other)._data

    @property
    def storages(self) -> tuple[SyncedArray, SyncedArray]:
        """The storage of the values and of the gradient."""
        return self._data, self._diff

    @property
    def _gpu_data_ptr(self) -> int:
        """The address of the values on the GPU, for kernels of the user's own; GPU mode only."""
        return self._pointer(diff=False)

    @property
    def _gpu_diff_ptr(self) -> int:
        """The address of the gradient on the GPU; GPU mode only."""
        return self._pointer(diff=True)

    def _pointer(self, diff: bool) -> int:
        ops = device.current()
        if ops.kind != "gpu":
            raise RuntimeError("cannot use GPU pointers in CPU mode: check mode")
        self.storages[diff].keeps_pointer = True
        return int(self.array(ops, diff=diff).data.ptr)

    def _legacy(self, axis: int) -> int:
        if len(self._shape) > 4:
            raise ModelError(
                f"cannot use legacy accessors on blobs with > 4 axes; this one has"
                f" {len(self._shape)}: {describe(self._shape)}"
            )
        return self._shape[axis] if axis < len(self._shape) else 1


class View:
    """A blob as a layer sees it in one verb: arrays of one backend, some of them read-only."""

    __slots__ = ("_data", "_diff", "blob", "ops")

    def __init__(self, blob: Blob, ops: Ops, data: str = "rw", diff: str = "rw") -> None:
        self.blob, self.ops = blob, ops
        self._data = {"read": "r" in data, "write": "w" in data}
        self._diff = {"read": "r" in diff, "write": "w" in diff}

    @property
    def data(self) -> Array:
        """The values, an array of the backend's."""
        return self.blob.array(self.ops, diff=False, **self._data)

    @property
    def diff(self) -> Array:
        """The gradient, an array of the backend's."""
        return self.blob.array(self.ops, diff=True, **self._diff)

    @property
    def shape(self) -> tuple[int, ...]:
        """The blob's dimensions."""
        return self.blob._shape

    @property
    def count(self) -> int:
        """The blob's number of elements."""
        return self.blob._count

    def reshape(self, *dims: Any) -> None:
        """See Blob.reshape."""
        self.blob.reshape(*dims)

    def share_data(self, other: Blob | View) -> None:
        """See Blob.share_data."""
        self.blob.share_data(other)

    def share_diff(self, other: Blob | View) -> None:
        """See Blob.share_diff."""
        self.blob.share_diff(other)

    def own_data(self) -> None:
        """See Blob.own_data."""
        self.blob.own_data()


class BlobVec(list[Blob]):
    """A layer's parameter blobs, a list with pycaffe's `add_blob`; a Blob put into it is used."""

    def __setitem__(self, index: Any, blob: Any) -> None:
        if isinstance(index, SupportsIndex):
            _check_is_blob(blob)
        super().__setitem__(index, blob)

    def append(self, blob: Blob) -> None:
        """Append a Blob; TypeError for anything else."""
        _check_is_blob(blob)
        super().append(blob)

    def add_blob(self, *dims: Any) -> None:
        """Append a blob of that shape, zeros."""
        blob = Blob()
        blob.reshape(*dims)
        self.append(blob)


def _check_is_blob(value: Any) -> None:
    if not isinstance(value, Blob):
        raise TypeError(
            f"a parameter is a Blob, not {type(value).__name__}; to set its values write into"
            " it: params[...][k].data[...] = values"
        )


def _blob(other: Blob | View) -> Blob:
    return other.blob if isinstance(other, View) else other


def _checked_count(shape: tuple[int, ...]) -> int:
    if len(shape) > MAX_AXES:
        raise ModelError(f"a blob has at most {MAX_AXES} axes, not {len(shape)}")
    if min(shape, default=0) < 0:
        raise ModelError(f"blob dimensions must not be negative: {shape}")
    count = prod(shape)
    if count > INT_MAX:
        raise ModelError(
            f"blob size exceeds INT_MAX: {' x '.join(map(str, shape))} is {count} elements,"
            f" at most {INT_MAX} are possible"
        )
    return count


def describe(shape: Sequence[int]) -> str:
    """A shape and its count as Caffe prints them: `2 3 (6)`."""
    return " ".join(map(str, [*shape, f"({prod(shape)})"]))


def canonical_axis(axis: int, shape: Sequence[int]) -> int:
    """`axis` counted from the front; negative ones count from the end. ModelError where outside."""
    if not -len(shape) <= axis < len(shape):
        raise ModelError(
            f"axis {axis} out of range for {len(shape)}-D blob with shape `{describe(shape)}`"
        )
    return axis % len(shape)
