"""Parameters in and out: binary and HDF5 files, sharing between nets, what does not fit."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import small_layers  # noqa: F401  (defines PlusBias)
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import CHAIN, INPUT, X, fill, ip

from pycaffe_lite import TEST, MissingFileError, Net, WeightsError, prototxt
from pycaffe_lite.proto import caffe_pb2

FORMS = ["binary", "hdf5"]


def saved(net, folder, form="binary"):
    path = folder / ("w.caffemodel" if form == "binary" else "w.caffemodel.h5")
    (net.save if form == "binary" else net.save_hdf5)(path)
    return path


def values(net):
    return [blob.data.copy() for blobs in net.params.values() for blob in blobs]


def assert_same_values(net, other):
    for got, wanted in zip(values(net), values(other), strict=True):
        assert_array_equal(got, wanted)


def message(*blobs, name="a"):
    """A weights file of one layer: for each blob its shape and values, or a BlobProto."""
    spec = caffe_pb2.NetParameter()
    layer = spec.layer.add(name=name, type="InnerProduct")
    for blob in blobs:
        if isinstance(blob, caffe_pb2.BlobProto):
            layer.blobs.append(blob)
        else:
            shape, data = blob
            layer.blobs.append(caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=shape), data=data))
    return spec


@pytest.fixture
def written(tmp_path):
    """Writes a message as a .caffemodel and gives its path."""

    def write(spec):
        path = tmp_path / "w.caffemodel"
        path.write_bytes(spec.SerializeToString())
        return path

    return write


# ---- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_round_trip_is_exact(on_ops, form, tmp_path):
    net, other = fill(make_net(CHAIN)), make_net(CHAIN)
    net.params["a"][1].data[:3] = [np.nan, -0.0, 1e-45]
    path = saved(net, tmp_path, form)
    other.forward(x=X)
    other.copy_from(path)
    assert_same_values(other, net)
    assert np.signbit(other.params["a"][1].data[1])
    assert_array_equal(other.forward(x=X)["z"], net.forward(x=X)["z"])


@pytest.mark.parametrize("form", FORMS)
def test_what_the_device_wrote_is_saved(on_ops, form, tmp_path):
    """The current values may lie anywhere."""
    net = fill(make_net(CHAIN))
    net.forward(x=X)
    blob = net.params["a"][0]
    blob.array(on_ops)[...] = 4
    other = make_net(CHAIN)
    other.copy_from(saved(net, tmp_path, form))
    assert (other.params["a"][0].data == 4).all()


@pytest.mark.parametrize("name", ["w.caffemodel", "w.bin", "w.h5"])
@pytest.mark.parametrize("form", FORMS)
def test_files_are_told_apart_by_content(form, name, tmp_path):
    net, other = fill(make_net(CHAIN)), make_net(CHAIN)
    path = tmp_path / name
    (net.save if form == "binary" else net.save_hdf5)(str(path))
    other.copy_from(str(path))
    assert_same_values(other, net)
    model = tmp_path / "net.prototxt"
    model.write_text(CHAIN)
    assert_same_values(Net(model, TEST, weights=str(path)), net)
    assert_same_values(Net(str(model), str(path), TEST), net)


def test_hdf5_by_its_own_name(tmp_path):
    net, other = fill(make_net(CHAIN)), make_net(CHAIN)
    other.load_hdf5(saved(net, tmp_path, "hdf5"))
    assert_same_values(other, net)


def test_a_binary_file_holds_what_caffe_writes(tmp_path):
    net = fill(make_net("name: 'chain' " + CHAIN + ip("c", "y", "w", 2)))
    spec = prototxt.read_binary(saved(net, tmp_path), caffe_pb2.NetParameter)
    assert spec.name == "chain"
    assert [layer.name for layer in spec.layer] == net._layer_names
    assert [layer.type for layer in spec.layer] == [layer.type for layer in net.layers]
    assert all(layer.phase == TEST for layer in spec.layer)
    weights, bias = spec.layer[1].blobs
    assert list(weights.shape.dim) == [4, 3]
    assert_array_equal(np.float32(weights.data).reshape(4, 3), net.params["a"][0].data)
    assert_array_equal(np.float32(bias.data), net.params["a"][1].data)
    for blob in (weights, bias):
        assert not blob.diff
        assert not any(blob.HasField(f) for f in ("num", "channels", "height", "width"))
    assert not spec.input
    assert not spec.layers


def test_an_hdf5_file_holds_what_caffe_writes(tmp_path):
    net = fill(make_net(CHAIN))
    with h5py.File(saved(net, tmp_path, "hdf5")) as file:
        assert list(file) == ["data"]
        assert set(file["data"]) == {"input", "a", "relu", "b"}, "empty groups for the rest"
        assert set(file["data/a"]) == {"0", "1"}
        assert file["data/a/0"].dtype == np.float32
        assert_array_equal(file["data/a/0"][()], net.params["a"][0].data)


@pytest.mark.parametrize("form", FORMS)
def test_names_with_slashes(form, tmp_path):
    """As in GoogLeNet; one may be another's beginning."""
    text = INPUT + ip("in/a", "x", "y", 4) + ip("in", "y", "z", 5) + ip("in/b/c", "y", "w", 2)
    net, other = fill(make_net(text)), make_net(text)
    other.copy_from(saved(net, tmp_path, form))
    assert_same_values(other, net)


