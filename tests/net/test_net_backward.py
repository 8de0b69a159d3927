"""What takes part in backward? Needs, loss weights, learning rates."""

from __future__ import annotations

import numpy as np
import pytest
import small_layers  # noqa: F401  (defines SquaredGap, Sum)
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import DZ, INPUT, X, fill, ip

from pycaffe_lite import Layer

DATA = "input: 'data' input: 'label' input_shape { dim: [2, 3] } input_shape { dim: [2, 3] }\n"


class GapToLabel(Layer):
    """Like SquaredGap, its second bottom a label that no gradient is ever forced on."""

    bottoms, loss = 2, True

    def allow_force_backward(self, index):
        return index != 1

    def reshape(self, bottom, top):
        top[0].reshape()

    def forward(self, bottom, top):
        gap = bottom[0].data - bottom[1].data
        top[0].data[...] = (gap * gap).sum() / 2

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = (bottom[0].data - bottom[1].data) * top[0].diff


def neuron(kind, name, bottom, top, more=""):
    return f"layer {{ name: '{name}' type: '{kind}' bottom: '{bottom}' top: '{top}' {more} }}\n"


def gap(kind, a, b, more=""):
    return (
        f"layer {{ name: 'loss' type: '{kind}' bottom: '{a}' bottom: '{b}' top: 'loss' {more} }}\n"
    )


def needs(net):
    """Layer -> for each bottom: does it get a gradient? None where the layer sits backward out."""
    return {
        name: list(step.propagate_down) if step.needs_backward else None
        for name, step in zip(net._layer_names, net._steps, strict=True)
    }


# ---- who needs backward ------------------------------------------------------------------------

TO_LOSS = DATA + ip("ip", "data", "y", 3)
TWO_SIDES = (
    DATA + ip("a", "data", "a", 3) + ip("b", "label", "b", 3) + neuron("TanH", "t", "b", "t")
)
FORCE = "force_backward: true "
OFF = None
NEEDS = {
    "data needs none": (
        TO_LOSS + gap("SquaredGap", "y", "label"),
        {"ip": [False], "loss": [True, False]},
    ),
    "forced": (
        FORCE + TO_LOSS + gap("SquaredGap", "y", "label"),
        {"input": [], "ip": [True], "loss": [True, True]},
    ),
    "a label is never forced": (
        FORCE + TO_LOSS + gap("GapToLabel", "y", "label"),
        {"ip": [True], "loss": [True, False]},
    ),
    "parameters on both sides": (
        TWO_SIDES + gap("SquaredGap", "a", "t"),
        {"a": [False], "b": [False], "t": [True], "loss": [True, True]},
    ),
    "a label that learns": (
        TWO_SIDES + gap("GapToLabel", "a", "t"),
        {"b": [False], "t": [True], "loss": [True, True]},
    ),
    "a label that learns, forced": (
        FORCE + TWO_SIDES + gap("GapToLabel", "a", "t"),
        {"a": [True], "b": [True], "t": [True], "loss": [True, True]},
    ),
    "one side cut": (
        TWO_SIDES + gap("SquaredGap", "a", "t", "propagate_down: [true, false]"),
        {"a": [False], "b": OFF, "t": OFF, "loss": [True, False]},
    ),
    "both sides asked for": (
        TWO_SIDES + gap("SquaredGap", "a", "t", "propagate_down: [true, true]"),
        {"b": [False], "t": [True], "loss": [True, True]},
    ),
    "forced by a layer": (
        DATA + ip("ip", "data", "y", 3, "propagate_down: true") + gap("SquaredGap", "y", "label"),
        {"ip": [True], "loss": [True, False]},
    ),
    "asked for below a layer without parameters": (
        DATA
        + neuron("TanH", "t", "data", "t", "propagate_down: true")
        + ip("ip", "t", "y", 3)
        + gap("SquaredGap", "y", "label"),
        {"t": OFF, "ip": [False], "loss": [True, False]},
    ),
    "no loss": (DATA + ip("ip", "data", "y", 3), {"ip": OFF}),
    "no loss, forced": (FORCE + DATA + ip("ip", "data", "y", 3), {"ip": [True]}),
    "beside the loss": (
        TO_LOSS + ip("aside", "y", "aside", 4) + gap("SquaredGap", "y", "label"),
        {"aside": OFF, "y_ip_0_split": [True], "ip": [False], "loss": [True, False]},
    ),
    "a loss in the middle": (
        INPUT + ip("a", "x", "a", 4, "loss_weight: 2") + ip("b", "a", "b", 5),
        {"a": [False], "b": OFF, "a_a_0_split": [True]},
    ),
    "nothing learns": (
        INPUT + neuron("TanH", "t", "x", "t", "loss_weight: 1"),
        {"t": OFF},
    ),
    "frozen": (
        INPUT
        + ip("a", "x", "a", 4, "param { lr_mult: 0 } param { lr_mult: 0 }")
        + ip("b", "a", "b", 5, "loss_weight: 1"),
        {"a": OFF, "b": [False]},
    ),
    "half frozen": (
        INPUT
        + ip("a", "x", "a", 4, "param { lr_mult: 0 } param { lr_mult: 1 }")
        + ip("b", "a", "b", 5, "loss_weight: 1"),
        {"a": [False], "b": [True]},
    ),
    "frozen by one entry for two parameters": (
        INPUT
        + ip("a", "x", "a", 4, "param { lr_mult: 0 }")
        + ip("b", "a", "b", 5, "loss_weight: 1"),
        {"a": [False], "b": [True]},
    ),
    "a negative rate learns too": (
        INPUT
        + ip("a", "x", "a", 4, "param { lr_mult: -1 } param { lr_mult: 0 }")
        + ip("b", "a", "b", 5, "loss_weight: 1"),
        {"a": [False], "b": [True]},
    ),
    "through an in-place layer": (
        INPUT
        + ip("a", "x", "a", 4)
        + neuron("ReLU", "r", "a", "a")
        + ip("b", "a", "b", 5, "loss_weight: 1"),
        {"a": [False], "r": [True], "b": [True]},
    ),
    "cut in the middle of a chain": (
        INPUT
        + ip("a", "x", "a", 4)
        + neuron("ReLU", "r", "a", "a")
        + ip("b", "a", "b", 5, "loss_weight: 1 propagate_down: false"),
        {"a": OFF, "r": OFF, "b": [False]},
    ),
}


