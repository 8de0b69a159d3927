"""Which records does a serialized message have, and where? Found without reading their contents.

protobuf would bring a weights file into memory twice before the first value is copied. Here a few
bytes of each record are read, and values go from the file straight into their arrays. The format is
protobuf's encoding: records of a tag (field << 3 | wire type) and a number, or 8 or 4 bytes, or a
length and that many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BufferedIOBase, RawIOBase
from typing import NamedTuple

import numpy as np

from ..ops.base import Array

VARINT, EIGHT, BYTES, GROUP, END_GROUP, FOUR = range(6)

_SIZE = {EIGHT: 8, FOUR: 4}
_MAX_DEPTH = 100  # of groups, as in protobuf
_WINDOW = 512


class WireError(ValueError):
    """The bytes are no records, or are cut short."""


class Record(NamedTuple):
    """One record: its content is the bytes from `start` to `end`; `number` is a VARINT's value."""

    field: int
    wire_type: int
    start: int
    end: int
    number: int = 0


class Wire:
    """Records in a binary file that can seek; positions are bytes from its beginning."""

    def __init__(self, file: RawIOBase | BufferedIOBase) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self._window, self._at = b"", 0

    def records(self, start: int, end: int, depth: int = 0) -> Iterator[Record]:
        """The records from `start` to `end`; groups are passed over. Raises WireError."""
        position = start
        while position < end:
            tag, content = self._varint(position, end)
            field, wire_type = tag >> 3, tag & 7
            if not 0 < field < 1 << 29:
                raise WireError(f"no record at byte {position}: field {field}")
            if wire_type == GROUP:
                position = self._end_of_group(field, content, end, depth + 1)
                continue
            if wire_type == END_GROUP and depth:
                yield Record(field, wire_type, content, content)
                return
            record = self._record(field, wire_type, content, end)
            yield record
            position = record.end

    def _record(self, field: int, wire_type: int, content: int, end: int) -> Record:
        if wire_type == VARINT:
            number, stop = self._varint(content, end)
            return Record(field, wire_type, content, stop, number)
        if wire_type == BYTES:
            size, content = self._varint(content, end)
        elif wire_type in _SIZE:
            size = _SIZE[wire_type]
        else:
            raise WireError(f"no record at byte {content}: wire type {wire_type}")
        if content + size > end:
            raise WireError(f"a record ends at byte {content + size}, what it is in at {end}")
        return Record(field, wire_type, content, content + size)

    def _end_of_group(self, field: int, start: int, end: int, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise WireError(f"groups are nested too deeply at byte {start}")
        for record in self.records(start, end, depth):
            if record.wire_type == END_GROUP and record.field == field:
                return record.end
        raise WireError(f"the group at byte {start} has no end")

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """The number at `position`, and where it ends."""
        number = shift = 0
        while shift < 70:
            if position >= end:
                raise WireError(f"cut short at byte {end}")
            byte = self._byte(position)
            position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & (1 << 64) - 1, position
            shift += 7
        raise WireError(f"no number ends at byte {position}")

    def _byte(self, position: int) -> int:
        offset = position - self._at
        if not 0 <= offset < len(self._window):
            self._file.seek(position)
            self._window, self._at, offset = self._file.read(_WINDOW) or b"", position, 0
            if not self._window:
                raise WireError(f"cut short at byte {position}")
        return self._window[offset]

    def varints(self, record: Record) -> Iterator[int]:
        """The numbers that are packed into a record."""
        position = record.start
        while position < record.end:
            number, position = self._varint(position, record.end)
            yield number

    def content(self, record: Record) -> bytes:
        """The bytes of a record."""
        return self._read(record.start, record.end)

    def _read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return self._file.read(end - start) or b""

    def read_into(self, start: int, out: Array) -> None:
        """Fill a contiguous array with the bytes from `start` on. Raises WireError where short."""
        self._file.seek(start)
        rest = memoryview(out).cast("B") if out.size else memoryview(b"")
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise WireError(f"cut short at byte {self._file.tell()}")
            rest = rest[count:]

    def run_of_numbers(self, first: Record, end: int) -> tuple[np.ndarray, int]:
        """The number of `first` (EIGHT or FOUR) and of the records like it that follow, as bytes.

        Gives an array (numbers, 8 or 4) of uint8, and where the run ends.
        """
        head = _tag(first.field, first.wire_type)
        size = len(head) + _SIZE[first.wire_type]
        start = first.start - len(head)
        content = head + self._read(first.start, end)  # a tag may be written with more bytes
        rows = np.frombuffer(content, np.uint8, len(content) // size * size).reshape(-1, size)
        other = np.flatnonzero((rows[:, : len(head)] != np.frombuffer(head, np.uint8)).any(axis=1))
        count = int(other[0]) if len(other) else len(rows)
        return rows[:count, len(head) :], start + count * size


# ---- writing -----------------------------------------------------------------------------------


def header(field: int, size: int) -> bytes:
    """What stands before `size` bytes of content in a record of that field."""
    return _tag(field, BYTES) + _number(size)


def _tag(field: int, wire_type: int) -> bytes:
    return _number(field << 3 | wire_type)


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
