"""HDF5Data and HDF5Output: batches from files, blobs into one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError, Net, device, set_random_seed


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Names in models and lists are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


def write(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values)


def listed(*names):
    Path("list.txt").write_text("\n".join(names), encoding="utf-8")


def source(tops, batch, more="", layer_more=""):
    return (
        "layer { name: 'd' type: 'HDF5Data'"
        + "".join(f" top: '{top}'" for top in tops)
        + f" hdf5_data_param {{ source: 'list.txt' batch_size: {batch} {more} }} {layer_more} }}"
    )


# ---- order --------------------------------------------------------------------------------------


def test_two_files_in_turn(on_ops):
    """The case of Caffe's own test."""
    first = np.arange(2400, dtype="f4").reshape(10, 8, 6, 5)
    labels = np.arange(1, 11).reshape(10, 1)
    write("a.h5", data=first, label=labels.astype("f4"), label2=labels.astype("f4") + 1)
    with h5py.File("b.h5", "w") as file:
        file.create_dataset("data", data=first + 2400, compression="gzip")
        file.create_dataset("label", data=labels.astype("u1"), compression="gzip")
        file.create_dataset("label2", data=labels.astype("u1") + 1, compression="gzip")
    listed("a.h5", "b.h5")
    net = make_net(source(["data", "label", "label2"], 5))
    assert net.blobs["data"].shape == (5, 8, 6, 5)
    assert net.blobs["label"].shape == net.blobs["label2"].shape == (5, 1)
    for t in range(10):
        out = net.forward()
        start = (1200 if t % 2 else 0) + (2400 if t % 4 >= 2 else 0)
        assert_array_equal(out["data"].ravel(), np.arange(1200) + start)
        assert_array_equal(out["label"].ravel(), np.arange(1, 6) + (5 if t % 2 else 0))
        assert_array_equal(out["label2"], out["label"] + 1)


@pytest.mark.parametrize("batch", [1, 4, 5, 13])
def test_batches_span_files(batch):
    write("a.h5", x=np.arange(3))
    write("b.h5", x=np.arange(3, 5))
    write("c.h5", x=[5.0])
    listed("a.h5 b.h5", "", "\tc.h5  ")
    net = make_net(source(["x"], batch))
    seen = np.concatenate([net.forward()["x"].copy() for _ in range(5)])
    assert_array_equal(seen, np.arange(5 * batch) % 6)


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i4", "i8", "f2", "f4", ">f8"])
def test_integers_and_floats_of_all_sizes(dtype):
    values = np.array([[0, 1, 100], [7, 5, 3]], dtype=dtype)
    write("a.h5", x=values)
    listed("a.h5")
    out = make_net(source(["x"], 2)).forward()["x"]
    assert out.dtype == np.float32
    assert_array_equal(out, values)


def test_a_dataset_in_a_group():
    write("a.h5", **{"g/x": [1, 2, 3]})
    listed("a.h5")
    assert_array_equal(make_net(source(["g/x"], 2)).forward()["g/x"], [1, 2])


def test_a_single_file_is_read_once(tmp_path):
    write("a.h5", x=np.arange(3))
    listed("a.h5")
    net = make_net(source(["x"], 2))
    (tmp_path / "a.h5").unlink()
    assert_array_equal([net.forward()["x"].copy() for _ in range(3)], [[0, 1], [2, 0], [1, 2]])


def test_a_shape_that_the_user_gives_is_set_back():
    write("a.h5", x=np.arange(6).reshape(3, 2))
    listed("a.h5")
    net = make_net(source(["x"], 2))
    net.blobs["x"].reshape(5, 2)
    assert_array_equal(net.forward()["x"], [[0, 1], [2, 3]])


# ---- shuffling ----------------------------------------------------------------------------------


def shuffled(count):
    net = make_net(source(["x", "y"], 4, "shuffle: true"))
    assert [blob.shape for blob in net.blobs.values()] == [(4,), (4, 1)]
    parts = []
    for _ in range(count):
        out = net.forward()
        assert_array_equal(out["y"][:, 0], 2 * out["x"], "rows stay together")
        parts.append(out["x"].copy())
    return np.concatenate(parts)


def test_shuffled_rows_of_one_file(on_ops):
    write("a.h5", x=np.arange(20), y=np.arange(20).reshape(20, 1) * 2)
    listed("a.h5")
    rounds = shuffled(15).reshape(3, 20)
    for values in rounds:
        assert_array_equal(np.sort(values), np.arange(20))
    assert not (rounds[0] == np.arange(20)).all()
    assert not (rounds[0] == rounds[1]).all()
    assert not (rounds[1] == rounds[2]).all()