def test_surgery(tmp_path):
    """An inner product as a convolution over the whole image: the same numbers, laid out anew."""
    dense = fill(make_net("input: 'x' input_shape { dim: [2, 3, 4, 5] }" + ip("fc", "x", "y", 6)))
    conv = make_net(
        "input: 'x' input_shape { dim: [2, 3, 4, 5] } layer { name: 'conv' type: 'Convolution'"
        " bottom: 'x' top: 'y' convolution_param { num_output: 6 kernel_h: 4 kernel_w: 5 } }"
    )
    for target, source in zip(conv.params["conv"], dense.params["fc"], strict=True):
        target.data.flat = source.data.flat
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 5))
    wanted = dense.forward(x=x)["y"]
    assert_allclose(conv.forward(x=x)["y"][:, :, 0, 0], wanted, rtol=1e-5, atol=1e-5)
    path = saved(conv, tmp_path)
    conv.params["conv"][0].data[...] = 0
    conv.copy_from(path)
    assert_allclose(conv.forward(x=x)["y"][:, :, 0, 0], wanted, rtol=1e-5, atol=1e-5)


TIED = (
    INPUT
    + ip("a", "x", "y", 3, "param { name: 'w' }")
    + ip("b", "y", "z", 3, "param { name: 'w' }")
)


@pytest.mark.parametrize("form", FORMS)
def test_shared_parameters_stay_shared(form, tmp_path):
    net, other = fill(make_net(TIED)), make_net(TIED)
    path = saved(net, tmp_path, form)
    other.copy_from(path)
    assert_same_values(other, net)
    assert np.shares_memory(other.params["a"][0].data, other.params["b"][0].data)
    if form == "hdf5":
        with h5py.File(path) as file:
            assert set(file["data/b"]) == {"1"}, "once, with the layer that owns it"


def test_an_owner_needs_what_a_sharer_may_lack(tmp_path):
    path = saved(fill(make_net(TIED)), tmp_path, "hdf5")
    apart = make_net(TIED.replace("param { name: 'w' }", ""))
    before = values(apart)
    with pytest.raises(WeightsError, match="incompatible number of blobs for layer b"):
        apart.copy_from(path)
    for got, wanted in zip(values(apart), before, strict=True):
        assert_array_equal(got, wanted)


# ---- which layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_one_side_only_are_left_alone(form, tmp_path):
    path = saved(fill(make_net(CHAIN)), tmp_path, form)
    other = make_net(INPUT + ip("a", "x", "y", 4) + ip("new", "y", "z", 6))
    other.params["new"][0].data[...] = 7
    other.copy_from(path)
    assert other.params["a"][0].data.any()
    assert (other.params["new"][0].data == 7).all()


