"""Softmax over one axis."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax(ops, axis):
    def expect(x):
        return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)

    check_layer(
        ops,
        f"type: 'Softmax' softmax_param {{ axis: {axis} }}",
        bottoms=[(2, 10, 4, 3)],
        expect=expect,
    )


def test_large_scores_do_not_overflow(on_ops):
    net = make_net(
        "input: 'x' input_shape { dim: [1, 3] } layer { name: 's' type: 'Softmax' bottom: 'x'"
        " top: 'y' }"
    )
    y = net.forward(x=np.array([[1e4, 1e4, -1e4]]))["y"]
    assert_array_equal(y, [[0.5, 0.5, 0]])


def test_sums_are_one(on_ops, rng):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 10, 2, 3] } layer { name: 's' type: 'Softmax'"
        " bottom: 'x' top: 'y' }"
    )
    y = net.forward(x=rng.normal(size=(2, 10, 2, 3)) * 9)["y"]
    assert_allclose(y.sum(axis=1), 1, rtol=1e-5)


def test_axis_must_exist():
    with pytest.raises(ModelError, match=r"axis 2 out of range for 2-D blob with shape `4 3 \(12"):
        make_net(
            "input: 'x' input_shape { dim: [4, 3] } layer { name: 's' type: 'Softmax' bottom: 'x'"
            " top: 'y' softmax_param { axis: 2 } }"
        )


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((2, 0), 1), ((0, 3), 1)])
def test_nothing_gives_nothing(on_ops, shape, axis):
    net = make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 's'"
        f" type: 'Softmax' bottom: 'x' top: 'y' softmax_param {{ axis: {axis} }} }}"
    )
    assert net.forward()["y"].shape == shape
    assert net.backward()["x"].shape == shape
