"""How does training survive a stop? Snapshots: a model and a solver's state beside it, and back.

`<prefix>_iter_<n>.caffemodel` and `.solverstate`, or both with `.h5`, are Caffe's files. The state
also holds where data layers and random generators stand, where Caffe does not look.
"""

from __future__ import annotations

import logging
import os
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import prototxt, weights
from ..blob import Blob, describe
from ..errors import MissingFileError, ModelError, WeightsError
from ..extras import h5py
from ..proto import caffe_pb2
from ..replacement import replacing
from ..weights import wire
from ..weights.stored_blob import StoredBlob
from ..weights.wire import BYTES, Wire, WireError
from . import data_position

if TYPE_CHECKING:
    from ..net import Net
    from .solver import Solver

log = logging.getLogger("pycaffe_lite")

PathLike = str | os.PathLike[str]

_HEAD = 4096  # enough to see what kind of file it is
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HISTORY = 3  # field of SolverState
_DATA, _SHAPE = 5, 7  # fields of BlobProto
_POSITION = "pycaffe_lite_position"  # the name of what Caffe does not know, in HDF5


def check_prefix(prefix: str) -> None:
    """ModelError where no snapshot could be written under the prefix: a new file is tried."""
    import tempfile  # here: not needed to run a net

    if not prefix:
        raise ModelError("snapshot_prefix is not set, and snapshots are asked for")
    folder = Path(f"{prefix}_iter_0").parent
    if not folder.is_dir():
        raise ModelError(
            f"cannot write to snapshot prefix {prefix!r}: there is no folder {os.fspath(folder)!r}"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ModelError(
            f"cannot write to snapshot prefix {prefix!r}: folder {os.fspath(folder)!r}:"
            f" {error.strerror}"
        ) from error


# ---- writing -----------------------------------------------------------------------------------


def save(solver: Solver) -> None:
    """Write the model, then the state that names it: the state is there only with its model.

    Each is on the disk before it takes its name, so a kill at any moment leaves the snapshots of
    before whole. Raises OSError.
    """
    param = solver.param
    is_hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    end, kind = (".h5", "HDF5") if is_hdf5 else ("", "binary proto")
    base = f"{param.snapshot_prefix}_iter_{solver.iter}"
    model, state = f"{base}.caffemodel{end}", f"{base}.solverstate{end}"
    log.info("Snapshotting to %s file %s", kind, model)
    with replacing(model, durable=True) as temporary:
        if is_hdf5:
            weights.save_hdf5(solver.net, temporary)
            if param.snapshot_diff:
                _add_diffs(solver.net, temporary)
        else:
            weights.save_binary(solver.net, temporary, param.snapshot_diff)
    log.info("Snapshotting solver state to %s file %s", kind, state)
    with replacing(state, durable=True) as temporary:
        (_write_hdf5 if is_hdf5 else _write_binary)(solver, model, temporary)


def _add_diffs(net: Net, path: Path) -> None:
    """Gradients as Caffe has them: /diff/<layer>/<k>, of all parameters, shared ones too."""
    with h5py().File(path, "r+") as file:
        diffs = file.create_group("diff")
        for layer in net.layers:
            for k, blob in enumerate(layer.blobs):
                if layer.name and f"{layer.name}/{k}" not in diffs:
                    diffs.create_dataset(f"{layer.name}/{k}", data=blob.diff)


def _numbers(solver: Solver) -> dict[str, int]:
    numbers = {"iter": solver.iter, "current_step": solver.schedule.current_step}
    if solver.param.lr_policy == "plateau":
        numbers["iter_last_event"] = solver.schedule.iter_last_event
    return numbers


def _write_binary(solver: Solver, model: str, path: Path) -> None:
    state = caffe_pb2.SolverState(learned_net=model, **_numbers(solver))
    if solver.param.lr_policy == "plateau":
        state.minimum_loss = solver.schedule.minimum_loss
    state.position = data_position.capture([solver.net, *solver.test_nets])
    with path.open("wb") as file:
        # Serialized messages in a row are one message, and values are written as they are.
        file.write(state.SerializeToString())
        for blob in solver.history:
            shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
            shape = wire.header(_SHAPE, len(shape)) + shape
            values = np.ascontiguousarray(blob.data, "<f4").reshape(-1)
            head = wire.header(_DATA, values.nbytes)
            size = len(head) + values.nbytes + len(shape)
            file.write(wire.header(_HISTORY, size) + head)
            file.write(values.data)
            file.write(shape)


def _write_hdf5(solver: Solver, model: str, path: Path) -> None:
    with h5py().File(path, "w") as file:
        for field, number in _numbers(solver).items():
            file.create_dataset(field, data=np.array([number], "<i4"))
        if solver.param.lr_policy == "plateau":
            loss = np.array([solver.schedule.minimum_loss], "<f4")
            file.create_dataset("minimum_loss", data=loss)
        name = np.array(os.fsencode(model), f"S{len(os.fsencode(model)) + 1}")  # C needs the 0
        file.create_dataset("learned_net", data=name)
        history = file.create_group("history")
        for k, blob in enumerate(solver.history):
            history.create_dataset(str(k), data=blob.data)
        content = data_position.capture([solver.net, *solver.test_nets])
        file.create_dataset(_POSITION, data=np.frombuffer(content, np.uint8))


# ---- reading -----------------------------------------------------------------------------------


class _State(NamedTuple):
    iter: int
    learned_net: str
    current_step: int
    minimum_loss: float
    iter_last_event: int
    history: list[np.ndarray]
    position: bytes


def restore(solver: Solver, path: PathLike) -> None:
    """Bring the solver to where a state was written; its weights come from the model it names.

    A model that is not where it was is looked for beside the state. Without our position, as in
    Caffe's own files, data starts anew. Raises MissingFileError and WeightsError; the solver is
    then as it was.
    """
    state = _read(path)
    _check_history(state.history, solver.history, path)
    position = data_position.parse(state.position)
    if state.learned_net:
        solver.net.copy_from(_model_file(state.learned_net, path))
    for values, blob in zip(state.history, solver.history, strict=True):
        blob.data[...] = values.reshape(blob.shape)
    solver.iter = state.iter
    solver.schedule.current_step = state.current_step
    solver.schedule.minimum_loss = state.minimum_loss
    solver.schedule.iter_last_event = state.iter_last_event
    if position is not None:
        data_position.restore([solver.net, *solver.test_nets], position)
    else:
        log.info("%s says nothing of the data: it starts anew", os.fspath(path))


def _check_history(found: list[np.ndarray], wanted: list[Blob], path: PathLike) -> None:
    if len(found) != len(wanted):
        raise WeightsError(
            f"incorrect length of history blobs: {os.fspath(path)} has {len(found)}, the solver"
            f" {len(wanted)}; it is of another net or solver type"
        )
    for k, (values, blob) in enumerate(zip(found, wanted, strict=True)):
        if values.size != blob.count:
            raise WeightsError(
                f"history blob {k}; shape mismatch: {os.fspath(path)} has"
                f" `{describe(values.shape)}`, the solver `{describe(blob.shape)}`"
            )


def _model_file(name: str, state_file: PathLike) -> str:
    beside = Path(state_file).parent / Path(name).name
    if not Path(name).exists() and beside.exists():
        log.info("%s is not there; its weights are read from %s", name, beside)
        return os.fspath(beside)
    return name


def _read(path: PathLike) -> _State:
    name = os.fspath(path)
    try:
        with Path(path).open("rb", buffering=0) as file:
            head = file.read(_HEAD)
            if head.startswith(_HDF5_SIGNATURE):
                return _read_hdf5(name)
            return _read_binary(file, head, name)
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {name} (file not found)") from None
    except OSError as error:
        raise WeightsError(f"cannot read {name}: {error.strerror}") from error
    except WeightsError as error:
        if ".caffemodel" in name:
            raise _no_state(name, "these are weights: Net.copy_from takes them") from error
        raise


def _no_state(name: str, why: str) -> WeightsError:
    return WeightsError(f"restore expects a .solverstate file, {name} is none: {why}")


def _read_binary(file: RawIOBase, head: bytes, name: str) -> _State:
    """Without a second copy of the history: it goes from the file into its arrays."""
    try:
        whole = Wire(file)
        rest, end, history = b"", 0, []
        for record in whole.records(0, whole.size):
            if record.field == _HISTORY and record.wire_type == BYTES:
                history.append(StoredBlob(whole, record.start, record.end).array())
            elif record.field in caffe_pb2.SolverState.DESCRIPTOR.fields_by_number:
                rest += whole.content(record._replace(start=end))  # with what stands before it
            end = record.end
        state = prototxt.parse_binary(rest, caffe_pb2.SolverState, name)
    except (WireError, ModelError) as error:
        content = prototxt.describe_content(head)
        why = str(error) if content.startswith("binary") else f"it looks like {content}"
        raise WeightsError(f"failed to parse SolverState file {name}: {why}") from error
    if not state.HasField("iter"):
        raise _no_state(name, "it names no iteration")
    return _State(
        state.iter,
        state.learned_net,
        state.current_step,
        state.minimum_loss,
        state.iter_last_event,
        history,
        state.position,
    )


def _read_hdf5(name: str) -> _State:
    module = h5py()
    try:
        with module.File(name, "r") as file:
            if "iter" not in file or "history" not in file:
                raise _no_state(name, f"it has {sorted(file)}, no `iter` and `history`")
            history = [file["history"][str(k)][()] for k in range(len(file["history"]))]
            return _State(
                int(_first(file, "iter", 0)),
                _text(file["learned_net"][()]) if "learned_net" in file else "",
                int(_first(file, "current_step", 0)),
                float(_first(file, "minimum_loss", 1e38)),
                int(_first(file, "iter_last_event", 0)),
                history,
                file[_POSITION][()].tobytes() if _POSITION in file else b"",
            )
    except WeightsError:
        raise
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # h5py: any
        raise WeightsError(f"failed to read HDF5 file {name}: {error}") from error


def _first(file: Any, name: str, default: float) -> Any:
    return np.ravel(file[name][()])[0] if name in file else default


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
