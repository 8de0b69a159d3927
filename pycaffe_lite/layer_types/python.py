"""Layers written in Python by the user, named by module and class in the prototxt."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ..errors import ModelError
from ..layer import Layer

log = logging.getLogger(__name__.partition(".")[0])

_REPLACED = {("rpn.proposal_layer", "ProposalLayer")}
"""Layers of public projects that are built in, as their own modules want a build of Caffe."""


class Python(Layer):
    """Stands for the class `python_param { module layer }`, a subclass of Layer of the user's.

    Its verbs get Blobs with NumPy arrays in every mode, unless the class says `host_only = False`;
    `param_str` and `phase` are set before `setup`; `reshape` is called before every forward. The
    module is found as by `import`; for the ProposalLayer of Faster R-CNN a layer of the package
    stands in where it is not found. Raises ImportError for a module or class that is not there,
    TypeError for a class that is no Layer; other errors of the module pass unchanged.
    """

    @classmethod
    def from_spec(cls, spec: Any) -> Layer:
        module, name = spec.python_param.module, spec.python_param.layer
        where = f"layer {spec.name!r} (Python)"
        if not (module and name):
            missing = "layer" if module else "module"
            raise ModelError(f"python_param must name a module and a layer; it has no {missing}")
        try:
            home = importlib.import_module(module)
        except ImportError as error:
            if (module, name) in _REPLACED:
                log.info("%s: %s is built in, as %r cannot be imported", where, name, module)
                return Layer.registry[name].from_spec(spec)
            raise ImportError(f"{where}: cannot import module {module!r}: {error}") from error
        found = getattr(home, name, None)
        if found is None:
            raise ImportError(f"{where}: module {module!r} has no class {name!r}")
        if not (isinstance(found, type) and issubclass(found, Layer)):
            raise TypeError(f"{where}: {module}.{name} is not a subclass of Layer")
        layer = found(spec)
        layer.reshapes_every_time = True  # type: ignore[misc]  # for this use of the class
        if not any("host_only" in vars(c) for c in found.__mro__ if c is not Layer):
            layer.host_only = True  # type: ignore[misc]
        return layer
