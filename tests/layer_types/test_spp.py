"""Spatial pyramid pooling against nested loops, its sizes, and what it refuses."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def bins(x, count, average):
    """(N, C, H, W) -> (N, C * count^2) by definition, one bin at a time."""
    spans, sizes = [], []
    for n in x.shape[2:]:
        k = ceil(n / count)
        before = (k * count - n + 1) // 2
        starts = [i * k - before for i in range(count)]
        spans.append([(max(s, 0), min(s + k, n)) for s in starts])
        sizes.append([min(s + k, n + before) - s for s in starts])
    y = np.zeros((*x.shape[:2], count, count))
    for i, j in np.ndindex(count, count):
        (top, bottom), (left, right) = spans[0][i], spans[1][j]
        part = x[:, :, top:bottom, left:right]
        if average:
            y[:, :, i, j] = part.sum(axis=(2, 3)) / (sizes[0][i] * sizes[1][j])
        else:
            y[:, :, i, j] = part.max(axis=(2, 3))
    return y.reshape(x.shape[0], -1)


def pyramid(x, height, average):
    return np.concatenate([bins(x, 2**level, average) for level in range(height)], axis=1)


@pytest.mark.parametrize("mode", ["MAX", "AVE"])
@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (2, 3, 11, 6), (2, 3, 4, 7)])
def test_spp(ops, shape, mode):
    check_layer(
        ops,
        f"type: 'SPP' spp_param {{ pyramid_height: 3 pool: {mode} }}",
        bottoms=[shape],
        expect=lambda x: pyramid(x, 3, mode == "AVE"),
        spaced=mode == "MAX",
    )


@pytest.mark.parametrize("mode", ["MAX", "AVE"])
def test_one_level_keeps_four_axes(ops, mode):
    def expect(x):
        return x.max(axis=(2, 3), keepdims=True) if mode == "MAX" else x.mean((2, 3), keepdims=True)

    check_layer(
        ops,
        f"type: 'SPP' spp_param {{ pyramid_height: 1 pool: {mode} engine: CAFFE }}",
        bottoms=[(2, 3, 5, 4)],
        expect=expect,
        spaced=mode == "MAX",
    )


def net_of(param, shape):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'it'"
        f" type: 'SPP' bottom: 'x' top: 'y' spp_param {{ {param} }} }}"
    )


@pytest.mark.parametrize(
    ("shape", "height", "count"),
    [((2, 3, 9, 8), 3, 63), ((4, 3, 1024, 765), 5, 1023), ((10, 3, 7, 7), 3, 63)],
)
def test_recorded_sizes(shape, height, count):
    assert net_of(f"pyramid_height: {height}", shape).blobs["y"].shape == (shape[0], count)


def test_the_length_does_not_depend_on_the_image(on_ops):
    net = net_of("pyramid_height: 3", (2, 3, 9, 8))
    draw = np.random.default_rng(4)
    for shape in ((2, 3, 9, 8), (4, 3, 15, 7), (1, 3, 4, 6)):
        net.blobs["x"].reshape(*shape)
        x = draw.permutation(np.prod(shape)).reshape(shape)
        assert_array_equal(net.forward(x=x)["y"], pyramid(x, 3, average=False))
        assert net.backward(y=np.ones((shape[0], 63)))["x"].sum() == shape[0] * 63


def test_an_empty_batch(on_ops):
    for mode in ("MAX", "AVE"):
        net = net_of(f"pyramid_height: 2 pool: {mode}", (0, 3, 5, 4))
        assert net.forward()["y"].shape == (0, 15)
        assert net.backward()["x"].shape == (0, 3, 5, 4)


REFUSED = {
    "": "pyramid_height must be > 0, got 0",
    "pyramid_height: 2 pool: STOCHASTIC": "pool is MAX or AVE, not STOCHASTIC",
    "pyramid_height: 3": r"level 2 cannot make 4 bins of 5 positions.*pad_h < kernel_h .*2 vs. 2",
    "pyramid_height: 9": r"level 2 cannot make 4 bins of 5 positions",
    "pyramid_height: 4294967295": r"level 2 cannot make 4 bins of 5 positions",
}


@pytest.mark.parametrize("param", REFUSED)
def test_errors_name_the_layer_and_both_numbers(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(SPP\): .*{REFUSED[param]}"):
        net_of(param, (2, 3, 5, 9))


def test_input_must_have_four_axes():
    with pytest.raises(ModelError, match=r"input must have 4 axes.* got 3"):
        net_of("pyramid_height: 2", (2, 3, 7))
