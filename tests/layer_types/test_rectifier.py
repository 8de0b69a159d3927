"""Activations of forks with cut off ends, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

ENDS = np.array([-4.0, -3.0, -2.9, -0.5, 0.4, 2.9, 5.8, 6.3, 7.0, 2.0, -1.0, 1.1]).reshape(2, 3, 2)


def by_value(function):
    return lambda x: np.array([function(v) for v in x.ravel()]).reshape(x.shape)


@pytest.mark.parametrize("slope", [0, 0.25])
def test_relu6(ops, slope):
    check_layer(
        ops,
        f"type: 'ReLU6' relu6_param {{ negative_slope: {slope} }}",
        bottoms=[ENDS.shape],
        expect=by_value(lambda v: min(v, 6) if v > 0 else slope * v),
        values=[ENDS],
    )


def test_relu6_with_another_threshold(ops):
    check_layer(
        ops,
        "type: 'ReLU6' relu6_param { threshold: 1.5 }",
        bottoms=[ENDS.shape],
        expect=by_value(lambda v: min(max(v, 0), 1.5)),
        values=[ENDS],
    )


@pytest.mark.parametrize(
    ("type_name", "param", "at", "slopes"),
    [
        ("ReLU6", "", [0, 6, 1], [0, 0, 1]),
        ("NegReLU", "relu_param { negative_slope: 0.5 }", [0, -1, 1], [0.5, 1, 0.5]),
        ("HardSigmoid", "", [-2.5, 2.5, 0], [0, 0, np.float32(0.2)]),
        ("HardSwish", "", [-3, 3, 0], [0, 1, 0.5]),
        ("CReLU", "", [0], [0]),
    ],
)
def test_gradients_at_the_ends(on_ops, type_name, param, at, slopes):
    net = make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: [1, {len(at)}] }}"
        f" layer {{ name: 'it' type: '{type_name}' bottom: 'x' top: 'y' {param} }}"
    )
    y = net.forward(x=np.array([at]))["y"]
    assert_array_equal(net.backward(y=np.ones_like(y))["x"], np.array([slopes], dtype="f4"))


@pytest.mark.parametrize("slope", [0, 0.2])
def test_neg_relu(ops, slope):
    check_layer(
        ops,
        f"type: 'NegReLU' relu_param {{ negative_slope: {slope} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: np.where(x < 0, x, slope * x),
        kink=0.0,
    )


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_crelu(ops, shape):
    check_layer(
        ops,
        "type: 'CReLU'",
        bottoms=[shape],
        expect=lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=1),
        kink=0.0,
    )


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.5), (0.125, 0.25), (-0.5, 1)])
def test_hard_sigmoid(ops, alpha, beta):
    check_layer(
        ops,
        f"type: 'HardSigmoid' hardsigmoid_param {{ alpha: {alpha} beta: {beta} }}",
        bottoms=[ENDS.shape],
        expect=by_value(lambda v: min(max(alpha * v + beta, 0), 1)),
        values=[ENDS + 0.01],
    )


@pytest.mark.parametrize("values", [ENDS + 0.01, 0.5 * ENDS.T])
def test_hard_swish(ops, values):
    check_layer(
        ops,
        "type: 'HardSwish'",
        bottoms=[values.shape],
        expect=by_value(lambda v: v * min(max(v + 3, 0), 6) / 6),
        values=[values],
    )


@pytest.mark.parametrize("type_name", ["ReLU6", "NegReLU", "CReLU", "HardSigmoid", "HardSwish"])
def test_an_empty_batch(on_ops, type_name):
    net = make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: [0, 3, 4] }} layer {{ name: 'it'"
        f" type: '{type_name}' bottom: 'x' top: 'y' }}"
    )
    assert net.forward()["y"].size == 0
    assert net.backward()["x"].shape == (0, 3, 4)
