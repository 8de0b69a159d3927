"""caffe.io: messages to arrays and back, image files, resizing and cropping."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite as caffe
from pycaffe_lite import MissingFileError, ModelError
from pycaffe_lite.proto import caffe_pb2

RECORDED = Path(__file__).parent / "golden" / "io.npz"


@pytest.fixture(scope="module")
def recorded():
    """What the original read, and what it gave."""
    with np.load(RECORDED) as case:
        return dict(case)


def png(pixels: np.ndarray) -> bytes:
    """The bytes of a PNG file of (H, W, C): C 1 grey, 2 with alpha, 3 RGB, 4 RGBA; 8 or 16 bits."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    bits = 8 * pixels.dtype.itemsize
    rows = pixels.astype(pixels.dtype.newbyteorder(">"))

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def image_file(tmp_path):
    """Writes pixels (H, W, C) as a PNG and gives its path."""

    def write(pixels, name="an image.png"):
        path = tmp_path / name
        path.write_bytes(png(pixels))
        return path

    return write


# ---- BlobProto ---------------------------------------------------------------------------------


def test_a_blob_of_old_shape():
    values = np.arange(120, dtype="f4")
    blob = caffe_pb2.BlobProto(num=2, channels=3, height=4, width=5, data=values)
    assert_array_equal(caffe.io.blobproto_to_array(blob), values.reshape(2, 3, 4, 5))


def test_a_blob_of_today():
    blob = caffe_pb2.BlobProto(shape={"dim": [4, 2, 3]}, data=range(24), diff=range(24, 48))
    got = caffe.io.blobproto_to_array(blob)
    assert got.dtype == np.float64
    assert_array_equal(got, np.arange(24).reshape(4, 2, 3))
    gradients = caffe.io.blobproto_to_array(blob, return_diff=True)
    assert_array_equal(gradients, np.arange(24, 48).reshape(4, 2, 3))


def test_a_blob_of_doubles():
    blob = caffe_pb2.BlobProto(shape={"dim": [2]}, double_data=[1 / 3, 2], double_diff=[1 / 7, 3])
    assert_array_equal(caffe.io.blobproto_to_array(blob), [1 / 3, 2])
    assert_array_equal(caffe.io.blobproto_to_array(blob, True), [1 / 7, 3])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("DOUBLE", "<f8"), ("FLOAT", "<f4"), ("FLOAT16", "<f2")]
)
@pytest.mark.parametrize("shape", [{"shape": {"dim": [3, 2]}}, {"num": 3, "channels": 2}])
def test_a_blob_of_raw_bytes(kind, dtype, shape):
    """As nvidia's fork writes them."""
    values = np.array([[1 / 3, -2], [0.1, 0], [5, 6e-5]], dtype)
    if "num" in shape:
        shape = {**shape, "height": 1, "width": 1}
    blob = caffe_pb2.BlobProto(
        raw_data_type=kind,
        raw_data=values.tobytes(),
        raw_diff_type=kind,
        **shape,
        raw_diff=(-values).tobytes(),
    )
    for got, wanted in [
        (caffe.io.blobproto_to_array(blob), values),
        (caffe.io.blobproto_to_array(blob, return_diff=True), -values),
    ]:
        assert got.dtype == np.float64
        assert got.flags.writeable
        assert_array_equal(got.reshape(3, 2), wanted)
        assert got.shape == ((3, 2, 1, 1) if "num" in shape else (3, 2))


def test_raw_bytes_come_after_numbers():
    blob = caffe_pb2.BlobProto(data=[7], raw_data_type="FLOAT", raw_data=b"\0\0\0\0")
    assert caffe.io.blobproto_to_array(blob) == 7
    blob = caffe_pb2.BlobProto(raw_data_type="FLOAT", raw_data=b"\0\0\x80?")
    assert caffe.io.blobproto_to_array(blob) == 1
    assert caffe.io.blobproto_to_array(blob).shape == ()


@pytest.mark.parametrize(
    ("blob", "text"),
    [
        ({"raw_data_type": "INT", "raw_data": b"1234"}, "raw_data of type INT cannot be read"),
        (
            {"raw_data_type": "FLOAT", "raw_data": b"123456"},
            "6 bytes are no whole number of 4-byte",
        ),
        ({"raw_data_type": "FLOAT16", "raw_data": b"1234"}, "2 values, and it has no shape"),
        ({"raw_data_type": "FLOAT", "raw_data": b"1234", "num": 2}, "1 values, and its shape"),
    ],
)
def test_raw_bytes_that_cannot_be_read(blob, text):
    with pytest.raises(ModelError, match=text):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(**blob))


def test_one_value_needs_no_shape():
    got = caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[123]))
    assert got.shape == ()
    assert got == 123


