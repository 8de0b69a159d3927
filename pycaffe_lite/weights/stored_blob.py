"""What does a BlobProto hold? Its shape at once; its values go into their array when asked."""

from __future__ import annotations

import io
from math import prod
from typing import Any

import numpy as np

from ..blob import Blob, describe
from ..errors import WeightsError
from ..ops.base import Array
from .wire import BYTES, EIGHT, FOUR, VARINT, Record, Wire

_LEGACY = (1, 2, 3, 4)  # num, channels, height, width
_SHAPE, _DIM = 7, 1
_DATA = {"double_data": 8, "data": 5, "raw_data_type": 10, "raw_data": 12}
_DIFF = {"double_data": 9, "data": 6, "raw_data_type": 11, "raw_data": 13}
_NUMBERS = {5: "<f4", 6: "<f4", 8: "<f8", 9: "<f8"}
_KINDS = dict.fromkeys((*_LEGACY, 10, 11), VARINT) | dict.fromkeys((5, 6, 7, 8, 9, 12, 13), BYTES)
_UNPACKED = {5: FOUR, 6: FOUR, 8: EIGHT, 9: EIGHT}
_RAW = ("<f8", "<f4", "<f2")  # raw_data_type DOUBLE, FLOAT, FLOAT16
_RAW_NAMES = ("DOUBLE", "FLOAT", "FLOAT16", "INT", "UINT")
_CHUNK = 1 << 20  # numbers converted at once


class StoredBlob:
    """A blob of a weights file of any generation, or of a model.

    `shape` is the file's (the legacy four dimensions where it has those), `values` and `diffs` the
    numbers it carries; diffs is None without any. Raises WeightsError where the number of values is
    not the shape's, "6 vs. 5 data values", or values are of a type that cannot be read.
    """

    def __init__(self, wire: Wire, start: int, end: int) -> None:
        records = _by_field(wire, start, end)
        self._wire = wire
        self._is_legacy = any(field in records for field in _LEGACY)
        values, diffs = self._stored(records, _DATA, "data"), self._stored(records, _DIFF, "diff")
        self.values = values or Numbers(wire, "<f4")
        self.diffs = diffs
        self.shape = self._shape(records)
        if min(self.shape, default=0) < 0:
            raise WeightsError(f"blob dimensions must not be negative: {self.shape}")
        for what, numbers in (("data", self.values), ("diff", diffs)):
            if numbers is not None and numbers.count != prod(self.shape):
                raise WeightsError(
                    f"blob of shape `{describe(self.shape)}` carries {numbers.count} values:"
                    f" {prod(self.shape)} vs. {numbers.count} {what} values"
                )

    def fits(self, blob: Blob, permissive: bool = False) -> bool:
        """Equal shapes; a legacy one may have leading ones that the blob's has not.

        With `permissive`, equal counts.
        """
        if permissive:
            return self.values.count == blob.count
        target = blob.shape
        if self._is_legacy and len(target) <= 4:
            target = (1,) * (4 - len(target)) + target
        return self.shape == target

    def array(self) -> np.ndarray:
        """The values in the file's shape: float64 where it has doubles, else float32."""
        out = np.empty(self.shape, np.float64 if self.values.dtype == "<f8" else np.float32)
        self.values.write(out)
        return out

    def _shape(self, records: dict[int, list[Any]]) -> tuple[int, ...]:
        if self._is_legacy:
            return tuple(_signed(records[k][-1].number) if k in records else 0 for k in _LEGACY)
        if _SHAPE in records:
            dims: list[int] = []
            for record in records[_SHAPE]:
                dims += _dims(self._wire, record)
            return tuple(dims)
        return (self.values.count,) if self.values.count != 1 else ()

    def _stored(
        self, records: dict[int, list[Any]], fields: dict[str, int], what: str
    ) -> Numbers | None:
        """What is there, in Caffe's order of precedence, then the forks' raw bytes."""
        for name in ("double_data", "data"):
            if found := records.get(fields[name]):
                numbers = Numbers(self._wire, _NUMBERS[fields[name]])
                for record in found:
                    numbers.add(record, what)
                if numbers.count:
                    return numbers
        raw = records.get(fields["raw_data"], [])[-1:]
        if not raw or raw[0].start == raw[0].end:
            return None
        types = records.get(fields["raw_data_type"], [])[-1:]
        number = types[0].number if types else 0
        if number >= len(_RAW):
            name = _RAW_NAMES[number] if number < len(_RAW_NAMES) else str(number)
            raise WeightsError(
                f"raw_{what} of type {name} cannot be read (only DOUBLE, FLOAT, FLOAT16)"
            )
        numbers = Numbers(self._wire, _RAW[number])
        numbers.add(raw[0], what)
        return numbers


