"""Runs Caffe nets from plain Python, on the CPU through NumPy and on the GPU through CuPy.

The names are pycaffe's: `import pycaffe_lite as caffe` and existing scripts work.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from . import layer_types as _layer_types  # registers the layers  # noqa: F401
from .alias import install_as_caffe
from .blob import Blob
from .device import set_device, set_mode_cpu, set_mode_gpu, set_ops, set_random_seed
from .errors import MissingFileError, ModelError, WeightsError
from .layer import Layer
from .net import TEST, TRAIN, Net
from .process import (
    NCCL,
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

if TYPE_CHECKING:
    from . import classifier, coord_map, detector, draw, net_spec
    from .classifier import Classifier
    from .detector import Detector
    from .net_spec import NetSpec, layers, params, to_proto
    from .ops.cpu.threads import get_num_threads, set_num_threads
    from .training.updates import (
        AdaDeltaSolver,
        AdaGradSolver,
        AdamSolver,
        NesterovSolver,
        RMSPropSolver,
        SGDSolver,
        get_solver,
    )

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Classifier",
    "Detector",
    "Layer",
    "MissingFileError",
    "ModelError",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
    "WeightsError",
    "__version__",
    "classifier",
    "coord_map",
    "detector",
    "draw",
    "get_num_threads",
    "get_solver",
    "has_nccl",
    "init_log",
    "install_as_caffe",
    "layer_type_list",
    "layers",
    "log",
    "net_spec",
    "params",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_num_threads",
    "set_ops",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]

# Names that are imported when they are asked for, and the module that has them.
_LATER = {
    "AdaDeltaSolver": "training.updates",
    "AdaGradSolver": "training.updates",
    "AdamSolver": "training.updates",
    "Classifier": "classifier",
    "Detector": "detector",
    "NesterovSolver": "training.updates",
    "NetSpec": "net_spec",
    "RMSPropSolver": "training.updates",
    "SGDSolver": "training.updates",
    "classifier": "classifier",
    "coord_map": "coord_map",
    "detector": "detector",
    "draw": "draw",
    "get_num_threads": "ops.cpu.threads",
    "get_solver": "training.updates",
    "io": "io",
    "layers": "net_spec",
    "net_spec": "net_spec",
    "params": "net_spec",
    "set_num_threads": "ops.cpu.threads",
    "to_proto": "net_spec",
}


def layer_type_list() -> list[str]:
    """The names of all layer types, sorted: the package's own and those defined by the user."""
    return sorted(Layer.registry)


def __getattr__(name: str) -> object:
    if name in ("set_phase_train", "set_phase_test"):
        phase = name.rpartition("_")[2].upper()
        raise AttributeError(f"no {name} any more: the phase is given to Net(prototxt, {phase})")
    if name in _LATER:
        module = import_module(f".{_LATER[name]}", __name__)
        return module if name == _LATER[name] else getattr(module, name)
    raise AttributeError(f"module 'pycaffe_lite' has no attribute {name!r}")