def test_the_first_layer_of_a_name_is_loaded(written):
    net = make_net(INPUT + ip("a", "x", "y", 3) + ip("a", "y", "z", 3))
    net.copy_from(written(message(([3, 3], range(9)), ([3], [1, 2, 3]))))
    first, second = (layer.blobs for layer in net.layers[1:])
    assert_array_equal(first[1].data, [1, 2, 3])
    assert not second[1].data.any()


def test_types_are_not_compared(written):
    spec = message(([4, 3], range(12)), ([4], [1, 2, 3, 4]))
    spec.layer[0].type = "Convolution"
    net = make_net(INPUT + ip("a", "x", "y", 4))
    net.copy_from(written(spec))
    assert_array_equal(net.params["a"][1].data, [1, 2, 3, 4])


# ---- forms of a blob ---------------------------------------------------------------------------


def test_double_data(written):
    bias = caffe_pb2.BlobProto(double_data=[0.1, 2, 3, 1e-300])
    bias.shape.dim.append(4)
    net = make_net(INPUT + ip("a", "x", "y", 4))
    net.copy_from(written(message(([4, 3], range(12)), bias)))
    assert_array_equal(net.params["a"][1].data, np.float32([0.1, 2, 3, 0]))


def test_doubles_come_before_singles(written):
    """As in Caffe, where a blob has both."""
    bias = caffe_pb2.BlobProto(data=[9, 9, 9, 9], double_data=[1, 2, 3, 4])
    bias.shape.dim.append(4)
    net = make_net(INPUT + ip("a", "x", "y", 4))
    net.copy_from(written(message(([4, 3], range(12)), bias)))
    assert_array_equal(net.params["a"][1].data, [1, 2, 3, 4])


def test_one_value_without_a_shape_is_a_scalar(written):
    net = make_net(
        INPUT + "layer { name: 'a' type: 'Bias' bottom: 'x' top: 'y' bias_param { num_axes: 0 } }"
    )
    net.copy_from(written(message(caffe_pb2.BlobProto(data=[7]))))
    assert net.params["a"][0].shape == ()
    assert net.params["a"][0].data == 7


def legacy(dims, count):
    blob = caffe_pb2.BlobProto(data=range(count))
    for field, size in zip(("num", "channels", "height", "width"), dims, strict=True):
        setattr(blob, field, size)
    return blob


def test_the_four_dimensions_of_old_files(written):
    net = make_net(INPUT + ip("a", "x", "y", 4))
    net.copy_from(written(message(legacy((1, 1, 4, 3), 12), legacy((1, 1, 1, 4), 4))))
    assert_array_equal(net.params["a"][0].data, np.arange(12).reshape(4, 3))
    assert_array_equal(net.params["a"][1].data, range(4))


@pytest.mark.parametrize("dims", [(4, 3, 1, 1), (1, 4, 1, 3), (3, 1, 1, 4), (1, 1, 3, 4)])
def test_old_dimensions_are_compared_from_the_right(written, dims):
    net = make_net(INPUT + ip("a", "x", "y", 4))
    with pytest.raises(WeightsError, match="shape mismatch"):
        net.copy_from(written(message(legacy(dims, 12), legacy((1, 1, 1, 4), 4))))


def test_other_ranks_of_the_same_count_are_refused(written):
    net = make_net(INPUT + ip("a", "x", "y", 4))
    with pytest.raises(WeightsError, match=r"param 1 .*`1 4 \(4\)`.*`4 \(4\)`"):
        net.copy_from(written(message(([4, 3], range(12)), ([1, 4], range(4)))))


def test_values_that_do_not_fill_their_shape(written):
    net = make_net(INPUT + ip("a", "x", "y", 4))
    with pytest.raises(WeightsError, match="12 vs. 11 data values"):
        net.copy_from(written(message(([4, 3], range(11)), ([4], range(4)))))


# ---- what does not fit -------------------------------------------------------------------------


