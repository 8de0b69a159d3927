"""Convolution and its columns against nested loops, and what they refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_layer, make_net

from pycaffe_lite import ModelError


def convolve(x, w, b, *, stride, pad, dilation, group=1):
    """(N, C, *S) by definition: one output at a time, in float64."""
    axes = x.ndim - 2
    kernel = w.shape[2:]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    out = [(padded.shape[2 + a] - extent[a]) // stride[a] + 1 if axes else 1 for a in range(axes)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    per = w.shape[0] // group
    wide = w.shape[1]
    for n, o in itertools.product(range(x.shape[0]), range(w.shape[0])):
        plane = padded[n, o // per * wide : (o // per + 1) * wide]
        for at in np.ndindex(*out):
            window = tuple(
                slice(i * s, i * s + e, d)
                for i, s, e, d in zip(at, stride, extent, dilation, strict=True)
            )
            y[(n, o, *at)] = (plane[(slice(None), *window)] * w[o]).sum() + (
                0 if b is None else b[o]
            )
    return y


CASES = {
    "plain": ((2, 3, 6, 5), "num_output: 4 kernel_size: 3", {}),
    "stride": ((2, 3, 7, 5), "num_output: 4 kernel_size: 3 stride: 2", {"stride": (2, 2)}),
    "uneven": (
        (2, 3, 7, 6),
        "num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1",
        {"stride": (1, 2), "pad": (0, 1)},
    ),
    "dilation": (
        (2, 3, 9, 8),
        "num_output: 4 kernel_size: 3 kernel_size: 2 dilation: 2 dilation: 3",
        {"dilation": (2, 3)},
    ),
    "group": ((2, 6, 5, 4), "num_output: 9 kernel_size: 2 group: 3", {"group": 3}),
    "depthwise": ((2, 3, 5, 4), "num_output: 6 kernel_size: 2 group: 3", {"group": 3}),
    "point": ((2, 3, 5, 4), "num_output: 7 kernel_size: 1", {}),
    "point_stride": ((2, 3, 5, 4), "num_output: 7 kernel_size: 1 stride: 2", {"stride": (2, 2)}),
    "1-D": ((2, 3, 7), "num_output: 4 kernel_size: 3 pad: 1", {"pad": (1,)}),
    "3-D": (
        (2, 3, 4, 5, 6),
        "num_output: 2 kernel_size: 3 kernel_size: 2 kernel_size: 4 pad: 1 pad: 0 pad: 2",
        {"pad": (1, 0, 2)},
    ),
    "3-D dilation": (
        (2, 3, 5, 6, 7),
        "num_output: 2 kernel_size: 2 dilation: [2, 1, 3]",
        {"dilation": (2, 1, 3)},
    ),
    "no axes": ((2, 3), "num_output: 4", {}),
    "definition": ((2, 3, 6, 5), "num_output: 4 kernel_size: 3 engine: CAFFE", {}),
    "cudnn": ((2, 3, 6, 5), "num_output: 4 kernel_size: 3 engine: CUDNN", {}),
    "nd": ((2, 3, 6, 5), "num_output: 4 kernel_size: 3 force_nd_im2col: true", {}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_convolution(ops, case, bias):
    shape, param, how = CASES[case]
    axes = len(shape) - 2
    how = {"stride": (1,) * axes, "pad": (0,) * axes, "dilation": (1,) * axes} | how
    check_layer(
        ops,
        f"type: 'Convolution' convolution_param {{ {param} bias_term: {str(bias).lower()} }}",
        bottoms=[shape],
        expect=lambda x, w, b=None: convolve(x, w, b, **how),
    )


def test_the_axis_says_where_the_channels_are(ops):
    def expect(x, w, b):
        y = convolve(x.reshape(-1, 4, 5, 7), w, b, stride=(1, 1), pad=(0, 0), dilation=(1, 1))
        return y.reshape(-1, 3, *y.shape[1:])

    check_layer(
        ops,
        "type: 'Convolution' convolution_param { num_output: 8 kernel_size: 3 axis: -3 }",
        bottoms=[(2, 3, 4, 5, 7)],
        expect=expect,
    )


def test_without_spatial_axes_it_is_an_inner_product_over_the_last(ops):
    check_layer(
        ops,
        "type: 'Convolution' convolution_param { num_output: 7 axis: 3 }",
        bottoms=[(2, 3, 6, 4)],
        expect=lambda x, w, b: x @ w.T + b,
    )


@pytest.mark.parametrize(("outputs", "group"), [(4, 1), (3, 3)])
def test_recorded_sizes(outputs, group):
    net = make_net(
        "input: 'x' input: 'z' input_shape { dim: [2, 3, 6, 4] } input_shape { dim: [2, 3, 6, 4] }"
        " layer { name: 'it' type: 'Convolution' bottom: 'x' bottom: 'z' top: 'y' top: 'y2'"
        f" convolution_param {{ num_output: {outputs} kernel_size: 3 stride: 2 group: {group} }} }}"
    )
    assert net.blobs["y"].shape == net.blobs["y2"].shape == (2, outputs, 2, 1)
    assert [b.shape for b in net.params["it"]] == [(outputs, 3 // group, 3, 3), (outputs,)]


def test_several_bottoms_share_the_weights(ops):
    def expect(x0, x1, w, b):
        how = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1)}
        return convolve(x0, w, b, **how), convolve(x1, w, b, **how)

    check_layer(
        ops,
        "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 kernel_size: 2 }",
        bottoms=[(2, 3, 6, 5), (2, 3, 6, 5)],
        expect=expect,
        tops=2,
    )


def test_sobel_filter_is_separable(on_ops):
    """3x3 with stride 2 equals a column filter followed by a row filter."""
    text = """
      input: 'x' input_shape { dim: 2 dim: 3 dim: 6 dim: 4 }
      layer { name: 'sobel' type: 'Convolution' bottom: 'x' top: 'whole'
        convolution_param { num_output: 1 kernel_size: 3 stride: 2 bias_term: false } }
      layer { name: 'column' type: 'Convolution' bottom: 'x' top: 'c' convolution_param {
        num_output: 1 kernel_h: 3 kernel_w: 1 stride_h: 2 stride_w: 1 bias_term: false } }
      layer { name: 'row' type: 'Convolution' bottom: 'c' top: 'parts' convolution_param {
        num_output: 1 kernel_h: 1 kernel_w: 3 stride_h: 1 stride_w: 2 bias_term: false } }"""
    net = make_net(text)
    net.params["sobel"][0].data[...] = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    net.params["column"][0].data[...] = np.array([1, 2, 1]).reshape(3, 1)
    net.params["row"][0].data[...] = np.array([-1, 0, 1])
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 4))
    out = net.forward(x=x)
    np.testing.assert_allclose(out["whole"], out["parts"], rtol=1e-5, atol=1e-5)


REFUSED = {
    "num_output: 4": r"kernel_size must be specified once, or once per spatial dimension",
    "kernel_size: 3": r"num_output must be > 0, got 0",
    "num_output: 4 kernel_size: 0": r"filter dimensions must be nonzero.*0",
    "num_output: 4 kernel_size: 3 stride: 0": r"stride dimensions must be nonzero.*0",
    "num_output: 4 kernel_size: 3 dilation: 0": r"dilation dimensions must be at least 1.*0",
    "num_output: 4 kernel_h: 3": r"filter dimensions must be nonzero, got kernel \(3, 0\)",
    "num_output: 4 kernel_size: 3 kernel_h: 3 kernel_w: 3": r"kernel_size or kernel_h/w.*not both",
    "num_output: 4 kernel_size: [3, 3, 3]": r"kernel_size must be specified once.*3 values for 2",
    "num_output: 4 kernel_size: 3 group: 2": r"multiples of group: 3 vs. 2",
    "num_output: 4 kernel_size: 3 group: 3": r"number of output should be.*group: 4 vs. 3",
    "num_output: 4 kernel_size: 3 filter_stride: 2": r"filter_stride .*is not read; write dilation",
    "num_output: 4 kernel_size: 8": r"kernel extent 8 is larger than the padded input 7",
    "num_output: 4 kernel_size: 3 dilation: 4 pad: 1": r"extent 9 is larger .* input 8",
    "num_output: 4 kernel_size: 3 axis: 4": r"axis 4 out of range for 4-D blob with shape `2 3 7",
}


@pytest.mark.parametrize("param", REFUSED)
def test_errors_name_the_layer_and_both_numbers(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Convolution\): .*{REFUSED[param]}"):
        make_net(
            "input: 'x' input_shape { dim: 2 dim: 3 dim: 7 dim: 6 } layer { name: 'it'"
            f" type: 'Convolution' bottom: 'x' top: 'y' convolution_param {{ {param} }} }}"
        )


def test_bottoms_of_unequal_shape_are_refused():
    with pytest.raises(ModelError, match=r"same shape: `2 3 6 5 \(180\)` vs. `2 3 5 6 \(180\)`"):
        make_net(
            "input: 'a' input: 'b' input_shape { dim: [2, 3, 6, 5] } input_shape {"
            " dim: [2, 3, 5, 6] } layer { name: 'it' type: 'Convolution' bottom: 'a' bottom: 'b'"
            " top: 'y' top: 'z' convolution_param { num_output: 4 kernel_size: 3 } }"
        )


def test_channels_may_not_change():
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Convolution'"
        " bottom: 'x' top: 'y' convolution_param { num_output: 4 kernel_size: 3 } }"
    )
    net.blobs["x"].reshape(2, 5, 7, 6)
    with pytest.raises(ModelError, match=r"incompatible with convolution kernel.*2 5 7 6.*3 chan"):
        net.forward()
    net.blobs["x"].reshape(1, 3, 8, 9)
    assert net.forward()["y"].shape == (1, 4, 6, 7)


# ---- under other names -------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 3])
def test_depthwise_convolution_is_a_convolution_with_its_group(ops, group):
    check_layer(
        ops,
        "type: 'DepthwiseConvolution' convolution_param { num_output: 6 kernel_size: 2"
        f" group: {group} }}",
        bottoms=[(2, 3, 5, 4)],
        expect=lambda x, w, b: convolve(
            x, w, b, stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=group
        ),
    )


@pytest.mark.parametrize(("param", "group"), [("", 6), ("group: 6", 6), ("group: 2", 2)])
def test_convolution_depthwise_has_as_many_groups_as_channels(ops, param, group):
    check_layer(
        ops,
        "type: 'ConvolutionDepthwise' convolution_param { num_output: 6 kernel_size: 2"
        f" {param} }}",
        bottoms=[(2, 6, 5, 4)],
        expect=lambda x, w, b: convolve(
            x, w, b, stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=group
        ),
    )


def columns(x, kernel, *, stride=None, pad=None, dilation=None):
    """(N, C, *S) -> (N, C * taps, *P) by definition: one value at a time, in float64."""
    axes = x.ndim - 2
    stride, dilation = stride or (1,) * axes, dilation or (1,) * axes
    pad = pad or (0,) * axes
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    ]
    col = np.zeros((*x.shape[:2], *kernel, *out))
    for at in np.ndindex(*out):
        for tap in np.ndindex(*kernel):
            where = [i * s + t * d for i, s, t, d in zip(at, stride, tap, dilation, strict=True)]
            col[(..., *tap, *at)] = padded[(..., *where)]
    return col.reshape(x.shape[0], -1, *out)


COLUMNS = {
    "plain": ((2, 3, 6, 5), "kernel_size: 3", (3, 3), {}),
    "stride": (
        (2, 3, 7, 5),
        "kernel_size: 3 stride: 2 pad: 1",
        (3, 3),
        {"stride": (2, 2), "pad": (1, 1)},
    ),
    "uneven": (
        (2, 3, 7, 6),
        "kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1",
        (3, 2),
        {"stride": (1, 2), "pad": (0, 1)},
    ),
    "dilation": ((2, 3, 10, 11), "kernel_size: 3 dilation: 3", (3, 3), {"dilation": (3, 3)}),
    "dilation and stride": (
        (2, 3, 10, 11),
        "kernel_size: 3 dilation: 3 stride: 2",
        (3, 3),
        {"dilation": (3, 3), "stride": (2, 2)},
    ),
    "1-D": ((2, 3, 7), "kernel_size: 4", (4,), {}),
    "3-D": ((2, 3, 4, 5, 6), "kernel_size: [3, 2, 4] force_nd_im2col: true", (3, 2, 4), {}),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_im2col(ops, case):
    shape, param, kernel, how = COLUMNS[case]
    check_layer(
        ops,
        f"type: 'Im2col' convolution_param {{ {param} }}",
        bottoms=[shape],
        expect=lambda x: columns(x, kernel, **how),
    )


def test_im2col_from_another_axis(ops):
    check_layer(
        ops,
        "type: 'Im2col' convolution_param { kernel_size: 2 axis: 2 }",
        bottoms=[(2, 3, 4, 5, 7)],
        expect=lambda x: columns(x.reshape(-1, 4, 5, 7), (2, 2)).reshape(-1, 3, 16, 4, 6),
    )


@pytest.mark.parametrize(("kernel", "taps"), [((3, 3), 9), ((5, 3), 15)])
def test_channels_of_im2col_go_by_input_channel_then_row_major_tap(on_ops, kernel, taps):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 6, 5] } layer { name: 'it' type: 'Im2col'"
        " bottom: 'x' top: 'y' convolution_param {"
        f" kernel_size: {list(kernel)} stride: 2 }} }}"
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)
    y = net.forward(x=x)["y"]
    assert y.shape == (2, 3 * taps, (6 - kernel[0]) // 2 + 1, 2)
    for c in range(3 * taps):
        at = (c // taps, c // 3 % kernel[0], c % 3)
        assert (y[:, c, 0, 0] == x[(slice(None), *at)]).all()


def test_im2col_of_an_empty_batch(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: [0, 3, 6, 5] } layer { name: 'it'"
        " type: 'Im2col' bottom: 'x' top: 'y' convolution_param { kernel_size: 2 } }"
    )
    assert net.forward()["y"].shape == (0, 12, 5, 4)
    assert net.backward()["x"].shape == (0, 3, 6, 5)


REFUSED_COLUMNS = {
    "stride: 2": "kernel_size must be specified once, or once per spatial dimension: 0 .* for 2",
    "kernel_size: 3 stride: 0": r"stride dimensions must be nonzero, got \(0, 0\)",
    "kernel_size: 3 axis: 3": "needs at least 1 spatial axis behind axis 3, got 4 axes",
    "kernel_size: 3 axis: 4": r"axis 4 out of range for 4-D blob with shape `2 3 7",
    "kernel_size: 8": "kernel extent 8 is larger than the padded input 7",
}


@pytest.mark.parametrize("param", REFUSED_COLUMNS)
def test_im2col_errors_name_the_layer_and_both_numbers(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Im2col\): .*{REFUSED_COLUMNS[param]}"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Im2col'"
            f" bottom: 'x' top: 'y' convolution_param {{ {param} }} }}"
        )


def test_the_axes_of_im2col_may_not_change():
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Im2col'"
        " bottom: 'x' top: 'y' convolution_param { kernel_size: 3 } }"
    )
    net.blobs["x"].reshape(2, 3, 7)
    with pytest.raises(ModelError, match="input must have 4 axes, got 3"):
        net.forward()
    net.blobs["x"].reshape(3, 4, 5, 6)
    assert net.forward()["y"].shape == (3, 36, 3, 4)
