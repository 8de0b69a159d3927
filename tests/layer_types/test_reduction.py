"""Reductions and where the largest values are."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def net_of(type_name, shape, param=""):
    dims = " ".join(f"dim: {d}" for d in shape)
    return (
        "force_backward: true"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'it' type: '{type_name}' bottom: 'x' top: 'y' {param} }}"
    )


# ---- Reduction ---------------------------------------------------------------------------------

OPERATIONS = {
    "SUM": np.sum,
    "ASUM": lambda x, axis: np.abs(x).sum(axis=axis),
    "SUMSQ": lambda x, axis: np.square(x).sum(axis=axis),
    "MEAN": np.mean,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("axis", "coeff"), [(0, 2.5), (1, 1), (2, -0.5), (-1, 1)])
def test_reduction(ops, operation, axis, coeff):
    axes = tuple(range(axis % 4, 4))
    check_layer(
        ops,
        f"type: 'Reduction' reduction_param {{ operation: {operation} axis: {axis}"
        f" coeff: {coeff} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: coeff * OPERATIONS[operation](x, axis=axes),
        kink=0.0,
    )


def test_sum_of_all_is_the_default(ops):
    check_layer(ops, "type: 'Reduction'", bottoms=[(2, 3, 5)], expect=lambda x: x.sum())


@pytest.mark.parametrize(("axis", "shape"), [(0, ()), (1, (2,)), (2, (2, 3))])
def test_shape_of_a_reduction(axis, shape):
    net = make_net(net_of("Reduction", (2, 3, 4, 5), f"reduction_param {{ axis: {axis} }}"))
    assert net.blobs["y"].shape == shape


def test_absolute_values_have_no_slope_at_0(on_ops):
    param = "reduction_param { operation: ASUM }"
    net = run_net(net_of("Reduction", (4,), param), x=np.array([-2, 0, 3, -0.0]))
    assert_array_equal(net.backward(y=np.array(5.0))["x"], [-5, 0, 5, 0])


def test_axis_to_reduce_must_exist():
    with pytest.raises(ModelError, match=r"'it' \(Reduction\): axis 2 out of range for 2-D blob"):
        make_net(net_of("Reduction", (4, 3), "reduction_param { axis: 2 }"))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_reduction_of_nothing_is_0(on_ops, operation, shape):
    for axis in (0, 1):
        param = f"reduction_param {{ operation: {operation} axis: {axis} }}"
        net = run_net(net_of("Reduction", shape, param))
        net.backward()
        assert_array_equal(net.blobs["y"].data, np.zeros(shape[:axis]))


# ---- ArgMax ------------------------------------------------------------------------------------


def largest(x, k):
    """Indices of the k largest along the last axis, the later of equal ones first."""
    rows = x.reshape(-1, x.shape[-1])
    order = [sorted(range(len(row)), key=lambda i: (row[i], i))[: -k - 1 : -1] for row in rows]
    return np.reshape(order, (*x.shape[:-1], k))


def argmax(x, k, axis=None, values=False):
    if axis is not None:
        moved = np.moveaxis(x, axis, -1)
        index = largest(moved, k)
        y = np.take_along_axis(moved, index, axis=-1) if values else index
        return np.moveaxis(y, -1, axis)
    flat = x.reshape(len(x), -1)
    index = largest(flat, k)
    rows = [index, np.take_along_axis(flat, index, axis=1)] if values else [index]
    return np.stack(rows, axis=1).reshape(len(x), len(rows), k, *(1,) * (x.ndim - 3))


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("axis", [None, 0, 1, -2, 3])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_argmax(ops, k, axis, values, tied):
    x = np.random.default_rng(5).normal(size=(4, 6, 7, 5))
    param = f"top_k: {k} out_max_val: {str(values).lower()}"
    check_layer(
        ops,
        f"type: 'ArgMax' argmax_param {{ {param} {'' if axis is None else f'axis: {axis}'} }}",
        bottoms=[x.shape],
        expect=lambda x: argmax(x, k, axis, values),
        values=[np.round(x) if tied else x],
        gradients=[],
    )


def test_of_equal_values_the_later_comes_first(on_ops):
    x = np.array([[3, 7, 7, 1, 7, 3]])
    net = run_net(net_of("ArgMax", (1, 6), "argmax_param { top_k: 5 axis: 1 }"), x=x)
    assert_array_equal(net.blobs["y"].data, [[4, 2, 1, 5, 0]])
    net = run_net(net_of("ArgMax", (1, 6), "argmax_param { axis: 1 }"), x=x)
    assert_array_equal(net.blobs["y"].data, [[4]])


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("", (10, 1, 1, 1)),
        ("top_k: 5", (10, 1, 5, 1)),
        ("top_k: 5 out_max_val: true", (10, 2, 5, 1)),
        ("axis: 0", (1, 12, 20, 21)),
        ("axis: -2", (10, 12, 1, 21)),
        ("axis: 2 out_max_val: true", (10, 12, 1, 21)),
    ],
)
def test_shapes_of_argmax(param, shape):
    net = make_net(net_of("ArgMax", (10, 12, 20, 21), f"argmax_param {{ {param} }}"))
    assert net.blobs["y"].shape == shape


# https://github.com/BVLC/caffe/issues/6823
# https://github.com/BVLC/caffe/issues/3280
@pytest.mark.parametrize(
    ("param", "expect"),
    [
        ("top_k: 5", [[[9, 7, 5, 3, 1]]]),
        ("top_k: 5 out_max_val: true", [[[9, 7, 5, 3, 1], [90, 70, 50, 30, 10]]]),
        ("top_k: 5 axis: 1", [[9, 7, 5, 3, 1]]),
        ("top_k: 5 axis: 1 out_max_val: true", [[90, 70, 50, 30, 10]]),
    ],
)
def test_scores_of_one_item(on_ops, param, expect):
    x = np.array([[0, 10, -1, 30, -3, 50, -5, 70, -7, 90]])
    net = run_net(net_of("ArgMax", (1, 10), f"argmax_param {{ {param} }}"), x=x)
    assert net.blobs["y"].shape == np.shape(expect)
    assert net.blobs["y"].data.dtype == np.float32
    assert_array_equal(net.blobs["y"].data, expect)


@pytest.mark.parametrize(
    ("shape", "param", "message"),
    [
        ((2, 10), "top_k: 11", r"top_k must be less than or equal to the number .*: 11 vs. 10"),
        ((2, 10), "top_k: 3 axis: 0", r"top_k must be less than or equal to .*: 3 vs. 2"),
        ((2, 10), "top_k: 0", r"top_k must not be less than 1, got 0"),
        ((2, 10), "axis: 2", r"axis 2 out of range for 2-D blob"),
        ((), "", r"axis 0 out of range for 0-D blob"),
    ],
)
def test_what_argmax_refuses(shape, param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(ArgMax\): .*" + message):
        make_net(net_of("ArgMax", shape, f"argmax_param {{ {param} }}"))


@pytest.mark.parametrize("param", ["", "axis: 1", "axis: 1 top_k: 2", "top_k: 3 out_max_val: true"])
def test_argmax_of_an_empty_batch(on_ops, param):
    net = run_net(net_of("ArgMax", (0, 7), f"argmax_param {{ {param} }}"))
    assert net.blobs["y"].data.shape[0] == 0


def test_argmax_has_no_gradient():
    net = run_net(
        "layer { name: 'p' type: 'Parameter' top: 'p' parameter_param { shape { dim: [5, 4] } } }"
        "layer { name: 'it' type: 'ArgMax' bottom: 'p' top: 'y' loss_weight: 1 }"
    )
    with pytest.raises(ModelError, match=r"'it' \(ArgMax\): ArgMax has no gradient"):
        net.backward()
