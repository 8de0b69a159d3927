"""Upsampling, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def unpool(x, mask, size):
    y = np.zeros((*x.shape[:2], *size))
    for at in np.ndindex(*x.shape):
        y[at[:2]].reshape(-1)[int(mask[at])] = x[at]
    return y


def a_mask(shape, size, repeats):
    """Indices of a plane of that size, each once a plane, or not."""
    rng = np.random.default_rng(5)
    count, room = int(np.prod(shape[2:])), int(np.prod(size))
    planes = [rng.choice(room, count, replace=repeats) for _ in range(shape[0] * shape[1])]
    return np.array(planes, dtype=float).reshape(shape)


MASKED = {
    "": (8, 10),
    "scale: 3": (12, 15),
    "scale_h: 1 scale_w: 4": (4, 20),
    "pad_out_h: true": (7, 10),
    "scale: 2 pad_out_w: true": (8, 9),
    "scale: 2 upsample_h: 9 upsample_w: 11": (9, 11),
}


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("param", MASKED)
def test_upsample_with_a_mask(ops, param, repeats):
    shape, size = (2, 3, 4, 5), MASKED[param]
    check_layer(
        ops,
        f"type: 'Upsample' upsample_param {{ {param} }}",
        [shape, shape],
        lambda x, mask: unpool(x, mask, size),
        values=[np.random.default_rng(3).normal(size=shape), a_mask(shape, size, repeats)],
        gradients=[0],
    )


@pytest.mark.parametrize("size", [(8, 10), (3, 7)])
def test_max_unpool(ops, size):
    shape = (2, 3, 4, 5)
    check_layer(
        ops,
        f"type: 'MaxUnPool' max_unpool_param {{ dst_h: {size[0]} dst_w: {size[1]} }}",
        [shape, shape],
        lambda x, mask: unpool(x, mask, size),
        values=[np.random.default_rng(3).normal(size=shape), a_mask(shape, size, repeats=True)],
        gradients=[0],
    )


# https://github.com/azhe198827/retinaface_tensorRT/issues/4
@pytest.mark.parametrize(
    ("param", "rows", "columns"),
    [
        ("", 1, 1),
        ("scale: 2", 2, 2),
        ("scale_h: 2 scale_w: 3", 2, 3),
        ("upsample_h: 12 upsample_w: 10", 3, 2),
    ],
)
def test_upsample_without_a_mask(ops, param, rows, columns):
    check_layer(
        ops,
        f"type: 'Upsample' upsample_param {{ {param} }}",
        [(2, 3, 4, 5)],
        lambda x: x.repeat(rows, axis=2).repeat(columns, axis=3),
    )


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


def test_values_go_back_to_where_a_pooling_took_them_from(on_ops, rng):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 7, 6] }"
        " layer { name: 'p' type: 'Pooling' bottom: 'x' top: 'p' top: 'mask'"
        " pooling_param { kernel_size: 2 stride: 2 } }"
        " layer { name: 'u' type: 'Upsample' bottom: 'p' bottom: 'mask' top: 'y'"
        " upsample_param { upsample_h: 7 upsample_w: 6 } }"
    )
    x = rng.uniform(1, 2, (2, 3, 7, 6)).astype(np.float32)
    y = net.forward(x=x)["y"]
    assert (y != 0).sum() == 2 * 3 * 4 * 3
    assert_array_equal(y[y != 0], x[y != 0])


@pytest.mark.parametrize("value", [20, -1, np.nan])
def test_a_mask_that_points_outside(on_ops, value):
    net = net_of(
        "type: 'MaxUnPool' max_unpool_param { dst_h: 4 dst_w: 5 }", (1, 2, 3, 4), (1, 2, 3, 4)
    )
    mask = np.zeros((1, 2, 3, 4))
    mask[0, 1, 2, 3] = value
    with pytest.raises(ModelError, match=rf"index out of range: the mask has {value}, .* 20"):
        net.forward(x0=mask, x1=mask)


SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "shapes", "text"),
    [
        ("type: 'Upsample'", [(2, 3, 4)], "4 axes, got 3"),
        ("type: 'Upsample'", [(2, 3, 4), (2, 3, 4)], "4 axes, got 3"),
        ("type: 'Upsample'", [SHAPE, (2, 3, 4, 6)], r"`2 3 4 5 \(120\)` vs. `2 3 4 6 \(144\)`"),
        ("type: 'Upsample' upsample_param { scale: 0 }", [SHAPE], "at least 1, got 0"),
        ("type: 'Upsample' upsample_param { scale_h: 2 }", [SHAPE], "both be given"),
        ("type: 'Upsample' upsample_param { upsample_w: 2 }", [SHAPE], "both be given"),
        (
            "type: 'Upsample' upsample_param { scale: 3 pad_out_h: true }",
            [SHAPE, SHAPE],
            "scale 2, got 3",
        ),
        (
            "type: 'Upsample' upsample_param { upsample_h: 8 upsample_w: 9 }",
            [SHAPE],
            "size 9 is no multiple of the input's, 5",
        ),
        ("type: 'MaxUnPool' max_unpool_param { dst_h: 7 }", [SHAPE, SHAPE], "got 7 and 0"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(layer, shapes, text):
    with pytest.raises(ModelError, match=rf"layer 'it' .*{text}"):
        net_of(layer, *shapes)


@pytest.mark.parametrize("bottoms", [1, 2])
def test_an_empty_batch(on_ops, bottoms):
    net = net_of("type: 'Upsample' upsample_param { scale: 2 }", *[(0, 3, 4, 5)] * bottoms)
    assert net.forward()["y"].shape == (0, 3, 8, 10)
    assert net.backward()["x0"].shape == (0, 3, 4, 5)
