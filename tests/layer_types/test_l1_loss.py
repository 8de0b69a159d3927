"""L1Loss, against its formulas."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError

SHAPE = (2, 3, 4, 5)


def loss(a, b=0, *, is_l2=False, is_mean=False, by_entries=False, epsilon=0.01, plateau=0.0):
    d = a - b
    known = ~np.isnan(d)
    if not is_l2:
        known &= ~(np.abs(d) < plateau)
    d = np.where(known, d, 0)
    divisor = known.sum() / d.shape[1] if by_entries else len(d)
    if not is_l2:
        return np.abs(d).sum() / divisor
    squares = (d * d).mean(axis=1) if is_mean else (d * d).sum(axis=1)
    squares[squares < plateau**2] = 0
    return np.sqrt(squares + epsilon).sum() / divisor


CASES = {
    "": {},
    "normalize_by_num_entries: true": {"by_entries": True},
    "plateau: 0.7": {"plateau": 0.7},
    "l2_per_location: true": {"is_l2": True},
    "l2_per_location: true epsilon: 0.5": {"is_l2": True, "epsilon": 0.5},
    "l2_per_location: true l2_prescale_by_channels: true": {"is_l2": True, "is_mean": True},
    "l2_per_location: true plateau: 1.5": {"is_l2": True, "plateau": 1.5},
}


@pytest.mark.parametrize("bottoms", [1, 2])
@pytest.mark.parametrize("param", CASES)
def test_l1_loss(ops, param, bottoms):
    check_layer(
        ops,
        f"type: 'L1Loss' l1_loss_param {{ {param} }}",
        [SHAPE] * bottoms,
        lambda *inputs: loss(*inputs, **CASES[param]),
    )


def net_of(*shapes, param=""):
    inputs = "".join(
        f"layer {{ name: 'x{k}' type: 'Input' top: 'x{k}' input_param {{ shape {{"
        f" dim: {list(shape)} }} }} }} "
        for k, shape in enumerate(shapes)
    )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'it' type: 'L1Loss' {bottoms} top: 'y'"
        f" l1_loss_param {{ {param} }} }}"
    )


@pytest.mark.parametrize("is_l2", [False, True])
def test_nan_counts_for_nothing(on_ops, rng, is_l2):
    net = net_of(SHAPE, SHAPE, param=f"l2_per_location: {str(is_l2).lower()}")
    a, b = rng.normal(size=(2, *SHAPE))
    a[0, 1, 2], b[1, :, 3, 4] = np.nan, np.nan
    y = net.forward(x0=a, x1=b)["y"]
    assert_allclose(y, loss(a, b, is_l2=is_l2), rtol=1e-5)
    da = net.backward()["x0"]
    assert_array_equal(da == 0, np.isnan(a - b))


def test_gradients_at_0(on_ops):
    net = net_of((2, 1), (2, 1))
    net.forward()
    grads = net.backward()
    assert_array_equal(grads["x0"], [[-0.5], [-0.5]])
    assert_array_equal(grads["x1"], [[0.5], [0.5]])


@pytest.mark.parametrize(
    ("shapes", "text"),
    [([SHAPE, (2, 3, 4, 6)], "`2 3 4 5 .* vs. `2 3 4 6"), ([(2,)], "at least 2 axes .*, got 1")],
)
def test_errors_name_the_layer_and_both_numbers(shapes, text):
    with pytest.raises(ModelError, match=rf"'it' \(L1Loss\): .*{text}"):
        net_of(*shapes)


@pytest.mark.parametrize("param", ["normalize_by_num_entries: true", "l2_per_location: true"])
def test_an_empty_batch(on_ops, param):
    net = net_of((0, 3, 4, 5), (0, 3, 4, 5), param=param)
    assert float(net.forward()["y"]) == 0
    assert net.backward()["x1"].shape == (0, 3, 4, 5)