# https://github.com/BVLC/caffe/pull/3942
# https://github.com/BVLC/caffe/pull/3007
@pytest.mark.parametrize("case", NEEDS)
def test_who_needs_backward(case):
    text, wanted = NEEDS[case]
    found = needs(make_net(text))
    assert {name: found[name] for name in wanted} == wanted


# https://github.com/BVLC/caffe/issues/5594
def test_gradients_that_nobody_needs_stay_as_they_are(on_ops):
    net = fill(make_net(TWO_SIDES + gap("SquaredGap", "a", "t", "propagate_down: [true, false]")))
    for blobs in net.params.values():
        for blob in blobs:
            blob.diff[...] = 7
    net.forward(data=X, label=X)
    net.backward()
    assert (net.params["b"][0].diff == 7).all()
    assert (net.params["a"][0].diff != 7).all()


# https://github.com/BVLC/caffe/issues/4984
def test_a_parameter_that_does_not_learn_gets_no_gradient(on_ops):
    """The other parameters' gradients are what they are without that."""

    def diffs(more):
        net = fill(
            make_net(INPUT + ip("a", "x", "a", 4, more) + ip("b", "a", "b", 5, "loss_weight: 1"))
        )
        net.forward(x=X)
        net.backward()
        return [blob.diff.copy() for name in "ab" for blob in net.params[name]]

    free = diffs("")
    for more, frozen in (
        ("param { lr_mult: 0 }", {0}),
        ("param { } param { lr_mult: 0 }", {1}),
        ("param { lr_mult: 0 } param { lr_mult: 0 }", {0, 1}),
        ("param { lr_mult: 9 } param { lr_mult: -2 }", set()),
    ):
        for k, (got, wanted) in enumerate(zip(diffs(more), free, strict=True)):
            assert_array_equal(got, np.zeros_like(wanted) if k in frozen else wanted)
    assert all(diff.any() for diff in free)


def test_forcing_makes_frozen_parameters_compute_theirs_too(on_ops):
    frozen = ip("b", "x", "z", 5, "param { lr_mult: 0 } param { lr_mult: 0 }")
    net = fill(make_net(FORCE + INPUT + frozen))
    net.forward(x=X)
    net.backward(z=DZ)
    assert_allclose(net.params["b"][0].diff, DZ.T @ X, rtol=1e-5, atol=1e-5)


