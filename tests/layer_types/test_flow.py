"""Correlation and warping, against loops."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def correlate(a, b, pad, kernel, reach, stride_1, stride_2, subtracts=False):
    wide = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    a, b = np.pad(a, wide), np.pad(b, wide)
    radius = kernel // 2
    border = reach + radius
    rows, columns = (range(border, size - border, stride_1) for size in a.shape[2:])
    steps = range(-(reach // stride_2) * stride_2, reach + 1, stride_2)
    y = np.zeros((len(a), len(steps) ** 2, len(rows), len(columns)))
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            one = a[:, :, r - radius : r + radius + 1, c - radius : c + radius + 1]
            for k, (down, right) in enumerate((d, e) for d in steps for e in steps):
                top, left = r + down - radius, c + right - radius
                two = b[:, :, top : top + kernel, left : left + kernel]
                values = abs(one - two) if subtracts else one * two
                y[:, k, i, j] = values.mean(axis=(1, 2, 3))
    return y


CORRELATIONS = [(2, 1, 2, 1, 1), (4, 1, 4, 1, 2), (0, 1, 1, 1, 1), (2, 3, 1, 2, 1), (1, 1, 3, 3, 2)]


@pytest.mark.parametrize("kind", ["MULTIPLY", "SUBTRACT"])
@pytest.mark.parametrize("sizes", CORRELATIONS)
def test_correlation(ops, sizes, kind):
    pad, kernel, reach, stride_1, stride_2 = sizes
    rng, shape = np.random.default_rng(3), (2, 3, 6, 7)
    # No two values, and none and 0, are so near that a derivative's way would change their order.
    apart = [0.1 * rng.integers(-20, 20, shape) + first for first in (0.03, 0.06)]
    check_layer(
        ops,
        f"type: 'Correlation' correlation_param {{ pad: {pad} kernel_size: {kernel}"
        f" max_displacement: {reach} stride_1: {stride_1} stride_2: {stride_2}"
        f" correlation_type: {kind} }}",
        [(2, 3, 6, 7), (2, 3, 6, 7)],
        lambda a, b: correlate(a, b, *sizes, subtracts=kind == "SUBTRACT"),
        values=apart,
    )


def warped(x, flow, fill=0.0):
    y = np.full(x.shape, fill)
    _, _, height, width = x.shape
    for n, _, i, j in np.ndindex(len(x), 1, height, width):
        column, row = j + flow[n, 0, i, j], i + flow[n, 1, i, j]
        if not (0 <= column < width and 0 <= row < height):
            continue
        left, upper = floor(column), floor(row)
        right, lower = min(left + 1, width - 1), min(upper + 1, height - 1)
        p, q = column - left, row - upper
        above = (1 - p) * x[n, :, upper, left] + p * x[n, :, upper, right]
        below = (1 - p) * x[n, :, lower, left] + p * x[n, :, lower, right]
        y[n, :, i, j] = (1 - q) * above + q * below
    return y


@pytest.mark.parametrize("reach", [1, 4])
def test_flow_warp(ops, reach):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 5, 6))
    whole, part = rng.integers(-reach, reach, (2, 2, 5, 6)), rng.uniform(0.1, 0.9, (2, 2, 5, 6))
    check_layer(ops, "type: 'FlowWarp'", [x.shape, part.shape], warped, values=[x, whole + part])


def net_of(layer, *shapes):
    inputs = "".join(
        f"layer {{ name: 'x{k}' type: 'Input' top: 'x{k}' input_param {{ shape {{"
        f" dim: {list(shape)} }} }} }} "
        for k, shape in enumerate(shapes)
    )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'it' {layer} {bottoms} top: 'y' }}"
    )


@pytest.mark.parametrize(
    ("param", "fill"), [("", 0), ("flow_warp_param { fill_value: NOT_A_NUMBER }", np.nan)]
)
@pytest.mark.parametrize("away", [99, np.nan, np.inf])
def test_places_outside(on_ops, rng, param, fill, away):
    net = net_of(f"type: 'FlowWarp' {param}", (2, 3, 4, 5), (2, 2, 4, 5))
    x, flow = rng.normal(size=(2, 3, 4, 5)).astype("f4"), np.zeros((2, 2, 4, 5))
    flow[1, 0, 2, 3] = away
    want = x.copy()
    want[1, :, 2, 3] = fill
    y = net.forward(x0=x, x1=flow)["y"]
    assert_array_equal(y, want)
    grads = net.backward(y=np.ones_like(y))
    assert_array_equal(grads["x0"], ~(want != x))
    assert_array_equal(grads["x1"][1, :, 2, 3], 0)


C, SHAPE = "type: 'Correlation' correlation_param", (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "shapes", "text"),
    [
        (f"{C} {{ kernel_size: 2 }}", [SHAPE, SHAPE], "odd kernel size required, got 2"),
        (f"{C} {{ kernel_size: 1 stride_2: 0 }}", [SHAPE, SHAPE], "> 0, got 1 and 0"),
        (f"{C} {{ kernel_size: 1 single_direction: -1 }}", [SHAPE, SHAPE], "available, got -1"),
        (f"{C} {{ kernel_size: 1 }}", [SHAPE, (2, 3, 4, 6)], r"`2 3 4 5 .*vs. `2 3 4 6"),
        (
            f"{C} {{ kernel_size: 3 max_displacement: 1 }}",
            [SHAPE, SHAPE],
            r"padded input \[4, 5\] has no place 2 from",
        ),
        ("type: 'FlowWarp'", [SHAPE, (2, 3, 4, 5)], r"`2 3 4 5 .*must be .*got `2 3 4 5"),
        ("type: 'FlowWarp'", [(2, 3, 4), (2, 2, 4)], "4 axes, got 3"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(layer, shapes, text):
    with pytest.raises(ModelError, match=rf"layer 'it' .*{text}"):
        net_of(layer, *shapes)


@pytest.mark.parametrize(
    ("layer", "channels"),
    [("type: 'FlowWarp'", 2), (f"{C} {{ kernel_size: 1 max_displacement: 1 pad: 1 }}", 3)],
)
def test_an_empty_batch(on_ops, layer, channels):
    net = net_of(layer, (0, 3, 4, 5), (0, channels, 4, 5))
    assert net.forward()["y"].shape[0] == 0
    assert net.backward()["x1"].shape == (0, channels, 4, 5)