def test_many_values_need_a_shape():
    with pytest.raises(ValueError, match="100 values, and it has no shape"):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[123] * 100))


@pytest.mark.parametrize(
    ("blob", "text"),
    [
        ({"num": 2, "data": [1] * 6}, r"6 values, and its shape \(2, 0, 0, 0\) asks for 0"),
        ({"shape": {"dim": [2, 4]}, "data": [1] * 6}, r"6 values, and its shape \(2, 4\).* 8"),
        ({"shape": {"dim": [2, 4]}, "diff": [1] * 8}, r"blob's data: 0 values"),
    ],
)
def test_a_blob_that_is_not_its_shape(blob, text):
    with pytest.raises(ModelError, match=text):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(**blob))


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4, 5, 1)])
@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8"])
def test_blobs_come_back(rng, shape, dtype):
    values = np.array(rng.integers(0, 200, shape)).astype(dtype)
    gradients = values[..., ::-1] if shape else values
    blob = caffe.io.array_to_blobproto(values, diff=gradients)
    assert list(blob.shape.dim) == list(shape)
    assert_array_equal(caffe.io.blobproto_to_array(blob), values)
    assert_array_equal(caffe.io.blobproto_to_array(blob, return_diff=True), gradients)
    assert len(caffe.io.array_to_blobproto(values).diff) == 0


def test_gradients_are_as_many_as_values():
    with pytest.raises(ModelError, match=r"\(2, 3\) and \(2, 4\)"):
        caffe.io.array_to_blobproto(np.zeros((2, 3)), diff=np.zeros((2, 4)))


def test_several_blobs_in_one_string():
    arrays = [np.arange(6.0).reshape(2, 3), np.array(7.0), np.arange(4.0)]
    text = caffe.io.arraylist_to_blobprotovector_str(iter(arrays))
    assert isinstance(text, bytes)
    assert len(caffe_pb2.BlobProtoVector.FromString(text).blobs) == 3
    for got, wanted in zip(caffe.io.blobprotovector_str_to_arraylist(text), arrays, strict=True):
        assert got.shape == wanted.shape
        assert_array_equal(got, wanted)
    assert caffe.io.blobprotovector_str_to_arraylist(b"") == []


def test_a_string_that_is_no_blobs():
    with pytest.raises(ModelError, match="failed to parse BlobProtoVector"):
        caffe.io.blobprotovector_str_to_arraylist(b"\xff\xff")


# ---- Datum -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["datum_u8", "datum_f"])
def test_recorded_datum(recorded, case):
    datum = caffe_pb2.Datum.FromString(recorded[f"{case}:bytes"].tobytes())
    got = caffe.io.datum_to_array(datum)
    wanted = recorded[f"{case}:out"]
    assert got.dtype == wanted.dtype
    assert_array_equal(got, wanted)
    label = datum.label if datum.HasField("label") else None
    again = caffe.io.array_to_datum(got, label)
    assert again.SerializeToString() == recorded[f"{case}:bytes"].tobytes()


# https://github.com/BVLC/caffe/issues/2391
@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "?"])
def test_only_bytes_go_into_data(rng, dtype):
    values = rng.integers(0, 200, (3, 2, 4)).astype(dtype)
    datum = caffe.io.array_to_datum(values.transpose(0, 2, 1), label=np.int64(5))
    assert (datum.channels, datum.height, datum.width, datum.label) == (3, 4, 2, 5)
    assert (len(datum.data), len(datum.float_data)) == ((24, 0) if dtype == "u1" else (0, 24))
    back = caffe.io.datum_to_array(datum)
    assert back.dtype == (np.uint8 if dtype == "u1" else np.float64)
    assert back.flags.writeable
    assert_array_equal(back, values.transpose(0, 2, 1))


def test_a_label_is_set_if_given():
    values = np.ones((4, 2, 3))
    without, with_label = caffe.io.array_to_datum(values), caffe.io.array_to_datum(values, label=0)
    assert not without.HasField("label")
    assert with_label.HasField("label")
    assert len(without.SerializeToString()) < len(with_label.SerializeToString())
    with pytest.raises(TypeError):
        caffe.io.array_to_datum(values, label=1.5)


@pytest.mark.parametrize("shape", [(), (4, 5), (1, 2, 3, 4)])
def test_a_datum_has_three_axes(shape):
    with pytest.raises(ValueError, match="Incorrect array shape"):
        caffe.io.array_to_datum(np.zeros(shape))


@pytest.mark.parametrize("values", [{"data": b"12345"}, {"float_data": [1] * 5}, {}])
def test_a_datum_that_is_not_its_shape(values):
    count = 5 if values else 0
    with pytest.raises(ModelError, match=rf"{count} values, and its shape \(1, 2, 3\) asks for 6"):
        caffe.io.datum_to_array(caffe_pb2.Datum(channels=1, height=2, width=3, **values))


