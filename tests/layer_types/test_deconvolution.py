"""Deconvolution against nested loops, as bilinear upsampling, and what it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


def deconvolve(x, w, b, *, stride, pad, dilation, group=1):
    """(N, C, *S) by definition: each input value adds its kernel, in float64."""
    axes = x.ndim - 2
    kernel = w.shape[2:]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    whole = [s * (n - 1) + e for n, s, e in zip(x.shape[2:], stride, extent, strict=True)]
    wide, per = w.shape[1], x.shape[1] // group
    y = np.zeros((x.shape[0], wide * group, *whole))
    for n, c in itertools.product(range(x.shape[0]), range(x.shape[1])):
        first = c // per * wide
        for at in np.ndindex(*x.shape[2:]):
            window = tuple(
                slice(i * s, i * s + e, d)
                for i, s, e, d in zip(at, stride, extent, dilation, strict=True)
            )
            y[(n, slice(first, first + wide), *window)] += x[(n, c, *at)] * w[c]
    inner = tuple(slice(pad[a], whole[a] - pad[a]) for a in range(axes))
    y = y[(slice(None), slice(None), *inner)]
    return y if b is None else y + b.reshape(-1, *(1,) * axes)


CASES = {
    "plain": ((2, 3, 6, 4), "num_output: 4 kernel_size: 3 stride: 2", {"stride": (2, 2)}),
    "pad": (
        (2, 3, 4, 5),
        "num_output: 4 kernel_size: 4 stride: 2 pad: 1",
        {"stride": (2, 2), "pad": (1, 1)},
    ),
    "gaps": ((2, 3, 4, 5), "num_output: 4 kernel_size: 2 stride: 3", {"stride": (3, 3)}),
    "uneven": (
        (2, 3, 5, 4),
        "num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1",
        {"stride": (1, 2), "pad": (0, 1)},
    ),
    "dilation": (
        (2, 3, 5, 4),
        "num_output: 4 kernel_size: 3 kernel_size: 2 dilation: 2 dilation: 3",
        {"dilation": (2, 3)},
    ),
    "group": ((2, 6, 5, 4), "num_output: 9 kernel_size: 2 group: 3", {"group": 3}),
    "depthwise": (
        (2, 3, 5, 4),
        "num_output: 3 kernel_size: 4 stride: 2 pad: 1 group: 3",
        {"group": 3, "stride": (2, 2), "pad": (1, 1)},
    ),
    "point": ((2, 3, 5, 4), "num_output: 7 kernel_size: 1", {}),
    "1-D": ((2, 3, 7), "num_output: 4 kernel_size: 3 pad: 1", {"pad": (1,)}),
    "3-D": (
        (2, 3, 2, 4, 3),
        "num_output: 2 kernel_size: 3 kernel_size: 2 kernel_size: 4 stride: 2 pad: 1 pad: 0 pad: 2",
        {"stride": (2, 2, 2), "pad": (1, 0, 2)},
    ),
    "no axes": ((2, 3), "num_output: 4", {}),
    "definition": ((2, 3, 6, 4), "num_output: 4 kernel_size: 3 engine: CAFFE", {}),
    "nd": ((2, 3, 6, 4), "num_output: 4 kernel_size: 3 force_nd_im2col: true", {}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_deconvolution(ops, case, bias):
    shape, param, how = CASES[case]
    axes = len(shape) - 2
    how = {"stride": (1,) * axes, "pad": (0,) * axes, "dilation": (1,) * axes} | how
    check_layer(
        ops,
        f"type: 'Deconvolution' convolution_param {{ {param} bias_term: {str(bias).lower()} }}",
        bottoms=[shape],
        expect=lambda x, w, b=None: deconvolve(x, w, b, **how),
    )


def test_the_axis_says_where_the_channels_are(ops):
    def expect(x, w, b):
        y = deconvolve(x.reshape(-1, 4, 5, 7), w, b, stride=(1, 1), pad=(0, 0), dilation=(1, 1))
        return y.reshape(-1, 3, *y.shape[1:])

    check_layer(
        ops,
        "type: 'Deconvolution' convolution_param { num_output: 6 kernel_size: 2 axis: -3 }",
        bottoms=[(2, 3, 4, 5, 7)],
        expect=expect,
    )


def test_several_bottoms_share_the_weights(ops):
    def expect(x0, x1, w, b):
        how = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1)}
        return deconvolve(x0, w, b, **how), deconvolve(x1, w, b, **how)

    check_layer(
        ops,
        "type: 'Deconvolution' convolution_param { num_output: 4 kernel_size: 3 kernel_size: 2 }",
        bottoms=[(2, 3, 6, 5), (2, 3, 6, 5)],
        expect=expect,
        tops=2,
    )


def net_of(param, shape=(2, 3, 7, 6)):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'it'"
        f" type: 'Deconvolution' bottom: 'x' top: 'y' convolution_param {{ {param} }} }}"
    )


def test_overlaps_add_up(on_ops):
    """All ones and bias 0.1, kernel 3, stride 2: recorded from the original."""
    net = net_of(
        "num_output: 4 kernel_size: 3 stride: 2 weight_filler { type: 'constant' value: 1 }"
        " bias_filler { type: 'constant' value: 0.1 }",
        (2, 3, 6, 4),
    )
    y = net.forward(x=np.ones((2, 3, 6, 4)))["y"]
    assert y.shape == (2, 4, 13, 9)
    row = np.array([h % 2 == 0 and 0 < h < 12 for h in range(13)])
    col = np.array([w % 2 == 0 and 0 < w < 8 for w in range(9)])
    shared = row[:, None].astype(int) + col
    assert_allclose(y, np.broadcast_to(np.choose(shared, [3.1, 6.1, 12.1]), y.shape), rtol=1e-6)


# https://github.com/microsoft/MMdnn/pull/437
def test_without_a_dilation_it_is_1():
    assert net_of("num_output: 4 kernel_size: 3 stride: 2").blobs["y"].shape == (2, 4, 15, 13)
    given = net_of("num_output: 4 kernel_size: 3 stride: 2 dilation: 1")
    assert given.blobs["y"].shape == (2, 4, 15, 13)


# https://github.com/BVLC/caffe/issues/3906, https://github.com/xxradon/ONNXToCaffe/issues/16
@pytest.mark.parametrize(
    ("kernel", "ramp"),
    [(4, [0.25, 0.75, 0.75, 0.25]), (3, [0.5, 1, 0.5]), (2, [0.5, 0.5])],
)
def test_bilinear_filler_is_the_same_in_every_channel(kernel, ramp):
    net = net_of(
        f"num_output: 3 group: 3 kernel_size: {kernel} weight_filler {{ type: 'bilinear' }}"
    )
    w = net.params["it"][0].data
    assert w.shape == (3, 1, kernel, kernel)
    assert_allclose(w, np.broadcast_to(np.outer(ramp, ramp), w.shape))


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_bilinear_upsampling(on_ops, factor):
    """The documented numbers for a factor give each channel, enlarged; a ramp stays a ramp."""
    kernel, pad = 2 * factor - factor % 2, factor // 2
    net = net_of(
        f"num_output: 3 group: 3 kernel_size: {kernel} stride: {factor} pad: {pad}"
        " bias_term: false weight_filler { type: 'bilinear' }",
        (2, 3, 6, 5),
    )
    channel = np.arange(6).reshape(2, 3, 1, 1) + 1.0
    x = channel * (10 + np.arange(6).reshape(-1, 1) + 3 * np.arange(5))
    y = net.forward(x=x)["y"]
    assert y.shape == (2, 3, 6 * factor, 5 * factor)
    # Output i lies at input (i + 1/2) / factor - 1/2.
    at = [(np.arange(n * factor) + 0.5) / factor - 0.5 for n in (6, 5)]
    want = channel * (10 + at[0].reshape(-1, 1) + 3 * at[1])
    inside = (..., slice(factor, -factor), slice(factor, -factor))
    assert_allclose(y[inside], want[inside], rtol=1e-5)


def test_it_is_the_transpose_of_convolution(on_ops):
    """The gradient of a convolution's input, by the same weights."""
    window = "kernel_size: [3, 2] stride: 2 pad: 1 bias_term: false"
    text = (
        "force_backward: true input: 'x' input_shape { dim: [2, 3, 7, 4] } layer { name: 'it'"
        f" type: 'Convolution' bottom: 'x' top: 'y' convolution_param {{ num_output: 5 {window} }}"
        " }"
    )
    forth, back = make_net(text), net_of(f"num_output: 3 {window}", (2, 5, 4, 3))
    draw = np.random.default_rng(5)
    w, dy = draw.normal(size=(5, 3, 3, 2)), draw.normal(size=(2, 5, 4, 3))
    for net in (forth, back):
        net.params["it"][0].data[...] = w
    forth.forward(x=np.zeros((2, 3, 7, 4)))
    dx = forth.backward(y=dy)["x"]
    assert_allclose(back.forward(x=dy)["y"], dx, rtol=1e-5, atol=1e-6)


