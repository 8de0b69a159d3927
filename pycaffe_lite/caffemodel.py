"""How do parameters stand in a .caffemodel? Its layers and values as arrays, and back.

Values are read and written as bytes, by the small schema of proto/caffe_weights.proto: no Python
number is made of any. Only files whose floats are not packed take the long way, over the full one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import prototxt
from .blob import Blob, describe
from .errors import ModelError, WeightsError
from .load_report import Copy, Found, check_number, mismatch
from .proto import caffe_pb2, caffe_weights_pb2
from .replacement import replacing

if TYPE_CHECKING:
    from .layer import Layer
    from .net import Net

PathLike = str | os.PathLike[str]

_RAW = {"DOUBLE": "<f8", "FLOAT": "<f4", "FLOAT16": "<f2"}  # raw_data_type -> how values lie there
_VALUE_FIELDS = {5, 6, 8, 9}  # data, diff, double_data, double_diff


def find(net: Net, path: PathLike) -> Found:
    """What the .caffemodel has for the net's layers; nothing is copied yet.

    Of all generations; a layer's target is the first of its name. Raises MissingFileError and
    WeightsError.
    """
    found = Found()
    for name, protos in layers_of(path):
        target = net.first_layer(name)
        if target is None:
            if protos:
                found.ignored.append(name)
            continue
        check_number(name, len(protos), len(target.blobs))
        for k, (proto, blob) in enumerate(zip(protos, target.blobs, strict=True)):
            found.copies.append(_copy(proto, blob, name, k, os.fspath(path)))
        if protos:
            found.layers.append(target)
    return found


def _copy(proto: Any, blob: Blob, layer: str, index: int, path: str) -> Copy:
    try:
        values, diffs = values_of(proto), diffs_of(proto)
    except WeightsError as error:
        raise WeightsError(f"layer {layer!r}, param {index}: {error} (file {path})") from error
    if not same_shape(proto, values.shape, blob.shape):
        raise WeightsError(f"{mismatch(layer, index, values.shape, blob.shape)} (file {path})")
    return Copy(blob, values, diffs)


def layers_of(path: PathLike) -> Iterator[tuple[str, Any]]:
    """The (name, blobs) of each layer in a .caffemodel, blobs as messages of the small schema."""
    try:
        data = prototxt.read_file(path)
        spec = prototxt.parse_binary(data, caffe_weights_pb2.NetParameter, os.fspath(path))
        if not data:
            raise WeightsError(f"failed to parse NetParameter file {os.fspath(path)}: it is empty")
        if not all(_is_packed(blob) for layer in _layers(spec) for blob in layer.blobs):
            full = prototxt.parse_binary(data, caffe_pb2.NetParameter, os.fspath(path))
            spec = caffe_weights_pb2.NetParameter.FromString(full.SerializeToString())
    except ModelError as error:
        raise WeightsError(str(error)) from error
    if spec.layer and spec.layers:
        raise WeightsError(
            f"both `layer` and `layers` are there: {len(spec.layer)} and {len(spec.layers)}"
            f" (file {os.fspath(path)})"
        )
    return ((layer.name, layer.blobs) for layer in _layers(spec))


def _layers(spec: Any) -> Iterator[Any]:
    """The layers of a file, whichever generation they are of; each has a name and blobs."""
    yield from spec.layer
    for entry in spec.layers:
        yield entry.layer if entry.HasField("layer") else entry


def _is_packed(blob: Any) -> bool:
    """False where values are single records, which the small schema does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown: Any = UnknownFieldSet(blob)
    return not any(field.field_number in _VALUE_FIELDS for field in unknown)


def save(net: Net, path: PathLike) -> None:
    """Write a .caffemodel as Caffe does: every layer's message with its blobs, no diffs.

    The file appears whole or not at all.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        # Serialized messages in a row are one message: only one layer at a time is copied.
        file.write(caffe_pb2.NetParameter(name=net.name).SerializeToString())
        for layer in net.layers:
            file.write(_with_blobs(layer))


def _with_blobs(layer: Layer) -> bytes:
    """A serialized NetParameter of that layer alone."""
    spec = caffe_pb2.NetParameter()
    entry = spec.layer.add()
    entry.CopyFrom(layer.spec)
    del entry.blobs[:]
    for blob in layer.blobs:
        entry.blobs.add().MergeFromString(_serialized(blob))
    content: bytes = spec.SerializeToString()
    return content


def _serialized(blob: Blob) -> bytes:
    proto = caffe_weights_pb2.BlobProto(data=[np.asarray(blob.data, dtype="<f4").tobytes()])
    proto.shape.dim.extend(blob.shape)
    serialized: bytes = proto.SerializeToString()
    return serialized


# ---- one blob ----------------------------------------------------------------------------------


def values_of(proto: Any) -> np.ndarray:
    """The values of a BlobProto, in its shape (the legacy four dimensions where it has those).

    `proto` is of either schema. float64 where it has double_data or raw_data of that type, else
    float32; half precision, as forks store it, becomes float32. The array may be read-only. Raises
    WeightsError where their number is not the shape's: "6 vs. 5 data values".
    """
    values = _stored(proto, "data")
    if values is None:
        values = np.zeros(0, np.float32)
    return _shaped(proto, values, "data")


def diffs_of(proto: Any) -> np.ndarray | None:
    """The gradients that a BlobProto carries, as `values_of` gives values; None without any."""
    diffs = _stored(proto, "diff")
    return None if diffs is None else _shaped(proto, diffs, "diff")


def _stored(proto: Any, what: str) -> np.ndarray | None:
    """The array that is there, flat; Caffe's order of precedence, then the forks' raw bytes."""
    if not isinstance(proto, caffe_weights_pb2.BlobProto):
        proto = caffe_weights_pb2.BlobProto.FromString(proto.SerializeToString())
    for field, dtype in ((f"double_{what}", "<f8"), (what, "<f4")):
        if content := b"".join(getattr(proto, field)):
            return _array(content, dtype, what)
    if content := b"".join(getattr(proto, f"raw_{what}")[-1:]):
        number = getattr(proto, f"raw_{what}_type")
        name = caffe_weights_pb2.BlobProto.Type.Name(number)
        if name not in _RAW:
            raise WeightsError(f"raw_{what} of type {name} cannot be read (only {', '.join(_RAW)})")
        values = _array(content, _RAW[name], what)
        return values.astype(np.float32) if name == "FLOAT16" else values
    return None


def _array(content: bytes, dtype: str, what: str) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    if len(content) % size:
        raise WeightsError(f"{len(content)} bytes of {what} are no whole number of {size} bytes")
    return np.frombuffer(content, dtype)


def _shaped(proto: Any, values: np.ndarray, what: str) -> np.ndarray:
    shape = _shape_of(proto, values.size)
    count = _count(shape)
    if values.size != count:
        raise WeightsError(
            f"blob of shape `{describe(shape)}` carries {values.size} values:"
            f" {count} vs. {values.size} {what} values"
        )
    return values.reshape(shape)


def _count(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


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