# https://github.com/BVLC/caffe/issues/3225
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_encoded_datum_is_decoded(rng, channels):
    """Blue first; convert_imageset writes no dimensions into such datums."""
    pixels = rng.integers(0, 256, (5, 7, channels), dtype=np.uint8)
    got = caffe.io.datum_to_array(caffe_pb2.Datum(data=png(pixels), encoded=True, label=3))
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    wanted = pixels[:, :, [0] if channels == 1 else [2, 1, 0, 3][:channels]]
    assert_array_equal(got, wanted.transpose(2, 0, 1))


def test_an_encoded_datum_that_cannot_be_decoded():
    with pytest.raises(ModelError, match="could not load the image of an encoded datum"):
        caffe.io.datum_to_array(caffe_pb2.Datum(data=b"no image", encoded=True))
    deep = caffe_pb2.Datum(data=png(np.zeros((2, 3, 1), np.uint16)), encoded=True)
    with pytest.raises(ModelError, match="uint16 pixels, not 8 bits"):
        caffe.io.datum_to_array(deep)


# ---- image files -------------------------------------------------------------------------------


# https://github.com/BVLC/caffe/pull/6514
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [3, 4])
def test_a_colour_image(rng, image_file, channels, dtype):
    highest = np.iinfo(dtype).max
    pixels = rng.integers(0, highest, (5, 7, channels), dtype=dtype, endpoint=True)
    pixels[0, :2, 0] = 0, highest
    path = image_file(pixels)
    got = caffe.io.load_image(path)
    assert got.dtype == np.float32
    assert got.shape == (5, 7, 3)
    assert_allclose(got, pixels[:, :, :3] / highest, atol=1e-7)
    assert_array_equal(got[0, :2, 0], [0, 1])
    grey = caffe.io.load_image(str(path), color=False)
    assert grey.dtype == np.float32
    assert grey.shape == (5, 7, 1)
    r, g, b = np.moveaxis(pixels[:, :, :3] / highest, 2, 0)
    assert_allclose(grey[:, :, 0], 0.2125 * r + 0.7154 * g + 0.0721 * b, atol=1e-7)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_grey_image(rng, image_file, channels):
    """Without alpha or with it."""
    pixels = rng.integers(0, 256, (4, 6, channels), dtype=np.uint8)
    path = image_file(pixels)
    wanted = pixels[:, :, :1] / 255
    colour = caffe.io.load_image(path)
    assert colour.flags.writeable
    assert_allclose(colour, np.concatenate([wanted] * 3, axis=2), atol=1e-7)
    grey = caffe.io.load_image(path, color=False)
    assert grey.shape == (4, 6, 1)
    assert_allclose(grey, wanted, atol=1e-7)


def test_a_file_that_is_no_image(tmp_path, capfd):
    with pytest.raises(MissingFileError, match=r"Could not open file .*nowhere.png"):
        caffe.io.load_image(tmp_path / "nowhere.png")
    for name, content in ("empty.png", b""), ("text.png", b"hello"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=f"could not load .*{name}"):
            caffe.io.load_image(tmp_path / name)
    with pytest.raises(ModelError, match="could not load"):
        caffe.io.load_image(tmp_path)


def test_without_opencv(image_file, monkeypatch):
    path = image_file(np.zeros((2, 3, 1), np.uint8))
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(RuntimeError, match=r"pycaffe-lite\[image\]"):
        caffe.io.load_image(path)
    with pytest.raises(RuntimeError, match=r"pycaffe-lite\[image\]"):
        caffe.io.datum_to_array(caffe_pb2.Datum(data=b"x", encoded=True))


# ---- resizing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(4))
def test_recorded_resize(recorded, case):
    image = recorded[f"resize{case}:in"]
    before = image.copy()
    got = caffe.io.resize_image(image, tuple(recorded[f"resize{case}:dims"]))
    assert got.dtype == np.float32
    assert_allclose(got, recorded[f"resize{case}:out"], atol=1e-6)
    assert_array_equal(image, before)


def areas(line: np.ndarray, size: int) -> np.ndarray:
    """Linear interpolation (n, ...) -> (size, ...) between centres of areas; 0 lies outside."""
    out = np.zeros((size, *line.shape[1:]))
    for k in range(size):
        at = (k + 0.5) * len(line) / size - 0.5
        for i in range(len(line)):
            out[k] += line[i] * max(0.0, 1 - abs(at - i))
    return out


def corners(line: np.ndarray, size: int) -> np.ndarray:
    """The same, but the first and the last value stay in their places."""
    out = np.zeros((size, *line.shape[1:]))
    for k in range(size):
        at = k * (len(line) - 1) / (size - 1)
        for i in range(len(line)):
            out[k] += line[i] * max(0.0, 1 - abs(at - i))
    return out


