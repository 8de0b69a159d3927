"""Records of databases: bytes to images and back, against messages and hand-made bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError
from pycaffe_lite.data import datum
from pycaffe_lite.data.database import open_database
from pycaffe_lite.data.datum import read_datum, write_datum, write_encoded_datum
from pycaffe_lite.proto import caffe_pb2

RECORDED = Path(__file__).parents[3] / "shared" / "golden" / "data"
PIXELS = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)
FLOATS = np.linspace(-1, 7, 2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)


def message(image, **fields):
    channels, height, width = image.shape
    return caffe_pb2.Datum(channels=channels, height=height, width=width, **fields)


def png(image):
    return cv2.imencode(".png", image)[1].tobytes()


# ---- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"label": 4}, {"label": -3, "encoded": False}])
def test_bytes(fields):
    image, label = read_datum(message(PIXELS, data=PIXELS.tobytes(), **fields).SerializeToString())
    assert image.dtype == np.uint8
    assert_array_equal(image, PIXELS)
    assert label == fields.get("label", 0)


@pytest.mark.parametrize("fields", [{}, {"label": 4}, {"label": -3, "encoded": False}])
def test_floats(fields, monkeypatch):
    """Read out of the bytes: the message's own list is not asked."""
    value = message(FLOATS, float_data=FLOATS.ravel().tolist(), **fields).SerializeToString()
    monkeypatch.setattr(datum.np, "fromiter", None)
    image, label = read_datum(value)
    assert image.dtype == np.float32
    assert_array_equal(image, FLOATS)
    assert label == fields.get("label", 0)


def test_floats_that_others_wrote():
    """Packed, between other fields, or before and behind one: other writers' records."""
    head = message(FLOATS).SerializeToString()
    label = b"\x28\x05"
    content = FLOATS.astype("<f4").tobytes()
    packed = b"\x32" + bytes([len(content)]) + content
    single = b"".join(b"\x35" + content[k : k + 4] for k in range(0, len(content), 4))
    for value in (
        head + label + packed,
        packed + head + label,
        single + label + head,
        single[:35] + head + label + single[35:],
        head + label + single + b"\x40\x07",  # a field that only they know
    ):
        image, found = read_datum(value)
        assert_array_equal(image, FLOATS)
        assert found == 5


def test_floats_whose_bytes_look_like_tags():
    image = np.frombuffer(b"\x35" * 4 * 30, "<f4").reshape(2, 3, 5)
    assert_array_equal(read_datum(write_datum(image))[0], image)
    value = message(image, float_data=image.ravel().tolist()).SerializeToString()
    assert_array_equal(read_datum(value + b"\x40\x35\x28\x01")[0], image)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encoded(channels):
    rng = np.random.default_rng(5)
    shape = (5, 7) if channels == 1 else (5, 7, channels)
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    planes = np.atleast_3d(pixels).transpose(2, 0, 1)
    value = write_encoded_datum(png(pixels), 6)
    image, label = read_datum(value)
    assert (image.dtype, label) == (np.uint8, 6)
    assert_array_equal(image, planes)
    colored, _ = read_datum(value, force_color=True)
    assert_array_equal(colored, np.broadcast_to(planes[:3], (3, 5, 7)))
    grey, _ = read_datum(value, force_gray=True)
    assert grey.shape == (1, 5, 7)


def test_forcing_says_nothing_about_what_is_not_encoded():
    for force in ({"force_color": True}, {"force_gray": True}):
        assert_array_equal(read_datum(write_datum(PIXELS), **force)[0], PIXELS)
    with pytest.raises(ModelError, match="both force_color and force_gray"):
        read_datum(write_datum(PIXELS), force_color=True, force_gray=True)


def test_the_shape_of_an_encoded_image_is_its_file_s():
    value = message(PIXELS, data=png(np.zeros((5, 7), np.uint8)), encoded=True)
    assert read_datum(value.SerializeToString())[0].shape == (1, 5, 7)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (write_datum(PIXELS)[:-9], "failed to parse record 7 as Datum: 31 bytes"),
        (write_datum(FLOATS)[:-2], "failed to parse record 7 as Datum"),
        (b"no message at all", "failed to parse record 7 as Datum: 17 bytes"),
        (b"", r"record 7 holds 0 values; .* \(0, 0, 0\) ask for 0"),
        (message(PIXELS).SerializeToString(), "record 7 holds 0 values; .* ask for 30"),
        (
            message(PIXELS, data=b"x" * 29).SerializeToString(),
            r"record 7 holds 29 values; .* \(2, 3, 5\) ask for 30",
        ),
        (write_datum(FLOATS)[:-5], r"record 7 holds 29 values; .* ask for 30"),
        (
            caffe_pb2.Datum(channels=-2, height=-3, width=5, data=b"x" * 30).SerializeToString(),
            r"record 7 holds 30 values; .* \(-2, -3, 5\)",
        ),
        (write_encoded_datum(b"no image"), "could not load the encoded image of record 7"),
        (write_encoded_datum(b""), "record 7 holds 0 values"),
    ],
    ids=range(10),
)
def test_what_holds_no_image(value, message):
    with pytest.raises(ModelError, match=message):
        read_datum(value, what="record 7")


# ---- writing -----------------------------------------------------------------------------------


def test_written_messages_are_caffe_s():
    channels, height, width = PIXELS.shape
    fields = {"channels": channels, "height": height, "width": width, "label": 9}
    got = caffe_pb2.Datum.FromString(write_datum(PIXELS, 9))
    assert got == caffe_pb2.Datum(data=PIXELS.tobytes(), encoded=False, **fields)
    wanted = caffe_pb2.Datum(float_data=FLOATS.ravel().tolist(), **fields)
    for image in (FLOATS, FLOATS.astype(np.float64), np.asfortranarray(FLOATS)):
        assert write_datum(image, 9) == wanted.SerializeToString()
    assert not caffe_pb2.Datum.FromString(write_datum(FLOATS)).HasField("label")
    encoded = caffe_pb2.Datum.FromString(write_encoded_datum(b"content", 9))
    assert encoded == caffe_pb2.Datum(data=b"content", label=9, encoded=True)


def test_other_than_three_axes():
    with pytest.raises(ModelError, match=r"\(3, 5\) has 2 axes, a datum 3"):
        write_datum(PIXELS[0])


# ---- databases of the original -----------------------------------------------------------------


@pytest.mark.skipif(not RECORDED.exists(), reason="recorded databases are not here")
@pytest.mark.parametrize("case", ["data_lmdb_plain", "data_lmdb_encoded", "data_lmdb_gray"])
def test_records_of_the_original(tmp_path, case):
    """The images are those they were made of, and are written again byte for byte."""
    shutil.copytree(RECORDED / case / "db_lmdb", tmp_path / "db")
    lines = (RECORDED / case / "list.txt").read_text().splitlines()
    with open_database(tmp_path / "db", "LMDB") as db:
        for line, (_, value) in zip(lines, db.records(), strict=True):
            name, wanted = line.split()
            content = (RECORDED / case / "img" / name).read_bytes()
            flag = cv2.IMREAD_GRAYSCALE if case == "data_lmdb_gray" else cv2.IMREAD_COLOR
            pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
            image, label = read_datum(value)
            assert label == int(wanted)
            assert_array_equal(image, np.atleast_3d(pixels).transpose(2, 0, 1))
            again = (
                write_encoded_datum(content, label)
                if case == "data_lmdb_encoded"
                else write_datum(image, label)
            )
            assert again == value
