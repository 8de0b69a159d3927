"""Pooling against nested loops, Caffe's rounding and divisor, and what it refuses."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TRAIN, ModelError


def pool(x, kernel, stride, pad, *, average, round_up=True):
    """(N, C, H, W) by definition: pooled values and the winners' indices, one window at a time."""
    rounded = ceil if round_up else floor
    size, out = x.shape[2:], []
    for n, k, s, p in zip(size, kernel, stride, pad, strict=True):
        o = rounded((n + 2 * p - k) / s) + 1
        if any(pad) and (o - 1) * s >= n + p:
            o -= 1
        out.append(o)
    y, mask = np.zeros((*x.shape[:2], *out)), np.zeros((*x.shape[:2], *out))
    for n, c, i, j in np.ndindex(*y.shape):
        spans, divisor = [], 1
        for at, axis in ((i, 0), (j, 1)):
            start = at * stride[axis] - pad[axis]
            stop = min(start + kernel[axis], size[axis] + pad[axis])
            divisor *= stop - start
            spans.append(range(max(start, 0), min(stop, size[axis])))
        cells = [(x[n, c, a, b], a * size[1] + b) for a in spans[0] for b in spans[1]]
        best, where = max(cells, key=lambda cell: cell[0])
        y[n, c, i, j] = sum(v for v, _ in cells) / divisor if average else best
        mask[n, c, i, j] = where
    return y, mask


CASES = {
    "plain": ((2, 3, 6, 5), "kernel_size: 2", (2, 2), (1, 1), (0, 0)),
    "stride": ((2, 3, 7, 6), "kernel_size: 3 stride: 2", (3, 3), (2, 2), (0, 0)),
    "pad": ((2, 3, 7, 6), "kernel_size: 3 stride: 2 pad: 1", (3, 3), (2, 2), (1, 1)),
    "clipped": ((2, 3, 5, 4), "kernel_size: 2 stride: 3 pad: 1", (2, 2), (3, 3), (1, 1)),
    "uneven": (
        (2, 3, 7, 9),
        "kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 3 pad_h: 2 pad_w: 0",
        (3, 2),
        (2, 3),
        (2, 0),
    ),
}


@pytest.mark.parametrize("round_up", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_pooling(ops, case, average, round_up):
    shape, param, kernel, stride, pad = CASES[case]
    mode = "AVE" if average else "MAX"
    rounding = "" if round_up else "round_mode: FLOOR"
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: {mode} {param} {rounding} }}",
        bottoms=[shape],
        expect=lambda x: pool(x, kernel, stride, pad, average=average, round_up=round_up)[0],
        spaced=not average,
    )


def test_second_top_of_max_pooling_is_the_mask(on_ops):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'p' type: 'Pooling'"
        " bottom: 'x' top: 'y' top: 'mask' pooling_param { kernel_size: 3 stride: 2 pad: 1 } }"
    )
    x = np.random.default_rng(3).permutation(252).reshape(2, 3, 7, 6)
    out = net.forward(x=x)
    y, mask = pool(x, (3, 3), (2, 2), (1, 1), average=False)
    assert_array_equal(out["y"], y)
    assert_array_equal(out["mask"], mask)


def test_global_pooling_follows_the_input(on_ops):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 5, 4] } layer { name: 'p' type: 'Pooling'"
        " bottom: 'x' top: 'y' pooling_param { pool: AVE global_pooling: true } }"
    )
    for shape in ((2, 3, 5, 4), (2, 3, 6, 7)):
        net.blobs["x"].reshape(*shape)
        x = np.random.default_rng(3).normal(size=shape)
        y = net.forward(x=x)["y"]
        assert y.shape == (2, 3, 1, 1)
        assert_allclose(y[..., 0, 0], x.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "param", "pooled"),
    [
        (64, "kernel_size: 3 stride: 2 pad: 1", 33),
        (64, "kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR", 32),
        (64, "kernel_size: 3 stride: 2 pad: 1 ceil_mode: false", 32),
        (112, "kernel_size: 3 stride: 2", 56),
        (112, "kernel_size: 3 stride: 2 pad: 1", 57),
        (129, "kernel_size: 2 stride: 2", 65),
    ],
)
def test_recorded_sizes(size, param, pooled):
    net = make_net(
        f"input: 'x' input_shape {{ dim: [1, 1, {size}, {size}] }} layer {{ name: 'p'"
        f" type: 'Pooling' bottom: 'x' top: 'y' pooling_param {{ pool: MAX {param} }} }}"
    )
    assert net.blobs["y"].shape == (1, 1, pooled, pooled)


def test_average_divides_by_the_window_in_the_padded_image(on_ops):
    """4x4 of ones, kernel 3, stride 2, pad 1: recorded from the original."""
    net = make_net(
        "input: 'x' input_shape { dim: [1, 1, 4, 4] } layer { name: 'p' type: 'Pooling'"
        " bottom: 'x' top: 'y' pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }"
    )
    y = net.forward(x=np.ones((1, 1, 4, 4)))["y"]
    assert_allclose(y[0, 0], np.outer([2 / 3, 1, 1 / 2], [2 / 3, 1, 1 / 2]), rtol=1e-6)


def test_the_first_of_equal_values_gets_the_gradient(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: [1, 1, 2, 3] } layer { name: 'p'"
        " type: 'Pooling' bottom: 'x' top: 'y' pooling_param { kernel_h: 2 kernel_w: 3 } }",
        TRAIN,
    )
    net.forward(x=np.array([[[[1, 4, 2], [4, 4, 0]]]]))
    assert_array_equal(net.backward(y=np.full((1, 1, 1, 1), 7))["x"][0, 0], [[0, 7, 0], [0, 0, 0]])


REFUSED = {
    "kernel_size: 2 kernel_h: 2 kernel_w: 2": "kernel_size or kernel_h/w; not both",
    "kernel_h: 2": "both kernel_h and kernel_w are required",
    "": "filter size is kernel_size or kernel_h and kernel_w; none is given",
    "kernel_size: 0": r"filter dimensions cannot be zero, got \(0, 0\)",
    "kernel_size: 2 stride: 0": r"stride dimensions cannot be zero, got \(0, 0\)",
    "kernel_size: 2 pad: 2": r"pad_h < kernel_h must hold \(2 vs. 2\)",
    "kernel_size: 3 pad_h: 1 pad_w: 3": r"pad_w < kernel_w must hold \(3 vs. 3\)",
    "global_pooling: true kernel_size: 2": "with global_pooling: true filter size cannot be",
    "global_pooling: true stride: 2": "with global_pooling: true only pad = 0 and stride = 1",
    "kernel_size: 9 round_mode: FLOOR": "pooled size -1 is below 1: kernel 9, stride 1.* of 7",
    "kernel_size: 9 stride: 2": "pooled size 0 is below 1: kernel 9, stride 2.* of 7",
}


@pytest.mark.parametrize("param", REFUSED)
def test_errors_name_the_layer_and_both_numbers(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Pooling\): .*{REFUSED[param]}"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Pooling'"
            f" bottom: 'x' top: 'y' pooling_param {{ {param} }} }}"
        )


def test_input_must_have_four_axes():
    with pytest.raises(ModelError, match=r"input must have 4 axes.* got 3"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 7] } layer { name: 'it' type: 'Pooling'"
            " bottom: 'x' top: 'y' pooling_param { kernel_size: 2 } }"
        )


def test_only_max_pooling_has_a_mask():
    with pytest.raises(ModelError, match="second top is possible for MAX"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Pooling'"
            " bottom: 'x' top: 'y' top: 'm' pooling_param { pool: AVE kernel_size: 2 } }"
        )
