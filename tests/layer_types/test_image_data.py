"""ImageData: batches from a list of image files. The oracle is the arrays that were saved."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError, set_random_seed
from pycaffe_lite.layer_types.image_data import read_image_list

cv2 = pytest.importorskip("cv2")

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "data").glob("imagedata_*"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Names in models and lists are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


def picture(k, shape=(5, 7, 3)):
    return np.random.default_rng(k).integers(0, 256, shape, np.uint8)


def saved(name, array):
    """The image as a file; what Caffe's blob holds of it, (C, H, W)."""
    assert cv2.imwrite(name, array)
    return np.atleast_3d(array).transpose(2, 0, 1)


def listed(text):
    Path("list.txt").write_bytes(os.fsencode(text))


def listed_images(count, shape=(5, 7, 3)):
    """Files 0.png, 1.png, ...; image k has label 10 * k."""
    listed("".join(f"{k}.png {10 * k}\n" for k in range(count)))
    return np.stack([saved(f"{k}.png", picture(k, shape)) for k in range(count)])


def source(param="", transform="", more=""):
    return (
        "layer { name: 'd' type: 'ImageData' top: 'data' top: 'label' image_data_param {"
        f" source: 'list.txt' {param} }} transform_param {{ {transform} }} {more} }}"
    )


def batches(net, count):
    """The data of so many forwards, and the labels."""
    out = [{name: a.copy() for name, a in net.forward().items()} for _ in range(count)]
    return [o["data"] for o in out], [list(o["label"]) for o in out]


# ---- the original -------------------------------------------------------------------------------


def test_the_recorded_cases_are_there():
    assert [path.name for path in GOLDEN] == [f"imagedata_{k}" for k in ("gray", "plain", "resize")]


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_recorded_batches(folder, on_ops, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "case")
    monkeypatch.chdir(tmp_path / "case")
    with np.load("out.npz") as case:
        net = pycaffe_lite.Net("net.prototxt", getattr(pycaffe_lite, str(case["phase"])))
        for run in range(int(case["runs"])):
            out = net.forward()
            for name in ("data", "label"):
                want = case[f"run{run}:{name}"]
                assert out[name].shape == want.shape
                assert np.abs(out[name] - want).max() <= 1e-4 * np.abs(want).max()


# ---- order and shapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_lines_come_in_turn_and_wrap(batch, depth):
    images = listed_images(5)
    net = make_net(source(f"batch_size: {batch}", more=f"data_param {{ prefetch: {depth} }}"))
    assert net.blobs["data"].shape == (batch, 3, 5, 7)
    assert net.blobs["label"].shape == (batch,)
    data, labels = batches(net, 4)
    order = np.arange(4 * batch) % 5
    assert_array_equal(np.concatenate(data), images[order])
    assert_array_equal(np.concatenate(labels), 10 * order)


def test_one_image_is_a_batch_by_default():
    listed_images(3)
    assert make_net(source()).blobs["data"].shape == (1, 3, 5, 7)


def test_each_batch_has_the_shape_of_its_first_image():
    """The case of Caffe's own test: batches of one image, of several sizes."""
    listed("a.png 1\nb.png 2\n")
    images = [saved("a.png", picture(1, (5, 7, 3))), saved("b.png", picture(2, (9, 4, 3)))]
    net = make_net(source())
    for k in (0, 1, 0, 1):
        assert_array_equal(net.forward()["data"], images[k][np.newaxis])


def test_images_of_two_sizes_in_a_batch():
    listed("a.png 1\n\nb.png 2\n")
    saved("a.png", picture(1, (5, 7, 3)))
    saved("b.png", picture(2, (9, 4, 3)))
    net = make_net(source("batch_size: 2"))
    text = r"list\.txt line 3: .*`3 9 4 \(108\)`.*list\.txt line 1, `3 5 7 \(105\)`"
    for _ in range(2):
        with pytest.raises(ModelError, match=text):
            net.forward()
    assert make_net(source("batch_size: 2", "crop_size: 4")).forward()["data"].shape == (2, 3, 4, 4)


def test_resized_and_grey():
    listed_images(2, (6, 11, 3))
    net = make_net(source("batch_size: 2 new_height: 4 new_width: 9 is_color: false"))
    data = net.forward()["data"]
    assert data.shape == (2, 1, 4, 9)
    for k in range(2):
        grey = cv2.imread(f"{k}.png", cv2.IMREAD_GRAYSCALE)
        assert_array_equal(data[k, 0], cv2.resize(grey, (9, 4), interpolation=cv2.INTER_LINEAR))


