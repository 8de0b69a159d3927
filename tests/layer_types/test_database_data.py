"""Data: batches from LMDB and LevelDB, in order, transformed, read ahead, resumed."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError, Net, set_random_seed
from pycaffe_lite.proto import caffe_pb2

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "data").glob("data_*"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sources in models are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _one_solver():
    yield
    pycaffe_lite.set_solver_count(1)
    pycaffe_lite.set_solver_rank(0)


def datum(image, label, **fields):
    channels, height, width = image.shape
    return caffe_pb2.Datum(
        channels=channels, height=height, width=width, data=image.tobytes(), label=label, **fields
    )


def write(images, name="db", backend="LMDB", labels=None):
    """Images (C, H, W) uint8 under keys in their order, by the packages themselves."""
    labels = range(len(images)) if labels is None else labels
    pairs = zip(images, labels, strict=True)
    write_records(
        [datum(image, label).SerializeToString() for image, label in pairs], name, backend
    )


def write_records(values, name="db", backend="LMDB"):
    keyed = [(b"%08d_im" % k, value) for k, value in enumerate(values)]
    if backend == "LMDB":
        lmdb = pytest.importorskip("lmdb")
        with lmdb.open(name, map_size=1 << 24) as env, env.begin(write=True) as transaction:
            for key, value in keyed:
                transaction.put(key, value)
        return
    plyvel = pytest.importorskip("plyvel")
    db = plyvel.DB(name, create_if_missing=True)
    for key, value in keyed:
        db.put(key, value)
    db.close()


def layer(batch, more="", transform="", tops=("data", "label"), name="db", backend="LMDB"):
    return (
        "layer { name: 'd' type: 'Data'"
        + "".join(f" top: '{top}'" for top in tops)
        + f" data_param {{ source: '{name}' batch_size: {batch} backend: {backend} {more} }}"
        + f" transform_param {{ {transform} }} }}"
    )


def same_everywhere(count, shape=(2, 3, 4)):
    """Image k holds nothing but k."""
    return [np.full(shape, k, np.uint8) for k in range(count)]


def pixels(count, shape=(3, 7, 6), seed=1):
    return list(np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8))


def batches(net, count):
    return [{name: array.copy() for name, array in net.forward().items()} for _ in range(count)]


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert list(one) == list(other)
        for name in one:
            assert_array_equal(one[name], other[name])


def differ(got, want):
    return any(not (a[name] == b[name]).all() for a, b in zip(got, want, strict=True) for name in a)


# ---- what Caffe gives ---------------------------------------------------------------------------


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_recorded_batches(folder, on_ops, tmp_path, monkeypatch):
    pytest.importorskip("plyvel" if "leveldb" in folder.name else "lmdb")
    shutil.copytree(folder, tmp_path / "case")
    monkeypatch.chdir(tmp_path / "case")
    with np.load("out.npz") as recorded:
        net = Net("net.prototxt", getattr(pycaffe_lite, str(recorded["phase"])))
        for k in range(int(recorded["runs"])):
            net.forward()
            names = [key for key in recorded.files if key.startswith(f"run{k}:")]
            assert names
            for key in names:
                got = net.blobs[key.partition(":")[2]].data
                np.testing.assert_allclose(got, recorded[key], rtol=1e-6, atol=1e-5)


# ---- order, shapes, labels ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_batches_in_turn_scaled(backend, on_ops):
    """The case of Caffe's own test: five images, batches of five, times three."""
    write(same_everywhere(5), backend=backend)
    net = make_net(layer(5, transform="scale: 3", backend=backend), TRAIN)
    assert net.blobs["data"].shape == (5, 2, 3, 4)
    assert net.blobs["label"].shape == (5,)
    for _ in range(100):
        out = net.forward()
        assert_array_equal(out["label"], range(5))
        assert_array_equal(
            out["data"], np.full((2, 3, 4, 5), 3 * np.arange(5)).transpose(3, 0, 1, 2)
        )


def test_pixels_keep_their_places():
    images = pixels(3)
    write(images)
    assert_array_equal(make_net(layer(3)).forward()["data"], images)


@pytest.mark.parametrize("batch", [1, 4, 7, 16])
def test_a_batch_goes_around_the_end(batch):
    write(same_everywhere(7))
    net = make_net(layer(batch))
    labels = np.concatenate([out["label"] for out in batches(net, 6)])
    assert_array_equal(labels, np.arange(6 * batch) % 7)


