"""Detector: windows cut out of images, with what is around them, and classified."""

from __future__ import annotations

import sys
from types import ModuleType

import cv2
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import fill, ip

import pycaffe_lite as caffe
from pycaffe_lite import MissingFileError, ModelError, Net

BATCH, CHANNELS, HEIGHT, WIDTH = 2, 3, 9, 12
SETTINGS = {
    "mean": np.array([20.0, 50.0, 30.0]),
    "input_scale": 0.017,
    "raw_scale": 255,
    "channel_swap": (2, 0, 1),
}
MEAN_OF_IMAGES = np.array([50.0, 30.0, 20.0]) / 255
"""The same in the images' order: channel 2 of an image is channel 0 of the blob, and so on."""


@pytest.fixture
def detector(model, tmp_path):
    """Makes a Detector with random weights; keywords are its own, `dims` the input's shape."""

    def make(dims=(BATCH, CHANNELS, HEIGHT, WIDTH), **settings):
        shape = " ".join(f"dim: {n}" for n in dims)
        path = model(f"input: 'data' input_shape {{ {shape} }}\n" + ip("a", "data", "z", 5))
        fill(Net(path, caffe.TEST)).save(tmp_path / "x.caffemodel")
        return caffe.Detector(path, tmp_path / "x.caffemodel", **settings)

    return make


@pytest.fixture
def photo(tmp_path, rng):
    """Writes an image file of random pixels (H, W, C); gives its path and them."""

    def write(height=20, width=25, channels=3, name="a.png"):
        pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
        assert cv2.imwrite(str(tmp_path / name), pixels[:, :, ::-1])
        return str(tmp_path / name), pixels

    return write


def by_hand(net, crop):
    """The output for one crop (H, W, K), with SETTINGS, in float64."""
    x = crop.astype("f8").transpose(2, 0, 1)[list(SETTINGS["channel_swap"])]
    x = (x * SETTINGS["raw_scale"] - SETTINGS["mean"][:, None, None]) * SETTINGS["input_scale"]
    weights, bias = (blob.data.astype("f8") for blob in net.params["a"])
    return weights @ x.ravel() + bias


# ---- windows -----------------------------------------------------------------------------------


def test_windows_of_several_images(detector, photo):
    net = detector(**SETTINGS)
    one, two = photo(20, 25, name="1.png"), photo(16, 22, name="2.png")
    windows = {  # three of the net's own size, one not
        one[0]: np.array([[1, 2, 10, 14], [11, 13, 20, 25], [3, 0, 17, 19]]),
        two[0]: np.array([[0, 0, 9, 12]]),
    }
    got = net.detect_windows(windows.items())
    assert [d["filename"] for d in got] == [one[0], one[0], one[0], two[0]]
    assert_array_equal(np.vstack([d["window"] for d in got]), np.vstack(list(windows.values())))
    assert all(set(d) == {"window", "prediction", "filename"} for d in got)
    for found, (_, pixels) in zip(got, [one, one, one, two], strict=True):
        top, left, bottom, right = found["window"]
        crop = pixels[top:bottom, left:right] / 255
        crop = caffe.io.resize_image(crop.astype("f4"), (HEIGHT, WIDTH))
        assert found["prediction"].dtype == np.float32
        assert_allclose(found["prediction"], by_hand(net, crop), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [list, tuple, np.float64, np.int16])
def test_windows_of_all_kinds(detector, photo, kind):
    net, (path, pixels) = detector(**SETTINGS), photo()
    window = [2, 3, 11, 15]
    given = kind(window) if kind in (list, tuple) else np.array(window, kind)
    (found,) = net.detect_windows([(path, [given])])
    assert found["window"] is given
    assert_allclose(
        found["prediction"], by_hand(net, pixels[2:11, 3:15] / 255), rtol=1e-4, atol=1e-3
    )


def test_windows_over_the_edge_are_cut_off(detector, rng):
    net, image = detector(), rng.random((20, 25, 3))
    assert_array_equal(net.crop(image, (-3, -1, 4, 5)), image[:4, :5])
    assert_array_equal(net.crop(image, (15, 20, 99, 30)), image[15:, 20:])


def test_no_windows(detector, photo):
    net, (path, _) = detector(), photo()
    assert net.detect_windows([]) == []
    assert net.detect_windows([(path, [])]) == []