def test_shapes_that_differ(tmp_path):
    """The words that people search for."""
    path = saved(fill(make_net(INPUT + ip("a", "x", "y", 5))), tmp_path)
    text = (
        r"cannot copy param 0 weights from layer 'a'; shape mismatch. Source param shape is"
        r" `5 3 \(15\)`; target param shape is `4 3 \(12\)`.*from scratch, rename the layer"
    )
    with pytest.raises(WeightsError, match=text):
        make_net(INPUT + ip("a", "x", "y", 4)).copy_from(path)


def test_shapes_that_differ_in_hdf5(tmp_path):
    path = saved(fill(make_net(INPUT + ip("a", "x", "y", 5))), tmp_path, "hdf5")
    text = r"cannot load blob from hdf5; shape mismatch.*'a'.*`5 3 \(15\)`.*`4 3 \(12\)`"
    with pytest.raises(WeightsError, match=text):
        make_net(INPUT + ip("a", "x", "y", 4)).copy_from(path)


def test_numbers_of_blobs_that_differ(written):
    net = make_net(INPUT + ip("a", "x", "y", 4))
    text = "incompatible number of blobs for layer a: the file has 1, the net 2"
    with pytest.raises(WeightsError, match=text):
        net.copy_from(written(message(([4, 3], range(12)))))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_copied_where_one_layer_does_not_fit(form, tmp_path):
    """Not even the layers before it."""
    path = saved(fill(make_net(CHAIN)), tmp_path, form)
    net = fill(make_net(CHAIN.replace("num_output: 5", "num_output: 6")), seed=4)
    before = values(net)
    with pytest.raises(WeightsError, match="[Ll]ayer 'b'"):
        net.copy_from(path)
    for got, wanted in zip(values(net), before, strict=True):
        assert_array_equal(got, wanted)


def test_missing_files(tmp_path):
    net = make_net(CHAIN)
    for load in (net.copy_from, net.load_hdf5):
        with pytest.raises(MissingFileError, match="Could not open file .*none.caffemodel"):
            load(tmp_path / "none.caffemodel")


