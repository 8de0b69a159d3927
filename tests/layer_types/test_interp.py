"""Bilinear interpolation, against four neighbours at a time."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError


def bilinear(x, size, place):
    """(N, C, H, W) at place(axis, i) for i of the new size."""
    y = np.zeros((*x.shape[:2], *size))
    for i, j in np.ndindex(*size):
        spans = []
        for axis, at in ((0, i), (1, j)):
            p = place(axis, at)
            low = min(floor(p), x.shape[2 + axis] - 1)
            high = min(low + 1, x.shape[2 + axis] - 1)
            spans.append(((low, 1 - (p - low)), (high, p - low)))
        for row, a in spans[0]:
            for column, b in spans[1]:
                y[:, :, i, j] += a * b * x[:, :, row, column]
    return y


def corners(x, size):
    steps = [(x.shape[2 + a] - 1) / (n - 1) if n > 1 else 0 for a, n in enumerate(size)]
    return bilinear(x, size, lambda axis, i: i * steps[axis])


# https://github.com/kazuto1011/deeplab-pytorch/issues/37
SIZES = {
    "height: 9 width: 11": (9, 11),
    "height: 3 width: 13": (3, 13),
    "height: 1 width: 1": (1, 1),
    "height: 5 width: 7": (5, 7),
    "zoom_factor: 2": (9, 13),
    "zoom_factor: 2 height: 3 width: 4": (9, 13),
    "shrink_factor: 2": (3, 4),
    "shrink_factor: 3": (2, 3),
    "shrink_factor: 2 zoom_factor: 3": (7, 10),
    "shrink_factor: 2 zoom_factor: 3 height: 4 width: 3": (4, 3),
}


@pytest.mark.parametrize("param", SIZES)
def test_interp(ops, param):
    check_layer(
        ops,
        f"type: 'Interp' interp_param {{ {param} }}",
        [(2, 3, 5, 7)],
        lambda x: corners(x, SIZES[param]),
    )


def test_pads_below_0_cut_first(ops):
    check_layer(
        ops,
        "type: 'Interp' interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }",
        [(2, 3, 6, 8)],
        lambda x: corners(x[:, :, 1:-2, 1:-2], (5, 9)),
    )


@pytest.mark.parametrize(
    ("param", "size"), [("dst_h: 9 dst_w: 11", (9, 11)), ("scale_factor: 0.5", (2, 3))]
)
def test_bilinear_interpolate(ops, param, size):
    check_layer(
        ops,
        f"type: 'BilinearInterpolate' bilinear_interpolate_param {{ {param} }}",
        [(2, 3, 5, 7)],
        lambda x: corners(x, size),
    )


@pytest.mark.parametrize(
    ("param", "size"), [("dst_h: 9 dst_w: 11", (9, 11)), ("scale_factor: 2", (10, 14))]
)
def test_bilinear_interpolate_of_areas(ops, param, size):
    def expect(x):
        def place(axis, i):
            n = x.shape[2 + axis]
            return min(max((i + 0.5) * n / size[axis] - 0.5, 0), n - 1)

        return bilinear(x, size, place)

    check_layer(
        ops,
        "type: 'BilinearInterpolate' bilinear_interpolate_param { align_corners: false"
        f" {param} }}",
        [(2, 3, 5, 7)],
        expect,
    )


def net_of(type_name, param, shape="2, 3, 5, 7"):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: [{shape}] }} layer {{ name: 'it'"
        f" type: '{type_name}' bottom: 'x' top: 'y' {param} }}"
    )


def test_a_constant_image_stays_constant(on_ops):
    y = net_of("Interp", "interp_param { height: 473 width: 60 }").forward(x=np.ones((2, 3, 5, 7)))[
        "y"
    ]
    assert_allclose(y, 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("param", "shape", "text"),
    [
        ("pad_beg: 1", "2, 3, 5, 7", "got 1 and 0"),
        ("zoom_factor: 0", "2, 3, 5, 7", "zoom_factor must be positive, got 0"),
        ("height: 5", "2, 3, 5, 7", "got height 5 and width 0"),
        ("height: 5 width: -1", "2, 3, 5, 7", r"must be > 0, got \(5, 7\) .*\(5, -1\)"),
        ("zoom_factor: 2 pad_beg: -5", "2, 3, 5, 7", "must be > 0, got 0 and 2"),
        ("zoom_factor: 2", "3, 5, 7", "4 axes, got 3"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(param, shape, text):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Interp\): .*{text}"):
        net_of("Interp", f"interp_param {{ {param} }}", shape)


@pytest.mark.parametrize(
    ("type_name", "param"),
    [
        ("Interp", "interp_param { zoom_factor: 2 }"),
        ("BilinearInterpolate", "bilinear_interpolate_param { dst_h: 9 dst_w: 13 }"),
    ],
)
def test_an_empty_batch(on_ops, type_name, param):
    net = net_of(type_name, param, "0, 3, 5, 7")
    assert net.forward()["y"].shape == (0, 3, 9, 13)
    assert net.backward()["x"].shape == (0, 3, 5, 7)
