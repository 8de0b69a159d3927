"""Which functions does a device's array module have? NumPy's, where CuPy has them too."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
from fake_array import Counters, FakeArray, call, operand, words, wrap

# Public names of NumPy that CuPy 14 has not, and that a layer might reach for.
_NOT_IN_CUPY = words(
    "block bmat einsum_path emath errstate frompyfunc geomspace histogram_bin_edges insert ma"
    " matrix matvec memmap nanpercentile nanquantile ndenumerate nditer object_ polyder polydiv"
    " polyint rec recarray seterr spacing strings unstack vecdot vecmat void"
)
_SCATTERS = words("add subtract maximum minimum bitwise_and bitwise_or")
_REDUCERS = words("add multiply")
_UPLOADERS = words("array asarray ascontiguousarray")


class FakeUfunc:
    """xp.add and its like: no where=, and only CuPy's few `at` and `reduce`."""

    def __init__(self, ufunc: np.ufunc, counters: Counters) -> None:
        self._ufunc, self._counters, self.__name__ = ufunc, counters, ufunc.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            operand(value)
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
