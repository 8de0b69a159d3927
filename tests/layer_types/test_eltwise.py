"""Blobs combined element by element."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError

SHAPE = (2, 3, 4, 5)


def eltwise(shapes, param):
    text = "force_backward: true\n"
    for k, shape in enumerate(shapes):
        dims = " ".join(f"dim: {d}" for d in shape)
        text += (
            f"layer {{ name: 'in{k}' type: 'Input' top: 'x{k}'"
            f" input_param {{ shape {{ {dims} }} }} }}\n"
        )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return text + (
        f"layer {{ name: 'it' type: 'Eltwise' {bottoms} top: 'y' eltwise_param {{ {param} }} }}"
    )


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("stable", ["true", "false"])
def test_product(ops, count, stable):
    check_layer(
        ops,
        f"type: 'Eltwise' eltwise_param {{ operation: PROD stable_prod_grad: {stable} }}",
        bottoms=[SHAPE] * count,
        expect=lambda *xs: np.prod(xs, axis=0),
    )


@pytest.mark.parametrize("count", [2, 3])
def test_sum_is_the_default(ops, count):
    check_layer(ops, "type: 'Eltwise'", [SHAPE] * count, expect=lambda *xs: np.sum(xs, axis=0))


@pytest.mark.parametrize("coeffs", [(1, -0.5, 2), (-1, 1), (0.25, 1, 1)])
def test_sum_with_coefficients(ops, coeffs):
    check_layer(
        ops,
        f"type: 'Eltwise' eltwise_param {{ operation: SUM coeff: {list(coeffs)} }}",
        bottoms=[SHAPE] * len(coeffs),
        expect=lambda *xs: sum(c * x for c, x in zip(coeffs, xs, strict=True)),
    )


@pytest.mark.parametrize("count", [2, 4])
def test_maximum(ops, count):
    check_layer(
        ops,
        "type: 'Eltwise' eltwise_param { operation: MAX }",
        bottoms=[SHAPE] * count,
        expect=lambda *xs: np.max(xs, axis=0),
        values=np.random.default_rng(3).permutation(120 * count).reshape(count, *SHAPE) * 0.05,
    )


@pytest.mark.parametrize(
    ("values", "winner"),
    [
        ((1, 2, 0), 1),
        ((2, 1, 0), 0),
        ((2, 2, 0), 1),  # of the first two the later
        ((2, 2, 2), 1),  # of the rest the earlier
        ((2, 1, 2), 0),
        ((1, 2, 2), 1),
        ((1, 1, 2), 2),
    ],
)
def test_who_gets_the_gradient_of_equal_maxima(on_ops, values, winner):
    net = run_net(
        eltwise([(1,)] * 3, "operation: MAX"),
        **{f"x{k}": np.array([v]) for k, v in enumerate(values)},
    )
    assert net.blobs["y"].data == max(values)
    diffs = net.backward(y=np.array([7.0]))
    assert [float(diffs[f"x{k}"][0]) for k in range(3)] == [7.0 * (k == winner) for k in range(3)]


@pytest.mark.parametrize("stable", ["true", "false"])
def test_gradient_of_a_product_with_zeros(on_ops, stable):
    net = run_net(
        eltwise([(3,), (3,)], f"operation: PROD stable_prod_grad: {stable}"),
        x0=np.array([0, 0, 2]),
        x1=np.array([5, 0, 3]),
    )
    diffs = net.backward(y=np.ones(3))
    assert_array_equal(diffs["x0"], [5, 0, 3])
    assert_array_equal(diffs["x1"], [0, 0, 2])


def test_a_blob_with_itself(on_ops):
    net = run_net(
        "force_backward: true input: 'x' input_shape { dim: 3 }"
        " layer { name: 'it' type: 'Eltwise' bottom: 'x' bottom: 'x' top: 'y'"
        " eltwise_param { operation: PROD } }",
        x=np.array([1, 2, 3]),
    )
    assert_array_equal(net.blobs["y"].data, [1, 4, 9])
    assert_array_equal(net.backward(y=np.ones(3))["x"], [2, 4, 6])


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_the_next_layer_may_work_in_place(on_ops, operation):
    net = run_net(
        eltwise([(2,), (2,)], f"operation: {operation}")
        + " layer { name: 'r' type: 'ReLU' bottom: 'y' top: 'y' }",
        x0=np.array([1, -2]),
        x1=np.array([3, 1]),
    )
    expect = {"SUM": [4, 0], "PROD": [3, 0], "MAX": [3, 1]}[operation]
    assert_array_equal(net.blobs["y"].data, expect)
    dx = net.backward(y=np.ones(2))["x1"]
    assert_array_equal(dx, {"SUM": [1, 0], "PROD": [1, 0], "MAX": [1, 1]}[operation])


@pytest.mark.parametrize(
    ("shapes", "param", "message"),
    [
        ([(2, 3), (3, 2)], "", r"must have the same shape: `2 3 \(6\)` of bottom 0 vs. `3 2 \(6\)"),
        ([(2, 3)] * 2, "coeff: [1, 2, 3]", r"one coefficient per bottom blob: 3 vs. 2"),
        ([(2, 3)] * 2, "operation: PROD coeff: [1, 2]", r"for summation only: 2 with operation"),
        ([(2, 3)], "", r"Eltwise layer takes at least 2 bottom blob\(s\), got 1"),
    ],
)
def test_what_cannot_be_combined(shapes, param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Eltwise\): .*" + message):
        make_net(eltwise(shapes, param))


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_an_empty_batch(on_ops, operation):
    net = run_net(eltwise([(0, 3)] * 3, f"operation: {operation}"))
    net.backward()
    assert net.blobs["y"].data.shape == (0, 3)


def test_nan_loses_every_comparison_but_the_first_bottoms_against_it(on_ops):
    """a > b decides between the first two, c > the winner after that, as in Caffe."""
    nan = np.nan
    net = make_net(
        "force_backward: true input: 'a' input: 'b' input: 'c' input_shape { dim: 4 }"
        " input_shape { dim: 4 } input_shape { dim: 4 } layer { name: 'e' type: 'Eltwise'"
        " bottom: 'a' bottom: 'b' bottom: 'c' top: 'y' eltwise_param { operation: MAX } }"
    )
    out = net.forward(a=[nan, 1, 2, 2], b=[1, nan, 2, 1], c=[0, 5, nan, 3])
    np.testing.assert_array_equal(out["y"], [1, nan, 2, 3])
    grads = net.backward(y=[1, 1, 1, 1])
    np.testing.assert_array_equal(grads["a"], [0, 0, 0, 0])
    np.testing.assert_array_equal(grads["b"], [1, 1, 1, 0])
    np.testing.assert_array_equal(grads["c"], [0, 0, 0, 1])
