"""Where data enters."""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net

from pycaffe_lite import ModelError


def test_one_shape_serves_all_tops():
    net = make_net(
        "layer { name: 'in' type: 'Input' top: 'a' top: 'b' input_param { shape { dim: [2, 3] } } }"
    )
    assert net.blobs["a"].shape == net.blobs["b"].shape == (2, 3)
    assert net.inputs == ["a", "b"]


def test_a_shape_for_each_top():
    net = make_net(
        "layer { name: 'in' type: 'Input' top: 'a' top: 'b'"
        " input_param { shape { dim: [2, 3] } shape { dim: 4 } } }"
    )
    assert net.blobs["a"].shape == (2, 3)
    assert net.blobs["b"].shape == (4,)


def test_without_a_shape_the_top_is_a_scalar():
    net = make_net("layer { name: 'in' type: 'Input' top: 'a' }")
    assert net.blobs["a"].shape == ()
    assert net.forward(a=np.float32(3))["a"] == 3


def test_number_of_shapes():
    with pytest.raises(ModelError, match="once, once per top blob, or not at all: 3 tops vs. 2"):
        make_net(
            "layer { name: 'in' type: 'Input' top: 'a' top: 'b' top: 'c'"
            " input_param { shape { dim: 2 } shape { dim: 4 } } }"
        )


def test_a_new_shape_stays():
    net = make_net("input: 'x' input_shape { dim: [2, 3] }")
    net.blobs["x"].reshape(5, 4)
    net.reshape()
    assert net.forward()["x"].shape == (5, 4)
