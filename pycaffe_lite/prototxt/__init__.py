"""Nets, solvers and other messages as text (prototxt) and binary files, with errors that say where.

Parsing itself is google.protobuf.text_format; around it is what it lacks: byte order marks, line
ends, encodings, required fields, Caffe's stricter tokens, and errors with file, line and layer.
All that is imported when a text is parsed; importing this module costs next to nothing.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import MissingFileError, ModelError
from ..proto import caffe_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
AnyPath = str | os.PathLike[str]

__all__ = [
    "check_unknown_fields",
    "describe_content",
    "layer_lines",
    "parse_binary",
    "parse_net",
    "parse_text",
    "read_binary",
    "read_file",
    "read_net",
    "read_text",
    "to_text",
    "write_binary",
    "write_text",
]


def read_net(path: AnyPath, unknown_fields: str = "error") -> Any:
    """The NetParameter in a text file, not upgraded. Raises as read_text."""
    return read_text(path, caffe_pb2.NetParameter, unknown_fields)


def parse_net(text: str, name: str = "<string>", unknown_fields: str = "error") -> Any:
    """The NetParameter in a text, not upgraded. Raises as parse_text."""
    return parse_text(text, caffe_pb2.NetParameter, name, unknown_fields)


def read_text(path: AnyPath, message_class: type[M], unknown_fields: str = "error") -> M:
    """The message in a text file; `unknown_fields` as in parse_text.

    Raises MissingFileError where there is no such file and ModelError where it cannot be read, is
    empty or something else, or does not parse.
    """
    return parse_bytes(read_file(path), message_class, os.fspath(path), unknown_fields)


def parse_bytes(data: bytes, message_class: type[M], name: str, unknown_fields: str = "error") -> M:
    """The message in the content of a text file, `name`. Raises ModelError as read_text does."""
    if not data.removeprefix(b"\xef\xbb\xbf").strip():
        raise _not_parsed(message_class, name, describe_content(b""))
    if b"\0" in data[:4096]:  # spares decoding a large weights file
        raise _not_parsed(message_class, name, describe_content(data))
    try:
        return parse_text(
            data.decode("utf-8", "surrogateescape"), message_class, name, unknown_fields
        )
    except ModelError as error:
        if describe_content(data) == _TEXT:
            raise
        raise _not_parsed(message_class, name, describe_content(data)) from error


def parse_text(
    text: str, message_class: type[M], name: str = "<string>", unknown_fields: str = "error"
) -> M:
    """The message in a text; `name` stands for the file in errors.

    Bytes that are not UTF-8 may stand in comments as surrogate escapes. Raises ModelError with
    line, column, layer and source line. A field that the schema does not have is such an error,
    too; with `unknown_fields` "warn" it is left out and logged as a warning. All else is checked.
    """
    from .parsing import parse

    check_unknown_fields(unknown_fields)
    return parse(text, message_class, name, warn_of_unknown=unknown_fields == "warn")


def check_unknown_fields(choice: str) -> None:
    """Raises ModelError for what is no way to treat unknown fields."""
    if choice not in ("error", "warn"):
        raise ModelError(f"unknown_fields must be 'error' or 'warn', not {choice!r}")


def read_binary(path: AnyPath, message_class: type[M]) -> M:
    """The message in a binary file. Raises MissingFileError and ModelError."""
    return parse_binary(read_file(path), message_class, os.fspath(path))


def parse_binary(data: bytes, message_class: type[M], name: str = "<bytes>") -> M:
    """The message in serialized form; `name` stands for the file in errors. Raises ModelError."""
    from google.protobuf.message import DecodeError

    try:
        return message_class.FromString(data)
    except DecodeError as error:
        what = describe_content(data)
        raise _not_parsed(message_class, name, None if what == _BINARY else what) from error


def layer_lines(text: str) -> dict[str, list[int]]:
    """Layer name -> the 1-based lines where top-level `layer` or `layers` entries of it start.

    Works on texts that do not parse, too.
    """
    from .scan import layer_lines

    return layer_lines(text)


def to_text(message: "Message") -> str:
    """A message as text that parse_text reads back to an equal message."""
    from google.protobuf import text_format

    return text_format.MessageToString(message, as_utf8=True)


def write_text(path: AnyPath, message: "Message") -> None:
    """Writes to_text's text, as UTF-8 with \\n. Raises OSError."""
    Path(path).write_bytes(to_text(message).encode())


def write_binary(path: AnyPath, message: "Message") -> None:
    """Writes the serialized message. Raises OSError."""
    Path(path).write_bytes(message.SerializeToString())


def read_file(path: AnyPath) -> bytes:
    """The bytes of a file. Raises MissingFileError, or ModelError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"Could not open file {os.fspath(path)}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"Could not open file {os.fspath(path)}: {reason}") from error


_TEXT = "text (a prototxt?)"
_BINARY = "binary data (a caffemodel?)"
_STARTS = {
    b"version https://git-lfs": "a Git LFS pointer: the file itself was not downloaded",
    b"\x89hdf\r\n": "an HDF5 file",
    b"pk\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"<!doctype": "an HTML page: the download failed",
    b"<html": "an HTML page: the download failed",
    b"<?xml": "an XML page: the download failed",
    b"404: not found": "an error page: the download failed",
    b'{"': "JSON",
    b"%pdf-": "a PDF document",
    b"bzh9": "a bzip2 archive",
    b"\xfd7zxz": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"rar!": "a RAR archive",
    b"\x93numpy": "an array that NumPy saved",
    b"\x89png": "an image",
    b"\xff\xd8\xff": "an image",
}


def describe_content(data: bytes) -> str:
    """What the beginning of a file that would not parse looks like, in words."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    head = data[:4096]
    start = head.lstrip().lower()
    for magic, meaning in _STARTS.items():
        if start.startswith(magic):
            return meaning
    if not start and len(data) <= len(head):
        return "an empty file"
    if data[257:262] == b"ustar":
        return "a tar archive"
    controls = sum(byte < 32 and byte not in b"\t\n\v\f\r" for byte in head)
    return _BINARY if b"\0" in head or controls * 50 > len(head) else _TEXT


def _not_parsed(message_class: type["Message"], name: str, content: str | None) -> ModelError:
    why = f"it looks like {content}" if content else "it is damaged or cut short"
    return ModelError(f"failed to parse {message_class.DESCRIPTOR.name} file {name}: {why}")
