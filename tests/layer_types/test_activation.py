"""Elementwise layers and dropout."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import device


@pytest.mark.parametrize("slope", [0, 0.25])
def test_relu(ops, slope):
    check_layer(
        ops,
        f"type: 'ReLU' relu_param {{ negative_slope: {slope} }}",
        bottoms=[(2, 3, 5, 7)],
        expect=lambda x: np.where(x > 0, x, slope * x),
        kink=0.0,
    )


def test_relu_keeps_nan_and_infinity(on_ops):
    net = make_net(
        "input: 'x' input_shape { dim: 4 } layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }"
    )
    y = net.forward(x=np.array([np.nan, np.inf, -np.inf, -1], np.float32))["y"]
    assert_array_equal(y, [np.nan, np.inf, 0, 0])


def test_sigmoid(ops):
    check_layer(
        ops,
        "type: 'Sigmoid'",
        bottoms=[(2, 3, 5, 7)],
        expect=lambda x: 1 / (1 + np.exp(-x)),
    )


def test_tanh(ops):
    check_layer(
        ops,
        "type: 'TanH'",
        bottoms=[(2, 3, 5, 7)],
        expect=lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    )


@pytest.mark.parametrize(("type_name", "low"), [("TanH", -1.0), ("Sigmoid", 0.0)])
def test_saturation(on_ops, type_name, low):
    net = make_net(
        "input: 'x' input_shape { dim: 3 }"
        f" layer {{ name: 'l' type: '{type_name}' bottom: 'x' top: 'y' }}"
    )
    y = net.forward(x=np.array([-1e4, 1e4, 0], np.float32))["y"]
    assert_array_equal(y, [low, 1, (1 + low) / 2])


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_in_test_phase_is_the_identity(ops, ratio):
    check_layer(
        ops,
        f"type: 'Dropout' dropout_param {{ dropout_ratio: {ratio} }}",
        bottoms=[(2, 3, 5)],
        expect=lambda x: x,
    )


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_in_train_phase(ops, ratio):
    snippet = f"type: 'Dropout' dropout_param {{ dropout_ratio: {ratio} }}"
    check_layer(ops, snippet, bottoms=[(2, 3, 5)], expect=None, phase="TRAIN")


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_keeps_the_right_share_and_scales_it(on_ops, ratio):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: 40 dim: 50 }"
        " layer { name: 'd' type: 'Dropout' bottom: 'x' top: 'y'"
        f" dropout_param {{ dropout_ratio: {ratio} }} }}",
        pycaffe_lite.TRAIN,
    )
    x = np.linspace(1, 2, 2000, dtype=np.float32).reshape(40, 50)
    y = net.forward(x=x)["y"].copy()
    kept = y != 0
    assert_allclose(y[kept], x[kept] / (1 - ratio), rtol=1e-6)
    bound = 4 * np.sqrt(ratio * (1 - ratio) / x.size)
    assert abs(kept.mean() - (1 - ratio)) < bound
    dx = net.backward(y=np.ones_like(x))["x"]
    assert_allclose(dx, kept / (1 - ratio), rtol=1e-6)
    assert (net.forward(x=x)["y"] != y).any()


def test_dropout_repeats_with_the_seed(on_ops):
    net = make_net(
        "input: 'x' input_shape { dim: 30 }"
        " layer { name: 'd' type: 'Dropout' bottom: 'x' top: 'y' }",
        pycaffe_lite.TRAIN,
    )
    drawn = []
    for seed in (3, 3, 4):
        pycaffe_lite.set_random_seed(seed)
        drawn.append(net.forward(x=np.ones(30, np.float32))["y"].copy())
    assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("ratio", [0, 1, 1.5])
def test_dropout_ratio_must_be_a_share(ratio):
    with pytest.raises(pycaffe_lite.ModelError, match=f"dropout_ratio .*{ratio}"):
        make_net(
            "input: 'x' input_shape { dim: 3 } layer { name: 'd' type: 'Dropout' bottom: 'x'"
            f" top: 'y' dropout_param {{ dropout_ratio: {ratio} }} }}"
        )


def test_mode_is_asked_at_each_forward(ops):
    """A net made on the CPU runs on another backend from the next forward on."""
    net = make_net(
        "input: 'x' input_shape { dim: 3 } layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }"
    )
    x = np.array([-1, 2, 3], np.float32)
    assert_array_equal(net.forward(x=x)["y"], [0, 2, 3])
    with device.pretend(ops):
        assert_array_equal(net.forward(x=-x)["y"], [1, 0, 0])
        assert net.layers[-1].ops is ops
    assert_array_equal(net.forward()["y"], [1, 0, 0])
