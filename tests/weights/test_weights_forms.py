"""Forms of a weights file: raw bytes, half precision, floats that are not packed, gradients."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal
from small_nets import CHAIN, INPUT, fill, ip

from pycaffe_lite import TEST, Net, WeightsError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.weights import caffemodel

NET = INPUT + ip("a", "x", "y", 4)
W = np.float32([[1.5, -2, 0.25], [3, 1024, -0.0], [0.5, 6, -7], [8, 65504, 2**-24]])  # exact halves
B = np.float32([0.125, -1, 2, 3])
TYPES = [("DOUBLE", "<f8"), ("FLOAT", "<f4"), ("FLOAT16", "<f2")]


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def record(field, content):
    """A length-delimited field on the wire."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field, value):
    return varint(field << 3) + varint(value)


def shape(*dims):
    return record(7, record(1, b"".join(map(varint, dims))))


def layer(*blobs, name=b"a"):
    return record(100, record(1, name) + b"".join(record(7, blob) for blob in blobs))


def floats(values, code="f"):
    return struct.pack(f"<{values.size}{code}", *values.ravel().tolist())


PACKED = [shape(4, 3) + record(5, floats(W)), shape(4) + record(5, floats(B))]


def load(tmp_path, *layers, net=None):
    path = tmp_path / "w.caffemodel"
    path.write_bytes(b"".join(layers))
    net = net or make_net(NET)
    net.copy_from(path)
    return net


def assert_loaded(net):
    assert_array_equal(net.params["a"][0].data, W)
    assert np.signbit(net.params["a"][0].data[1, 2])
    assert_array_equal(net.params["a"][1].data, B)


def raw(kind, code, dims, values):
    return (
        shape(*dims)
        + number(10, caffe_pb2.BlobProto.Type.Value(kind))
        + record(12, values.astype(code).tobytes())
    )


@pytest.mark.parametrize(("kind", "code"), TYPES)
def test_raw_bytes(kind, code, tmp_path):
    """As NVCaffe and OpenCV's half precision files store values.

    https://github.com/opencv/opencv/pull/9591
    """
    blobs = raw(kind, code, (4, 3), W), raw(kind, code, (4,), B)
    assert_loaded(load(tmp_path, layer(*blobs)))


def test_raw_bytes_without_a_type_are_doubles(tmp_path):
    """The first of the schema's types."""
    blobs = [shape(*v.shape) + record(12, v.astype("<f8").tobytes()) for v in (W, B)]
    assert_loaded(load(tmp_path, layer(*blobs)))


@pytest.mark.parametrize("kind", ["INT", "UINT"])
def test_raw_bytes_of_other_types_are_refused(kind, tmp_path):
    blobs = raw(kind, "<i4", (4, 3), W), raw(kind, "<i4", (4,), B)
    with pytest.raises(WeightsError, match=f"layer 'a', param 0: raw_data of type {kind}.*FLOAT16"):
        load(tmp_path, layer(*blobs))


def test_raw_bytes_that_do_not_fill_their_shape(tmp_path):
    short = shape(4) + number(10, 2) + record(12, B.astype("<f2").tobytes()[:-1])
    with pytest.raises(WeightsError, match="layer 'a', param 1: 7 bytes of data .*2 bytes.*w.caff"):
        load(tmp_path, layer(PACKED[0], short))
    short = shape(4) + number(10, 2) + record(12, B.astype("<f2").tobytes()[:-2])
    with pytest.raises(WeightsError, match="4 vs. 3 data values"):
        load(tmp_path, layer(PACKED[0], short))


def test_blobs_without_values_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="12 vs. 0 data values"):
        load(tmp_path, layer(shape(4, 3), shape(4)))


def test_values_in_several_records(tmp_path):
    parts = shape(4, 3) + b"".join(record(5, floats(row)) for row in W)
    assert_loaded(load(tmp_path, layer(parts, PACKED[1])))


def unpacked(values, field=5, code="f"):
    wire = {"f": 5, "d": 1}[code]
    one = [varint(field << 3 | wire) + floats(v, code) for v in values.reshape(-1, 1)]
    return b"".join(one)


@pytest.mark.parametrize(("field", "code"), [(5, "f"), (8, "d")])
def test_numbers_that_are_not_packed(field, code, tmp_path):
    first = shape(4, 3) + unpacked(W, field, code)
    assert_loaded(load(tmp_path, layer(first, PACKED[1])))


def test_numbers_partly_packed_keep_their_order(tmp_path):
    first = shape(4, 3) + unpacked(W[:1]) + record(5, floats(W[1:3])) + unpacked(W[3:])
    assert_loaded(load(tmp_path, layer(first, PACKED[1])))


@pytest.mark.parametrize(
    ("field", "code", "kind"), [(6, "<f4", 1), (9, "<f8", 0), (13, "<f2", 2), (13, "<f4", 1)]
)
def test_gradients_in_a_file_are_loaded(field, code, kind, tmp_path):
    grads = np.float32([4, -5, 6, 0.5])
    diff = record(field, grads.astype(code).tobytes())
    if field == 13:
        diff += number(11, kind)
    net = make_net(NET)
    net.params["a"][0].diff[...] = 9
    load(tmp_path, layer(PACKED[0], PACKED[1] + diff), net=net)
    assert_loaded(net)
    assert_array_equal(net.params["a"][1].diff, grads)
    assert (net.params["a"][0].diff == 9).all(), "no gradients there: left as they were"


