"""Runs Caffe nets from plain Python, on the CPU through NumPy and on the GPU through CuPy.

The names are pycaffe's: `import pycaffe_lite as caffe` and existing scripts work.
"""

from importlib import import_module

from . import layer_types as _layer_types  # registers the layers  # noqa: F401
from .alias import install_as_caffe
from .blob import Blob
from .device import set_device, set_mode_cpu, set_mode_gpu, set_ops, set_random_seed
from .errors import MissingFileError, ModelError, WeightsError
from .layer import Layer
from .net import TEST, TRAIN, Net
from .process import (
    has_nccl,
    init_log,
    log,
    set_multiprocess,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from .timer import Timer
from .version import __version__

__all__ = [
    "TEST",
    "TRAIN",
    "Blob",
    "Layer",
    "MissingFileError",
    "ModelError",
    "Net",
    "Timer",
    "WeightsError",
    "__version__",
    "has_nccl",
    "init_log",
    "install_as_caffe",
    "layer_type_list",
    "log",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_ops",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]


def layer_type_list() -> list[str]:
    """The names of all layer types, sorted: the package's own and those defined by the user."""
    return sorted(Layer.registry)


def __getattr__(name: str) -> object:
    if name in ("set_phase_train", "set_phase_test"):
        phase = name.rpartition("_")[2].upper()
        raise AttributeError(f"no {name} any more: the phase is given to Net(prototxt, {phase})")
    if name == "io":
        return import_module(".io", __name__)
    raise AttributeError(f"module 'pycaffe_lite' has no attribute {name!r}")
