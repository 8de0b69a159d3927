"""Windows of pooling: recorded figures, and gradients of kernels with sides 3 and 4."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal


def cells(size, kernel, stride, pad):
    """(rows, columns) of windows, and of each its first and last positions in the padded image."""
    spans = []
    for n, k, s, p in zip(size, kernel, stride, pad, strict=True):
        count = ceil((n + 2 * p - k) / s) + 1
        if any(pad) and (count - 1) * s >= n + p:
            count -= 1
        spans.append([(i * s - p, min(i * s - p + k, n + p)) for i in range(count)])
    return spans


def pooled(x, kernel, stride, pad, *, average):
    """Values and, for maxima, indices of the winners, by definition."""
    height, width = x.shape[2:]
    rows, cols = cells((height, width), kernel, stride, pad)
    y = np.zeros((*x.shape[:2], len(rows), len(cols)))
    mask = np.zeros_like(y)
    for (i, (top, bottom)), (j, (left, right)) in product(enumerate(rows), enumerate(cols)):
        part = x[:, :, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
        flat = part.reshape(*x.shape[:2], -1)
        if average:
            y[:, :, i, j] = flat.sum(axis=2) / ((bottom - top) * (right - left))
            continue
        row, col = np.divmod(flat.argmax(axis=2), part.shape[3])
        y[:, :, i, j] = flat.max(axis=2)
        mask[:, :, i, j] = (row + max(top, 0)) * width + col + max(left, 0)
    return y, mask


@pytest.mark.parametrize(("mode", "pad"), [("MAX", 1), ("AVE", 0), ("AVE", 2)])
@pytest.mark.parametrize("kernel", list(product((3, 4), repeat=2)))
def test_kernels_of_3_and_4(ops, kernel, mode, pad):
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: {mode} kernel_h: {kernel[0]}"
        f" kernel_w: {kernel[1]} stride: 2 pad: {pad} }}",
        bottoms=[(2, 3, 6, 5)],
        expect=lambda x: pooled(x, kernel, (2, 2), (pad, pad), average=mode == "AVE")[0],
        spaced=mode == "MAX",
    )


@pytest.mark.parametrize("kernel", list(product((3, 4), repeat=2)))
def test_gradients_with_a_mask(ops, kernel):
    """What stands in the mask's gradient is not looked at."""
    check_layer(
        ops,
        "type: 'Pooling' pooling_param { stride: 2"
        f" kernel_h: {kernel[0]} kernel_w: {kernel[1]} }}",
        bottoms=[(2, 3, 6, 5)],
        expect=lambda x: pooled(x, kernel, (2, 2), (0, 0), average=False),
        tops=2,
        spaced=True,
    )


def net_of(shape, param, tops="top: 'y'"):
    return make_net(
        f"input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'p' type: 'Pooling'"
        f" bottom: 'x' {tops} pooling_param {{ {param} }} }}"
    )


SQUARE = [[35, 1, 6, 26, 19, 24], [3, 32, 7, 21, 23, 25], [31, 9, 2, 22, 27, 20],
          [8, 28, 33, 17, 10, 15], [30, 5, 34, 12, 14, 16], [4, 36, 29, 13, 18, 11]]  # fmt: skip
MAXIMA = {
    "kernel_size: 2": (
        [[1, 2, 5, 2, 3], [9, 4, 1, 4, 8], [1, 2, 5, 2, 3]],
        [[9, 5, 5, 8], [9, 5, 5, 8]],
        [[5, 2, 2, 9], [5, 12, 12, 9]],
    ),
    "kernel_h: 3 kernel_w: 2": (
        SQUARE,
        [[35, 32, 26, 27, 27], [32, 33, 33, 27, 27], [31, 34, 34, 27, 27], [36, 36, 34, 18, 18]],
        [[0, 7, 3, 16, 16], [7, 20, 20, 16, 16], [12, 26, 26, 16, 16], [31, 31, 26, 34, 34]],
    ),
    "kernel_h: 2 kernel_w: 3": (
        SQUARE,
        [[35, 32, 26, 26], [32, 32, 27, 27], [33, 33, 33, 27], [34, 34, 34, 17], [36, 36, 34, 18]],
        [[0, 7, 3, 3], [7, 7, 16, 16], [20, 20, 20, 16], [26, 26, 26, 21], [31, 31, 26, 34]],
    ),
    "kernel_size: 3 stride: 2 pad: 2": (
        [[1, 2, 4], [2, 3, 2], [4, 2, 1]],
        [[1, 4, 4], [4, 4, 4], [4, 4, 1]],
        [[0, 2, 2], [6, 2, 2], [6, 6, 8]],
    ),
}


@pytest.mark.parametrize("param", MAXIMA)
def test_recorded_maxima(on_ops, param):
    """Of equal maxima the first has its index in the mask."""
    plane, y, mask = MAXIMA[param]
    net = net_of((2, 3, *np.shape(plane)), param, "top: 'y' top: 'mask'")
    out = net.forward(x=np.broadcast_to(plane, (2, 3, *np.shape(plane))))
    assert_array_equal(out["y"], np.broadcast_to(y, (2, 3, *np.shape(y))))
    assert_array_equal(out["mask"], np.broadcast_to(mask, (2, 3, *np.shape(y))))


# https://github.com/BVLC/caffe/issues/6297
# https://github.com/Tencent/ncnn/issues/924
# https://github.com/opencv/opencv/pull/10867
@pytest.mark.parametrize(
    ("size", "stride", "factors"), [(4, 2, [2 / 3, 1, 1 / 2]), (3, 1, [2 / 3, 1, 2 / 3])]
)
@pytest.mark.parametrize("value", [1, 2])
def test_average_divides_by_the_window_in_the_padded_image(on_ops, size, stride, factors, value):
    """Images of one value, kernel 3, pad 1: recorded from the original."""
    net = net_of((1, 2, size, size), f"pool: AVE kernel_size: 3 stride: {stride} pad: 1")
    y = net.forward(x=np.full((1, 2, size, size), value))["y"]
    wanted = value * np.outer(factors, factors)
    assert_allclose(y, np.broadcast_to(wanted, y.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("kernel_size: 3 stride: 2", (3, 2)),
        ("pool: AVE kernel_size: 3 stride: 2 pad: 1", (4, 3)),
        ("pool: AVE global_pooling: true", (1, 1)),
    ],
)
def test_recorded_sizes(param, shape):
    assert net_of((2, 3, 6, 5), param).blobs["y"].shape == (2, 3, *shape)
