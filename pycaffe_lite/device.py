"""Which backend runs now? The mode switch, process-wide: a worker thread sees what main has set."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import ops as _folder
from .ops.base import Ops

_lock = threading.RLock()
_mode = "cpu"
_device_id = 0
_named: str | None = os.environ.get("PYCAFFE_LITE_OPS") or None
_instances: dict[tuple[type[Ops], int], Ops] = {}
_generators: dict[str, Any] = {}
_seed: int | None = None
_pretended: Ops | None = None


def set_mode_cpu() -> None:
    """The next forward of every net runs on the CPU."""
    global _mode
    _mode = "cpu"


def set_mode_gpu() -> None:
    """The next forward of every net runs on the GPU that `set_device` chose.

    Raises RuntimeError where CuPy or a device is missing, saying which; the mode stays as it was.
    """
    global _mode
    gpu = importlib.import_module(f"{_folder.__name__}.gpu")
    missing = gpu.missing()
    if missing:
        raise RuntimeError(f"cannot use GPU: {missing}")
    _mode = "gpu"


def set_device(device_id: int) -> None:
    """Remember the GPU to use from the next `set_mode_gpu()` or forward on; never fails for want
    of one."""
    global _device_id
    _device_id = int(device_id)


def set_ops(name: str | None) -> None:
    """Use the backend of that name for its kind ("generic": the plain definition); None: the best.

    The environment variable PYCAFFE_LITE_OPS does the same at start. A name that only the other
    kind has changes nothing for the current one. Raises ValueError for any other name than those of
    the available backends.
    """
    global _named
    with _lock:
        before, _named = _named, name
        try:
            current()
        except ValueError:
            _named = before
            raise


def current() -> Ops:
    """The backend for the mode: the available one of highest priority, or the one named."""
    return _pretended or _instance(_best(_mode, _named))


def generic() -> Ops:
    """The plain definition at the place of the current mode; what `engine: CAFFE` asks for."""
    return _pretended or _instance(_best(_mode, "generic"))


@contextmanager
def pretend(ops: Ops) -> Iterator[None]:
    """Inside, every net runs on that very backend: how tests bring a pretend device."""
    global _pretended
    before, _pretended = _pretended, ops
    try:
        yield
    finally:
        _pretended = before


def rng(ops: Ops) -> Any:
    """The random generator of the place where `ops` works; `set_random_seed` restarts it."""
    global _seed
    with _lock:
        if ops.place not in _generators:
            if _seed is None:
                _seed = int.from_bytes(os.urandom(7), "little")
            _generators[ops.place] = ops.rng(_seed)
        return _generators[ops.place]


def set_random_seed(seed: int) -> None:
    """Fillers, dropout and all else that draws numbers start anew from `seed`, on every place.

    Raises ValueError for a negative one.
    """
    global _seed
    if seed < 0:
        raise ValueError(f"a random seed must not be negative, got {seed}")
    with _lock:
        _seed = int(seed)
        _generators.clear()


def random_state() -> dict[str, Any]:
    """Where the random generators stand, for `set_random_state`; JSON can hold it.

    CuPy's generators do not tell; those start anew from the seed.
    """
    with _lock:
        places = {
            place: generator.bit_generator.state
            for place, generator in _generators.items()
            if isinstance(generator, np.random.Generator)
        }
        return {"seed": _seed, "places": places}


def set_random_state(state: dict[str, Any]) -> None:
    """Let the random generators go on from where `random_state` found them."""
    global _seed
    with _lock:
        _seed = state["seed"]
        _generators.clear()
        for place, known in state["places"].items():
            generator = np.random.default_rng(0)
            generator.bit_generator.state = known
            _generators[place] = generator


def block_size(ops: Ops) -> int:
    """How many elements of long arrays to work on at a time where several passes go over them:
    what stays in a CPU's cache, all of them elsewhere."""
    return 1 << 16 if ops.kind == "cpu" else 1 << 62


@functools.cache
def _best(kind: str, name: str | None) -> type[Ops]:
    classes = [c for c in _classes() if c.kind == kind and c.available()]
    if name is not None:
        named = [c for c in classes if c.name == name]
        if not named and any(c.name == name and c.kind != kind for c in _classes()):
            named = classes  # the name belongs to another kind of device
        if not named:
            known = ", ".join(sorted({c.name for c in classes}))
            raise ValueError(f"no backend is named {name!r} (available for {kind}: {known})")
        classes = named
    return max(classes, key=lambda c: c.priority)


def _classes() -> list[type[Ops]]:
    """Every backend class that the modules of ops/ define."""
    for module in pkgutil.iter_modules(_folder.__path__, _folder.__name__ + "."):
        importlib.import_module(module.name)
    found, queue = [], [Ops]
    while queue:
        found.append(queue.pop())
        queue += found[-1].__subclasses__()
    return [c for c in found if c.__module__.startswith(_folder.__name__ + ".")]


def _instance(cls: type[Ops]) -> Ops:
    device_id = _device_id if cls.kind == "gpu" else 0
    with _lock:
        if (cls, device_id) not in _instances:
            args = (device_id,) if cls.kind == "gpu" else ()
            _instances[cls, device_id] = cls(*args)
        return _instances[cls, device_id]
