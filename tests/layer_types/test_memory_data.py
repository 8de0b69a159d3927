"""MemoryData: batches from the user's arrays."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import TRAIN, ModelError

PARAM = "batch_size: 4 channels: 3 height: 5 width: 2"


def layer(param=PARAM, more=""):
    return (
        "layer { name: 'm' type: 'MemoryData' top: 'data' top: 'label'"
        f" memory_data_param {{ {param} }} {more} }}"
    )


def arrays(n):
    """Data and labels of n images, each value once."""
    data = np.arange(n * 30, dtype="f4").reshape(n, 3, 5, 2)
    return data, np.arange(n, dtype="f4") + 0.5


def test_shapes_before_and_after_the_first_forward():
    net = make_net(layer())
    assert net.blobs["data"].shape == (4, 3, 5, 2)
    assert net.blobs["label"].shape == (4,)
    assert net.inputs == []
    net.set_input_arrays(*arrays(8))
    assert net.blobs["label"].shape == (4,)
    net.forward()
    assert net.blobs["label"].shape == (4, 1, 1, 1)
    net.reshape()
    net.forward()
    assert net.blobs["label"].shape == (4, 1, 1, 1)


def test_batches_in_turn_and_around(on_ops):
    net = make_net(layer())
    data, labels = arrays(12)
    net.set_input_arrays(data, labels)
    for k in (0, 1, 2, 0, 1, 2, 0):
        out = net.forward()
        assert_array_equal(out["data"], data[4 * k : 4 * k + 4])
        assert_array_equal(out["label"][:, 0, 0, 0], labels[4 * k : 4 * k + 4])


def test_new_arrays_begin_with_their_first_batch():
    net = make_net(layer())
    data, labels = arrays(12)
    net.set_input_arrays(data, labels)
    net.forward()
    net.set_input_arrays(-data[:8], -labels[:8])
    assert_array_equal(net.forward()["data"], -data[:4])


@pytest.mark.parametrize("restore_first", [False, True])
def test_a_state_in_fewer_images_goes_around(restore_first):
    net = make_net(layer())
    net.set_input_arrays(*arrays(12))
    net.forward()
    net.forward()
    other, (data, labels) = make_net(layer()), arrays(8)
    state = net.layers[0].data_state()
    if restore_first:
        other.layers[0].restore_data_state(state)
    other.set_input_arrays(data, labels)
    if not restore_first:
        other.layers[0].restore_data_state(state)
    assert_array_equal(other.forward()["data"], data[:4])


def test_what_follows_sees_each_batch(on_ops):
    net = make_net(
        layer()
        + """layer { name: 'r' type: 'ReLU' bottom: 'data' top: 'data' }
        layer { name: 'e' type: 'Reduction' bottom: 'data' top: 'sum' reduction_param { axis: 1 } }
        layer { name: 'p' type: 'Power' bottom: 'label' top: 'p' power_param { scale: 2 } }
        layer { name: 's' type: 'Silence' bottom: 'label' }""",
        TRAIN,
    )
    data, labels = arrays(8)
    data -= 100
    before = data.copy()
    net.set_input_arrays(data, labels)
    for k in (0, 4, 0):
        out = net.forward()
        wanted = np.maximum(before[k : k + 4], 0).sum(axis=(1, 2, 3))
        assert_array_equal(out["sum"], wanted)
        assert_array_equal(out["p"], 2 * labels[k : k + 4].reshape(4, 1, 1, 1))
    assert_array_equal(data, before)


def test_a_shape_that_the_user_gives_is_set_back():
    net = make_net(layer())
    data, labels = arrays(4)
    net.set_input_arrays(data, labels)
    net.blobs["data"].reshape(1, 3, 7, 2)
    assert_array_equal(net.forward()["data"], data)


def test_without_arrays():
    net = make_net(layer())
    with pytest.raises(ModelError, match=r"layer 'm' \(MemoryData\): MemoryDataLayer needs to be"):
        net.forward()


@pytest.mark.parametrize("missing", ["batch_size", "channels", "height", "width"])
def test_all_sizes_must_be_given(missing):
    rest = " ".join(w + " 3" for w in PARAM.split() if w.endswith(":") and w != missing + ":")
    with pytest.raises(ModelError, match="must be specified and positive in memory_data_param"):
        make_net(layer(rest))


def test_two_tops():
    with pytest.raises(ModelError, match="MemoryData layer produces 2 top"):
        make_net(layer().replace("top: 'label'", ""))


def test_a_transformation_is_not_applied_and_said_so(caplog):
    net = make_net(layer(more="transform_param { scale: 2 }"))
    data, labels = arrays(4)
    with caplog.at_level(logging.WARNING, "pycaffe_lite"):
        net.set_input_arrays(data, labels)
    assert "'m' (MemoryData) does not transform arrays" in caplog.text
    assert_array_equal(net.forward()["data"], data)
