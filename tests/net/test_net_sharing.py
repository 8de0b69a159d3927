"""Which layers share a parameter? Equal names, their shapes and rates, sums of gradients."""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import DZ, INPUT, X, fill, ip

import pycaffe_lite
from pycaffe_lite import Layer, ModelError


def tied(first="", second="", outputs=(3, 3)):
    """x -> ip1 -> y -> ip2 -> z, weights of both named w."""
    return (
        "force_backward: true "
        + INPUT
        + ip("ip1", "x", "y", outputs[0], f"param {{ name: 'w' {first} }}")
        + ip("ip2", "y", "z", outputs[1], f"param {{ name: 'w' {second} }}")
    )


def test_equal_names_are_one_parameter(on_ops):
    net = fill(make_net(tied()))
    one, two = net.params["ip1"], net.params["ip2"]
    assert np.shares_memory(one[0].data, two[0].data)
    assert np.shares_memory(one[0].diff, two[0].diff)
    assert not np.shares_memory(one[1].data, two[1].data)
    one[0].data[...] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert_array_equal(two[0].data[1], [4, 5, 6])


def test_gradients_of_a_shared_parameter_add_up(on_ops):
    net = fill(make_net(tied()))
    w = net.params["ip1"][0].data.astype("f8")
    y = net.forward(blobs=["y"], x=X)["y"].astype("f8")
    net.backward(z=DZ[:, :3])
    wanted = DZ[:, :3].T @ y + (DZ[:, :3] @ w).T @ X
    assert_allclose(net.params["ip2"][0].diff, wanted, rtol=1e-4, atol=1e-4)
    net.clear_param_diffs()
    assert not net.params["ip2"][0].diff.any()


def test_the_owner_is_filled_and_the_sharer_draws_nothing():
    drawn = "{ num_output: 3 weight_filler { type: 'gaussian' } bias_filler { type: 'uniform' } }"
    values = []
    for text in (tied(), INPUT + ip("ip1", "x", "y", 3) + ip("ip2", "y", "z", 3)):
        pycaffe_lite.set_random_seed(5)
        net = make_net(text.replace("{ num_output: 3 }", drawn))
        values.append([blob.data for name in ("ip1", "ip2") for blob in net.params[name]])
    for k in (0, 1):
        assert_array_equal(values[0][k], values[1][k])
    assert_array_equal(values[0][2], values[0][0])
    assert (values[1][2] != values[1][0]).all()


def test_two_parameters_of_one_layer_may_share():
    class TwoAlike(Layer):
        def setup(self, bottom, top):
            self.blobs.add_blob(2, 3)
            self.blobs.add_blob(2, 3)

        def reshape(self, bottom, top):
            top[0].reshape(bottom[0].shape)

    net = make_net(
        INPUT + "layer { name: 't' type: 'TwoAlike' bottom: 'x' top: 'y'"
        " param { name: 'w' } param { name: 'w' } }"
    )
    net.params["t"][0].data[...] = 5
    assert (net.params["t"][1].data == 5).all()


def test_shapes_must_be_equal():
    text = (
        r"layer 'ip2'.*cannot share param 'w' owned by layer 'ip1' with layer 'ip2'; shape"
        r" mismatch.*`4 3 \(12\)`.*`3 4 \(12\)`"
    )
    with pytest.raises(ModelError, match=text):
        make_net(tied(outputs=(4, 3)))


def test_counts_are_enough_where_the_sharing_layer_is_permissive():
    net = make_net(tied(second="share_mode: PERMISSIVE", outputs=(4, 3)))
    net.params["ip1"][0].data[...] = np.arange(12).reshape(4, 3)
    assert_array_equal(net.params["ip2"][0].data, np.arange(12).reshape(3, 4))
    with pytest.raises(ModelError, match="shape mismatch"):
        make_net(tied(first="share_mode: PERMISSIVE", outputs=(4, 3)))


def test_counts_must_be_equal_all_the_same():
    with pytest.raises(ModelError, match=r"count mismatch.*`4 3 \(12\)`.*`5 4 \(20\)`"):
        make_net(tied(second="share_mode: PERMISSIVE", outputs=(4, 5)))


def rates(net):
    return [(p.layer, p.index, p.lr_mult, p.decay_mult) for p in net._parameters.learnable]


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        ("", "", (None, None)),
        ("lr_mult: 2 decay_mult: 3", "", (2, 3)),
        ("", "lr_mult: 2 decay_mult: 3", (2, 3)),
        ("lr_mult: 2", "lr_mult: 2 decay_mult: 5", (2, 5)),
        ("lr_mult: 0", "", (0, None)),
    ],
)
def test_whoever_sets_a_rate_sets_it_for_all(first, second, rate):
    net = make_net(tied(first, second))
    assert rates(net) == [
        ("ip1", 0, *rate), ("ip1", 1, None, None), ("ip2", 1, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["lr_mult", "decay_mult"])
def test_rates_that_disagree(field):
    text = rf"layer 'ip2'.*shared param 'w' has mismatched {field}: 1.0 in layer 'ip1', 2.0 in"
    with pytest.raises(ModelError, match=text):
        make_net(tied(f"{field}: 1", f"{field}: 2"))


def test_a_parameter_of_another_shape_is_refused():
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3] } layer { name: 'ip' type: 'InnerProduct'"
        " bottom: 'x' top: 'y' inner_product_param { num_output: 5 } }"
    )
    net.params["ip"][0].reshape(3, 5)
    with pytest.raises(ModelError, match=r"layer 'ip'.*param 0.*`3 5 \(15\)`.*`5 3 \(15\)`"):
        net.forward()
    net.params["ip"][0].reshape(5, 3)
    net.forward()
    with pytest.raises(TypeError, match="a parameter is a Blob, not ndarray"):
        net.params["ip"].append(np.zeros(3))
