"""Records of a serialized message, against protobuf's own parser."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from pycaffe_lite import ModelError, WeightsError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.weights.caffemodel import layers_of
from pycaffe_lite.weights.stored_blob import from_message
from pycaffe_lite.weights.wire import BYTES, END_GROUP, VARINT, Wire, WireError, header


def records(content):
    wire = Wire(io.BytesIO(content))
    return list(wire.records(0, wire.size))


def test_records_of_every_wire_type():
    content = (
        b"\x08\x96\x01"  # field 1, a number: 150
        b"\x11ABCDEFGH"  # field 2, 8 bytes
        b"\x1a\x03abc"  # field 3, 3 bytes
        b"\x23\x08\x01\x2b\x2c\x24"  # field 4, a group with a number and a group 5 in it
        b"\x2dABCD"  # field 5, 4 bytes
    )
    found = records(content)
    assert [(r.field, r.wire_type, r.start, r.end) for r in found] == [
        (1, VARINT, 1, 3),
        (2, 1, 4, 12),
        (3, BYTES, 14, 17),
        (5, 5, 24, 28),
    ]
    assert found[0].number == 150


@pytest.mark.parametrize(
    "content",
    [
        b"\x08",  # no number
        b"\x08\x80",  # its end is missing
        b"\x08" + b"\xff" * 11,  # longer than any
        b"\x11ABC",
        b"\x1a\x05abc",
        b"\x00\x01",  # field 0
        b"\x0e\x01",  # wire type 6
        b"\x23\x08\x01",  # a group without an end
        b"\x23\x2c",  # ended by another's
        b"\x24",  # an end without a group
        b"\x23" * 200 + b"\x24" * 200,
    ],
)
def test_what_is_no_message(content):
    with pytest.raises(WireError, match="byte"):
        records(content)
    with pytest.raises(DecodeError):
        caffe_pb2.NetState.FromString(content)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 2**31 + 5])
def test_headers(size):
    head = header(100, size)
    (record,) = Wire(io.BytesIO(head)).records(0, len(head) + size)
    assert record == (100, BYTES, len(head), len(head) + size, 0)


def test_the_group_end_is_not_among_the_wire_types_of_records():
    assert all(r.wire_type != END_GROUP for r in records(b"\x23\x24\x08\x01"))


def a_net(rng):
    net = caffe_pb2.NetParameter(name="n")
    for k in range(3):
        layer = net.layer.add(name=f"l{k}", type="Convolution", bottom=["x"], loss_weight=[0.5])
        layer.convolution_param.kernel_size[:] = [3, 2]
        for shape in ((2, 3), (4,), ()):
            blob = layer.blobs.add(shape=caffe_pb2.BlobShape(dim=shape))
            field = (blob.data, blob.double_data, blob.data)[k]
            field.extend(rng.standard_normal(shape).ravel().tolist())
    return net


def test_mutated_messages_are_read_as_protobuf_reads_them_or_refused(rng):
    """What protobuf refuses may pass only where the damage is in what is not read here."""
    whole = a_net(rng).SerializeToString()
    refused = agreed = 0
    for _ in range(2000):
        content = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(content)))
            if rng.random() < 0.3:
                del content[at : at + int(rng.integers(1, 9))]
            else:
                content[at] = rng.integers(256)
        content = bytes(content)
        try:
            found = layers_of(io.BytesIO(content), "w")
        except WeightsError:
            refused += 1
            continue
        try:
            expected = caffe_pb2.NetParameter.FromString(content)
        except DecodeError:
            continue
        got = [blob.array().ravel() for _, blobs in found for blob in blobs]
        wanted = [
            np.array(blob.double_data or blob.data, np.float64)
            for layer in expected.layer or expected.layers
            for blob in layer.blobs
        ]
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b.astype(a.dtype))
        agreed += 1
    assert refused > 300
    assert agreed > 300


def test_a_length_beyond_the_file_allocates_nothing():
    content = header(100, 2**40) + b"\x3a"
    tracemalloc.start()
    with pytest.raises(WeightsError, match=r"w: it is damaged or cut short \(a record ends at"):
        layers_of(io.BytesIO(content), "w")
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_blob_with_a_negative_dimension():
    blob = caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=[-2, -3]), data=[0] * 6)
    with pytest.raises(ModelError, match=r"must not be negative: \(-2, -3\)"):
        from_message(blob)


def test_dimensions_in_several_records_and_not_packed():
    shape = b"\x0a\x01\x02" + b"\x08\x03"  # dim packed: [2]; then 3 alone
    blob = caffe_pb2.BlobProto.FromString(header(7, len(shape)) + shape)
    content = header(7, len(shape)) + shape + header(5, 24) + np.arange(6, dtype="<f4").tobytes()
    blob = caffe_pb2.BlobProto.FromString(content)
    assert list(blob.shape.dim) == [2, 3]
    np.testing.assert_array_equal(from_message(blob).array(), [[0, 1, 2], [3, 4, 5]])
