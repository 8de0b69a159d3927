"""Power, Exp, Log and BNLL."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite

SHAPE = (2, 3, 4, 5)


def net_of(snippet, *shape):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        "force_backward: true"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'it' bottom: 'x' top: 'y' {snippet} }}"
    )


def power_of(power, scale, shift):
    return f"type: 'Power' power_param {{ power: {power} scale: {scale} shift: {shift} }}"


@pytest.mark.parametrize(
    ("power", "scale", "shift"),
    [(0, 0.83, -2.4), (1, 0.83, -2.4), (2, 0.34, -2.4), (2, 0.5, -2.4), (2, 0.83, -2.4), (3, 1, 0),
     (2, 0, 1.5)],
)  # fmt: skip
def test_power(ops, power, scale, shift):
    check_layer(
        ops,
        power_of(power, scale, shift),
        bottoms=[SHAPE],
        expect=lambda x: (shift + scale * x) ** power,
    )


@pytest.mark.parametrize(
    ("power", "scale", "shift"), [(0.37, 0.83, 2.4), (0.37, 0.83, 0), (-1.5, 1, 0.5), (0.5, 2, 0)]
)
def test_broken_power_of_positive_bases(ops, power, scale, shift):
    values = np.random.default_rng(3).uniform(0.2, 2, SHAPE)
    check_layer(
        ops,
        power_of(power, scale, shift),
        bottoms=[SHAPE],
        expect=lambda x: np.exp(power * np.log(shift + scale * x)),
        values=[values],
    )


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("shift", [0, -2.4])
def test_broken_power_of_a_negative_base_is_nan(on_ops, shift):
    net = net_of(power_of(0.37, 0.83, shift), 3)
    y = net.forward(x=[-1, -2, 4])["y"]
    assert_array_equal(np.isnan(y), [True, True, False])


def test_power_has_a_gradient_at_zero(on_ops):
    """Caffe's is NaN there where there is no shift."""
    net = net_of(power_of(3, 2, 0), 3)
    net.forward(x=[0, 1, -1])
    assert_array_equal(net.backward(y=[1, 1, 1])["x"], [0, 24, 24])


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_constant_powers(on_ops):
    assert_array_equal(net_of(power_of(0, 3, 5), 2).forward(x=[0, np.nan])["y"], [1, 1])
    assert_array_equal(net_of(power_of(-1, 0, 0), 2).forward(x=[1, 2])["y"], [np.inf] * 2)


@pytest.mark.parametrize(
    ("base", "scale", "shift"),
    [(-1, 1, 0), (2, 1, 0), (2, 1, 1), (2, 3, 0), (2, 3, 1), (-1, 3, 1), (0.5, 1, 1)],
)
def test_exp(ops, base, scale, shift):
    check_layer(
        ops,
        f"type: 'Exp' exp_param {{ base: {base} scale: {scale} shift: {shift} }}",
        bottoms=[SHAPE],
        expect=lambda x: (np.e if base == -1 else base) ** (shift + scale * x),
    )


def test_exp_with_a_shift_that_alone_would_overflow(on_ops):
    net = net_of("type: 'Exp' exp_param { shift: 500 }", 2)
    assert_allclose(net.forward(x=[-500, -499])["y"], [1, np.e], rtol=1e-5)


@pytest.mark.parametrize(
    ("base", "scale", "shift"),
    [(-1, 1, 0), (2, 1, 0), (2, 1, 1), (2, 3, 0), (2, 3, 1), (-1, 3, 1), (0.5, 1, 1)],
)
def test_log(ops, base, scale, shift):
    values = np.exp(np.random.default_rng(3).normal(size=SHAPE))
    check_layer(
        ops,
        f"type: 'Log' log_param {{ base: {base} scale: {scale} shift: {shift} }}",
        bottoms=[SHAPE],
        expect=lambda x: np.log(shift + scale * x) / (1 if base == -1 else np.log(base)),
        values=[values],
        rtol=1e-4,
    )


@pytest.mark.parametrize("type_name", ["Exp", "Log"])
@pytest.mark.parametrize("base", [0, -2])
def test_bases_are_positive(type_name, base):
    text = f"type: '{type_name}' {type_name.lower()}_param {{ base: {base} }}"
    with pytest.raises(pycaffe_lite.ModelError, match=rf"'it' \({type_name}\).*positive.*{base}$"):
        net_of(text, 3)


def test_no_logarithm_to_base_one():
    with pytest.raises(pycaffe_lite.ModelError, match=r"'it' \(Log\).*base must not be 1"):
        net_of("type: 'Log' log_param { base: 1 }", 3)


@pytest.mark.parametrize("shape", [SHAPE, (7,)])
def test_bnll(ops, shape):
    check_layer(
        ops,
        "type: 'BNLL'",
        bottoms=[shape],
        expect=lambda x: np.log(1 + np.exp(x)),
    )


def test_bnll_overflows_nowhere_and_stays_exact_near_zero(on_ops):
    net = net_of("type: 'BNLL'", 4)
    y = net.forward(x=[-1e4, -20, 60, 1e4])["y"]
    assert_allclose(y, [0, np.log1p(np.exp(-20)), 60, 1e4], rtol=1e-6)
    dx = net.backward(y=[3, 3, 3, 3])["x"]
    assert_allclose(dx, [0, 3 / (1 + np.exp(20)), 3, 3], rtol=1e-6)


@pytest.mark.parametrize("type_name", ["Power", "Exp", "Log", "BNLL"])
def test_empty_batch(on_ops, type_name):
    net = net_of(f"type: '{type_name}'", 0, 3, 4)
    assert net.forward()["y"].shape == (0, 3, 4)
    assert net.backward()["x"].shape == (0, 3, 4)