@pytest.mark.parametrize(
    ("content", "like"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
        (CHAIN.encode(), "prototxt"),
    ],
)
def test_files_that_are_something_else(content, like, tmp_path):
    path = tmp_path / "w.caffemodel"
    path.write_bytes(content)
    text = f"failed to parse NetParameter file .*w.caffemodel: .*{like}"
    with pytest.raises(WeightsError, match=text):
        make_net(CHAIN).copy_from(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_short(form, tmp_path):
    net = fill(make_net(CHAIN))
    path = saved(net, tmp_path, form)
    path.write_bytes(path.read_bytes()[:-37])
    other = make_net(CHAIN)
    with pytest.raises(WeightsError, match="w.caffemodel"):
        other.copy_from(path)
    assert not any(value.any() for value in values(other))


def test_a_binary_file_given_as_hdf5(tmp_path):
    path = saved(fill(make_net(CHAIN)), tmp_path)
    with pytest.raises(WeightsError, match="failed to read HDF5 file .*w.caffemodel"):
        make_net(CHAIN).load_hdf5(path)


def test_an_hdf5_file_of_something_else(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((2, 3))
    with pytest.raises(WeightsError, match=r"data.h5.*no group.*data.*images"):
        make_net(CHAIN).copy_from(path)


# ---- writing -----------------------------------------------------------------------------------


class FullDisk:
    """A file that takes some records, and half of one more."""

    def __init__(self, file):
        self.file, self.room = file, 3

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, content):
        self.room -= 1
        self.file.write(content if self.room else content[: len(content) // 2])
        if not self.room:
            raise OSError("disk full")


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    net = fill(make_net(CHAIN))
    path = saved(net, tmp_path)
    before = path.read_bytes()

    opened = Path.open

    def open_full(self, mode="r", **kwargs):
        file = opened(self, mode, **kwargs)
        return FullDisk(file) if mode == "wb" else file

    monkeypatch.setattr(Path, "open", open_full)
    for target in (path, tmp_path / "new.caffemodel"):
        with pytest.raises(OSError, match="disk full"):
            net.save(target)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.caffemodel"]


def test_an_hdf5_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    net = fill(make_net(CHAIN))
    path = saved(net, tmp_path, "hdf5")
    before = path.read_bytes()
    create = h5py.Group.create_dataset

    def fails_in_the_end(self, name, *args, **kwargs):
        if self.name == "/data/b":
            raise OSError("disk full")
        return create(self, name, *args, **kwargs)

    monkeypatch.setattr(h5py.Group, "create_dataset", fails_in_the_end)
    with pytest.raises(OSError, match="disk full"):
        net.save_hdf5(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.caffemodel.h5"]


def test_saving_over_a_file_replaces_it(tmp_path):
    net, other = fill(make_net(CHAIN)), make_net(CHAIN)
    for form in FORMS:
        saved(net, tmp_path, form)
        saved(other, tmp_path, form)
        check = fill(make_net(CHAIN))
        check.copy_from(saved(other, tmp_path, form))
        assert_same_values(check, other)


# ---- sharing between nets ----------------------------------------------------------------------


def test_sharing_makes_values_one_and_leaves_gradients_apart(on_ops):
    net, other = fill(make_net(CHAIN)), make_net(CHAIN)
    other.forward(x=X)
    other.share_with(net)
    assert_array_equal(other.forward(x=X)["z"], net.forward(x=X)["z"])
    net.params["a"][0].data[...] = 2
    assert (other.params["a"][0].data == 2).all()
    assert_array_equal(other.forward(x=X)["z"], net.forward(x=X)["z"])
    net.params["a"][0].diff[...] = 5
    assert not other.params["a"][0].diff.any()


def test_shared_values_outlive_their_net(on_ops):
    other = make_net(CHAIN)
    net = fill(make_net(CHAIN))
    wanted = net.forward(x=X)["z"].copy()
    other.share_with(net)
    del net
    assert_array_equal(other.forward(x=X)["z"], wanted)


def test_sharing_with_other_layers_and_sizes():
    net = fill(make_net(CHAIN))
    other = make_net(INPUT + ip("a", "x", "y", 4) + ip("new", "y", "z", 6))
    other.share_with(net)
    assert np.shares_memory(other.params["a"][0].data, net.params["a"][0].data)
    wrong = make_net(CHAIN.replace("num_output: 5", "num_output: 6"))
    with pytest.raises(WeightsError, match=r"cannot copy param 0 .*layer 'b'; shape mismatch"):
        wrong.share_with(net)
    assert not np.shares_memory(wrong.params["a"][0].data, net.params["a"][0].data)


def test_values_of_a_users_layer_are_saved_too(tmp_path):
    text = INPUT + "layer { name: 'p' type: 'PlusBias' bottom: 'x' top: 'y' }"
    net, other = make_net(text), make_net(text)
    net.params["p"][0].data[...] = [1, 2, 3]
    other.copy_from(saved(net, tmp_path))
    assert_array_equal(other.forward(x=X)["y"], X + np.float32([1, 2, 3]))


@pytest.mark.parametrize(
    ("blobs", "said"),
    [
        ("blobs { shape { dim: [3, 2] } data: [1, 2, 3, 4, 5, 6] }", "`3 2 (6)`.*`2 3 (6)`"),
        ("blobs { shape { dim: 6 } data: [1, 2, 3, 4, 5, 6] }", "`6 (6)`.*`2 3 (6)`"),
        (
            "blobs { shape { dim: [2, 3] } } blobs { shape { dim: 2 } }",
            "blobs for layer ip.* 2,.* 1",
        ),
    ],
)
def test_blobs_in_the_model_must_fit(blobs, said):
    said = said.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(WeightsError, match=f"layer 'ip'.*{said}"):
        make_net(
            "input: 'x' input_shape { dim: [1, 3] } layer { name: 'ip' type: 'InnerProduct'"
            f" bottom: 'x' top: 'y' {blobs}"
            " inner_product_param { num_output: 2 bias_term: false } }"
        )
