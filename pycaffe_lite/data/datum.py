"""What image and label does a database's record hold? The bytes of Caffe's Datum, read and written.

Datasets are read with it, record by record; messages that are objects are caffe.io's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ModelError
from ..proto import caffe_pb2
from .image import decode_image

# A float of the repeated field float_data as protobuf stores it: a tag, then the value.
_FLOAT = np.dtype([("tag", "u1"), ("value", "<f4")])
_FLOAT_TAG = 6 << 3 | 5  # the field's number, and the kind that has four bytes


def read_datum(
    value: bytes, force_color: bool = False, force_gray: bool = False, what: str = "a datum"
) -> tuple[np.ndarray, int]:
    """The image (C, H, W) and the label in a serialized Datum; the array may be read-only.

    uint8 where it holds bytes, else float32. An encoded one (a JPEG, say) is decoded: blue, green,
    red, with the file's own channels, or 3 with `force_color`, 1 with `force_gray`; the two say
    nothing about others. Raises ModelError, which calls the record `what`, where the bytes are no
    Datum or cut off, the values are not C x H x W or none, or the image cannot be decoded, and
    where both are forced; RuntimeError where an image is encoded and OpenCV missing.
    """
    if force_color and force_gray:
        raise ModelError("cannot set both force_color and force_gray; specify one")
    datum = _parsed(value, what)
    if datum.data and datum.encoded:
        color = True if force_color else False if force_gray else None
        return decode_image(datum.data, color, f"the encoded image of {what}"), datum.label
    values = np.frombuffer(datum.data, np.uint8) if datum.data else _floats(datum, value)
    shape = (datum.channels, datum.height, datum.width)
    if min(shape) < 1 or values.size != shape[0] * shape[1] * shape[2]:
        raise ModelError(
            f"{what} holds {values.size} values; its channels, height and width {shape} ask for"
            f" {shape[0] * shape[1] * shape[2]}"
        )
    return values.reshape(shape), datum.label


def write_datum(image: np.ndarray, label: int | None = None) -> bytes:
    """A serialized Datum of an image (C, H, W): uint8 as bytes, every other dtype as floats.

    Byte for byte what Caffe's tools write. Raises ModelError for other than three axes.
    """
    if image.ndim != 3:
        raise ModelError(f"Incorrect array shape: {image.shape} has {image.ndim} axes, a datum 3")
    channels, height, width = image.shape
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width, label=label)
    if image.dtype == np.uint8:
        datum.data, datum.encoded = image.tobytes(), False
        return _serialized(datum)
    floats = np.empty(image.size, _FLOAT)
    floats["tag"] = _FLOAT_TAG
    floats["value"] = image.ravel()
    return _serialized(datum) + floats.tobytes()


def write_encoded_datum(content: bytes, label: int = 0) -> bytes:
    """A serialized Datum of an image file's bytes, as Caffe's without channels, height, width."""
    return _serialized(caffe_pb2.Datum(data=content, label=label, encoded=True))


def _parsed(value: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError

    datum = caffe_pb2.Datum()
    try:
        datum.ParseFromString(value)
    except DecodeError as error:
        raise ModelError(
            f"failed to parse {what} as Datum: {len(value)} bytes that are cut off or something"
            f" else: {error}"
        ) from error
    return datum


def _serialized(datum: Any) -> bytes:
    content: bytes = datum.SerializeToString()
    return content


def _floats(datum: Any, value: bytes) -> np.ndarray:
    """float_data as float32, out of the bytes themselves where they are as Caffe writes them."""
    count = len(datum.float_data)
    start = len(value) - count * _FLOAT.itemsize
    if datum.HasField("encoded"):
        start -= 2
    if start >= 0 and count:
        floats = np.frombuffer(value, _FLOAT, count, start)
        # Whole records before, then as many floats as there are: those bytes are all of them.
        if (floats["tag"] == _FLOAT_TAG).all() and _is_whole(value[:start]):
            return np.ascontiguousarray(floats["value"])
    return np.fromiter(datum.float_data, np.float32, count)


def _is_whole(value: bytes) -> bool:
    """True for a Datum without floats."""
    from google.protobuf.message import DecodeError

    try:
        return not caffe_pb2.Datum.FromString(value).float_data
    except DecodeError:
        return False