class Numbers:
    """Numbers of one type in a file, in one piece or several."""

    def __init__(self, wire: Wire, dtype: str) -> None:
        self.dtype, self.count = dtype, 0
        self._wire, self._size = wire, np.dtype(dtype).itemsize
        self._pieces: list[Record | np.ndarray] = []

    def add(self, piece: Record | np.ndarray, what: str) -> None:
        """Append those of a record, or of an array of uint8 with the bytes of one in a row."""
        self._pieces.append(piece)
        if isinstance(piece, np.ndarray):
            self.count += len(piece)
            return
        size = piece.end - piece.start
        if size % self._size:
            raise WeightsError(f"{size} bytes of {what} are no whole number of {self._size} bytes")
        self.count += size // self._size

    def write(self, out: Array) -> None:
        """Fill `out`, a C contiguous host array of `count` elements, converting to its type."""
        flat, done = out.reshape(-1), 0
        for piece in self._pieces:
            if isinstance(piece, np.ndarray):
                numbers = np.ascontiguousarray(piece).view(self.dtype)[:, 0]
                with np.errstate(over="ignore", invalid="ignore"):
                    flat[done : done + len(piece)] = numbers
                done += len(piece)
                continue
            count = (piece.end - piece.start) // self._size
            self._read(piece.start, flat[done : done + count])
            done += count

    def _read(self, start: int, out: np.ndarray) -> None:
        if out.dtype == np.dtype(self.dtype):
            self._wire.read_into(start, out)
            return
        part = np.empty(min(_CHUNK, len(out)), self.dtype)
        for k in range(0, len(out), _CHUNK):
            chunk = part[: min(_CHUNK, len(out) - k)]
            self._wire.read_into(start + k * self._size, chunk)
            with np.errstate(over="ignore", invalid="ignore"):  # a double may be any
                out[k : k + len(chunk)] = chunk


def from_message(proto: Any) -> StoredBlob:
    """The StoredBlob of a BlobProto message. Raises WeightsError."""
    content = proto.SerializeToString()
    return StoredBlob(Wire(io.BytesIO(content)), 0, len(content))


def _by_field(wire: Wire, start: int, end: int) -> dict[int, list[Any]]:
    """The records of a BlobProto by field, those of the wire type that the field has.

    Numbers that are not packed are an array (numbers, bytes of one) instead.
    """
    found: dict[int, list[Any]] = {}
    position = start
    while position < end:
        for record in wire.records(position, end):
            position = record.end
            if record.wire_type == _KINDS.get(record.field):
                found.setdefault(record.field, []).append(record)
            elif record.wire_type == _UNPACKED.get(record.field):
                rows, position = wire.run_of_numbers(record, end)
                found.setdefault(record.field, []).append(rows)
                break
        else:  # all is read; behind the last record there may be a group, which is passed over
            break
    return found


def _dims(wire: Wire, record: Record) -> list[int]:
    """The dimensions of a BlobShape, packed or not."""
    dims = []
    for dim in wire.records(record.start, record.end):
        if dim.field == _DIM and dim.wire_type == VARINT:
            dims.append(_signed(dim.number))
        elif dim.field == _DIM and dim.wire_type == BYTES:
            dims += [_signed(number) for number in wire.varints(dim)]
    return dims


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
