"""Pooling against nested loops, Caffe's rounding and divisor, and what it refuses."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, ModelError


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


# https://github.com/chainer/chainer/issues/3098
@pytest.mark.parametrize("mode", ["MAX", "AVE"])
def test_global_pooling_follows_the_input(on_ops, mode):
    net = pooling(f"pool: {mode} global_pooling: true", (2, 3, 5, 4))
    for shape in ((2, 3, 5, 4), (2, 3, 6, 7), (4, 3, 2, 5)):
        net.blobs["x"].reshape(*shape)
        net.reshape()
        x = np.random.default_rng(3).normal(size=shape)
        y = net.forward(x=x)["y"]
        assert y.shape == (*shape[:2], 1, 1)
        want = x.mean(axis=(2, 3)) if mode == "AVE" else x.max(axis=(2, 3))
        assert_allclose(y[..., 0, 0], want, rtol=1e-5, atol=1e-6)


def pooling(param, shape, phase=TEST, tops="top: 'y'"):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'p'"
        f" type: 'Pooling' bottom: 'x' {tops} pooling_param {{ {param} }} }}",
        phase,
    )


# https://github.com/ethereon/netscope/issues/25, https://github.com/soeaver/caffe-model/issues/34
# https://github.com/alibaba/heterogeneity-aware-lowering-and-optimization/issues/186
@pytest.mark.parametrize(
    ("param", "pooled"),
    [
        ("", 33),
        ("round_mode: CEIL", 33),
        ("ceil_mode: true", 33),
        ("round_mode: FLOOR", 32),
        ("ceil_mode: false", 32),
        ("round_mode: FLOOR ceil_mode: true", 32),
    ],
)
def test_sizes_round_up_unless_the_file_says_otherwise(param, pooled):
    net = pooling(f"kernel_size: 3 stride: 2 pad: 1 {param}", (1, 1, 64, 64))
    assert net.blobs["y"].shape == (1, 1, pooled, pooled)


def test_a_convolution_of_the_same_numbers_rounds_down():
    net = make_net(
        "input: 'x' input_shape { dim: [1, 1, 64, 64] } layer { name: 'c' type: 'Convolution'"
        " bottom: 'x' top: 'y'"
        " convolution_param { num_output: 1 kernel_size: 3 stride: 2 pad: 1 } }"
    )
    assert net.blobs["y"].shape == (1, 1, 32, 32)


# https://github.com/MTLab/onnx2caffe/issues/3, https://github.com/MTLab/onnx2caffe/issues/10
@pytest.mark.parametrize(
    ("size", "param", "pooled"),
    [
        (112, "kernel_size: 3 stride: 2", 56),
        (112, "kernel_size: 3 stride: 2 pad: 1", 57),
        (129, "kernel_size: 2 stride: 2", 65),
    ],
)
def test_sizes_behind_the_first_convolution(size, param, pooled):
    assert pooling(param, (1, 1, size, size)).blobs["y"].shape == (1, 1, pooled, pooled)


# https://github.com/chainer/chainer/issues/5462
@pytest.mark.parametrize("mode", ["MAX", "AVE"])
def test_one_row_of_seven_with_three_before_and_behind_keeps_the_size(on_ops, mode):
    net = pooling(f"pool: {mode} kernel_h: 1 kernel_w: 7 pad_h: 0 pad_w: 3", (2, 3, 8, 9))
    x = np.random.default_rng(3).normal(size=(2, 3, 8, 9))
    y = net.forward(x=x)["y"]
    assert y.shape == (2, 3, 8, 9)
    want = pool(x, (1, 7), (1, 1), (0, 3), average=mode == "AVE")[0]
    assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    row = "num_output: 4 kernel_h: 1 kernel_w: 7 pad_h: 0 pad_w: 3"
    filters = make_net(
        "input: 'x' input_shape { dim: [2, 3, 8, 9] } layer { name: 'c' type: 'Convolution'"
        f" bottom: 'x' top: 'y' convolution_param {{ {row} }} }}"
    )
    assert filters.blobs["y"].shape == (2, 4, 8, 9)


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
    "kernel_size: 2 bin_size: 2": "bin_size .*is not read",
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


def test_input_must_have_a_spatial_axis():
    with pytest.raises(ModelError, match=r"input must have 4 axes.* got 2"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3] } layer { name: 'it' type: 'Pooling'"
            " bottom: 'x' top: 'y' pooling_param { kernel_size: 2 } }"
        )


def test_only_max_pooling_has_a_mask():
    with pytest.raises(ModelError, match="second top is possible for MAX"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 7, 6] } layer { name: 'it' type: 'Pooling'"
            " bottom: 'x' top: 'y' top: 'm' pooling_param { pool: AVE kernel_size: 2 } }"
        )


def test_an_empty_batch(on_ops):
    for mode in ("MAX", "AVE", "STOCHASTIC"):
        for phase in (TEST, TRAIN):
            net = pooling(f"pool: {mode} kernel_size: 2 stride: 2", (0, 3, 7, 6), phase)
            assert net.forward()["y"].shape == (0, 3, 4, 3)
            assert net.backward()["x"].shape == (0, 3, 7, 6)


# ---- stochastic --------------------------------------------------------------------------------


def windows(x, kernel, stride):
    """(N, C, H, W) -> {(i, j): (N, C, values)} with sizes rounded up, the last windows cut."""
    (kh, kw), (sh, sw) = kernel, stride
    rows, cols = (
        ceil((n - k) / s) + 1 for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)
    )
    return {
        (i, j): x[:, :, i * sh : i * sh + kh, j * sw : j * sw + kw].reshape(*x.shape[:2], -1)
        for i in range(rows)
        for j in range(cols)
    }


def weighted_mean(x, kernel, stride):
    parts = windows(x, kernel, stride)
    rows, cols = (max(at) + 1 for at in zip(*parts, strict=True))
    y = np.zeros((*x.shape[:2], rows, cols))
    for (i, j), part in parts.items():
        total = part.sum(axis=2)
        y[:, :, i, j] = (part**2).sum(axis=2) / np.where(total, total, 1)
    return y


STOCHASTIC = {
    "overlapping": ("kernel_size: 3 stride: 2", (3, 3), (2, 2)),
    "cut": ("kernel_h: 2 kernel_w: 4 stride_h: 2 stride_w: 3", (2, 4), (2, 3)),
    "gaps": ("kernel_size: 2 stride: 3", (2, 2), (3, 3)),
    "whole": ("global_pooling: true", (6, 5), (1, 1)),
}


@pytest.mark.parametrize("case", STOCHASTIC)
def test_stochastic_pooling_in_test_phase(ops, rng, case):
    param, kernel, stride = STOCHASTIC[case]
    x = rng.uniform(0.1, 1, (2, 3, 6, 5))
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: STOCHASTIC {param} }}",
        bottoms=[x.shape],
        expect=lambda x: weighted_mean(x, kernel, stride),
        values=[x],
    )


@pytest.mark.parametrize("case", STOCHASTIC)
def test_stochastic_pooling_in_train_phase(ops, rng, case):
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: STOCHASTIC {STOCHASTIC[case][0]} }}",
        bottoms=[(2, 3, 6, 5)],
        expect=None,
        phase="TRAIN",
        values=[rng.uniform(0.1, 1, (2, 3, 6, 5))],
    )


def test_stochastic_pooling_takes_an_element_of_each_window(on_ops, rng):
    x = rng.uniform(0.1, 1, (2, 3, 6, 5)).astype(np.float32)
    param = "pool: STOCHASTIC kernel_size: 3 stride: 2"
    net = pooling(param, x.shape, TRAIN)
    y = net.forward(x=x)["y"].copy()
    assert y.shape == (2, 3, 3, 2)
    for (i, j), part in windows(x, (3, 3), (2, 2)).items():
        assert (part == y[:, :, i, j, None]).any(axis=2).all()
    assert y.mean() >= 0.55
    dy = rng.normal(size=y.shape).astype(np.float32)
    dx = net.backward(y=dy)["x"]
    want = np.zeros_like(x)
    for n, c, i, j in np.ndindex(*y.shape):
        span = (n, c, slice(2 * i, 2 * i + 3), slice(2 * j, 2 * j + 3))
        want[span][x[span] == y[n, c, i, j]] += dy[n, c, i, j]
    assert_allclose(dx, want, rtol=1e-6, atol=1e-6)
    again = net.forward(x=x)["y"]
    assert (again != y).any()
    means = pooling(param, x.shape).forward(x=x)["y"]
    for (i, j), part in windows(x, (3, 3), (2, 2)).items():
        assert (part.max(axis=2) >= means[:, :, i, j]).all()


def test_chances_are_in_proportion_to_the_values(on_ops):
    """One window of 1, 0, 2 / 5 many times; a zero is never taken."""
    planes = 4000
    x = np.tile(np.array([[1, 0, 2], [5, 0, 0]], np.float32), (1, planes, 1, 1))
    net = pooling("pool: STOCHASTIC kernel_h: 2 kernel_w: 3", x.shape, TRAIN)
    y = net.forward(x=x)["y"]
    for value, chance in ((1, 1 / 8), (2, 2 / 8), (5, 5 / 8), (0, 0)):
        spread = 4 * np.sqrt(chance * (1 - chance) / planes)
        assert abs((y == value).mean() - chance) <= spread


def test_stochastic_pooling_repeats_with_the_seed(on_ops, rng):
    x = rng.uniform(0.1, 1, (2, 3, 6, 5))
    net = pooling("pool: STOCHASTIC kernel_size: 3", x.shape, TRAIN)
    drawn = []
    for seed in (3, 3, 4):
        pycaffe_lite.set_random_seed(seed)
        drawn.append(net.forward(x=x)["y"].copy())
    assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("phase", [TEST, TRAIN])
def test_zeros_and_nan_in_stochastic_pooling(on_ops, phase):
    x = np.zeros((1, 3, 2, 4), np.float32)
    x[0, 1, 0, 1], x[0, 2, 1, 3] = 7, np.nan
    net = pooling("pool: STOCHASTIC kernel_size: 2 stride: 2", x.shape, phase)
    assert_array_equal(net.forward(x=x)["y"][0, :, 0], [[0, 0], [7, 0], [0, np.nan]])
    dx = net.backward(y=np.ones((1, 3, 1, 2)))["x"]
    assert_array_equal(dx[0, 1, :, :2], [[0, 1], [0, 0]] if phase == TRAIN else [[-1, 1], [-1, -1]])


@pytest.mark.parametrize(
    ("param", "tops", "message"),
    [
        ("pad: 1", "top: 'y'", r"pad is possible for MAX and AVE pooling only, got \(1, 1\)"),
        ("pad_w: 1 pad_h: 0", "top: 'y'", r"MAX and AVE pooling only, got \(0, 1\)"),
        ("", "top: 'y' top: 'mask'", "second top is possible for MAX"),
    ],
)
def test_stochastic_pooling_refuses(param, tops, message):
    with pytest.raises(ModelError, match=rf"layer 'p' \(Pooling\): .*{message}"):
        pooling(f"pool: STOCHASTIC kernel_size: 3 {param}", (2, 3, 7, 6), tops=tops)
