"""Reading, decoding, encoding and resizing images. The oracle is OpenCV itself, called raw."""

import numpy as np
import pytest

from pycaffe_lite.data import image
from pycaffe_lite.errors import MissingFileError, ModelError

cv2 = pytest.importorskip("cv2")


def pixels(seed=0, shape=(5, 7, 3), dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype)


def saved(path, array):
    assert cv2.imwrite(str(path), array)
    return path


def test_read_image_gives_blue_green_red_by_channel(tmp_path):
    array = pixels()
    read = image.read_image(saved(tmp_path / "a picture é.png", array))
    assert read.dtype == np.uint8
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, array.transpose(2, 0, 1))


@pytest.mark.parametrize("color", [True, False])
@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 4), (5, 7)])
@pytest.mark.parametrize(("dtype", "suffix"), [("uint8", "png"), ("uint16", "png")])
def test_read_image_sees_what_imread_sees(tmp_path, color, shape, dtype, suffix):
    path = saved(tmp_path / f"a.{suffix}", pixels(1, shape, np.dtype(dtype)))
    flag = cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
    expected = np.atleast_3d(cv2.imread(str(path), flag))
    assert expected.shape[2] == (3 if color else 1)
    np.testing.assert_array_equal(image.read_image(path, color), expected.transpose(2, 0, 1))
    np.testing.assert_array_equal(image.read_pixels(path, color), expected)


def test_a_jpeg_is_read_as_imread_reads_it(tmp_path):
    path = saved(tmp_path / "a.jpg", pixels(2, (16, 24, 3)))
    for color, flag in [(True, cv2.IMREAD_COLOR), (False, cv2.IMREAD_GRAYSCALE)]:
        expected = np.atleast_3d(cv2.imread(str(path), flag)).transpose(2, 0, 1)
        np.testing.assert_array_equal(image.read_image(path, color), expected)


def test_a_camera_s_note_on_turning_is_followed_as_imread_does(tmp_path):
    """Orientation 6, in the Exif block of a JPEG: shown, the picture is turned to the right."""
    content = bytes(cv2.imencode(".jpg", pixels(9, (16, 24, 3)))[1])
    entry = bytes.fromhex("4d4d002a00000008 0001 0112000300000001 00060000 00000000")
    block = b"Exif\0\0" + entry
    turned = content[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + content[2:]
    (tmp_path / "a.jpg").write_bytes(turned)
    read = image.read_image(tmp_path / "a.jpg")
    assert read.shape == (3, 24, 16)
    expected = cv2.imread(str(tmp_path / "a.jpg"), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(read, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("color", [True, False])
def test_read_image_resizes_to_height_and_width(tmp_path, color):
    path = saved(tmp_path / "a.png", pixels(3))
    read = image.read_image(path, color, size=(4, 11))
    assert read.shape == (3 if color else 1, 4, 11)
    flag = cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
    expected = np.atleast_3d(cv2.resize(cv2.imread(str(path), flag), (11, 4)))
    np.testing.assert_array_equal(read, expected.transpose(2, 0, 1))


def test_resizing_is_bilinear():
    row = np.array([[[0], [100], [200]]], np.uint8)  # positions 0.5, 1.5, 2.5 of 3
    wide = image.resize_pixels(row, (1, 6))
    np.testing.assert_array_equal(wide[0, :, 0], [0, 25, 75, 125, 175, 200])


def test_a_side_below_one_cannot_be_resized_to(tmp_path):
    path = saved(tmp_path / "a.png", pixels())
    with pytest.raises(ModelError, match="0 x 11"):
        image.read_image(path, size=(0, 11))


def test_a_missing_file_and_one_that_is_no_image(tmp_path):
    with pytest.raises(MissingFileError, match=r"could not load .*gone\.png"):
        image.read_image(tmp_path / "gone.png")
    with pytest.raises(ModelError, match=r"could not load .*irectory"):
        image.read_image(tmp_path)
    with pytest.raises(ModelError, match="could not load .*null"):
        image.read_image("a\0b.png")
    for content in [b"", b"no image at all"]:
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(ModelError, match=r"could not load .*a\.png: no image"):
            image.read_image(tmp_path / "a.png")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_decode_image_keeps_the_channels_or_makes_3_or_1(channels):
    array = pixels(4, (5, 7, channels))
    content = bytes(cv2.imencode(".png", array)[1])
    np.testing.assert_array_equal(image.decode_image(content), array.transpose(2, 0, 1))
    for color, flag, count in [(True, cv2.IMREAD_COLOR, 3), (False, cv2.IMREAD_GRAYSCALE, 1)]:
        decoded = image.decode_image(content, color)
        assert decoded.shape == (count, 5, 7)
        expected = np.atleast_3d(cv2.imdecode(np.frombuffer(content, np.uint8), flag))
        np.testing.assert_array_equal(decoded, expected.transpose(2, 0, 1))


def test_decode_image_refuses_other_bytes_and_more_bits():
    with pytest.raises(ModelError, match="could not load the record 7: no image"):
        image.decode_image(b"none", what="the record 7")
    deep = bytes(cv2.imencode(".png", pixels(5, (5, 7), np.uint16))[1])
    with pytest.raises(ModelError, match="could not load an image: its pixels are uint16"):
        image.decode_image(deep)
    assert image.decode_image(deep, color=False).shape == (1, 5, 7)


@pytest.mark.parametrize("extension", ["png", ".png", "bmp"])
@pytest.mark.parametrize("channels", [1, 3])
def test_encode_image_and_back(extension, channels):
    array = pixels(6, (channels, 5, 7))
    content = image.encode_image(array, extension)
    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(np.atleast_3d(decoded).transpose(2, 0, 1), array)


def test_encode_image_writes_jpeg():
    array = pixels(7, (3, 16, 24))
    content = image.encode_image(array, "jpg")
    pixel_rows = np.ascontiguousarray(array.transpose(1, 2, 0))
    assert content == bytes(cv2.imencode(".jpg", pixel_rows)[1])


def test_encode_image_refuses_what_is_no_image():
    with pytest.raises(ModelError, match="as 'tarball'"):
        image.encode_image(pixels(8, (3, 5, 7)), "tarball")
    for wrong in [pixels(8, (2, 5, 7)), pixels(8, (5, 7)), np.zeros((3, 5, 7), np.float32)]:
        with pytest.raises(ModelError, match="cannot encode an array"):
            image.encode_image(wrong, "png")


def test_without_opencv_the_error_names_the_extra(monkeypatch, tmp_path):
    path = saved(tmp_path / "a.png", pixels())
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(RuntimeError, match=r"pip install 'pycaffe-lite\[image\]'"):
        image.read_image(path)
