"""What does a solver's prototxt ask for? Reads it, checks it, and says which nets it describes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import prototxt
from ..errors import MissingFileError, ModelError
from ..net import TEST, TRAIN, Net
from ..proto import caffe_pb2
from . import evaluation, lr_policy

PathLike = str | os.PathLike[str]

_TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


def read_solver(source: PathLike | Any) -> Any:
    """The SolverParameter in a text file, or a copy of one, in today's form.

    From a file, an unset `snapshot_prefix` is the file's own path without its extension, and one
    that names a folder means the file's name in there. Raises MissingFileError and ModelError.
    """
    if isinstance(source, caffe_pb2.SolverParameter):
        new = caffe_pb2.SolverParameter()
        new.CopyFrom(_type_to_current(source))
        return new
    with located(source):
        new = _type_to_current(prototxt.read_text(source, caffe_pb2.SolverParameter))
    path = Path(source)
    if not new.snapshot_prefix:
        new.snapshot_prefix = os.fspath(path.with_suffix(""))
    elif Path(new.snapshot_prefix).is_dir():
        new.snapshot_prefix = os.fspath(Path(new.snapshot_prefix) / path.stem)
    return new


def _type_to_current(spec: Any) -> Any:
    from ..upgrade.solver import type_to_current  # here: it is not needed to run a net

    return type_to_current(spec)


@contextmanager
def located(source: PathLike | Any) -> Iterator[None]:
    """Inside, a ModelError begins with the solver's file, where it has one."""
    try:
        yield
    except ModelError as error:
        name = "" if isinstance(source, caffe_pb2.SolverParameter) else os.fspath(source)
        if not name or name in str(error):
            raise
        raise type(error)(f"{name}: {error}") from error


def check(param: Any) -> None:
    """ModelError for settings that no solver can have; a missing lr_policy is found in training."""
    if param.lr_policy:
        lr_policy.check(param)
    if param.regularization_type not in ("L1", "L2"):
        raise ModelError(
            f"unknown regularization type: {param.regularization_type} (known types: L1, L2)"
        )
    evaluation.check(param)
    for field in ("iter_size", "average_loss"):
        if getattr(param, field) < 1:
            raise ModelError(f"{field} must be at least 1, got {getattr(param, field)}")
    for field in ("test_interval", "display", "snapshot"):
        if getattr(param, field) < 0:
            raise ModelError(f"{field} must not be negative, got {getattr(param, field)}")


@dataclass(frozen=True)
class NetChoice:
    """A net of a solver's: a file's path or a NetParameter, and the state it is built for."""

    field: str
    source: Any
    state: Any
    phase: int

    @property
    def origin(self) -> str:
        """Where it comes from, as Caffe's log says it."""
        return f"{self.field} file: {self.source}" if isinstance(self.source, str) else self.field

    def build(self, solver_file: PathLike | Any) -> Net:
        """The net. Of its state, what the solver sets counts before what the net's own file does.

        Raises what Net raises; a file that is not there, and errors in a net that stands in the
        solver, say so.
        """
        try:
            state = self._merged_state()
            return Net(self.source, state.phase, state.level, list(self.state.stage))
        except MissingFileError as error:
            if not isinstance(self.source, str) or self.source not in str(error):
                raise  # a file that a layer needs
            raise MissingFileError(
                f"{error} ({self.field} of the solver; names are relative to the working directory)"
            ) from error
        except ModelError as error:
            if isinstance(self.source, str):
                raise
            with located(solver_file):
                raise type(error)(f"{self.field}: {error}") from error

    def _merged_state(self) -> Any:
        spec = prototxt.read_net(self.source) if isinstance(self.source, str) else self.source
        merged = caffe_pb2.NetState(phase=self.phase)
        merged.MergeFrom(spec.state)
        merged.MergeFrom(self.state)
        return merged


def train_net(param: Any) -> NetChoice:
    """The net to train. Raises ModelError where not exactly one is given."""
    given = [field for field in _TRAIN_FIELDS if param.HasField(field)]
    if len(given) != 1:
        found = f"several are set: {', '.join(given)}" if given else "none is set"
        raise ModelError(
            f"must specify a train net using one of {', '.join(_TRAIN_FIELDS)}; {found}"
        )
    return NetChoice(given[0], getattr(param, given[0]), param.train_state, TRAIN)


def test_nets(param: Any) -> list[NetChoice]:
    """The nets to test with: test_net_param, test_net, then `net` or `net_param` as often as
    test_iter has entries left.

    Raises ModelError where test_iter or test_state are not as many as they must, or test_interval
    is missing.
    """
    sources = [("test_net_param", net) for net in param.test_net_param]
    sources += [("test_net", net) for net in param.test_net]
    generic = [field for field in ("net", "net_param") if param.HasField(field)]
    left = len(param.test_iter) - len(sources)
    if left < 0 or (left and not generic):
        raise ModelError(
            f"test_iter must be specified for each test network: {len(param.test_iter)} entries"
            f" for {len(sources)} test nets"
        )
    sources += [(generic[0], getattr(param, generic[0]))] * left if left else []
    states = list(param.test_state) or [caffe_pb2.NetState() for _ in sources]
    if len(states) != len(sources):
        raise ModelError(
            "test_state must be unspecified or specified once per test net:"
            f" {len(states)} for {len(sources)} test nets"
        )
    if sources and param.test_interval <= 0:
        raise ModelError(
            f"test_interval must be positive where there are test nets, got {param.test_interval}"
        )
    if any(count < 0 for count in param.test_iter):
        raise ModelError(f"test_iter must not be negative, got {list(param.test_iter)}")
    return [
        NetChoice(field, source, state, TEST)
        for (field, source), state in zip(sources, states, strict=True)
    ]
