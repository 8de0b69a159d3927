"""How do parameters stand in a .caffemodel? Found in the file, copied from there, and written.

No value is held twice: it goes from the file into its parameter, and from there into the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import prototxt
from ..blob import INT_MAX, Blob
from ..errors import MissingFileError, WeightsError
from ..proto import caffe_pb2
from ..replacement import replacing
from . import wire
from .load_report import Copy, Found, check_number, mismatch
from .stored_blob import StoredBlob
from .wire import BYTES, VARINT, Record, Wire, WireError

if TYPE_CHECKING:
    from ..layer import Layer
    from ..net import Net

PathLike = str | os.PathLike[str]

_NAME, _LAYER, _V1_LAYER = 1, 100, 2  # fields of NetParameter
_BLOBS = 7  # of LayerParameter
_SHAPE, _DATA, _DIFF = 7, 5, 6  # of BlobProto
# Generation -> the fields of its layer message that hold name, blobs, and a layer of an older one.
_FIELDS = {2: (1, 7, None), 1: (4, 6, 1), 0: (1, 50, None)}

LayerBlobs = tuple[str, list[StoredBlob]]


@contextmanager
def find(net: Net, path: PathLike, permissive: bool = False) -> Iterator[Found]:
    """What the .caffemodel has for the net's layers; inside, its values can be copied.

    Of all generations; a layer's target is the first of its name. Where `permissive`, a blob fits
    another of equal count. Raises MissingFileError and WeightsError.
    """
    with _opened(path) as file:
        found = Found()
        for name, blobs in layers_of(file, os.fspath(path)):
            target = net.first_layer(name)
            if target is None:
                if blobs:
                    found.ignored.append(name)
                continue
            check_number(name, len(blobs), len(target.blobs))
            for k, (stored, blob) in enumerate(zip(blobs, target.blobs, strict=True)):
                if not stored.fits(blob, permissive):
                    text = mismatch(name, k, stored.shape, blob.shape)
                    raise WeightsError(f"{text} (file {os.fspath(path)})")
                diffs = stored.diffs.write if stored.diffs else None
                found.copies.append(Copy(blob, stored.values.write, diffs))
            if blobs:
                found.layers.append(target)
        yield found


@contextmanager
def _opened(path: PathLike) -> Iterator[RawIOBase]:
    try:
        with Path(path).open("rb", buffering=0) as file:
            yield file
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {os.fspath(path)} (file not found)") from None
    except OSError as error:
        raise WeightsError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    except WireError as error:  # the file has changed since its records were found
        raise WeightsError(f"cannot read {os.fspath(path)}: {error}") from error


def layers_of(file: RawIOBase, path: str) -> list[LayerBlobs]:
    """The (name, blobs) of each layer of a serialized NetParameter. Raises WeightsError."""
    whole = Wire(file)
    layers: dict[int, list[LayerBlobs]] = {2: [], 1: []}
    try:
        for record in whole.records(0, whole.size):
            if record.wire_type == BYTES and record.field in (_LAYER, _V1_LAYER):
                generation = 2 if record.field == _LAYER else 1
                layers[generation].append(_layer(whole, record, generation, path))
            elif record.field == _NAME and record.wire_type == VARINT:  # theirs begin with one
                raise WireError("it begins with a number; a .solverstate or a mean file does")
    except WireError as error:
        raise _not_parsed(file, path, "it is damaged or cut short", error) from error
    if layers[2] and layers[1]:
        raise WeightsError(
            f"both `layer` and `layers` are there: {len(layers[2])} and {len(layers[1])}"
            f" (file {path})"
        )
    if not (layers[2] or layers[1]):
        _check_is_net(file, path)
    return layers[2] or layers[1]


def _layer(whole: Wire, record: Record, generation: int, path: str) -> LayerBlobs:
    """Name and blobs of the layer that a record holds, of the message of that generation."""
    name_field, blobs_field, older = _FIELDS[generation]
    name, blobs = "", []
    for part in whole.records(record.start, record.end):
        if part.wire_type != BYTES:
            continue
        if part.field == older:
            return _layer(whole, part, 0, path)
        if part.field == name_field:
            name = whole.content(part).decode("utf-8", "replace")
        elif part.field == blobs_field:
            blobs.append(part)
    found = []
    for k, blob in enumerate(blobs):
        try:
            found.append(StoredBlob(whole, blob.start, blob.end))
        except WeightsError as error:
            raise WeightsError(f"layer {name!r}, param {k}: {error} (file {path})") from error
    return name, found


def _check_is_net(file: RawIOBase, path: str) -> None:
    """WeightsError for what has no layer and does not look like a message either."""
    file.seek(0)
    if not file.read(1):
        raise WeightsError(f"failed to parse NetParameter file {path}: it is empty")
    text = "it holds no layers"
    error = _not_parsed(file, path, text, None)
    if text not in str(error):
        raise error


def _not_parsed(file: RawIOBase, path: str, why: str, cause: WireError | None) -> WeightsError:
    """With what the file looks like, where that is known, in the place of `why`."""
    file.seek(0)
    content = prototxt.describe_content(file.read(4096))
    if not content.startswith("binary"):
        why = f"it looks like {content}"
    elif cause is not None:
        why = f"{why} ({cause})"
    return WeightsError(f"failed to parse NetParameter file {path}: {why}")


# ---- writing -----------------------------------------------------------------------------------


class _Values(NamedTuple):
    """A blob's values or gradient, as they will stand in the file."""

    blob: Blob
    diff: bool

    @property
    def size(self) -> int:
        """In bytes."""
        return 4 * self.blob.count

    def content(self) -> memoryview:
        array = self.blob.diff if self.diff else self.blob.data
        return np.ascontiguousarray(array, "<f4").reshape(-1).data