def test_grey_images(detector, photo):
    """Files are read as the net's input is: with one channel in grey."""
    path, pixels = photo(channels=1)
    for pad in 0, 2:
        net = detector(dims=(2, 1, HEIGHT, WIDTH), context_pad=pad)
        (found,) = net.detect_windows([(path, [(1, 2, 10, 14)])])
        if not pad:
            weights, bias = (blob.data.astype("f8") for blob in net.params["a"])
            wanted = weights @ (pixels[1:10, 2:14] / 255).ravel() + bias
            assert_allclose(found["prediction"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pad", [None, 2])
@pytest.mark.parametrize(
    ("window", "text"),
    [
        ((9, 5, 5, 9), "none of it is in the image"),
        ((40, 5, 90, 9), "none of it is in the image"),
        ((-90, 5, -40, 9), "none of it is in the image"),
        ((1, 2, 3), r"a window is \(ymin, xmin, ymax, xmax\), got"),
        ((1, 2, 3, np.nan), r"a window is \(ymin, xmin, ymax, xmax\), got"),
    ],
)
def test_windows_with_nothing_in_them(detector, photo, pad, window, text):
    net, (path, _) = detector(context_pad=pad), photo()
    with pytest.raises(ModelError, match=rf"a.png: .*{text}"):
        net.detect_windows([(path, [window])])


def test_an_empty_window(detector, rng):
    """With context its last row counts as one."""
    image = rng.random((20, 25, 3))
    with pytest.raises(ModelError, match=r"5.0, 9.0\] of an image of shape \(20, 25, 3\)"):
        detector().crop(image, (5, 5, 5, 9))
    assert detector(context_pad=PAD).crop(image, (5, 5, 5, 9)).shape == (HEIGHT, WIDTH, CHANNELS)


def test_files_that_are_not_there(detector, tmp_path):
    with pytest.raises(MissingFileError, match="none.png"):
        detector().detect_windows([(tmp_path / "none.png", [(0, 0, 3, 4)])])


# ---- context -----------------------------------------------------------------------------------

PAD = 2
ROWS, COLUMNS = HEIGHT - 2 * PAD, WIDTH - 2 * PAD
"""A window of so many pixels, its last ones counted, needs no resizing."""


def context_by_hand(image, window, mean):
    """What a crop with PAD shows of a window that needs no resizing: pixel by pixel."""
    top, left = (round(n - PAD) for n in window[:2])
    crop = np.empty((HEIGHT, WIDTH, image.shape[2]))
    for y in range(HEIGHT):
        for x in range(WIDTH):
            inside = 0 <= top + y < image.shape[0] and 0 <= left + x < image.shape[1]
            for k in range(image.shape[2]):
                crop[y, x, k] = image[top + y, left + x, k] if inside else mean[k]
    return crop


@pytest.mark.parametrize("left", [0, 1, 5, 15, 17])
@pytest.mark.parametrize("top", [0, 1, 4, 13, 15])
def test_what_is_around_a_window(detector, rng, top, left):
    net = detector(context_pad=PAD, **SETTINGS)
    image = rng.random((20, 25, 3)).astype("f4")
    window = np.array([top, left, top + ROWS - 1, left + COLUMNS - 1])
    crop = net.crop(image, window)
    assert crop.dtype == np.float32
    assert_allclose(crop, context_by_hand(image, window, MEAN_OF_IMAGES), atol=1e-5)
    assert_array_equal(window, [top, left, top + ROWS - 1, left + COLUMNS - 1])


def scaled_by_hand(image, window, size, pad):
    """What a crop of `size` shows of any window: the image's part and where it lies, from R-CNN."""
    parts = []
    for k in (0, 1):
        length = window[k + 2] - window[k] + 1
        centre, whole = window[k] + length / 2, length * size[k] / (size[k] - 2 * pad)
        begin, end = np.round(centre - whole / 2), np.round(centre + whole / 2)
        per_pixel = size[k] / (end - begin + 1)
        start = round(-begin * per_pixel) if begin < 0 else 0
        begin, end = max(int(begin), 0), min(int(end), image.shape[k])
        stop = min(size[k], start + round((end - begin + 1) * per_pixel))
        parts.append((begin, end, start, stop))
    return parts


@pytest.mark.parametrize("dims", [(2, 3, 9, 12), (2, 3, 11, 11)])
def test_windows_of_all_sizes(detector, rng, dims):
    net = detector(dims=dims, context_pad=3, **SETTINGS)
    image = rng.random((20, 25, 3)).astype("f4")
    for _ in range(25):
        top, left = rng.integers(0, 15), rng.integers(0, 20)
        window = np.array([top, left, rng.integers(top + 2, 21), rng.integers(left + 2, 26)])
        rows, columns = scaled_by_hand(image, window, dims[2:], 3)
        part = image[rows[0] : rows[1], columns[0] : columns[1]]
        wanted = np.tile(MEAN_OF_IMAGES, (dims[2], dims[3], 1))
        wanted[rows[2] : rows[3], columns[2] : columns[3]] = caffe.io.resize_image(
            part, (rows[3] - rows[2], columns[3] - columns[2])
        )
        assert_allclose(net.crop(image, window), wanted, atol=1e-6)


def test_a_mean_of_all_pixels(detector, rng):
    """It lies where it lies in the net's input."""
    mean = 100 * rng.random((CHANNELS, HEIGHT, WIDTH))
    net = detector(context_pad=PAD, **SETTINGS | {"mean": mean})
    image = rng.random((20, 25, 3)).astype("f4")
    crop = net.crop(image, (0, 0, ROWS - 1, COLUMNS - 1))
    for blob_channel, channel in enumerate(SETTINGS["channel_swap"]):
        assert_allclose(crop[0, :, channel], mean[blob_channel, 0] / 255, rtol=1e-5)
        assert_allclose(crop[:, 1, channel], mean[blob_channel, :, 1] / 255, rtol=1e-5)
    assert_allclose(crop[PAD:, PAD:], image[: HEIGHT - PAD, : WIDTH - PAD], atol=1e-5)
    assert_allclose(net.transformer.preprocess("data", crop)[:, :PAD], 0, atol=1e-5)


def test_without_a_mean_nothing_is_black(detector, rng):
    net = detector(context_pad=PAD)
    crop = net.crop(rng.random((20, 25, 3)) + 1, (0, 0, ROWS - 1, COLUMNS - 1))
    assert_array_equal(crop[:PAD], np.zeros((PAD, WIDTH, 3)))
    assert crop[PAD:, PAD:].min() >= 1


def test_predictions_with_context(detector, photo):
    net, (path, pixels) = detector(context_pad=PAD, **SETTINGS), photo()
    window = [0, 0, ROWS - 1, COLUMNS - 1]
    (found,) = net.detect_windows([(path, [window])])
    crop = context_by_hand(pixels / 255, window, MEAN_OF_IMAGES)
    assert_allclose(found["prediction"], by_hand(net, crop), rtol=1e-4, atol=1e-3)


def test_the_pad_can_be_changed(detector, rng):
    net = detector()
    image = rng.random((20, 25, 3))
    assert net.crop_dims.tolist() == [HEIGHT, WIDTH, CHANNELS]
    assert net.context_pad is None
    assert net.crop(image, (1, 2, 6, 10)).shape == (5, 8, 3)
    net.configure_crop(PAD)
    assert net.context_pad == PAD
    assert net.crop(image, (1, 2, 6, 10)).shape == (HEIGHT, WIDTH, CHANNELS)
    net.configure_crop(0)
    assert net.crop(image, (1, 2, 6, 10)).shape == (5, 8, 3)


@pytest.mark.parametrize("pad", [5, 6, -1])
def test_a_pad_that_leaves_no_room(detector, pad):
    with pytest.raises(ModelError, match=rf"context_pad {pad} leaves no room .*\(2, 3, 9, 12\)"):
        detector(context_pad=pad)


def test_pads_as_wide_as_the_input_leave_no_room(detector):
    with pytest.raises(ModelError, match="context_pad 4 leaves no room"):
        detector(dims=(2, 3, 8, 12), context_pad=4)


def test_too_little_of_a_window(detector, rng):
    net = detector(context_pad=PAD)
    with pytest.raises(ModelError, match=r"window \[-139.0, .*too little of it is in the image"):
        net.crop(rng.random((20, 25, 3)), (-139, 1, -40, 9))


# ---- selective search --------------------------------------------------------------------------


def test_without_selective_search(detector, monkeypatch):
    monkeypatch.setitem(sys.modules, "selective_search_ijcv_with_python", None)
    with pytest.raises(RuntimeError, match="needs the module selective_search_ijcv_with_python"):
        detector().detect_selective_search(["a.png"])


def test_what_selective_search_proposes(detector, photo, tmp_path, monkeypatch):
    search = ModuleType("selective_search_ijcv_with_python")
    asked = []
    proposed = [np.array([[0, 0, 9, 12], [4, 5, 13, 17]]), np.array([[1, 1, 8, 9]])]

    def get_windows(names, cmd):
        asked.append((names, cmd))
        return proposed

    search.get_windows = get_windows
    monkeypatch.setitem(sys.modules, search.__name__, search)
    monkeypatch.chdir(tmp_path)
    one, two = photo(name="1.png")[0], photo(name="2.png")[0]
    net = detector(**SETTINGS)
    got = net.detect_selective_search(["1.png", "2.png"])
    assert asked == [([one, two], "selective_search_rcnn")]
    wanted = net.detect_windows([(one, proposed[0]), (two, proposed[1])])
    assert [d["filename"] for d in got] == [one, one, two]
    for a, b in zip(got, wanted, strict=True):
        assert_array_equal(a["prediction"], b["prediction"])
        assert_array_equal(a["window"], b["window"])
