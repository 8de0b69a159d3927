"""Names that HDF5 cannot hold as they are, and files that are damaged."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal
from small_nets import CHAIN, INPUT, fill, ip

from pycaffe_lite import WeightsError


def chain(*names):
    """Inner products of 2, 3, 4... outputs on the same input, each named as given."""
    return INPUT + "".join(ip(name, "x", f"y{k}", k + 2) for k, name in enumerate(names))


def with_params(net):
    return [layer for layer in net.layers if layer.blobs]


def values(net):
    return [blob.data.copy() for layer in net.layers for blob in layer.blobs]


def filled(text):
    net = make_net(text)
    draw = np.random.default_rng(8)
    for layer in net.layers:
        for blob in layer.blobs:
            blob.data[...] = draw.normal(size=blob.shape)
    return net


NAMES = [
    ["a", "a/0"],
    ["a/0", "a"],
    ["a/0/b", "a", "a/1", "a/0"],
    ["a", "a"],
    ["a", "b", "a", "a"],
    ["", ""],
    ["a/b", "a//b", "/a/b", "a/b/", "./a/b", "a/./b"],
    ["/", ".", "..", "a/.."],
    ["in/a", "in/b/c"],
    ["other_layers", "data", "0"],
]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_round_trips_of_names(names, tmp_path):
    net, other = filled(chain(*names)), make_net(chain(*names))
    net.save_hdf5(tmp_path / "w.h5")
    other.load_hdf5(tmp_path / "w.h5", strict=True)
    for got, wanted in zip(values(other), values(net), strict=True):
        assert_array_equal(got, wanted)
    assert sorted(other.load_report.loaded) == sorted(names)


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["a", "a/0"], {"a"}),
        (["a/0", "a"], {"a"}),
        (["in/a", "in/b/c"], {"in/a", "in/b/c"}),
        (["a", "", "b"], {"a", "b"}),
    ],
)
def test_what_the_original_can_read_is_where_it_looks(names, places, tmp_path):
    net = filled(chain(*names))
    net.save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5") as file:
        found = set()
        file["data"].visititems(
            lambda path, item: found.add(path.rpartition("/")[0]) if path[-2:] == "/0" else None
        )
        assert found == places
        for k, name in enumerate(names):
            if name in places:
                assert_array_equal(file[f"data/{name}/0"][()], with_params(net)[k].blobs[0].data)


def test_of_equal_names_the_last_is_the_originals(tmp_path):
    net = filled(chain("a", "a"))
    net.save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5") as file:
        assert_array_equal(file["data/a/0"][()], with_params(net)[1].blobs[0].data)
    one = make_net(INPUT + ip("a", "x", "y", 3))
    one.load_hdf5(tmp_path / "w.h5")
    assert_array_equal(one.params["a"][0].data, with_params(net)[1].blobs[0].data)


def test_a_file_with_one_layer_below_another(tmp_path):
    """The original writes it where the shorter name comes first, and cannot read it."""
    net = make_net(chain("in", "in/a"))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for k, name in enumerate(["in", "in/a"]):
            file[f"data/{name}/0"] = np.full((k + 2, 3), k + 7.0)
            file[f"data/{name}/1"] = np.full(k + 2, k + 7.0)
    net.load_hdf5(tmp_path / "w.h5", strict=True)
    assert (net.params["in"][0].data == 7).all()
    assert (net.params["in/a"][0].data == 8).all()


def test_too_many_datasets(tmp_path):
    net = make_net(chain("a"))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for k, shape in enumerate([(2, 3), (2,), (4,)]):
            file[f"data/a/{k}"] = np.zeros(shape)
    with pytest.raises(WeightsError, match="incompatible number of blobs for layer a: .* 3,.* 2"):
        net.load_hdf5(tmp_path / "w.h5")


def test_datasets_of_text(tmp_path):
    net = make_net(INPUT + ip("a", "x", "y", 2))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["data/a/0"] = np.zeros((2, 3))
        file["data/a/1"] = [b"one", b"two"]
    with pytest.raises(WeightsError, match="layer 'a', param 1: .*no real numbers"):
        net.load_hdf5(tmp_path / "w.h5")


def test_complex_numbers(tmp_path):
    net = filled(chain("a"))
    net.save_hdf5(tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "r+") as file:
        del file["data/a/1"]
        file["data/a/1"] = np.complex64([1, 2])
    before = values(net)
    with pytest.raises(WeightsError, match="layer 'a', param 1: complex64 values"):
        net.copy_from(tmp_path / "w.h5")
    for old, new in zip(before, values(net), strict=True):
        assert_array_equal(old, new)


def test_damage_in_compressed_values_leaves_the_net_unchanged(tmp_path):
    """It shows when they are read: here in the last parameter."""
    net = filled(chain("a", "b"))
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        for layer in with_params(net):
            for k, blob in enumerate(layer.blobs):
                file.create_dataset(
                    f"data/{layer.name}/{k}", data=blob.data + 1, chunks=True, fletcher32=True
                )
        chunk = file["data/b/1"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset] ^= 1
    path.write_bytes(content)
    before = values(net)
    with pytest.raises(WeightsError, match="failed to read HDF5 file"):
        net.copy_from(path)
    for old, new in zip(before, values(net), strict=True):
        assert_array_equal(old, new)


def test_damaged_files_are_weights_errors_or_load(tmp_path):
    """Cut and overwritten at many places; never another exception, never half a load."""
    net = fill(make_net(CHAIN))
    path = tmp_path / "w.h5"
    net.save_hdf5(path)
    whole, draw, said = path.read_bytes(), np.random.default_rng(2), []
    target = make_net(CHAIN)
    for k in range(60):
        content = bytearray(whole)
        if k % 3 == 0:
            del content[int(draw.integers(8, len(content))) :]
        else:
            start = int(draw.integers(8, min(len(content), 3000)))
            content[start : start + 8] = draw.bytes(8)
        path.write_bytes(content)
        before = values(target)
        try:
            target.copy_from(path)
        except WeightsError as error:
            said.append(str(error))
            for got, wanted in zip(values(target), before, strict=True):
                assert_array_equal(got, wanted)
    assert len(said) > 20
    assert [text for text in said if "w.h5" not in text and "ayer" not in text] == []


def test_datasets_of_another_shape_and_the_same_count(tmp_path):
    path = tmp_path / "w.h5"
    net = fill(make_net(CHAIN))
    net.save_hdf5(path)
    values = net.params["a"][1].data.copy()
    with h5py.File(path, "r+") as file:
        del file["data/a/1"]
        file["data/a/1"] = values.reshape(1, -1)
    other = make_net(CHAIN)
    with pytest.raises(
        WeightsError, match="cannot load blob from hdf5; shape mismatch.*permissive"
    ):
        other.copy_from(path)
    other.load_hdf5(path, permissive=True)
    assert_array_equal(other.params["a"][1].data, values)
