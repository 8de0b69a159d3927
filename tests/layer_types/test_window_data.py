"""WindowData: batches of windows as R-CNN draws them.

What one window becomes is computed a second time here, in float64 from the definition: the region
with its context, the pixels of it that the image has, resized by OpenCV (and by a loop, which knows
no OpenCV) to their share of the crop.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError, set_random_seed
from pycaffe_lite.data.framing import Framing
from pycaffe_lite.proto import caffe_pb2

cv2 = pytest.importorskip("cv2")

WIDTH, HEIGHT = 23, 17


def picture(k, height=HEIGHT, width=WIDTH):
    return np.random.default_rng(k).integers(0, 256, (height, width, 3), np.uint8)


# ---- one window ---------------------------------------------------------------------------------


def nearest(x):
    return math.floor(x + 0.5) if x >= 0 else math.ceil(x - 0.5)


def bilinear(image, height, width):
    """The definition, in float64: sample at pixel middles, the edge goes on outside."""
    out = np.zeros((height, width, image.shape[2]))
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * image.shape[0] / height - 0.5, 0), image.shape[0] - 1)
            x = min(max((j + 0.5) * image.shape[1] / width - 0.5, 0), image.shape[1] - 1)
            (r, c), (v, u) = (int(y), int(x)), (y % 1, x % 1)
            r1, c1 = min(r + 1, image.shape[0] - 1), min(c + 1, image.shape[1] - 1)
            above = image[r, c] * (1 - u) + image[r, c1] * u
            below = image[r1, c] * (1 - u) + image[r1, c1] * u
            out[i, j] = above * (1 - v) + below * v
    return out


def by_opencv(image, height, width):
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR).astype("f8")


def shares(first, last, limit, crop):
    """Along one axis: what of the region the image has, and the pixels of the crop before, for
    and behind it."""
    there = [k for k in range(first, last + 1) if 0 <= k < limit]
    each = crop / (last - first + 1)
    before, after = nearest((there[0] - first) * each), nearest((last - there[-1]) * each)
    return there, before, nearest(len(there) * each), after


def framed(image, box, crop, pad=0, mode="warp", mirrored=False, resize=by_opencv):
    """(3, crop, crop), and where it is not border (crop, crop)."""
    x1, y1, x2, y2 = box
    out, inside = np.zeros((crop, crop, 3)), np.zeros((crop, crop), bool)
    if not pad and mode == "warp":
        out[...], inside[...] = resize(image[y1 : y2 + 1, x1 : x2 + 1], crop, crop), True
        out = out[:, ::-1] if mirrored else out
        return out.transpose(2, 0, 1), inside
    width, height = x2 - x1 + 1, y2 - y1 + 1
    middle_x, middle_y = x1 + width / 2, y1 + height / 2
    if mode == "square":
        width = height = max(width, height)
    grow = crop / (crop - 2 * pad) / 2
    xs = [nearest(middle_x - width * grow), nearest(middle_x + width * grow)]
    ys = [nearest(middle_y - height * grow), nearest(middle_y + height * grow)]
    columns, left, w, right = shares(*xs, image.shape[1], crop)
    rows, top, h, _ = shares(*ys, image.shape[0], crop)
    left = right if mirrored else left
    h, w = min(h, crop - top), min(w, crop - left)
    part = resize(image[np.ix_(rows, columns)], h, w)
    out[top : top + h, left : left + w] = part[:, ::-1] if mirrored else part
    inside[top : top + h, left : left + w] = True
    return out.transpose(2, 0, 1), inside


def of_the_package(image, box, crop, pad, mode, mirrored):
    pixels, row, column = Framing(crop, pad, mode)(image, box, mirrored)
    out = np.zeros((3, crop, crop))
    where = (slice(row, row + pixels.shape[0]), slice(column, column + pixels.shape[1]))
    out[(slice(None), *where)] = pixels.transpose(2, 0, 1)
    return out


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("pad", "mode"), [(0, "warp"), (2, "warp"), (5, "warp"), (0, "square"), (3, "square")]
)
@pytest.mark.parametrize("crop", [11, 16, 29])
def test_windows_of_all_places(crop, pad, mode, mirrored, rng):
    image = picture(1)
    for _ in range(60):
        x1, x2 = sorted(rng.integers(0, WIDTH, 2).tolist())
        y1, y2 = sorted(rng.integers(0, HEIGHT, 2).tolist())
        expected, _ = framed(image, (x1, y1, x2, y2), crop, pad, mode, mirrored)
        got = of_the_package(image, (x1, y1, x2, y2), crop, pad, mode, mirrored)
        assert_array_equal(got, expected, f"{(x1, y1, x2, y2)}")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("crop", "pad", "mode", "box"),
    [
        (12, 2, "warp", (0, 0, 0, 4)),
        (11, 2, "warp", (1, 0, 13, 0)),
        (11, 2, "warp", (6, 0, 18, 0)),
        (11, 0, "square", (0, 0, 19, 2)),
    ],
)
def test_border_and_window_are_both_rounded_up(crop, pad, mode, box, mirrored):
    """The window then is a pixel smaller, for both to fit."""
    expected, _ = framed(picture(1), box, crop, pad, mode, mirrored)
    assert_array_equal(of_the_package(picture(1), box, crop, pad, mode, mirrored), expected)


@pytest.mark.parametrize(
    ("box", "pad", "mode"),
    [((3, 4, 9, 15), 0, "warp"), ((0, 2, 12, 16), 2, "warp"), ((15, 0, 22, 3), 3, "square")],
)
def test_a_window_without_opencv(box, pad, mode):
    """OpenCV rounds pixels to whole ones on the way: two of 256 levels."""
    image = picture(2)
    expected, _ = framed(image, box, 13, pad, mode, resize=bilinear)
    assert_allclose(of_the_package(image, box, 13, pad, mode, False), expected, atol=2)


def test_context_by_hand():
    """4 of 8 pixels are context: the box of 2 x 4 pixels at the corner becomes a region of 5 x 9
    about its middle, (-1..3, -2..6) from (0, 0), and what is left of and above the image is 0."""
    image = np.full((20, 30, 3), 100, np.uint8)
    got = of_the_package(image, (0, 0, 1, 3), 8, 2, "warp", False)
    assert got.shape == (3, 8, 8)
    column = [0, 0, *[100] * 6]  # 1 of 5 before: 8 / 5 pixels, 1.6; 4 of 5 inside: 6.4
    assert_array_equal(got[0, 4], column)
    assert_array_equal(got[0, :, 4], column)  # 2 of 9: 1.8; 7 of 9: 6.2
    assert_array_equal(
        of_the_package(image, (0, 0, 1, 3), 8, 2, "warp", True)[0, 4], [100] * 6 + [0] * 2
    )


def test_boxes_that_no_image_has():
    image = picture(3)
    for box in [(-1, 0, 3, 4), (0, 0, WIDTH, 4), (0, 5, 3, HEIGHT)]:
        with pytest.raises(ModelError, match="outside"):
            Framing(11, 0, "warp")(image, box, False)
        Framing(11, 2, "warp")(image, box, False)
    with pytest.raises(ModelError, match="outside"):
        Framing(11, 2, "warp")(image, (90, 3, 99, 9), False)
    for box in [(5, 3, 4, 9), (3, 5, 9, 4)]:
        with pytest.raises(ModelError, match="ends before it begins"):
            Framing(11, 2, "warp")(image, box, False)


# ---- batches ------------------------------------------------------------------------------------

# Of each image: its windows. Overlaps of 0.5 and more are foreground, below 0.25 background.
WINDOWS = [
    [(3, 0.75, 2, 3, 12, 9), (4, 0.5, 0, 0, 22, 16), (7, 0.125, 5, 5, 9, 16)],
    [(9, 0.25, 1, 1, 2, 2), (0, 0.0, 14, 2, 22, 8)],
    [(5, 1.0, 8, 7, 11, 16)],
]
FOREGROUND = [(0, WINDOWS[0][0]), (0, WINDOWS[0][1]), (2, WINDOWS[2][0])]
BACKGROUND = [(0, WINDOWS[0][2]), (1, WINDOWS[1][1])]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Names in models and lists are relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    for k in range(len(WINDOWS)):
        assert cv2.imwrite(f"{k}.png", picture(k))
    write_windows(WINDOWS)
    return tmp_path


def write_windows(images):
    lines = []
    for k, windows in enumerate(images):
        lines += [f"# {k}", f"{k}.png", "3", str(HEIGHT), str(WIDTH), str(len(windows))]
        lines += [" ".join(map(str, window)) for window in windows]
    Path("windows.txt").write_text("\n".join(lines) + "\n")


def source(param="", transform="crop_size: 11", more=""):
    """The layer; `param` adds to these values, or replaces them."""
    usual = {"source": "'windows.txt'", "batch_size": 6, "bg_threshold": 0.25, "fg_fraction": 0.34}
    usual_text = " ".join(f"{k}: {v}" for k, v in usual.items() if f"{k}:" not in param)
    return (
        "layer { name: 'd' type: 'WindowData' top: 'data' top: 'label'"
        f" window_data_param {{ {usual_text} {param} }} transform_param {{ {transform} }} {more} }}"
    )


def batches(net, count):
    out = [{name: a.copy() for name, a in net.forward().items()} for _ in range(count)]
    return [o["data"] for o in out], [list(o["label"]) for o in out]


def expected_windows(kinds, mirror=False, **framing):
    """{(image, window's place, mirrored): (values, label)} of all windows of some kinds."""
    return {
        (image, box, flipped): framed(picture(image), box, 11, mirrored=flipped, **framing)[0]
        for image, (_, _, *box) in kinds
        for box in [tuple(box)]
        for flipped in ([False, True] if mirror else [False])
    }


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize(("pad", "mode"), [(0, "warp"), (2, "warp"), (1, "square")])
def test_background_first_then_foreground(pad, mode, depth, on_ops):
    net = make_net(
        source(
            f"context_pad: {pad} crop_mode: '{mode}'",
            "crop_size: 11 mirror: true",
            more=f"data_param {{ prefetch: {depth} }}",
        )
    )
    assert net.blobs["data"].shape == (6, 3, 11, 11)
    assert net.blobs["label"].shape == (6,)
    seen = set()
    foreground = expected_windows(FOREGROUND, True, pad=pad, mode=mode)
    background = expected_windows(BACKGROUND, True, pad=pad, mode=mode)
    label_of = {(image, tuple(box)): label for image, (label, _, *box) in FOREGROUND}
    for data, labels in zip(*batches(net, 12), strict=True):
        for k, (values, label) in enumerate(zip(data, labels, strict=True)):
            kind = background if k < 4 else foreground  # 6 * 0.34 is 2.04
            found = [key for key, want in kind.items() if (want == values).all()]
            assert len(found) == 1
            assert label == (0 if k < 4 else label_of[found[0][:2]])
            seen.add(found[0])
    assert seen == {*foreground, *background}, "each window, flipped and not, comes by chance"


@pytest.mark.parametrize(("fraction", "count"), [(0, 0), (0.25, 2), (0.3, 3), (0.99, 9), (1, 10)])
def test_the_share_of_foreground_is_rounded_down(fraction, count):
    net = make_net(source(f"batch_size: 10 fg_fraction: {fraction}"))
    assert np.count_nonzero(net.forward()["label"]) == count


def only(window, image=0):
    """A window file with this foreground window alone."""
    images = [[], [], []]
    images[image] = [window]
    write_windows(images)


def one(param="", transform="crop_size: 11"):
    return make_net(source(f"batch_size: 1 fg_fraction: 1 {param}", transform)).forward()


def mean_file(shape):
    mean = np.random.default_rng(8).integers(0, 256, shape).astype("f4")
    blob = caffe_pb2.BlobProto(channels=shape[0], height=shape[1], width=shape[2], num=1)
    blob.data.extend(mean.ravel())
    Path("mean.binaryproto").write_bytes(blob.SerializeToString())
    return mean.astype("f8")


@pytest.mark.parametrize("mirror", ["false", "true"])
@pytest.mark.parametrize("pad", [0, 3])
def test_the_middle_of_a_mean_image(pad, mirror):
    """It is taken off where it lies on the crop, flipped or not, and nothing off the border."""
    mean = mean_file((3, 15, 18))[:, 3:14, 3:14]
    only((3, 1.0, 0, 2, 10, 16))
    for _ in range(4):
        data = one(
            f"scale: 0.5 context_pad: {pad}",
            f"crop_size: 11 mean_file: 'mean.binaryproto' mirror: {mirror}",
        )["data"][0]
        wanted = []
        for flipped in [False, True]:
            values, inside = framed(picture(0), (0, 2, 10, 16), 11, pad, mirrored=flipped)
            wanted.append((values - mean) * 0.5 * inside)
        assert inside.all() == (pad == 0)
        assert any((data == w).all() for w in wanted[: 2 if mirror == "true" else 1])


@pytest.mark.parametrize("values", [[10.5], [1.0, 2.5, 200.0]])
def test_mean_values(values):
    only((3, 1.0, 0, 2, 10, 16))
    text = " ".join(f"mean_value: {value}" for value in values)
    data = one("context_pad: 3 scale: 2", f"crop_size: 11 {text}")["data"][0]
    want, inside = framed(picture(0), (0, 2, 10, 16), 11, 3)
    assert_array_equal(data, (want - np.reshape(values, (-1, 1, 1))) * 2 * inside)


def test_scale_of_transform_param_is_not_used(caplog):
    only((3, 1.0, 4, 2, 10, 16))
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        data = one("scale: 0.25", "crop_size: 11 scale: 3")["data"][0]
    assert_array_equal(data, framed(picture(0), (4, 2, 10, 16), 11)[0] * 0.25)
    assert "layer 'd' (WindowData) multiplies by scale of window_data_param, 0.25" in caplog.text


def test_warnings_of_what_is_not_read_where_it_stands(caplog):
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        make_net(source("scale: 2"))
        assert not caplog.records
        make_net(source("mirror: true"))
    assert "layer 'd' (WindowData): mirror belongs into transform_param" in caplog.text


def test_grey_files_are_read_in_colour():
    assert cv2.imwrite("0.png", picture(0)[:, :, 0])
    only((3, 1.0, 0, 0, 10, 10))
    data = one()["data"][0]
    assert data.shape == (3, 11, 11)
    assert_array_equal(data, np.repeat(picture(0)[None, :11, :11, 0], 3, axis=0))


def test_the_root_folder_is_put_before_as_text(folder):
    (folder / "some where").mkdir()
    for k in range(3):
        (folder / f"{k}.png").rename(folder / "some where" / f"pre {k}.png")
    make_net(source("root_folder: 'some where/pre '")).forward()


def test_cached_images_are_read_once(folder, monkeypatch):
    nets = [make_net(source(f"cache_images: {word}")) for word in ("true", "false")]
    set_random_seed(5)
    expected = batches(make_net(source()), 3)
    for k in range(3):
        (folder / f"{k}.png").unlink()
    with pytest.raises(MissingFileError, match=r"windows\.txt line \d+: could not load .*\.png"):
        nets[1].forward()
    batches(nets[0], 3)
    for k in range(3):
        assert cv2.imwrite(f"{k}.png", picture(k))
    set_random_seed(5)
    again = batches(make_net(source("cache_images: true")), 3)
    assert_array_equal(again[0], expected[0])


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "transform", "text"),
    [
        ("", "", r"crop_size \} above 0"),
        ("context_pad: 6", "crop_size: 12", "context_pad 6 on both sides leaves .* crop_size 12"),
        ("crop_mode: 'wrap'", "crop_size: 11", "unknown crop_mode 'wrap'"),
        ("fg_fraction: 1.5", "crop_size: 11", "fg_fraction must be from 0 to 1, got 1.5"),
        ("batch_size: 0", "crop_size: 11", "batch_size must be positive, got 0"),
        ("fg_threshold: 1.5", "crop_size: 11", "no foreground windows; a batch has 2"),
        ("bg_threshold: 0", "crop_size: 11", "no background windows; a batch has 4"),
        ("", "crop_size: 11 mean_value: 1 mean_value: 2", "mean_value: .* 2 values vs. 3 channels"),
        ("", "crop_size: 11 mean_value: 1 mean_file: 'mean.binaryproto'", "cannot specify"),
        ("", "crop_size: 16 mean_file: 'mean.binaryproto'", r"`3 15 18 \(810\)`; 3 channels and"),
        ("", "crop_size: 19 mean_file: 'mean.binaryproto'", "crop_size 19 must fit into it"),
        ("source: 'gone.txt'", "crop_size: 11", r"failed to open window file gone\.txt"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_go_together(param, transform, text):
    mean_file((3, 15, 18))
    with pytest.raises((ModelError, MissingFileError), match=text) as error:
        make_net(source(param, transform))
    assert "layer 'd'" in str(error.value)


def test_a_foreground_window_without_a_label():
    write_windows([[(3, 0.75, 2, 3, 12, 9)], [(1, 0.1, 2, 3, 4, 5), (0, 0.5, 2, 3, 4, 5)]])
    with pytest.raises(ModelError, match=r"windows\.txt line 15: .*label above 0, got 0"):
        make_net(source())


def test_a_window_outside_of_its_image_and_an_image_that_is_none():
    only((3, 0.75, 2, 3, WIDTH, 9))
    with pytest.raises(ModelError, match=r"windows\.txt line 7: the box lies outside of the image"):
        one()
    Path("0.png").write_bytes(b"no image")
    for word in ("true", "false"):
        with pytest.raises(ModelError, match=r"windows\.txt line 7: could not load .*0\.png"):
            one(f"cache_images: {word}")


def test_two_tops():
    with pytest.raises(ModelError, match=r"produces 2 top blob\(s\)"):
        make_net(source().replace("top: 'label'", ""))


# ---- repeating and resuming ---------------------------------------------------------------------


def test_a_seed_repeats_everything_whatever_is_read_ahead():
    seen = []
    for depth in (0, 1, 4):
        set_random_seed(3)
        text = source("", "crop_size: 11 mirror: true", more=f"data_param {{ prefetch: {depth} }}")
        seen.append(batches(make_net(text, TRAIN), 4))
    assert_array_equal(seen[0][0], seen[1][0])
    assert_array_equal(seen[0][0], seen[2][0])
    assert seen[0][1] == seen[1][1] == seen[2][1]


@pytest.mark.parametrize("taken", [0, 2])
def test_resumed_where_it_stood(taken):
    """The state goes through JSON into a new net, of another seed; four batches are read ahead."""
    text = source("context_pad: 2", "crop_size: 11 mirror: true")
    net = make_net(text, TRAIN)
    batches(net, taken)
    state = json.loads(json.dumps(net.layer_dict["d"].data_state()))
    data, labels = batches(net, 6)
    set_random_seed(99)
    other = make_net(text, TRAIN)
    assert batches(other, 6)[1] != labels
    other.layer_dict["d"].restore_data_state(state)
    again, labels_again = batches(other, 6)
    assert_array_equal(again, data)
    assert labels_again == labels


def test_a_state_of_another_file():
    state = make_net(source()).layer_dict["d"].data_state()
    write_windows(WINDOWS[:2])
    with pytest.raises(ModelError, match=r"windows\.txt lists 5 windows; .* there were 6"):
        make_net(source(), TEST).layer_dict["d"].restore_data_state(state)


def test_the_thread_ends_with_the_net():
    before = set(threading.enumerate())
    net = make_net(source())
    net.forward()
    assert len(set(threading.enumerate()) - before) == 1
    del net
    gc.collect()
    assert set(threading.enumerate()) <= before