def test_without_labels():
    write(same_everywhere(3))
    net = make_net(layer(2, tops=["data"]))
    assert list(net.blobs) == ["data"]
    assert_array_equal(net.forward()["data"][:, 0, 0, 0], [0, 1])
    with pytest.raises(ModelError, match=r"Data layer produces at most 2 top blob\(s\), got 3"):
        make_net(layer(2, tops="abc"))


def test_labels_are_any_integers():
    write(same_everywhere(3), labels=[-1, 70000, 0])
    assert_array_equal(make_net(layer(3)).forward()["label"], [-1, 70000, 0])


def test_floating_images():
    values = np.random.default_rng(2).normal(size=(2, 3, 4)).astype("f4")
    one = caffe_pb2.Datum(channels=2, height=3, width=4, float_data=values.ravel(), label=1)
    write_records([one.SerializeToString()])
    out = make_net(layer(1, transform="scale: 2 mean_value: 0.5")).forward()
    assert_array_equal(out["data"][0], (values - np.float32(0.5)) * 2)


def test_each_batch_has_the_shape_of_its_images():
    """The case of Caffe's own test, with a layer behind it that follows."""
    write([np.full((2, k % 2 + 1, k % 4 + 1), k, np.uint8) for k in range(5)])
    net = make_net(
        layer(1)
        + "layer { name: 'p' type: 'Power' bottom: 'data' top: 'y' power_param { shift: 1 } }"
    )
    for t in range(12):
        k = t % 5
        out = net.forward()
        assert net.blobs["data"].shape == (1, 2, k % 2 + 1, k % 4 + 1)
        assert_array_equal(out["y"], np.full((1, 2, k % 2 + 1, k % 4 + 1), k + 1))
        assert_array_equal(out["label"], [k])


def test_images_of_several_sizes_need_a_crop():
    write([np.zeros((3, 5, 6), np.uint8), np.zeros((3, 5, 7), np.uint8)])
    net = make_net(layer(2))
    for _ in range(2):
        with pytest.raises(ModelError) as raised:
            net.forward()
        for text in ("'d' (Data)", "00000001_im", "db", "`3 5 7 (105)`", "`3 5 6 (90)`"):
            assert text in str(raised.value)
    assert make_net(layer(2, transform="crop_size: 4")).forward()["data"].shape == (2, 3, 4, 4)


def test_a_shape_that_the_user_gives_is_set_back():
    write(same_everywhere(3))
    net = make_net(layer(2))
    net.blobs["data"].reshape(7, 5)
    assert net.forward()["data"].shape == (2, 2, 3, 4)


def test_the_form_of_2013():
    write(same_everywhere(5))
    text = """layers { name: 'd' type: DATA top: 'data' top: 'label'
        data_param { source: 'db' batch_size: 2 backend: LMDB scale: 0.5 crop_size: 2 } }"""
    out = make_net(text).forward()
    assert out["data"].shape == (2, 2, 2, 2)
    assert_array_equal(out["data"][:, 1, 1, 1], [0, 0.5])


def test_a_random_number_of_records_is_left_out():
    write(same_everywhere(9))
    text = layer(4, more="rand_skip: 5")
    starts = {int(make_net(text).forward()["label"][0]) for _ in range(60)}
    assert starts == set(range(5))


# ---- encoded images -----------------------------------------------------------------------------


def encoded(color):
    """A record of a PNG file, and the image (C, H, W) as OpenCV reads it."""
    cv2 = pytest.importorskip("cv2")
    image = pixels(1, (5, 4, 3))[0] if color else pixels(1, (5, 4))[0]
    done, content = cv2.imencode(".png", image)
    assert done
    record = caffe_pb2.Datum(data=content.tobytes(), encoded=True, label=3)
    return record.SerializeToString(), np.atleast_3d(image).transpose(2, 0, 1)


@pytest.mark.parametrize("color", [True, False])
@pytest.mark.parametrize(
    ("more", "transform", "channels"),
    [
        ("", "", None),
        ("", "force_color: true", 3),
        ("force_encoded_color: true", "", 3),
        ("", "force_gray: true", 1),
    ],
)
def test_encoded_images(color, more, transform, channels):
    record, image = encoded(color)
    write_records([record])
    net = make_net(layer(1, more, transform))
    got = net.forward()["data"][0]
    assert len(got) == (channels or len(image))
    if len(got) >= len(image):
        assert_array_equal(got, np.broadcast_to(image, got.shape))
    else:
        grey = np.tensordot([0.114, 0.587, 0.299], image.astype("f8"), 1)
        assert np.abs(got[0] - grey).max() <= 1


