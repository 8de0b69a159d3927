"""What may be done with a device's arrays? NumPy inside, CuPy's rules outside.

Arrays refuse to meet host arrays, never turn into them by themselves, keep reductions as 0-d arrays
and count what costs time on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_LAUNCH = words("empty empty_like shape ndim size result_type")
_HOST_ANSWERS = words("can_cast isscalar may_share_memory shares_memory")
_DATA_DEPENDENT = words("nonzero flatnonzero argwhere unique extract compress")
# What exists in NumPy's version of these only.
_REFUSED_KEYWORDS = words("where initial subok like mode")
_ALLOWED_KEYWORDS = {"copyto": {"where"}, "pad": {"mode"}, "convolve": {"mode"}}
_METHODS = words(
    "all any argmax argmin argpartition argsort astype choose clip compress conj conjugate copy"
    " cumprod cumsum diagonal dot fill flatten max mean min nonzero partition prod put ravel repeat"
    " reshape round sort squeeze std sum swapaxes take trace transpose var view"
)
_ATTRIBUTES = words("dtype flags imag itemsize nbytes ndim real shape size strides T")


@dataclass
class Counters:
    """What a device was asked to do since the last `reset`; `_elements` count array elements.

    `syncs` are the hidden ones: float(a), `if a`, .item(), a boolean index. `waits` are those on
    purpose: calls of `synchronize` and of `first_outside`.
    """

    launches: int = 0
    uploads: int = 0
    upload_elements: int = 0
    downloads: int = 0
    download_elements: int = 0
    syncs: int = 0
    waits: int = 0
    allocations: int = 0

    def reset(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0)


def call(counters: Counters, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function` of NumPy on what the fake arrays hold, its results fake again, one launch."""
    name = getattr(function, "__name__", "")
    refused = _REFUSED_KEYWORDS.intersection(kwargs) - _ALLOWED_KEYWORDS.get(name, set())
    if refused:
        raise TypeError(f"{name}({sorted(refused)[0]}=...) exists in NumPy only, not in CuPy")
    inputs, given = unwrap(counters, args), unwrap(counters, kwargs)
    result = function(*inputs, **given)
    arrays = [a for a in (*inputs, *given.values()) if isinstance(a, np.ndarray)]
    in_place = "out" in given or name.startswith("__i")
    view = not in_place and _shares(result, arrays)
    counters.launches += not (view or name in _NO_LAUNCH or name in _HOST_ANSWERS)
    counters.syncs += name in _DATA_DEPENDENT
    if name in _HOST_ANSWERS:
        return result
    return wrap(counters, result)


def _shares(result: Any, arrays: list[np.ndarray]) -> bool:
    """True where every array of `result` is a view of one of `arrays`: nothing was computed."""
    if isinstance(result, (tuple, list)):
        return bool(result) and all(_shares(r, arrays) for r in result)
    return isinstance(result, np.ndarray) and any(np.may_share_memory(result, a) for a in arrays)


def unwrap(counters: Counters, value: Any) -> Any:
    """What fake arrays of this device hold; TypeError for arrays of the host or another device."""
    if isinstance(value, FakeArray):
        if value._counters is not counters:
            raise TypeError("arrays of two devices in one operation")
        return value._array
    if isinstance(value, np.ndarray):
        raise TypeError(
            f"a host array {value.shape} {value.dtype} in an operation on device arrays"
        )
    if isinstance(value, (tuple, list)):
        return type(value)(unwrap(counters, v) for v in value)
    if isinstance(value, dict):
        return {k: unwrap(counters, v) for k, v in value.items()}
    return value


def wrap(counters: Counters, result: Any) -> Any:
    """Arrays and scalars of NumPy -> fake arrays: a device returns 0-d arrays, not scalars."""
    if isinstance(result, (np.ndarray, np.generic, bool)):
        array = np.asarray(result)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"a device has no arrays of {array.dtype}")
        return FakeArray(array, counters)
    if isinstance(result, (tuple, list)) and not hasattr(result, "_fields"):
        return type(result)(wrap(counters, r) for r in result)
    return result


