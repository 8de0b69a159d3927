"""A solver's prototxt of before: the type as an enum, and the nets it carries."""

from __future__ import annotations

from typing import Any

from .. import graph
from ..errors import ModelError
from ..proto import caffe_pb2
from .copying import copy_without

_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}


def type_to_current(spec: Any) -> Any:
    """`solver_type` -> `type`; the same SolverParameter where there is none.

    Raises ModelError where both are set.
    """
    if not spec.HasField("solver_type"):
        return spec
    old = caffe_pb2.SolverParameter.SolverType.Name(spec.solver_type)
    if spec.HasField("type"):
        raise ModelError(
            f"both type ({spec.type!r}) and solver_type ({old}), its old form, are set; specify one"
        )
    new = copy_without(spec, "solver_type")
    new.type = _TYPES[old]
    return new


def to_current(spec: Any) -> Any:
    """A SolverParameter in today's form: `type` in the place of `solver_type`, its nets upgraded.

    Gives a new message. Raises ModelError where both are set, and as `graph.upgrade` does.
    """
    new = caffe_pb2.SolverParameter()
    new.CopyFrom(type_to_current(spec))
    for net in nets_of(new):
        net.CopyFrom(graph.upgrade(net))
    return new


def nets_of(solver: Any) -> list[Any]:
    """The nets that a SolverParameter carries."""
    single = [f for f in ("net_param", "train_net_param") if solver.HasField(f)]
    return [*(getattr(solver, f) for f in single), *solver.test_net_param]