def test_a_grey_file_read_in_colour():
    listed("a.png 3")
    grey = saved("a.png", picture(1, (5, 7)))
    assert_array_equal(make_net(source()).forward()["data"][0], np.repeat(grey, 3, axis=0))


def test_transformed():
    images = listed_images(3, (6, 9, 3))
    net = make_net(
        source("batch_size: 3", "crop_size: 4 scale: 0.5 mean_value: 1 mean_value: 2 mean_value: 3")
    )
    mean = np.array([1.0, 2, 3])[:, None, None]
    expected = (images.astype("f8") - mean)[:, :, 1:5, 2:6] * 0.5
    assert_array_equal(net.forward()["data"], expected)


def test_a_layer_of_the_older_form():
    """Its crop_size, scale and mirror stand in image_data_param."""
    images = listed_images(2, (6, 9, 3))
    net = make_net(
        "layers { name: 'd' type: IMAGE_DATA top: 'data' top: 'label'"
        " image_data_param { source: 'list.txt' batch_size: 2 crop_size: 4 scale: 0.5 } }"
    )
    assert_array_equal(net.forward()["data"], images[:, :, 1:5, 2:6] * 0.5)


def test_a_warning_where_crop_size_stands_as_in_the_older_form(caplog):
    images = listed_images(2)
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        net = make_net(source("crop_size: 4"))
    assert "layer 'd' (ImageData): crop_size belongs into transform_param" in caplog.text
    assert_array_equal(net.forward()["data"], images[:1])


# ---- the list -----------------------------------------------------------------------------------


def test_the_last_space_divides_a_line():
    listed("cat gray.png 5\r\nb.png -1 \n\n  two  spaces.png  +07\n")
    assert [tuple(line) for line in read_image_list("list.txt")] == [
        ("cat gray.png", 5, 1),
        ("b.png", -1, 2),
        ("  two  spaces.png ", 7, 4),
    ]


def test_the_root_folder_is_put_before_as_text():
    Path("some where").mkdir()
    image = saved("some where/pre my cat.png", picture(1))
    listed("my cat.png 5\n")
    net = make_net(source("root_folder: 'some where/pre '"))
    out = net.forward()
    assert_array_equal(out["data"][0], image)
    assert out["label"] == [5]


