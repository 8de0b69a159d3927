"""How do parameters get in and out? Weight files <-> parameter blobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import graph, prototxt
from .blob import Blob, describe
from .errors import MissingFileError, ModelError, WeightsError
from .proto import caffe_pb2
from .replacement import replacing

if TYPE_CHECKING:
    from .net import Net

PathLike = str | os.PathLike[str]

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def load(net: Net, path: PathLike) -> None:
    """Copy the parameters of the file's layers into the net's layers of the same names.

    Binary NetParameter or HDF5, told apart by content. Layers that only one side has are left
    alone. Raises MissingFileError, and WeightsError where the file is damaged or something else, or
    blobs differ in number or shape; the net is then unchanged.
    """
    try:
        with Path(path).open("rb") as file:
            is_hdf5 = file.read(8) == _HDF5_SIGNATURE
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {os.fspath(path)} (file not found)") from None
    except OSError as error:
        raise WeightsError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    if is_hdf5:
        load_hdf5(net, path)
    else:
        load_binary(net, path)


def load_binary(net: Net, path: PathLike) -> None:
    """Copy from a .caffemodel; see `load`."""
    spec = _read_binary(path)
    copies: list[tuple[Blob, np.ndarray]] = []
    for source in spec.layer:
        target = net.first_layer(source.name)
        if target is None:
            continue
        _check_number(source.name, len(source.blobs), len(target.blobs))
        for k, (proto, blob) in enumerate(zip(source.blobs, target.blobs, strict=True)):
            values = values_of(proto)
            if not same_shape(proto, values.shape, blob.shape):
                raise WeightsError(_mismatch(source.name, k, values.shape, blob.shape))
            copies.append((blob, values))
    for blob, values in copies:
        blob.data[...] = values.reshape(blob.shape)


def save_binary(net: Net, path: PathLike) -> None:
    """Write a .caffemodel as Caffe does: every layer's message with its blobs, no diffs.

    The file appears whole or not at all.
    """
    spec = caffe_pb2.NetParameter(name=net.name)
    for layer in net.layers:
        entry = spec.layer.add()
        entry.CopyFrom(layer.spec)
        del entry.blobs[:]
        for blob in layer.blobs:
            entry.blobs.append(_to_proto(blob))
    with replacing(path) as temporary:
        temporary.write_bytes(spec.SerializeToString())


def load_hdf5(net: Net, path: PathLike) -> None:
    """Copy from a .caffemodel.h5: dataset /data/<layer>/<index> for each parameter.

    A dataset may be missing only for a parameter shared from another layer. Raises as `load`. Needs
    h5py.
    """
    if not Path(path).exists():
        raise MissingFileError(f"Could not open file {os.fspath(path)} (file not found)")
    copies: list[tuple[Blob, np.ndarray]] = []
    with _hdf5_file(path) as file:
        if "data" not in file:
            raise WeightsError(
                f"failed to read HDF5 file {os.fspath(path)}: it has no group 'data', so it holds"
                f" no weights; it has {sorted(file)}"
            )
        for layer in net.layers:
            group = file["data"].get(layer.name)
            if group is None:
                continue
            for k, blob in enumerate(layer.blobs):
                if str(k) in group:
                    values = group[str(k)][()]
                    if values.shape != blob.shape:
                        raise WeightsError(
                            f"cannot load blob from hdf5; shape mismatch. Layer {layer.name!r},"
                            f" param {k}: file `{describe(values.shape)}`, net"
                            f" `{describe(blob.shape)}`"
                        )
                    copies.append((blob, values))
                elif net.owns_param(layer, k):
                    raise WeightsError(
                        f"incompatible number of blobs for layer {layer.name}: no dataset {k} of"
                        f" {len(layer.blobs)} in {path}"
                    )
    for blob, values in copies:
        blob.data[...] = values


def save_hdf5(net: Net, path: PathLike) -> None:
    """Write a .caffemodel.h5: the parameters that a layer owns; shared ones once. Needs h5py."""
    with replacing(path) as temporary, _h5py().File(temporary, "w") as file:
        for layer in net.layers:
            group = file.require_group("data").require_group(layer.name)
            for k, blob in enumerate(layer.blobs):
                if net.owns_param(layer, k):
                    group.create_dataset(str(k), data=blob.data)


def share(net: Net, other: Net) -> None:
    """Let the net's parameters be those of `other`'s layers of the same names, values only.

    Layers that only one of them has are left alone. Raises WeightsError where blobs differ in
    number or shape; the net is then unchanged.
    """
    pairs: list[tuple[Blob, Blob]] = []
    for source in other.layers:
        target = net.first_layer(source.name)
        if target is None:
            continue
        _check_number(source.name, len(source.blobs), len(target.blobs))
        for k, (theirs, ours) in enumerate(zip(source.blobs, target.blobs, strict=True)):
            if theirs.shape != ours.shape:
                raise WeightsError(_mismatch(source.name, k, theirs.shape, ours.shape))
            pairs.append((ours, theirs))
    for ours, theirs in pairs:
        ours.share_data(theirs)


def values_of(proto: Any) -> np.ndarray:
    """The values of a BlobProto, in its shape (the legacy four dimensions where it has those).

    Raises WeightsError where their number is not the shape's: "6 vs. 5 data values".
    """
    doubles = len(proto.double_data) > 0
    values = np.array(proto.double_data if doubles else proto.data, dtype="f8" if doubles else "f4")
    shape = _shape_of(proto, values.size)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise WeightsError(
            f"blob of shape `{describe(shape)}` carries {values.size} values:"
            f" {int(np.prod(shape))} vs. {values.size} data values"
        )
    return values.reshape(shape)


def _shape_of(proto: Any, count: int) -> tuple[int, ...]:
    if _is_legacy(proto):
        return (proto.num, proto.channels, proto.height, proto.width)
    if proto.HasField("shape"):
        return tuple(proto.shape.dim)
    return (count,) if count != 1 else ()


def _is_legacy(proto: Any) -> bool:
    return any(proto.HasField(f) for f in ("num", "channels", "height", "width"))


def same_shape(proto: Any, source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Equal shapes; a legacy 4-D shape may have leading ones that the target has not."""
    if _is_legacy(proto) and len(target) <= 4:
        target = (1,) * (4 - len(target)) + target
    return source == target