# https://github.com/BVLC/caffe/issues/583
def test_input_gradients_in_a_net_without_a_loss(on_ops):
    """Only where they are forced."""
    for head, found in (("", False), (FORCE, True)):
        net = fill(make_net(head + INPUT + ip("b", "x", "z", 5)))
        net.forward(x=X)
        dx = net.backward(z=DZ)["x"]
        assert dx.any() == found
        if found:
            assert_allclose(dx, DZ @ net.params["b"][0].data.astype("f8"), rtol=1e-5, atol=1e-5)


# https://github.com/BVLC/caffe/issues/583, https://github.com/philkr/magic_init/issues/2
def test_backward_where_nothing_needs_it_warns_and_leaves_zeros(on_ops, caplog):
    net = fill(make_net(INPUT + ip("b", "x", "z", 5)))
    net.forward(x=X)
    assert not net.backward(z=DZ)["x"].any()
    assert "nothing in net '' needs it" in caplog.text
    assert "`force_backward: true`" in caplog.text


# ---- loss weights ------------------------------------------------------------------------------

MIDDLE = (
    FORCE
    + DATA
    + ip("a", "data", "a", 4, "%s")
    + ip("b", "a", "b", 3)
    + gap("SquaredGap", "b", "label", "%s")
)


def loss_and_gradients(main="", middle=""):
    net = fill(make_net(MIDDLE % (middle, main)))
    net.blobs["data"].data[...] = X
    net.blobs["label"].data[...] = X[::-1]
    loss = net._forward(0, len(net.layers) - 1)
    net._backward(len(net.layers) - 1, 0)
    found = [blob.diff.astype("f8") for name in "ab" for blob in net.params[name]]
    value = float(net.blobs["loss"].data), float(net.blobs["a"].data.astype("f8").sum())
    return loss, [net.blobs["data"].diff.astype("f8"), *found], value


