"""The fully connected layer."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_inner_product(ops, axis, transpose, bias):
    def expect(x, w, b=0.0):
        return np.tensordot(x, w.T if not transpose else w, 1) + b

    def flat(x, w, b=0.0):
        return expect(x.reshape(*x.shape[:axis], -1), w, b)

    check_layer(
        ops,
        f"type: 'InnerProduct' inner_product_param {{ num_output: 6 axis: {axis}"
        f" transpose: {str(transpose).lower()} bias_term: {str(bias).lower()} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=flat,
    )


def test_axis_0_makes_one_row(ops):
    check_layer(
        ops,
        "type: 'InnerProduct' inner_product_param { num_output: 4 axis: 0 }",
        bottoms=[(2, 3, 5)],
        expect=lambda x, w, b: w @ x.ravel() + b,
    )


def test_weights_have_the_recorded_shapes():
    for transpose, shape in (("false", (10, 60)), ("true", (60, 10))):
        net = make_net(
            "input: 'x' input_shape { dim: [2, 3, 4, 5] } layer { name: 'ip' type: 'InnerProduct'"
            " bottom: 'x' top: 'y'"
            f" inner_product_param {{ num_output: 10 transpose: {transpose} }} }}"
        )
        assert [b.shape for b in net.params["ip"]] == [shape, (10,)]
        assert net.blobs["y"].shape == (2, 10)


def test_transposed_weights_give_the_same_net(on_ops, rng):
    x, w = rng.uniform(size=(2, 3, 4, 5)), rng.uniform(size=(10, 60))
    dy = rng.normal(size=(2, 10))
    results = []
    for transpose in ("false", "true"):
        net = make_net(
            "force_backward: true input: 'x' input_shape { dim: [2, 3, 4, 5] }"
            " layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'y'"
            f" inner_product_param {{ num_output: 10 transpose: {transpose} }} }}"
        )
        net.params["ip"][0].data[...] = w if transpose == "false" else w.T
        y = net.forward(x=x)["y"].copy()
        dx = net.backward(y=dy)["x"]
        dw = net.params["ip"][0].diff
        results.append((y, dx, dw if transpose == "false" else dw.T))
    for one, other in zip(*results, strict=True):
        assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_positive_weights_and_a_bias_from_1_to_2(on_ops, rng, batch):
    net = make_net(
        f"input: 'x' input_shape {{ dim: [{batch}, 2, 3, 4] }} layer {{ name: 'ip'"
        " type: 'InnerProduct' bottom: 'x' top: 'y' inner_product_param { num_output: 10"
        " weight_filler { type: 'uniform' } bias_filler { type: 'uniform' min: 1 max: 2 } } }"
    )
    y = net.forward(x=rng.uniform(size=(batch, 2, 3, 4)))["y"]
    assert y.shape == (batch, 10)
    assert (y >= 1).all()


def test_the_input_size_may_not_change():
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 4] } layer { name: 'ip' type: 'InnerProduct'"
        " bottom: 'x' top: 'y' inner_product_param { num_output: 5 } }"
    )
    net.blobs["x"].reshape(2, 3, 7)
    with pytest.raises(ModelError, match=r"layer 'ip'.*inner product parameters: 21 vs. 12"):
        net.forward()


def test_num_output_is_needed():
    with pytest.raises(ModelError, match="num_output must be > 0, got 0"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3] } layer { name: 'ip' type: 'InnerProduct'"
            " bottom: 'x' top: 'y' }"
        )