def operand(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        raise TypeError(f"unsupported operand for a device array: {type(value).__name__}")
    return value


def check_pair(source: Any, out: Any) -> None:
    """Copies between host and device: same shape and dtype, as CuPy asks."""
    if source.shape != out.shape or source.dtype != out.dtype:
        raise ValueError(
            f"copy of {source.shape} {source.dtype} to {out.shape} {out.dtype}: shapes and dtypes"
            " must be equal"
        )


class FakeArray:
    """A device array: NumPy's array behind CuPy's manners."""

    __slots__ = ("__weakref__", "_array", "_counters")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, counters: Counters) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_counters", counters)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            value = getattr(self._array, name)
            return wrap(self._counters, value) if isinstance(value, np.ndarray) else value
        if name in _METHODS:
            method = getattr(np.ndarray, name)
            return lambda *args, **kwargs: call(self._counters, method, self, *args, **kwargs)
        raise AttributeError(f"a device array has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "shape":
            raise AttributeError(f"{name!r} of a device array cannot be set")
        self._array.shape = value

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("implicit conversion of a device array to a host array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs and len(kwargs["out"]) == 1:
            kwargs["out"] = kwargs["out"][0]
        import fake_xp  # it needs this module

        return getattr(fake_xp.FakeUfunc(ufunc, self._counters), method)(*args, **kwargs)

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        import fake_xp

        return getattr(fake_xp.FakeXp(self._counters), func.__name__)(*args, **kwargs)

    def _check_key(self, key: Any) -> Any:
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, (list, np.ndarray)):
                raise TypeError(f"a device array indexed by a host {type(part).__name__}")
        return unwrap(self._counters, key)

    def __getitem__(self, key: Any) -> FakeArray:
        inner = self._check_key(key)
        parts = inner if isinstance(inner, tuple) else (inner,)
        fancy = [p for p in parts if isinstance(p, np.ndarray)]
        # A boolean index has to wait for the number of its true values.
        self._counters.syncs += any(p.dtype == bool for p in fancy)
        self._counters.launches += bool(fancy)
        array = self._array[inner]
        if not fancy and not isinstance(array, np.ndarray):
            array = self._array[(*parts, ...)]  # 0-d, and still a view
        return wrap(self._counters, array)

    def __setitem__(self, key: Any, value: Any) -> None:
        inner = self._check_key(key)
        self._array[inner] = unwrap(self._counters, operand(value))
        self._counters.launches += 1

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[FakeArray]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        raise TypeError("`in` on a device array waits for the device: use (a == value).any()")

    def item(self, *args: Any) -> Any:
        self._counters.syncs += 1
        return self._array.item(*args)

    def tolist(self) -> Any:
        self._counters.syncs += 1
        return self._array.tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        self._counters.syncs += 1
        return bool(self._array)

    def get(self) -> np.ndarray:
        """A copy on the host."""
        self._counters.downloads += 1
        self._counters.download_elements += self._array.size
        return self._array.copy()

    def set(self, source: np.ndarray) -> None:
        """Values of a host array of the same shape and dtype."""
        check_pair(source, self)
        self._counters.uploads += 1
        self._counters.upload_elements += source.size
        self._array[...] = source

    def __copy__(self) -> FakeArray:
        return FakeArray(self._array.copy(), self._counters)

    def __deepcopy__(self, memo: Any) -> FakeArray:
        return self.__copy__()

    def __repr__(self) -> str:
        return f"FakeArray({self._array!r})"


def _install_operators() -> None:
    """Gives FakeArray Python's operators, each one launch."""
    two = words("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod")
    in_place = two - {"divmod", "matmul"}  # CuPy has no @=
    names = [*two, *(f"r{name}" for name in two), *(f"i{name}" for name in in_place)]
    for name in (*names, *words("lt le eq ne gt ge neg pos abs invert")):
        dunder = f"__{name}__"

        def operator(self: FakeArray, *args: Any, _dunder: str = dunder) -> Any:
            args = tuple(operand(a) for a in args)
            method = getattr(np.ndarray, _dunder)
            result = call(self._counters, method, self, *args)
            return self if _dunder.startswith("__i") and len(args) else result

        setattr(FakeArray, dunder, operator)


_install_operators()