# ---- transforming -------------------------------------------------------------------------------


def test_crops_in_training_repeat_with_the_seed_only(on_ops):
    write(pixels(5))
    text = layer(5, transform="crop_size: 3 mirror: true")
    made = []
    for seed in (8, 8, 9):
        set_random_seed(seed)
        made.append(batches(make_net(text, TRAIN), 3))
    assert_same(made[0], made[1])
    assert differ(made[0], made[2])
    assert differ(made[0], batches(make_net(text, TRAIN), 3))
    centre = np.array(pixels(5))[:, :, 2:5, 1:4]
    assert_array_equal(make_net(layer(5, transform="crop_size: 3"), TEST).forward()["data"], centre)


def test_what_is_read_ahead_changes_nothing():
    write(pixels(5))
    made = []
    for depth in (0, 1, 2, 9):
        set_random_seed(4)
        text = layer(3, f"prefetch: {depth} rand_skip: 4", "crop_size: 3 mirror: true")
        made.append(batches(make_net(text, TRAIN), 5))
    for other in made[1:]:
        assert_same(made[0], other)


def test_a_crop_or_a_mean_that_does_not_fit():
    write(pixels(2))
    with pytest.raises(ModelError) as raised:
        make_net(layer(2, transform="crop_size: 7"))
    for text in ("'d' (Data)", "00000000_im", "crop_size 7", "height 7, width 6"):
        assert text in str(raised.value)
    with pytest.raises(ModelError, match=r"'d' \(Data\): .*2 values vs. 3 channels"):
        make_net(layer(2, transform="mean_value: 1 mean_value: 2"))
    with pytest.raises(MissingFileError, match=r"'d' \(Data\): could not open mean_file no.mean"):
        make_net(layer(2, transform="mean_file: 'no.mean'"))


# ---- several solvers ----------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(8))
def test_each_solver_takes_its_own_records(rank):
    """The case of Caffe's own test."""
    write(same_everywhere(5))
    pycaffe_lite.set_solver_count(8)
    pycaffe_lite.set_solver_rank(rank)
    net = make_net(layer(5), TRAIN)
    labels = np.concatenate([out["label"] for out in batches(net, 10)])
    assert_array_equal(labels, (rank + 8 * np.arange(50)) % 5)
    assert_array_equal(make_net(layer(5), TEST).forward()["label"], range(5))


def test_a_rank_that_no_record_has():
    write(same_everywhere(5))
    pycaffe_lite.set_solver_rank(1)
    with pytest.raises(ModelError, match="solver_rank must be below solver_count: 1 vs. 1"):
        make_net(layer(5), TRAIN)


# ---- going on later -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
@pytest.mark.parametrize("before", [0, 1, 4])
def test_resuming(backend, before):
    write(pixels(7), backend=backend)
    text = layer(3, "rand_skip: 5", "crop_size: 4 mirror: true", backend=backend)
    net = make_net(text, TRAIN)
    batches(net, before)
    state = json.loads(json.dumps(net.layer_dict["d"].data_state()))
    wanted = batches(net, 5)
    other = make_net(text, TRAIN)
    assert differ(batches(other, 5), wanted)
    for one in (other, net):
        one.layer_dict["d"].restore_data_state(state)
        assert_same(batches(one, 5), wanted)


@pytest.mark.parametrize("rank", [0, 2])
def test_resuming_among_several_solvers(rank):
    write(same_everywhere(7))
    pycaffe_lite.set_solver_count(3)
    pycaffe_lite.set_solver_rank(rank)
    net = make_net(layer(2), TRAIN)
    batches(net, 3)
    state = net.layer_dict["d"].data_state()
    other = make_net(layer(2), TRAIN)
    other.layer_dict["d"].restore_data_state(state)
    assert_same(batches(other, 5), batches(net, 5))


def test_resuming_where_the_record_is_gone():
    write(same_everywhere(7))
    net = make_net(layer(3))
    batches(net, 2)
    state = net.layer_dict["d"].data_state()
    write(same_everywhere(4), name="other")
    other = make_net(layer(3, name="other")).layer_dict["d"]
    with pytest.raises(ModelError, match="database other .* has no record b'00000006_im'"):
        other.restore_data_state(state)


# ---- threads ------------------------------------------------------------------------------------


def threads():
    return [t for t in threading.enumerate() if t.name == "pycaffe_lite prefetch"]