def both_axes(function, image, height, width):
    return function(function(image, height).swapaxes(0, 1), width).swapaxes(0, 1)


# https://github.com/BVLC/caffe/issues/5602, https://github.com/BVLC/caffe/issues/5321
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["u1", "i1", "f4", "f8"])
def test_growing_keeps_the_range(rng, channels, dtype):
    """Beyond the edge lies the image's minimum."""
    image = rng.integers(-120, 120, (4, 5, channels)).astype(dtype)
    got = caffe.io.resize_image(image, (9, 7))
    low = image.astype("f8").min()
    assert_allclose(got, both_axes(areas, image - low, 9, 7) + low, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("channels", [2, 5])
def test_other_numbers_of_channels_keep_their_corners(rng, channels):
    image = rng.normal(50, 100, (4, 5, channels))
    got = caffe.io.resize_image(image, (9, 3))
    assert got.dtype == np.float32
    assert_allclose(got, both_axes(corners, image, 9, 3), rtol=1e-5)
    half = image.astype(np.float16)
    wanted = both_axes(corners, half.astype("f8"), 9, 3)
    assert_allclose(caffe.io.resize_image(half, (9, 3)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, -3.5, 255.0, np.nan])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_constant_image_stays_constant(value, channels):
    got = caffe.io.resize_image(np.full((4, 5, channels), value), (7, 3))
    assert got.dtype == np.float32
    assert_array_equal(got, np.full((7, 3, channels), value))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_nearest_pixel(rng, channels):
    image = rng.normal(size=(3, 4, channels))
    got = caffe.io.resize_image(image, (6, 8), interp_order=0)
    assert np.isin(got.round(5), image.astype("f4").round(5)).all()


def test_splines_do_not_leave_the_range(rng):
    image = (rng.random((6, 5, 3)) > 0.5) * 255.0
    got = caffe.io.resize_image(image, (13, 11), interp_order=3)
    assert got.min() >= 0
    assert got.max() <= 255


@pytest.mark.parametrize(
    ("shape", "dims"), [((4, 3), (2, 5)), ((4, 0, 3), (2, 5)), ((4, 5, 3), (0, 2))]
)
def test_what_cannot_be_resized(shape, dims):
    with pytest.raises(ModelError, match=r"cannot resize an image of shape .*\(H, W, C\)"):
        caffe.io.resize_image(np.zeros(shape), dims)


# ---- ten crops ---------------------------------------------------------------------------------


def test_recorded_crops(recorded):
    got = caffe.io.oversample(recorded["oversample:in"], tuple(recorded["oversample:dims"]))
    assert got.dtype == np.float32
    assert_array_equal(got, recorded["oversample:out"])


def test_order_of_the_crops():
    """Each pixel carries where it was; a centre between two pixels goes to the upper left."""
    y, x = np.mgrid[:7, :9]
    images = [np.stack([y, x], axis=2) + 100 * n for n in range(3)]
    crops = caffe.io.oversample(images, (4, 6))
    assert crops.shape == (30, 4, 6, 2)
    starts = [(0, 0), (0, 3), (3, 0), (3, 3), (1, 1)]
    for n in range(3):
        ten = crops[10 * n : 10 * n + 10] - 100 * n
        assert [tuple(crop[0, 0]) for crop in ten[:5]] == starts
        assert_array_equal(ten[5:], ten[:5, :, ::-1])
        assert_array_equal(ten[4], images[0][1:5, 1:7])


def test_crops_that_do_not_exist():
    with pytest.raises(ModelError, match=r"cannot crop 5 x 4 out of images of shape \(6, 3, 1\)"):
        caffe.io.oversample([np.zeros((6, 3, 1))], (5, 4))
    with pytest.raises(ModelError, match=r"of one shape, got \[\(5, 4, 1\), \(6, 3, 1\)\]"):
        caffe.io.oversample([np.zeros((6, 3, 1)), np.zeros((5, 4, 1))], (2, 3))
    with pytest.raises(ModelError, match="of one shape"):
        caffe.io.oversample(np.zeros((6, 3, 1)), (2, 1))
    with pytest.raises(ModelError, match=r"of one shape, got \[\]"):
        caffe.io.oversample([], (2, 1))


# ---- importing ---------------------------------------------------------------------------------


def test_io_comes_when_asked_for():
    code = (
        "import sys, pycaffe_lite as caffe; assert 'pycaffe_lite.io' not in sys.modules;"
        "caffe.io.Transformer({'data': (1, 3, 4, 5)}); from pycaffe_lite.io import load_image;"
        "print(*(m for m in ('cv2', 'scipy', 'PIL', 'skimage') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