def test_absolute_names_and_another_working_directory_later(tmp_path, monkeypatch):
    images = [saved("a.png", picture(1)), saved("b.png", picture(2))]
    listed(f"{tmp_path}/a.png 1\nb.png 2\n")
    net = make_net(source("batch_size: 2", more="data_param { prefetch: 1 }"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert_array_equal(net.forward()["data"], images)


def test_a_name_that_is_not_utf8():
    name = os.fsdecode(b"caf\xe9.png")
    content = bytes(cv2.imencode(".png", picture(1))[1])
    try:
        Path(name).write_bytes(content)
    except OSError:
        pytest.skip("the file system takes only UTF-8 names")
    listed(f"{name} 4\n")
    assert make_net(source()).forward()["label"] == [4]


@pytest.mark.parametrize("line", ["a.png", "a.png 1.5", "a.png cat", " 3", "a.png 1_0"])
def test_a_line_without_a_label(line):
    listed(f"0.png 1\n\n{line}\n")
    with pytest.raises(ModelError, match=r"list\.txt line 3: expected .*label, got '"):
        read_image_list("list.txt")
    with pytest.raises(ModelError, match=r"layer 'd' .*list\.txt line 3"):
        make_net(source())


def test_lists_with_spaces_tabs_and_a_byte_order_mark():
    """Caffe's first reader of lists took both."""
    listed("\ufeffa.png\t3\nb  c.png 4 \n d\t.png\t5\r\n")
    assert [image[:2] for image in read_image_list("list.txt")] == [
        ("a.png", 3),
        ("b  c.png", 4),
        (" d\t.png", 5),
    ]


def test_a_list_that_is_empty_or_missing():
    with pytest.raises(MissingFileError, match=r"failed to open source file: list\.txt"):
        make_net(source())
    for text in ["", "\n \n"]:
        listed(text)
        with pytest.raises(ModelError, match=r"list\.txt is empty"):
            make_net(source())
    with pytest.raises(ModelError, match="failed to open source file"):
        read_image_list(".")


def test_an_image_that_cannot_be_read():
    listed_images(3)
    Path("1.png").write_bytes(b"no image")
    Path("2.png").unlink()
    net = make_net(source("batch_size: 2"))  # only the first is read for the shape
    for _ in range(2):
        with pytest.raises(ModelError, match=r"list\.txt line 2: could not load .*1\.png"):
            net.forward()
    listed("2.png 1\n")
    with pytest.raises(MissingFileError, match=r"list\.txt line 1: could not load .*2\.png"):
        make_net(source())


def test_parameters_that_do_not_go_together():
    listed_images(3)
    for param, text in [
        ("new_height: 4", "new_height and new_width must be set together.* 4 and 0"),
        ("new_width: 4", "new_height and new_width must be set together.* 0 and 4"),
        ("batch_size: 0", "batch_size must be positive, got 0"),
        ("rand_skip: 4", "not enough points to skip: rand_skip 4, .* 3 images"),
        ("label_type: PIXEL", "label_type"),
    ]:
        with pytest.raises(ModelError, match=text):
            make_net(source(param))
    with pytest.raises(ModelError, match="crop_size 6 is larger than the image: height 5, width 7"):
        make_net(source(transform="crop_size: 6"))
    with pytest.raises(ModelError, match=r"produces 2 top blob\(s\)"):
        make_net(source().replace("top: 'label'", ""))


# ---- chance -------------------------------------------------------------------------------------


def test_shuffled_anew_in_each_round():
    listed_images(6)
    _, labels = batches(make_net(source("batch_size: 6 shuffle: true")), 4)
    assert all(sorted(one) == [0, 10, 20, 30, 40, 50] for one in labels)
    assert len({tuple(one) for one in labels}) > 1
    set_random_seed(1701)
    assert batches(make_net(source("batch_size: 6 shuffle: true")), 4)[1] == labels
    set_random_seed(7)
    assert batches(make_net(source("batch_size: 6 shuffle: true")), 4)[1] != labels


def test_images_stay_with_their_labels_when_shuffled():
    images = listed_images(6)
    data, labels = batches(make_net(source("batch_size: 4 shuffle: true")), 5)
    order = np.concatenate(labels).astype(int) // 10
    assert_array_equal(np.concatenate(data), images[order])


def test_rand_skip_is_below_its_limit():
    listed_images(5)
    starts = [make_net(source("rand_skip: 3")).forward()["label"].item() for _ in range(40)]
    assert set(starts) == {0, 10, 20}


def test_a_seed_repeats_everything_whatever_is_read_ahead():
    listed_images(7, (6, 9, 3))
    seen = []
    for depth in (0, 1, 4):
        set_random_seed(3)
        text = source(
            "batch_size: 3 shuffle: true rand_skip: 4",
            "mirror: true crop_size: 4",
            f"data_param {{ prefetch: {depth} }}",
        )
        seen.append(batches(make_net(text, TRAIN), 6))
    assert_array_equal(seen[0][0], seen[1][0])
    assert_array_equal(seen[0][0], seen[2][0])
    assert seen[0][1] == seen[1][1] == seen[2][1]


def test_a_warning_where_solvers_read_the_same(monkeypatch, caplog):
    listed_images(3)
    monkeypatch.setattr("pycaffe_lite.process._solver_count", 2)
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        make_net(source("shuffle: true"), TRAIN)
        make_net(source(), TEST)
        assert not caplog.records
        make_net(source(), TRAIN)
    assert "layer 'd'" in caplog.text
    assert "shuffle or rand_skip" in caplog.text


# ---- resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["true", "false"])
@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_resumed_where_it_stood(shuffle, taken):
    """The state goes through JSON into a new net, of another seed; four batches are read ahead."""
    listed_images(7, (6, 9, 3))
    text = source(f"batch_size: 3 shuffle: {shuffle}", "mirror: true crop_size: 4")
    net = make_net(text, TRAIN)
    batches(net, taken)
    state = json.loads(json.dumps(net.layer_dict["d"].data_state()))
    data, labels = batches(net, 6)
    set_random_seed(99)
    other = make_net(text, TRAIN)
    batches(other, 2)
    other.layer_dict["d"].restore_data_state(state)
    again, labels_again = batches(other, 6)
    assert_array_equal(again, data)
    assert labels_again == labels


def test_a_state_of_another_list():
    listed_images(7)
    state = make_net(source("shuffle: true")).layer_dict["d"].data_state()
    with pytest.raises(ModelError, match="another value of shuffle"):
        make_net(source()).layer_dict["d"].restore_data_state(state)
    listed_images(5)
    with pytest.raises(ModelError, match=r"list\.txt lists 5 images; .* there were 7"):
        make_net(source("shuffle: true")).layer_dict["d"].restore_data_state(state)


def test_the_thread_ends_with_the_net():
    listed_images(3)
    before = set(threading.enumerate())
    net = make_net(source())
    assert set(threading.enumerate()) == before, "a net that is only built reads nothing ahead"
    net.forward()
    assert len(set(threading.enumerate()) - before) == 1
    del net
    gc.collect()
    assert set(threading.enumerate()) <= before