def test_a_net_that_is_gone_leaves_no_thread():
    write(same_everywhere(5))
    gc.collect()
    gc.disable()
    try:
        net = make_net(layer(2))
        assert threads() == []
        net.forward()
        assert len(threads()) == 1
        gone = weakref.ref(net)
        del net
        assert gone() is None
        assert threads() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_two_nets_read_one_database(backend):
    write(same_everywhere(5), backend=backend)
    nets = [make_net(layer(b, backend=backend), p) for b, p in ((2, TRAIN), (3, TEST))]
    for t in range(6):
        for batch, net in zip((2, 3), nets, strict=True):
            start = t * batch
            assert_array_equal(net.forward()["label"], np.arange(start, start + batch) % 5)
        if t == 3:
            nets[0] = make_net(layer(2, backend=backend))
            batches(nets[0], 4)


def test_errors_of_the_users_between_forwards():
    write(same_everywhere(5))
    net = make_net(layer(2))
    net.forward()
    with pytest.raises(ZeroDivisionError):
        _ = 1 / 0
    assert_array_equal(net.forward()["label"], [2, 3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_on_by_itself():
    """In the net that it has, and in a new one of the same database."""
    write(pixels(7))
    net = make_net(layer(3, transform="crop_size: 4 mirror: true"), TRAIN)
    batches(net, 2)
    layer_ = net.layer_dict["d"]
    state = layer_.data_state()
    wanted = batches(net, 4)
    layer_.restore_data_state(state)
    batches(net, 1)
    child = os.fork()
    if not child:
        right = not differ(batches(net, 3), wanted[1:])
        right &= list(make_net(layer(3)).forward()["label"]) == [0, 1, 2]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(batches(net, 3), wanted[1:])


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_the_interpreter_ends_while_a_thread_reads(backend):
    write(pixels(40, (3, 70, 60)), backend=backend)
    code = """
        from pycaffe_lite import Net, TRAIN
        net = Net("net.prototxt", TRAIN)
        net.forward()
    """
    Path("net.prototxt").write_text(layer(32, backend=backend), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- errors -------------------------------------------------------------------------------------


def test_a_damaged_record():
    """Those before it still come, and the error ends the thread."""
    records = [datum(image, 1).SerializeToString() for image in same_everywhere(5)]
    write_records([*records[:3], records[3][:-5], records[4]])
    net = make_net(layer(2))
    net.forward()
    for _ in range(2):
        with pytest.raises(ModelError) as raised:
            net.forward()
        for text in ("'d' (Data): ", "00000003_im", "db"):
            assert text in str(raised.value)
    del raised
    threads()[0].join(5) if threads() else None
    assert threads() == []


def test_a_record_with_too_few_pixels():
    one = caffe_pb2.Datum(channels=2, height=3, width=4, data=bytes(23))
    write_records([one.SerializeToString()])
    with pytest.raises(ModelError, match=r"'d' \(Data\): .*00000000_im.* 23 .*24"):
        make_net(layer(1))


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_an_empty_database(backend):
    write_records([], backend=backend)
    with pytest.raises(ModelError, match=rf"'d' \(Data\): database db \({backend}\) is empty"):
        make_net(layer(1, backend=backend))


def test_a_database_that_is_not_there():
    with pytest.raises(MissingFileError, match=r"'d' \(Data\): failed to open database db"):
        make_net(layer(1))


@pytest.mark.parametrize(("backend", "package"), [("LMDB", "lmdb"), ("LEVELDB", "plyvel")])
def test_without_the_package(backend, package, monkeypatch):
    write(same_everywhere(2), backend=backend)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RuntimeError, match=rf"need {package}: pip install 'pycaffe-lite\[data\]'"):
        make_net(layer(1, backend=backend))


def test_what_it_refuses():
    write(same_everywhere(2))
    with pytest.raises(ModelError, match="batch_size must be positive, got 0"):
        make_net(layer(0))
    with pytest.raises(ModelError, match=r"data_param { rand_permute } is not supported"):
        make_net(layer(1, "rand_permute: true"))
    with pytest.raises(ModelError, match="unknown backend: DATUMFILE"):
        make_net(layer(1, backend="DATUMFILE"))
    with pytest.raises(ModelError, match="cannot set both force_color and force_gray"):
        make_net(layer(1, transform="force_color: true force_gray: true"))


def test_fields_of_old_that_do_nothing_are_told(caplog):
    write(same_everywhere(2))
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        out = make_net(layer(2, "scale: 3")).forward()
    assert_array_equal(out["data"][:, 0, 0, 0], [0, 1])
    assert len(caplog.messages) == 1
    assert "layer 'd' (Data): scale belongs into transform_param" in caplog.messages[0]