def test_shuffled_files():
    for k in range(6):
        x = np.arange(4) + 10 * k
        write(f"{k}.h5", x=x, y=x.reshape(4, 1) * 2)
    listed(*(f"{k}.h5" for k in range(6)))
    files = shuffled(18).reshape(3, 6, 4)
    assert (files // 10 == files[:, :, :1] // 10).all(), "one file after the other"
    orders = files[:, :, 0] // 10
    assert_array_equal(np.sort(orders, axis=1), [range(6)] * 3)
    assert not (orders[0] == range(6)).all()
    assert not (orders[0] == orders[1]).all()


def test_the_seed_restarts_the_order():
    write("a.h5", x=np.arange(20), y=np.arange(20).reshape(20, 1) * 2)
    listed("a.h5")
    set_random_seed(3)
    first = shuffled(10)
    other = shuffled(10)
    set_random_seed(3)
    assert_array_equal(shuffled(10), first)
    assert not (other == first).all()


# ---- several solvers ----------------------------------------------------------------------------


@pytest.fixture
def solvers():
    """Says how many solvers train and which this one is."""

    def say(count, rank):
        pycaffe_lite.set_solver_count(count)
        pycaffe_lite.set_solver_rank(rank)

    yield say
    say(1, 0)


@pytest.mark.parametrize("rank", range(8))
def test_each_solver_takes_its_own_rows(rank, solvers):
    """The case of Caffe's own test."""
    for k, name in enumerate(("a.h5", "b.h5")):
        write(name, label=np.arange(1, 11).reshape(10, 1), where=np.arange(10) + 10 * k)
    listed("a.h5", "b.h5")
    solvers(8, rank)
    net = make_net(source(["label", "where"], 5), TRAIN)
    for t in range(9):
        out = net.forward()
        rows = rank + 8 * np.arange(5 * t, 5 * t + 5)
        assert_array_equal(out["label"][:, 0], rows % 10 + 1)
        assert_array_equal(out["where"], rows % 20)
    assert_array_equal(make_net(source(["where"], 5), TEST).forward()["where"], range(5))


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("count", [2, 3, 11])
def test_own_rows_over_short_files(batch, count, solvers):
    """Files with fewer rows than there are solvers."""
    for name, rows in (("a.h5", range(3)), ("b.h5", [3]), ("c.h5", range(4, 9))):
        write(name, x=np.array(rows))
    listed("a.h5", "b.h5", "c.h5")
    for rank in range(count):
        solvers(count, rank)
        net = make_net(source(["x"], batch), TRAIN)
        seen = np.concatenate([net.forward()["x"].copy() for _ in range(4)])
        assert_array_equal(seen, (rank + count * np.arange(4 * batch)) % 9)


def test_a_rank_that_no_row_has(solvers):
    write("a.h5", x=np.arange(3))
    listed("a.h5")
    solvers(2, 2)
    with pytest.raises(ModelError, match="solver_rank must be below solver_count: 2 vs. 2"):
        make_net(source(["x"], 1), TRAIN)


# ---- going on later -----------------------------------------------------------------------------


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("shuffle", ["false", "true"])
@pytest.mark.parametrize("before", [0, 1, 3, 8])
def test_resuming(files, shuffle, before):
    for k in range(files):
        write(f"{k}.h5", x=np.arange(5 + k) + 10 * k)
    listed(*(f"{k}.h5" for k in range(files)))
    text = source(["x"], 3, f"shuffle: {shuffle}")

    def values(net, count):
        return [net.forward()["x"].copy() for _ in range(count)]

    net = make_net(text)
    values(net, before)
    state = json.loads(json.dumps(net.layer_dict["d"].data_state()))
    wanted = values(net, 20)
    other = make_net(text)
    values(other, 5)
    for one in (other, net):
        one.layer_dict["d"].restore_data_state(state)
        assert_array_equal(values(one, 20), wanted)


def test_resuming_among_several_solvers(solvers):
    write("a.h5", x=np.arange(7))
    listed("a.h5")
    solvers(3, 1)
    net, other = (make_net(source(["x"], 2), TRAIN) for _ in range(2))
    for _ in range(3):
        net.forward()
    other.layer_dict["d"].restore_data_state(net.layer_dict["d"].data_state())
    for _ in range(5):
        assert_array_equal(other.forward()["x"].copy(), net.forward()["x"])


def test_resuming_with_other_files():
    write("a.h5", x=np.arange(7))
    write("b.h5", x=np.arange(5))
    listed("a.h5")
    net = make_net(source(["x"], 3))
    net.forward()
    net.forward()
    state = net.layer_dict["d"].data_state()
    listed("b.h5")
    other = make_net(source(["x"], 3))
    with pytest.raises(ModelError, match=r"of the files \['a.h5'\]; list.txt lists \['b.h5'\]"):
        other.layer_dict["d"].restore_data_state(state)
    write("a.h5", x=np.arange(6))
    listed("a.h5")
    shorter = make_net(source(["x"], 3))
    with pytest.raises(ModelError, match="at row 6 of a.h5, which has 6 rows"):
        shorter.layer_dict["d"].restore_data_state(state)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"x": [1, 2]}, "failed to find HDF5 dataset: 'y' in a.h5, which has ['x']"),
        ({"x": [1, 2], "y/z": [1, 2]}, "failed to find HDF5 dataset: 'y' in a.h5"),
        ({"x": [1, 2], "y": [1, 2, 3]}, "equally many rows, not 0: /x 2, /y 3"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "equally many rows, not 0: /x 0, /y 0"),
        ({"x": [1, 2], "y": 3}, "dataset 'y' of a.h5 must have at least 1 axis, got 0"),
        ({"x": [1, 2], "y": [b"a", b"b"]}, "dataset 'y' of a.h5 is of object, not int or float"),
        ({"x": [1, 2], "y": [1j, 2j]}, "dataset 'y' of a.h5 is of complex128, not int or float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_with_other_content(datasets, message, tmp_path):
    write("a.h5", **datasets)
    listed("a.h5")
    (tmp_path / "net.prototxt").write_text("\n" + source("xy", 2))
    with pytest.raises(ModelError) as raised:
        Net("net.prototxt", TEST)
    assert message in str(raised.value)
    assert str(raised.value).startswith("net.prototxt:2: layer 'd' (HDF5Data): ")


def test_a_later_file_of_another_shape():
    write("a.h5", x=np.zeros((2, 3)))
    write("b.h5", x=np.zeros((2, 5)))
    listed("a.h5", "b.h5")
    net = make_net(source(["x"], 1))
    net.forward()
    with pytest.raises(ModelError, match=r"'x' of b.h5 has rows of shape `5 \(5\)`.*`3 \(3\)`"):
        net.forward()


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(MissingFileError, match=r"'d' \(HDF5Data\): failed to open source file: l"):
        make_net(source(["x"], 2))
    listed("no.h5")
    with pytest.raises(MissingFileError, match="failed to open HDF5 file: no.h5"):
        make_net(source(["x"], 2))
    listed("")
    with pytest.raises(ModelError, match="must have at least 1 HDF5 filename listed in list.txt"):
        make_net(source(["x"], 2))
    (tmp_path / "list.txt").unlink()
    (tmp_path / "list.txt").mkdir()
    with pytest.raises(ModelError, match="failed to open source file: list.txt"):
        make_net(source(["x"], 2))


def test_a_list_with_a_byte_order_mark():
    write("a.h5", x=np.float32([[1, 2, 3], [4, 5, 6]]))
    listed("\ufeffa.h5")
    assert_array_equal(make_net(source(["x"], 2)).forward()["x"], [[1, 2, 3], [4, 5, 6]])


def test_an_hdf5_file_in_the_place_of_a_list():
    write("list.txt", x=np.zeros(2))
    with pytest.raises(ModelError, match=r"list.txt is an HDF5 file; source names a text file"):
        make_net(source(["x"], 2))


def test_a_damaged_file(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n and nothing more")
    listed("a.h5")
    with pytest.raises(ModelError, match="failed to read HDF5 file a.h5"):
        make_net(source(["x"], 2))


def test_no_transformation_and_no_empty_batch():
    with pytest.raises(ModelError, match="HDF5Data does not transform data"):
        make_net(source(["x"], 2, layer_more="transform_param { scale: 2 }"))
    with pytest.raises(ModelError, match="batch_size must be positive, got 0"):
        make_net(source(["x"], 0))


@pytest.mark.parametrize("text", [source("x", 2), "sink"])
def test_without_h5py(text, monkeypatch):
    write("a.h5", x=[1, 2])
    listed("a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(RuntimeError, match=r"need h5py: pip install 'pycaffe-lite\[data\]'"):
        make_net(SINK if text == "sink" else text)


# ---- HDF5Output ---------------------------------------------------------------------------------

SINK = """
input: 'x' input_shape { dim: [2, 3, 5, 4] } input: 'y' input_shape { dim: 2 }
layer { name: 'o' type: 'HDF5Output' bottom: 'x' bottom: 'y'
  hdf5_output_param { file_name: 'out.h5' } }"""


def batch(rng, n=2):
    return rng.normal(size=(n, 3, 5, 4)).astype("f4"), rng.normal(size=n).astype("f4")


def content():
    with h5py.File("out.h5") as file:
        assert sorted(file) == ["data", "label"]
        return file["data"][()], file["label"][()]


def test_it_writes_data_and_label_of_four_axes(on_ops, rng):
    net = make_net(SINK)
    x, y = batch(rng)
    assert net.forward(x=x, y=y) == {}
    data, label = content()
    assert data.dtype == label.dtype == np.float32
    assert_array_equal(data, x)
    assert_array_equal(label, y.reshape(2, 1, 1, 1))


def test_later_forwards_add_rows(rng, tmp_path):
    net = make_net(SINK)
    batches = [batch(rng, n) for n in (2, 3, 1)]
    for k, (x, y) in enumerate(batches):
        net.blobs["x"].reshape(*x.shape)
        net.blobs["y"].reshape(*y.shape)
        net.forward(x=x, y=y)
        data, label = content()
        assert_array_equal(data, np.concatenate([b[0] for b in batches[: k + 1]]))
        assert_array_equal(label.ravel(), np.concatenate([b[1] for b in batches[: k + 1]]))
    assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]


def test_a_file_that_was_there_is_replaced_by_the_first_forward(rng):
    write("out.h5", other=[1, 2])
    net = make_net(SINK)
    with h5py.File("out.h5") as file:
        assert list(file) == ["other"]
    x, y = batch(rng)
    net.forward(x=x, y=y)
    assert_array_equal(content()[0], x)


def test_what_it_writes_can_be_read_by_hdf5_data(rng):
    x, y = batch(rng)
    make_net(SINK).forward(x=x, y=y)
    listed("out.h5")
    out = make_net(source(["data", "label"], 2)).forward()
    assert_array_equal(out["data"], x)
    assert_array_equal(out["label"].ravel(), y)


def test_rows_of_another_shape_are_refused(rng):
    net = make_net(SINK)
    x, y = batch(rng)
    net.forward(x=x, y=y)
    net.blobs["x"].reshape(2, 3, 4, 5)
    with pytest.raises(ModelError, match=r"data has rows of shape `3 4 5 \(60\)`.*`3 5 4 \(60\)`"):
        net.forward()
    assert_array_equal(content()[0], x)


def test_a_file_taken_away_between_forwards(rng, tmp_path):
    net = make_net(SINK)
    x, y = batch(rng)
    net.forward(x=x, y=y)
    (tmp_path / "out.h5").write_bytes(b"something else")
    with pytest.raises(ModelError, match=r"'o' \(HDF5Output\): failed to write HDF5 file out.h5"):
        net.forward(x=x, y=y)
    (tmp_path / "out.h5").unlink()
    with pytest.raises(MissingFileError, match=r"'o' \(HDF5Output\): failed to open .* out.h5"):
        net.forward(x=x, y=y)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dim: 2 }", "dim: 3 }", "should have the same first dimension: 2 vs. 3"),
        ("5, 4]", "5, 4, 6]", "legacy accessors on blobs with > 4 axes"),
        ("'out.h5'", "''", "hdf5_output_param must have a file_name"),
        ("'out.h5'", "'no/out.h5'", "no/out.h5: its folder does not exist"),
        ("bottom: 'y'", "", "HDF5Output layer takes 2 bottom"),
    ],
)
def test_what_it_refuses(old, new, message):
    with pytest.raises(ModelError) as raised:
        make_net(SINK.replace(old, new))
    assert message in str(raised.value)


def test_its_bottoms_get_no_gradient(on_ops, rng):
    net = make_net(
        "force_backward: true "
        + SINK
        + "layer { name: 'p' type: 'Power' bottom: 'x' top: 'z' power_param { scale: 3 } }"
    )
    x, y = batch(rng)
    net.forward(x=x, y=y)
    for blob in net.blobs.values():
        blob.diff[...] = 7
    net.backward(z=np.ones((2, 3, 5, 4)))
    assert_array_equal(net.blobs["x"].diff, np.full((2, 3, 5, 4), 3))
    assert device.current() is on_ops
