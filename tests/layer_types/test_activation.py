"""Elementwise layers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import device


@pytest.mark.parametrize("slope", [0, 0.01, 0.25])
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


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4,)])
def test_sigmoid(ops, shape):
    check_layer(
        ops,
        "type: 'Sigmoid'",
        bottoms=[shape],
        expect=lambda x: 1 / (1 + np.exp(-x)),
    )


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4,)])
def test_tanh(ops, shape):
    check_layer(
        ops,
        "type: 'TanH'",
        bottoms=[shape],
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


@pytest.mark.parametrize("spread", [1, 10_000])
def test_tanh_of_any_size_is_its_definition(on_ops, rng, spread):
    """Beyond 40 the definition in exponentials is 1 to the last digit."""
    x = rng.normal(scale=spread, size=(2, 3, 4, 5)).astype(np.float32)
    y = net_of("type: 'TanH'", *x.shape).forward(x=x)["y"]
    e = np.exp(2 * np.clip(x.astype(float), -40, 40))
    assert_allclose(y, (e - 1) / (e + 1), rtol=1e-5, atol=1e-6)


# https://github.com/NVIDIA/TensorRT/issues/179: one slope a channel, whatever axes follow
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3), (2, 5, 3)])
def test_prelu_has_a_slope_a_channel(ops, shape):
    def prelu(x, a):
        a = a.reshape(shape[1], *[1] * (len(shape) - 2))
        return np.maximum(x, 0) + a * np.minimum(x, 0)

    check_layer(ops, "type: 'PReLU'", bottoms=[shape], expect=prelu, kink=0.0)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3)])
def test_prelu_with_one_slope_for_all_channels(ops, shape):
    check_layer(
        ops,
        "type: 'PReLU' prelu_param { channel_shared: true }",
        bottoms=[shape],
        expect=lambda x, a: np.maximum(x, 0) + a * np.minimum(x, 0),
        kink=0.0,
    )


def net_of(snippet, *shape):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        "force_backward: true"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'it' bottom: 'x' top: 'y' {snippet} }}"
    )


def test_prelu_slopes_start_at_a_quarter_or_as_the_filler_says():
    prelu = net_of("type: 'PReLU'", 2, 3, 4, 5).params["it"]
    assert [blob.shape for blob in prelu] == [(3,)]
    assert_array_equal(prelu[0].data, [0.25] * 3)
    filler = "filler { type: 'constant' value: 0.5 }"
    (slope,) = net_of(
        f"type: 'PReLU' prelu_param {{ channel_shared: true {filler} }}", 2, 3
    ).params["it"]
    assert slope.shape == ()
    assert slope.data == 0.5


def test_prelu_of_a_quarter_is_the_leaky_relu(on_ops, rng):
    """Bit for bit, forward and backward."""
    x, dy = rng.standard_normal((2, 2, 3, 4, 5)).astype(np.float32)
    results = []
    for snippet in ("type: 'PReLU'", "type: 'ReLU' relu_param { negative_slope: 0.25 }"):
        net = net_of(snippet, 2, 3, 4, 5)
        y = net.forward(x=x)["y"].copy()
        results.append((y, net.backward(y=dy)["x"].copy()))
    assert_array_equal(results[0], results[1])


def test_prelu_in_place_behind_a_product(on_ops, rng):
    """Output, and all gradients, are those of the net that uses a blob of its own."""
    x, dy = rng.standard_normal((4, 5)), rng.standard_normal((4, 3))
    results = []
    for top in ("p", "y"):
        net = make_net(
            "force_backward: true"
            " layer { name: 'in' type: 'Input' top: 'x' input_param { shape { dim: 4 dim: 5 } } }"
            " layer { name: 'p' type: 'InnerProduct' bottom: 'x' top: 'p' inner_product_param {"
            " num_output: 3 weight_filler { type: 'gaussian' } } }"
            f" layer {{ name: 'a' type: 'PReLU' bottom: 'p' top: '{top}' }}"
        )
        blobs = [*net.params["p"], *net.params["a"]]
        for k, blob in enumerate(blobs):
            blob.data[...] = np.random.default_rng(k).standard_normal(blob.shape)
        y = net.forward(x=x)[top].copy()
        dx = net.backward(**{top: dy})["x"]
        results.append([y, dx, *(blob.diff for blob in blobs)])
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)
        assert one.any()


def test_prelu_needs_channels():
    with pytest.raises(pycaffe_lite.ModelError, match=r"'it' \(PReLU\).*>= 2, got 1"):
        net_of("type: 'PReLU'", 3)


def test_prelu_refuses_another_number_of_channels():
    net = net_of("type: 'PReLU'", 2, 3, 4)
    net.blobs["x"].reshape(2, 5, 4)
    with pytest.raises(pycaffe_lite.ModelError, match=r"'it' \(PReLU\).*is 3.* 5 channels"):
        net.forward()


@pytest.mark.parametrize("alpha", [1, 0.5, 0, -0.5])
def test_elu(ops, alpha):
    check_layer(
        ops,
        f"type: 'ELU' elu_param {{ alpha: {alpha} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1)),
        kink=0.0,
    )


@pytest.mark.parametrize("beta", [1, 1.5, 0, -2])
def test_swish(ops, beta):
    check_layer(
        ops,
        f"type: 'Swish' swish_param {{ beta: {beta} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: x / (1 + np.exp(-beta * x)),
    )


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (0, 0.5), (0.25, 0.25)])
def test_clip(ops, low, high):
    values = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    for edge in (low, high):
        values[np.abs(values - edge) < 0.05] += 0.1
    check_layer(
        ops,
        f"type: 'Clip' clip_param {{ min: {low} max: {high} }}",
        bottoms=[values.shape],
        expect=lambda x: np.minimum(np.maximum(x, low), high),
        values=[values],
    )


def test_clip_has_a_gradient_on_its_bounds(on_ops):
    net = net_of("type: 'Clip' clip_param { min: -1 max: 2 }", 5)
    net.forward(x=np.array([-1.5, -1, 0, 2, 2.5], np.float32))
    assert_array_equal(net.backward(y=np.arange(3, 8))["x"], [0, 4, 5, 6, 0])


def test_clip_bounds_must_be_in_order():
    with pytest.raises(pycaffe_lite.ModelError, match=r"'it' \(Clip\).*min must be <= max.*2 and"):
        net_of("type: 'Clip' clip_param { min: 2 max: -1.5 }", 3)


@pytest.mark.parametrize("bound", ["min", "max"])
def test_clip_needs_both_bounds(bound):
    other = {"min": "max", "max": "min"}[bound]
    with pytest.raises(pycaffe_lite.ModelError, match=other):
        net_of(f"type: 'Clip' clip_param {{ {bound}: 1 }}", 3)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7,)])
def test_absval(ops, shape):
    check_layer(
        ops,
        "type: 'AbsVal'",
        bottoms=[shape],
        expect=lambda x: np.where(x < 0, -x, x),
        kink=0.0,
    )


def test_absval_has_no_gradient_at_zero(on_ops):
    net = net_of("type: 'AbsVal'", 3)
    net.forward(x=np.array([-2, 0, 3], np.float32))
    assert_array_equal(net.backward(y=[5, 6, 7])["x"], [-5, 0, 7])


@pytest.mark.parametrize("threshold", [0, 0.5])
def test_threshold(ops, threshold):
    check_layer(
        ops,
        f"type: 'Threshold' threshold_param {{ threshold: {threshold} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: (x > threshold).astype(float),
        kink=threshold,
    )


def test_threshold_is_not_above_itself(on_ops):
    net = net_of("type: 'Threshold' threshold_param { threshold: 0.5 }", 3)
    assert_array_equal(net.forward(x=[0.25, 0.5, 0.75])["y"], [0, 0, 1])


NEURONS = [
    "type: 'PReLU'",
    "type: 'ELU'",
    "type: 'Swish'",
    "type: 'Clip' clip_param { min: -0.5 max: 1 }",
    "type: 'AbsVal'",
    "type: 'Threshold'",
]


@pytest.mark.parametrize("snippet", NEURONS)
def test_empty_batch(on_ops, snippet):
    net = net_of(snippet, 0, 3, 4)
    assert net.forward()["y"].shape == (0, 3, 4)
    assert net.backward()["x"].shape == (0, 3, 4)


@pytest.mark.parametrize(
    ("type_name", "wanted", "slopes"),
    [
        ("PReLU", [-2.5e4, 1e5], [0.25, 1]),
        ("ELU", [-1, 1e5], [0, 1]),
        ("Swish", [0, 1e5], [0, 1]),
    ],
)
def test_large_values(on_ops, type_name, wanted, slopes):
    net = net_of(f"type: '{type_name}'", 1, 2)
    assert_array_equal(net.forward(x=[[-1e5, 1e5]])["y"], [wanted])
    assert_array_equal(net.backward(y=[[1, 1]])["x"], [slopes])


@pytest.mark.parametrize("last", ["ReLU", "PReLU", "Sigmoid"])
@pytest.mark.parametrize("first", NEURONS)
def test_chain_in_place(on_ops, rng, first, last):
    """Two activations on one blob: the gradient of the chain with blobs of its own."""
    x, dy = rng.standard_normal((2, 2, 3, 4))
    results = []
    for one, two in (("x", "x"), ("y", "z")):
        net = make_net(
            "force_backward: true layer { name: 'in' type: 'Input' top: 'x' input_param {"
            " shape { dim: 2 dim: 3 dim: 4 } } }"
            f" layer {{ name: 'one' bottom: 'x' top: '{one}' {first} }}"
            f" layer {{ name: 'two' bottom: '{one}' top: '{two}' type: '{last}' }}"
        )
        net.blobs["x"].data[...] = x
        y = net.forward()[two].copy()
        net.blobs[two].diff[...] = dy
        results.append((y, net.backward()["x"].copy()))
    assert_array_equal(results[0], results[1])


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
