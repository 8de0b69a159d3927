"""Would this code run on a GPU? A strict pretend device: NumPy inside, CuPy's rules outside.

Arrays of it refuse to meet host arrays, never turn into them by themselves, keep reductions as 0-d
arrays and count what costs time on a device: launches, copies and syncs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pycaffe_lite.ops.base import Ops


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Public names of NumPy that CuPy 14 has not, and that a layer might reach for.
_NOT_IN_CUPY = _words(
    "block bmat einsum_path emath errstate frompyfunc geomspace histogram_bin_edges insert ma"
    " matrix matvec memmap nanpercentile nanquantile ndenumerate nditer object_ polyder polydiv"
    " polyint rec recarray seterr spacing strings unstack vecdot vecmat void"
)
_SCATTERS = _words("add subtract maximum minimum bitwise_and bitwise_or")
_REDUCERS = _words("add multiply")
_UPLOADERS = _words("array asarray ascontiguousarray")
_NO_LAUNCH = _words("empty empty_like shape ndim size result_type")
_HOST_ANSWERS = _words("can_cast isscalar may_share_memory shares_memory")
_DATA_DEPENDENT = _words("nonzero flatnonzero argwhere unique extract compress")
# What exists in NumPy's version of these only.
_REFUSED_KEYWORDS = _words("where initial subok like mode")
_ALLOWED_KEYWORDS = {"copyto": {"where"}, "pad": {"mode"}, "convolve": {"mode"}}
_METHODS = _words(
    "all any argmax argmin argpartition argsort astype choose clip compress conj conjugate copy"
    " cumprod cumsum diagonal dot fill flatten max mean min nonzero partition prod put ravel repeat"
    " reshape round sort squeeze std sum swapaxes take trace transpose var view"
)
_ATTRIBUTES = _words("dtype flags imag itemsize nbytes ndim real shape size strides T")


@dataclass
class Counters:
    """What a device was asked to do since the last `reset`; `_elements` count array elements.

    `syncs` are the hidden ones: float(a), `if a`, .item(), a boolean index. `waits` are calls of
    `synchronize`, which a net makes on purpose.
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


def _operand(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        raise TypeError(f"unsupported operand for a device array: {type(value).__name__}")
    return value


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
        fake = FakeUfunc(ufunc, self._counters)
        return getattr(fake, method)(*args, **kwargs)

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        return getattr(FakeXp(self._counters), func.__name__)(*args, **kwargs)

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
        self._array[inner] = unwrap(self._counters, _operand(value))
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
        _check_pair(source, self)
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
    two = _words("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod")
    in_place = two - {"divmod", "matmul"}  # CuPy has no @=
    names = [*two, *(f"r{name}" for name in two), *(f"i{name}" for name in in_place)]
    for name in (*names, *_words("lt le eq ne gt ge neg pos abs invert")):
        dunder = f"__{name}__"

        def operator(self: FakeArray, *args: Any, _dunder: str = dunder) -> Any:
            args = tuple(_operand(a) for a in args)
            method = getattr(np.ndarray, _dunder)
            result = call(self._counters, method, self, *args)
            return self if _dunder.startswith("__i") and len(args) else result

        setattr(FakeArray, dunder, operator)


_install_operators()


class FakeUfunc:
    """xp.add and its like: no where=, and only CuPy's few `at` and `reduce`."""

    def __init__(self, ufunc: np.ufunc, counters: Counters) -> None:
        self._ufunc, self._counters, self.__name__ = ufunc, counters, ufunc.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            _operand(value)
        result = call(self._counters, self._ufunc, *args, **kwargs)
        return kwargs["out"] if isinstance(kwargs.get("out"), FakeArray) else result

    def at(self, array: FakeArray, indices: Any, *values: Any) -> None:
        if self.__name__ not in _SCATTERS:
            raise NotImplementedError(f"`{self.__name__}.at` is not supported")
        array._check_key(indices)
        call(self._counters, self._ufunc.at, array, indices, *values)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ not in _REDUCERS:
            raise NotImplementedError(f"`{self.__name__}.reduce` is not supported")
        return call(self._counters, self._ufunc.reduce, *args, **kwargs)

    def outer(self, *args: Any, **kwargs: Any) -> Any:
        return call(self._counters, self._ufunc.outer, *args, **kwargs)


class FakeXp:
    """The array module: NumPy's functions on fake arrays, where CuPy has them too."""

    def __init__(self, counters: Counters, module: Any = np) -> None:
        self._counters, self._module = counters, module

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_IN_CUPY:
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        if name == "random":
            return types.SimpleNamespace(default_rng=lambda s: FakeGenerator(s, self._counters))
        value = getattr(self._module, name)
        if isinstance(value, np.ufunc):
            return FakeUfunc(value, self._counters)
        if isinstance(value, types.ModuleType):
            return FakeXp(self._counters, value)
        if isinstance(value, type) or not callable(value):
            return value
        if name in _UPLOADERS:
            return self._uploader(value)
        return lambda *args, **kwargs: call(self._counters, value, *args, **kwargs)

    def _uploader(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """xp.asarray and its like: the named way from host values to a device array."""

        def upload(source: Any, *args: Any, **kwargs: Any) -> FakeArray:
            if isinstance(source, FakeArray):
                return call(self._counters, function, source, *args, **kwargs)
            array = np.array(source, *args, **{k: v for k, v in kwargs.items() if k != "copy"})
            self._counters.uploads += 1
            self._counters.upload_elements += array.size
            return wrap(self._counters, array)

        return upload

    def asnumpy(self, array: FakeArray) -> np.ndarray:
        return array.get()


class FakeGenerator:
    """The methods of cupy.random.Generator: there is no `normal`, `choice` or `shuffle`."""

    def __init__(self, seed: int, counters: Counters) -> None:
        self._generator, self._counters = np.random.default_rng(seed), counters

    def _draw(self, name: str, args: Any, kwargs: Any, dtype: Any = None) -> FakeArray:
        method = getattr(self._generator, name)
        result = call(self._counters, method, *args, **kwargs)
        return result if dtype is None else result.astype(dtype)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> FakeArray:
        return self._draw("random", (size, dtype), {} if out is None else {"out": out})

    def standard_normal(
        self, size: Any = None, dtype: Any = np.float64, out: Any = None
    ) -> FakeArray:
        return self._draw("standard_normal", (size, dtype), {} if out is None else {"out": out})

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: Any = None, dtype: Any = np.float64
    ) -> FakeArray:
        return self._draw("uniform", (low, high, size), {}, dtype)

    def integers(self, low: int, high: int | None = None, size: Any = None, **kw: Any) -> FakeArray:
        return self._draw("integers", (low, high, size), kw)


def _check_pair(source: Any, out: Any) -> None:
    """Copies between host and device: same shape and dtype, as CuPy asks."""
    if source.shape != out.shape or source.dtype != out.dtype:
        raise ValueError(
            f"copy of {source.shape} {source.dtype} to {out.shape} {out.dtype}: shapes and dtypes"
            " must be equal"
        )


class FakeMovement(Ops):
    """The array half of a fake backend: memory of its own, every copy counted."""

    kind = "gpu"
    counters: Counters

    @classmethod
    def available(cls) -> bool:
        return True

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
        _check_pair(source, out)
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


class FakeOps(FakeMovement):
    """The generic kernels on the fake device: what every layer's test runs on."""

    name = "fake"

    def __init__(self, place: str = "fake:0") -> None:
        self.counters = Counters()
        super().__init__(FakeXp(self.counters), place)