def _check_number(name: str, source: int, target: int) -> None:
    if source != target:
        raise WeightsError(
            f"incompatible number of blobs for layer {name}: the file has {source},"
            f" the net {target}"
        )


def _mismatch(name: str, index: int, source: tuple[int, ...], target: tuple[int, ...]) -> str:
    return (
        f"cannot copy param {index} weights from layer {name!r}; shape mismatch. Source param"
        f" shape is `{describe(source)}`; target param shape is `{describe(target)}`. To learn this"
        " layer's parameters from scratch, rename the layer"
    )


def _read_binary(path: PathLike) -> Any:
    try:
        spec = prototxt.read_binary(path, caffe_pb2.NetParameter)
        if spec.layers:  # the other old forms say nothing about weights
            spec = graph.upgrade(spec)
    except ModelError as error:
        raise WeightsError(str(error)) from error
    if not spec.ByteSize():
        raise WeightsError(f"failed to parse NetParameter file {os.fspath(path)}: it is empty")
    return spec


def _to_proto(blob: Blob) -> Any:
    proto = caffe_pb2.BlobProto()
    proto.shape.dim.extend(blob.shape)
    proto.data.extend(blob.data.ravel())
    return proto


@contextmanager
def _hdf5_file(path: PathLike) -> Iterator[Any]:
    """The file open for reading; WeightsError where something in it cannot be read."""
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            yield file
    except WeightsError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:  # h5py: any of them
        raise WeightsError(f"failed to read HDF5 file {os.fspath(path)}: {error}") from error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise RuntimeError("HDF5 weights need h5py: pip install h5py") from error
    return h5py
