"""Layers that treat channels, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


# https://github.com/Tencent/TNN/issues/149
@pytest.mark.parametrize("factor", [(2, 3), (2, 3, 1, 1)])
def test_axpy(ops, factor):
    def expect(a, x, b):
        y = np.zeros_like(x)
        for n, c in np.ndindex(2 * (len(x) // 2), 3):
            y[n, c] = a[n, c] * x[n, c] + b[n, c]
        return y

    check_layer(ops, "type: 'Axpy'", [factor, (2, 3, 4, 5), (2, 3, 4, 5)], expect)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (["2, 3", "2, 3, 4, 5", "2, 3, 4, 6"], r"same shape: `2 3 4 5 \(120\)` vs. `2 3 4 6"),
        (["2, 4", "2, 3, 4, 5", "2, 3, 4, 5"], r"factors must be .*`2 3 4 5 .* got `2 4 \(8\)`"),
        (["2, 3, 4, 1", "2, 3, 4, 5", "2, 3, 4, 5"], r"factors must be .* got `2 3 4 1"),
    ],
)
def test_axpy_names_both_shapes(shapes, text):
    with pytest.raises(ModelError, match=rf"'it' \(Axpy\).*{text}"):
        net_of("type: 'Axpy'", *shapes)


@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_shuffle_channel(ops, group):
    def expect(x):
        y = np.zeros_like(x)
        for i, j in np.ndindex(group, 6 // group):
            y[:, j * group + i] = x[:, i * (6 // group) + j]
        return y

    check_layer(
        ops,
        f"type: 'ShuffleChannel' shuffle_channel_param {{ group: {group} }}",
        [(2, 6, 4, 5)],
        expect,
    )


@pytest.mark.parametrize("factor", [1, 2])
def test_pixel_shuffle(ops, factor):
    def expect(x):
        n, c, h, w = x.shape
        y = np.zeros((n, c // factor**2, h * factor, w * factor))
        for at in np.ndindex(*y.shape):
            n, c, h, w = at
            part = (c * factor + h % factor) * factor + w % factor
            y[at] = x[n, part, h // factor, w // factor]
        return y

    check_layer(
        ops,
        f"type: 'PixelShuffle' pixelshuffle_param {{ upscale_factor: {factor} }}",
        [(2, 8, 3, 5)],
        expect,
    )


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2, 4)])
def test_channel_norm(ops, shape):
    check_layer(
        ops,
        "type: 'ChannelNorm'",
        [shape],
        lambda x: np.linalg.norm(x, axis=1, keepdims=True),
    )


def test_channel_norm_of_zeros_has_no_gradient(on_ops):
    net = net_of("type: 'ChannelNorm'", "2, 3, 4")
    y = net.forward(x0=np.zeros((2, 3, 4)))["y"]
    assert_array_equal(y, 0)
    assert_array_equal(net.backward(y=np.ones_like(y))["x0"], 0)


SCALES = "input_scale: 2 mean_scale: 3 output_scale: 0.5"


@pytest.mark.parametrize(
    ("param", "scale", "shift"),
    [
        ("operation: ADD value: 0.5 value: -1 value: 2", 1, (0.5, -1, 2)),
        ("operation: SUBTRACT value: 0.5 value: -1", 1, (-0.5, 1, -0.5)),
        (f"operation: SUBTRACT value: 4 {SCALES}", 1, (-6, -6, -6)),
    ],
)
def test_mean(ops, param, scale, shift):
    check_layer(
        ops,
        f"type: 'Mean' mean_param {{ {param} }}",
        [(2, 3, 4, 5)],
        lambda x: scale * x + np.array(shift)[:, None, None],
    )


def net_of(layer, *shapes):
    inputs = "".join(
        f"layer {{ name: 'x{k}' type: 'Input' top: 'x{k}' input_param {{ shape {{"
        f" dim: [{shape}] }} }} }} "
        for k, shape in enumerate(shapes)
    )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'it' {layer} {bottoms} top: 'y' }}"
    )


@pytest.mark.parametrize(
    ("layer", "shape", "text"),
    [
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 4 }", "2, 6, 5", "group: 6 vs. 4"),
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 0 }", "2, 6, 5", "group.*got 0"),
        ("type: 'ShuffleChannel'", "6", "at least 2 axes .*, got 1"),
        (
            "type: 'PixelShuffle' pixelshuffle_param { upscale_factor: 2 }",
            "2, 6, 5, 3",
            "multiple of upscale_factor.2: 6 vs. 4",
        ),
        ("type: 'PixelShuffle'", "2, 6, 5", "4 axes, got 3"),
        ("type: 'ChannelNorm'", "6", "at least 2 axes .*, got 1"),
        ("type: 'Mean' mean_param { operation: ADD }", "2, 6", "at least 1 is needed, got 0"),
        ("type: 'Mean' mean_param { operation: ADD file: 'm' }", "2, 6", "not read, got m"),
        ("type: 'Mean' mean_param { operation: ADD value: 1 }", "6", "at least 2 axes .*, got 1"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(layer, shape, text):
    with pytest.raises(ModelError, match=rf"layer 'it' .*{text}"):
        net_of(layer, shape)


@pytest.mark.parametrize(
    "layer",
    [
        "type: 'ShuffleChannel'",
        "type: 'PixelShuffle'",
        "type: 'ChannelNorm'",
        "type: 'Mean' mean_param { operation: ADD value: 1 }",
    ],
)
def test_an_empty_batch(on_ops, layer):
    net = net_of(layer, "0, 2, 3, 4")
    assert net.forward()["y"].size == 0
    assert net.backward()["x0"].shape == (0, 2, 3, 4)