def test_gradients_that_do_not_fill_their_shape(tmp_path):
    blob = PACKED[1] + record(6, floats(B[:3]))
    with pytest.raises(WeightsError, match="layer 'a', param 1: .*4 vs. 3 diff values"):
        load(tmp_path, layer(PACKED[0], blob))


@pytest.mark.parametrize(("kind", "code"), TYPES)
def test_raw_bytes_in_a_model(kind, code):
    """A net built from a message that carries its parameters."""
    spec = caffe_pb2.NetParameter(input=["x"])
    spec.input_shape.add().dim.extend([2, 3])
    entry = spec.layer.add(name="a", type="InnerProduct", bottom=["x"], top=["y"])
    entry.inner_product_param.num_output = 4
    for values in (W, B):
        entry.blobs.add().MergeFromString(raw(kind, code, values.shape, values))
    assert_loaded(Net(spec, TEST))


def test_saved_bytes_are_those_of_the_full_schema(tmp_path):
    """Field by field, with numbers that Python made."""
    net = fill(make_net("name: 'chain' " + CHAIN))
    net.params["a"][1].data[:3] = [np.nan, -0.0, 1e-45]
    spec = caffe_pb2.NetParameter(name="chain")
    for one in net.layers:
        entry = spec.layer.add()
        entry.CopyFrom(one.spec)
        for blob in one.blobs:
            proto = entry.blobs.add(data=blob.data.ravel().tolist())
            proto.shape.dim.extend(blob.shape)
    net.save(tmp_path / "w.caffemodel")
    assert (tmp_path / "w.caffemodel").read_bytes() == spec.SerializeToString()


def test_a_file_without_layers(tmp_path):
    path = tmp_path / "w.caffemodel"
    net = make_net(NET)
    path.write_bytes(record(1, b"a name"))  # a message, if a dull one
    net.copy_from(path)
    assert net.load_report.left == ("a",)
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match="w.caffemodel: it is empty"):
        net.copy_from(path)


def test_blobs_of_another_shape_and_the_same_count(tmp_path):
    """Batch normalisation's statistics, in some forks (1, C, 1, 1).

    https://github.com/NVIDIA/DIGITS/issues/1331
    """
    path = tmp_path / "w.caffemodel"
    blobs = shape(1, 4, 3) + record(5, floats(W)), shape(1, 4, 1, 1, 1) + record(5, floats(B))
    path.write_bytes(layer(*blobs))
    net = make_net(NET)
    with pytest.raises(WeightsError, match=r"shape mismatch.*`1 4 3 \(12\)`.*permissive=True"):
        net.copy_from(path)
    net.copy_from(path, permissive=True)
    assert_loaded(net)


def test_other_counts_are_refused_where_permissive(tmp_path):
    path = tmp_path / "w.caffemodel"
    path.write_bytes(layer(shape(3, 3) + record(5, floats(W[:3])), PACKED[1]))
    with pytest.raises(WeightsError) as error:
        make_net(NET).copy_from(path, permissive=True)
    assert "`3 3 (9)`" in str(error.value)
    assert "permissive" not in str(error.value)


def test_gradients_are_saved_on_request(tmp_path):
    net = fill(make_net("name: 'chain' " + CHAIN))
    net.params["a"][0].diff[...] = 0.75
    caffemodel.save(net, tmp_path / "w.caffemodel", diffs=True)
    spec = caffe_pb2.NetParameter.FromString((tmp_path / "w.caffemodel").read_bytes())
    (entry,) = [one for one in spec.layer if one.name == "a"]
    assert set(entry.blobs[0].diff) == {0.75}
    assert len(entry.blobs[0].diff) == len(entry.blobs[0].data)


def test_a_file_that_would_be_too_large_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(caffemodel, "INT_MAX", 100)
    with pytest.raises(WeightsError, match="more than 100 cannot be read by Caffe: use save_hdf5"):
        fill(make_net("name: 'chain' " + CHAIN)).save(tmp_path / "w.caffemodel")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packed", [True, False])
def test_doubles_beyond_single_precision_are_infinite(tmp_path, packed):
    values = np.append(W.astype(float).ravel()[1:], 1e300)
    stored = record(8, floats(values, "d"))
    if not packed:
        stored = b"".join(varint(8 << 3 | 1) + struct.pack("<d", v) for v in values)
    net = load(tmp_path, layer(shape(4, 3) + stored, PACKED[1]))
    assert_array_equal(net.params["a"][0].data.ravel(), [*W.ravel()[1:], np.inf])


def test_a_group_at_the_end_of_a_blob_is_passed_over(tmp_path):
    group = varint(77 << 3 | 3) + number(1, 5) + varint(77 << 3 | 4)
    net = load(tmp_path, layer(PACKED[0] + group, PACKED[1]))
    assert_array_equal(net.params["a"][0].data, W)
