"""Permute: the axes of forks' detection nets, brought into another order."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net

from pycaffe_lite import ModelError


@pytest.mark.parametrize(
    ("order", "axes"),
    [
        ([0, 2, 3, 1], (0, 2, 3, 1)),
        ([3, 1], (3, 1, 0, 2)),
        ([2], (2, 0, 1, 3)),
        ([], (0, 1, 2, 3)),
    ],
)
def test_permute(ops, order, axes):
    def expect(x):
        y = np.empty([x.shape[k] for k in axes])
        for at in np.ndindex(*y.shape):
            source = [0] * 4
            for k, index in zip(axes, at, strict=True):
                source[k] = index
            y[at] = x[tuple(source)]
        return y

    listed = " ".join(f"order: {k}" for k in order)
    check_layer(
        ops,
        f"type: 'Permute' permute_param {{ {listed} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=expect,
    )


def test_an_empty_batch_is_permuted(on_ops):
    net = net_of((0, 3, 4, 5), "order: [0, 2, 3, 1]")
    assert net.forward()["y"].shape == (0, 4, 5, 3)
    net.backward()


def net_of(shape, param):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ {dims} }}"
        f" layer {{ name: 'p' type: 'Permute' bottom: 'x' top: 'y' permute_param {{ {param} }} }}"
    )


@pytest.mark.parametrize(
    ("order", "match"),
    [
        ([0, 3], "order should be less than the input dimension: axis 3 of 3"),
        ([0, 1, 1], "duplicate orders: axis 1 is listed 2 times"),
    ],
)
def test_an_order_that_is_none(order, match):
    with pytest.raises(ModelError, match=rf"layer 'p' \(Permute\): .*{match}"):
        net_of((2, 3, 4), f"order: {order}")