@pytest.mark.parametrize("weight", [2, 0, 1, -1, -2.5, 3.7])
def test_loss_and_gradients_scale_with_the_weight(on_ops, weight):
    loss, grads, (value, _) = loss_and_gradients()
    assert_allclose(loss, value, rtol=1e-6)
    scaled, scaled_grads, _ = loss_and_gradients(f"loss_weight: {weight}")
    assert_allclose(scaled, weight * value, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(scaled_grads, grads, strict=True):
        assert wanted.any()
        assert_allclose(got, weight * wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("main", "middle"), [(1, 2), (2.5, -1), (0, 3)])
def test_weighted_losses_add_up(on_ops, main, middle):
    """The gradient is linear in either weight."""
    loss, grads, (value, total) = loss_and_gradients(
        f"loss_weight: {main}", f"loss_weight: {middle}"
    )
    assert_allclose(loss, main * value + middle * total, rtol=1e-5, atol=1e-5)
    alone = loss_and_gradients("loss_weight: 1")[1]
    other = loss_and_gradients("loss_weight: 0", "loss_weight: 1")[1]
    for got, one, two in zip(grads, alone, other, strict=True):
        assert_allclose(got, main * one + middle * two, rtol=1e-4, atol=1e-4)


def test_the_weight_of_a_shared_blob_is_in_the_loss_copy():
    net = make_net(MIDDLE % ("loss_weight: 2.5", ""))
    weights = {k: w for k, w in net.blob_loss_weights.items() if w}
    assert weights == {"a_a_0_split_0": 2.5, "loss": 1}
    assert (net.blobs["a_a_0_split_0"].diff == 2.5).all()


def test_the_gradient_of_a_loss_holds_its_weight_from_the_start():
    net = make_net(INPUT + ip("a", "x", "y", 4, "loss_weight: 3"))
    assert_array_equal(net.blobs["y"].diff, np.full((2, 4), 3))
    net.blobs["x"].reshape(5, 3)
    net.reshape()
    assert_array_equal(net.blobs["y"].diff, np.full((5, 4), 3))
    net.blobs["x"].reshape(1, 3)
    net.forward()
    assert_array_equal(net.blobs["y"].diff, np.full((1, 4), 3))


def test_a_loss_gradient_that_the_user_sets_stays(on_ops):
    """Through forward, backward and a reshape to the same shape."""
    net = fill(make_net(INPUT + ip("a", "x", "y", 4, "loss_weight: 3")))
    net.blobs["y"].diff[...] = 0.5
    for _ in range(2):
        net.blobs["x"].data[...] = X
        loss = net._forward(0, 1)
        assert_allclose(loss, net.blobs["y"].data.astype("f8").sum() / 2, rtol=1e-5, atol=1e-5)
        net.clear_param_diffs()
        net.backward()
        assert_allclose(net.params["a"][1].diff, [1, 1, 1, 1])
        net.reshape()
    assert (net.blobs["y"].diff == 0.5).all()


def test_a_loss_in_place_keeps_its_weight(on_ops):
    """Though the bottom's gradient is written over it."""
    net = make_net(INPUT + ip("a", "x", "y", 4) + neuron("TanH", "t", "y", "y", "loss_weight: 2"))
    fill(net)
    slope = 2 * (1 - np.tanh(X @ net.params["a"][0].data.T + net.params["a"][1].data) ** 2)
    for _ in range(3):
        net.forward(x=X)
        net.clear_param_diffs()
        net.backward()
        assert_allclose(net.params["a"][1].diff, slope.sum(axis=0), rtol=1e-4, atol=1e-6)
        assert_allclose(net._forward(0, 2), 2 * net.blobs["y"].data.sum(), rtol=1e-5, atol=1e-5)


def test_a_loss_of_part_of_the_layers():
    net = fill(make_net(MIDDLE % ("loss_weight: 2", "")))
    net.forward(data=X, label=X)
    last = len(net.layers) - 1
    pieces = [net._forward(k, k) for k in range(last + 1)]
    assert np.count_nonzero(pieces) == 2
    assert_allclose(sum(pieces), net._forward(0, last), rtol=1e-6)
    assert isinstance(pieces[0], float)


def test_a_split_adds_up_what_its_readers_want(on_ops):
    net = make_net(
        FORCE
        + "input: 'x' input_shape { dim: 3 }"
        + neuron("TanH", "a", "x", "a")
        + neuron("TanH", "b", "x", "b")
        + neuron("TanH", "c", "x", "c")
    )
    x = np.array([0.5, -1, 2])
    net.forward(x=x)
    dx = net.backward(a=[1, 1, 1], b=[10, 20, 30], c=[0, 0, 5])["x"]
    assert_allclose(dx, (1 - np.tanh(x) ** 2) * [11, 21, 36], rtol=1e-5, atol=1e-5)


def test_one_layer_reading_a_blob_twice(on_ops):
    net = make_net(
        FORCE
        + "input: 'x' input_shape { dim: 3 }"
        + "layer { name: 's' type: 'Sum' bottom: 'x' bottom: 'x' top: 'y' }"
    )
    assert_array_equal(net.forward(x=[1, 2, 3])["y"], [2, 4, 6])
    assert_array_equal(net.backward(y=[1, 10, 100])["x"], [2, 20, 200])


@pytest.mark.parametrize("given", ["", "loss_weight: 1"])
def test_a_loss_that_another_layer_reads_keeps_its_weight(given, on_ops):
    """The total is loss + 3 loss, whether the weight 1 is written down or the loss layer's own."""
    net = make_net(
        "force_backward: true input: 'x' input: 't' input_shape { dim: [2, 3] }"
        " input_shape { dim: [2, 3] }"
        f" layer {{ name: 'L' type: 'EuclideanLoss' bottom: 'x' bottom: 't' top: 'loss' {given} }}"
        " layer { name: 'p' type: 'Power' bottom: 'loss' top: 'q' power_param { scale: 3 }"
        " loss_weight: 1 }"
    )
    net.blobs["x"].data[...] = [[1, 2, 3], [4, 5, 6]]
    for _ in range(3):
        assert net._forward(0, len(net.layers) - 1) == pytest.approx(4 * 91 / 4)
        net._backward(len(net.layers) - 1, 0)
        assert_allclose(net.blobs["x"].diff, 4 * net.blobs["x"].data / 2)


def test_a_loss_that_ends_in_silence_trains_all_the_same(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input: 't' input_shape { dim: [2, 3] }"
        " input_shape { dim: [2, 3] }"
        " layer { name: 'L' type: 'EuclideanLoss' bottom: 'x' bottom: 't' top: 'loss' }"
        " layer { name: 's' type: 'Silence' bottom: 'loss' }"
    )
    net.blobs["x"].data[...] = 4
    for _ in range(2):
        net.forward()
        net.backward()
        assert_allclose(net.blobs["x"].diff, 2)