def test_an_empty_batch(on_ops):
    net = net_of("num_output: 4 kernel_size: 3 stride: 2", (0, 3, 7, 6))
    assert net.forward()["y"].shape == (0, 4, 15, 13)
    assert net.backward()["x"].shape == (0, 3, 7, 6)
    for blob in net.params["it"]:
        assert_array_equal(blob.diff, 0)


REFUSED = {
    "num_output: 4": r"kernel_size must be specified once, or once per spatial dimension",
    "kernel_size: 3": r"num_output must be > 0, got 0",
    "num_output: 4 kernel_size: 0": r"filter dimensions must be nonzero.*0",
    "num_output: 4 kernel_size: 3 stride: 0": r"stride dimensions must be nonzero.*0",
    "num_output: 4 kernel_size: 3 dilation: 0": r"dilation dimensions must be at least 1.*0",
    "num_output: 4 kernel_size: 3 group: 2": r"multiples of group: 3 vs. 2",
    "num_output: 4 kernel_size: 3 group: 3": r"number of output should be.*group: 4 vs. 3",
    "num_output: 4 kernel_size: 1 pad: 3": r"output \(1, 0\) is below 1 \(input \(7, 6\)",
}


@pytest.mark.parametrize("param", REFUSED)
def test_errors_name_the_layer_and_both_numbers(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Deconvolution\): .*{REFUSED[param]}"):
        net_of(param)


def test_channels_may_not_change_and_positions_must_be_there():
    net = net_of("num_output: 4 kernel_size: 3")
    net.blobs["x"].reshape(2, 5, 7, 6)
    with pytest.raises(ModelError, match=r"incompatible with convolution kernel.*2 5 7 6.*3 chan"):
        net.forward()
    net.blobs["x"].reshape(2, 3, 0, 6)
    with pytest.raises(ModelError, match=r"no positions: spatial size \(0, 6\)"):
        net.forward()
    net.blobs["x"].reshape(1, 3, 8, 9)
    assert net.forward()["y"].shape == (1, 4, 10, 11)
