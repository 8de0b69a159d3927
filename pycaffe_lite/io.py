"""How do images and messages become arrays, and arrays messages? pycaffe's caffe.io.

Reading images needs OpenCV, resizing them SciPy; either is imported at its first use.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .errors import MissingFileError, ModelError
from .extras import opencv
from .proto import caffe_pb2
from .transformer import Transformer, oversample, resize_image

__all__ = [
    "Transformer",
    "array_to_blobproto",
    "array_to_datum",
    "arraylist_to_blobprotovector_str",
    "blobproto_to_array",
    "blobprotovector_str_to_arraylist",
    "datum_to_array",
    "load_image",
    "oversample",
    "resize_image",
]

# How values lie in raw_data, by its raw_data_type.
_RAW: dict[str, np.dtype[Any]] = {
    "DOUBLE": np.dtype("<f8"),
    "FLOAT": np.dtype("<f4"),
    "FLOAT16": np.dtype("<f2"),
}

# Red, green, blue of BT.709 with these four digits: what Caffe's image reader made grey with.
_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])


# ---- messages ----------------------------------------------------------------------------------


def blobproto_to_array(blob: Any, return_diff: bool = False) -> np.ndarray:
    """The values of a BlobProto, or its gradients: float64, in the message's shape.

    They are its doubles, its floats, or the raw bytes that some forks write instead (of doubles,
    floats or halves; ModelError for other types).

    That is num, channels, height, width where one of these is set (0 for those that are not), else
    `shape`; one value without a shape is 0-d. Raises ModelError where the shape asks for another
    number of values, or several have none.
    """
    name = "diff" if return_diff else "data"
    values = getattr(blob, f"double_{name}", None) or getattr(blob, name)
    raw: bytes = getattr(blob, f"raw_{name}", b"")  # the original's messages have none
    if raw and not len(values):
        values = _from_raw(raw, getattr(blob, f"raw_{name}_type"), name)
    if any(blob.HasField(field) for field in ("num", "channels", "height", "width")):
        shape = (blob.num, blob.channels, blob.height, blob.width)
    else:
        shape = tuple(blob.shape.dim)
    return _reshaped(np.array(values, dtype=np.float64), shape, f"a blob's {name}")


def _from_raw(content: bytes, number: int, what: str) -> np.ndarray:
    kind = caffe_pb2.BlobProto.Type.Name(number)
    dtype = _RAW.get(kind)
    if dtype is None:
        raise ModelError(f"raw_{what} of type {kind} cannot be read (only {', '.join(_RAW)})")
    if len(content) % dtype.itemsize:
        raise ModelError(
            f"a blob's raw_{what}: {len(content)} bytes are no whole number of"
            f" {dtype.itemsize}-byte values ({kind})"
        )
    return np.frombuffer(content, dtype)


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """A BlobProto with the array's shape and its values as floats; `diff` goes with it if given.

    Raises ModelError where the gradients are not as many as the values.
    """
    arr = np.asarray(arr)
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(arr.shape)
    blob.data.extend(arr.astype(np.float64).ravel())
    if diff is not None:
        diff = np.asarray(diff)
        if diff.size != arr.size:
            raise ModelError(f"data and diff differ in size: shapes {arr.shape} and {diff.shape}")
        blob.diff.extend(diff.astype(np.float64).ravel())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[np.ndarray]) -> bytes:
    """Arrays as the bytes of a BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(arr) for arr in arraylist])
    serialized: bytes = vector.SerializeToString()
    return serialized


def blobprotovector_str_to_arraylist(serialized: bytes) -> list[np.ndarray]:
    """The inverse: the arrays, float64. Raises ModelError where the bytes are something else."""
    from google.protobuf.message import DecodeError

    vector = caffe_pb2.BlobProtoVector()
    try:
        vector.ParseFromString(serialized)
    except DecodeError as error:
        raise ModelError(f"failed to parse BlobProtoVector: {error}") from error
    return [blobproto_to_array(blob) for blob in vector.blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Any:
    """A Datum of an array (C, H, W): uint8 as bytes, every other dtype as floats.

    The label is set only if given, an integer. Raises ModelError for other than three axes.
    """
    arr = np.asarray(arr)
    if arr.ndim != 3:
        raise ModelError(f"Incorrect array shape: {arr.shape} has {arr.ndim} axes, a datum 3")
    datum = caffe_pb2.Datum()
    datum.channels, datum.height, datum.width = arr.shape
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(np.float64).ravel())
    if label is not None:
        datum.label = operator.index(label)
    return datum


def datum_to_array(datum: Any) -> np.ndarray:
    """The array (C, H, W) of a Datum: uint8 where it holds bytes, else float64. A new array.

    An encoded one (a JPEG, say) is decoded as Caffe's data layers do: blue, green, red; grey images
    with one channel, a fourth for alpha. That needs OpenCV. Raises ModelError where the values are
    not C x H x W, or the image cannot be decoded.
    """
    shape = (datum.channels, datum.height, datum.width)
    if not len(datum.data):
        return _reshaped(
            np.array(datum.float_data, dtype=np.float64), shape, "a datum's float_data"
        )
    if not datum.encoded:
        pixels = np.frombuffer(datum.data, np.uint8)
        return _reshaped(pixels, shape, "a datum's data").copy()
    image = _decoded(datum.data, "the image of an encoded datum")
    if image.dtype != np.uint8:
        raise ModelError(f"the image of an encoded datum has {image.dtype} pixels, not 8 bits")
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def _reshaped(values: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    if values.size != int(np.prod(shape, dtype=np.int64)):
        wanted = f"its shape {shape} asks for {np.prod(shape)}" if shape else "it has no shape"
        raise ModelError(f"{what}: {values.size} values, and {wanted}")
    return values.reshape(shape)


# ---- images ------------------------------------------------------------------------------------


def load_image(filename: str | os.PathLike[str], color: bool = True) -> np.ndarray:
    """An image file as float32 in 0..1: (H, W, 3) red, green, blue, or (H, W, 1) without color.

    Alpha is dropped, grey becomes three equal channels, 16 bits are scaled to 0..1 like 8, and a
    camera's note on how to turn the picture is not followed, all as in Caffe. Needs OpenCV
    (RuntimeError). Raises MissingFileError, and ModelError where it is no image.
    """
    try:
        content = Path(filename).read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {os.fspath(filename)} (not found)") from None
    except OSError as error:
        raise ModelError(f"could not load {os.fspath(filename)}: {error.strerror}") from error
    image = _decoded(content, os.fspath(filename))
    if np.issubdtype(image.dtype, np.integer):
        image = image * (1 / np.iinfo(image.dtype).max)
    image = image[:, :, 2::-1] if image.shape[2] > 1 else image  # blue, green, red and alpha
    if color:
        return np.broadcast_to(image, (*image.shape[:2], 3)).astype(np.float32)
    if image.shape[2] > 1:
        image = (image @ _LUMINANCE)[:, :, np.newaxis]
    return image.astype(np.float32)


def _decoded(content: bytes, what: str) -> np.ndarray:
    """The pixels (H, W, C) as the file has them: 1 channel, or blue, green, red, maybe alpha."""
    cv2 = opencv()
    image = None
    with suppress(cv2.error):  # of no bytes at all, or an image above its limits; else None
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise ModelError(f"could not load {what}: no image that OpenCV can read")
    return np.atleast_3d(image)
