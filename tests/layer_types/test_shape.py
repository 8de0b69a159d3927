"""Layers that copy or rearrange."""

from __future__ import annotations

import numpy as np
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import TRAIN


def test_split(ops):
    check_layer(
        ops,
        "type: 'Split'",
        bottoms=[(2, 3, 5)],
        expect=lambda x: (x, x, x),
        tops=3,
    )


def test_tops_of_a_split_are_the_bottom_itself(on_ops):
    """What is written into a blob reaches its consumers although a split lies between."""
    net = make_net(
        "input: 'x' input_shape { dim: 3 }"
        " layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'y' }"
        " layer { name: 'b' type: 'ReLU' bottom: 'y' top: 'b' }"
        " layer { name: 'c' type: 'TanH' bottom: 'y' top: 'c' }",
        TRAIN,
    )
    net.forward(x=np.array([1, 2, 3]))
    net.blobs["y"].data[...] = [7, 8, 9]
    out = net.forward(start="b")
    assert_array_equal(out["b"], [7, 8, 9])
    assert_array_equal(out["c"], np.tanh(np.float32([7, 8, 9])))