def save(net: Net, path: PathLike, diffs: bool = False) -> None:
    """Write a .caffemodel as Caffe does: every layer's message with its blobs.

    The file appears whole or not at all. With `diffs` it holds gradients, too. Raises WeightsError
    where it would be larger than Caffe and protobuf can read, which is 2 GB.
    """
    parts: list[bytes | _Values] = [caffe_pb2.NetParameter(name=net.name).SerializeToString()]
    for layer in net.layers:
        parts += _nested(_LAYER, _layer_parts(layer, diffs))
    size = _size(parts)
    if size > INT_MAX:
        raise WeightsError(
            f"{os.fspath(path)} would have {size} bytes, and a .caffemodel of more than {INT_MAX}"
            " cannot be read by Caffe: use save_hdf5"
        )
    with replacing(path) as temporary, temporary.open("wb") as file:
        for part in parts:
            file.write(part.content() if isinstance(part, _Values) else part)


def _layer_parts(layer: Layer, diffs: bool) -> list[bytes | _Values]:
    """A LayerParameter with its blobs, fields in the order of their numbers as protobuf has it."""
    before, after = caffe_pb2.LayerParameter(), caffe_pb2.LayerParameter()
    before.CopyFrom(layer.spec)
    after.CopyFrom(layer.spec)
    for field, _ in layer.spec.ListFields():
        for message, leaves in ((before, field.number >= _BLOBS), (after, field.number <= _BLOBS)):
            if leaves:
                message.ClearField(field.name)
    blobs = [part for blob in layer.blobs for part in _nested(_BLOBS, _blob_parts(blob, diffs))]
    return [before.SerializeToString(), *blobs, after.SerializeToString()]


def _blob_parts(blob: Blob, diffs: bool) -> list[bytes | _Values]:
    values = [(_DATA, _Values(blob, False)), *([(_DIFF, _Values(blob, True))] if diffs else [])]
    parts = [part for field, content in values if blob.count for part in _nested(field, [content])]
    return parts + _nested(_SHAPE, [caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()])


def _nested(field: int, content: list[bytes | _Values]) -> list[bytes | _Values]:
    return [wire.header(field, _size(content)), *content]


def _size(parts: list[bytes | _Values]) -> int:
    return sum(_length(part) for part in parts)


def _length(part: bytes | _Values) -> int:
    return part.size if isinstance(part, _Values) else len(part)
