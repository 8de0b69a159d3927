"""FlowNet2's changes of an image's size, against weights of all pixels."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


def triangle(d):
    return max(1 - abs(d), 0)


def cubic(d):
    d = abs(d)
    if d <= 1:
        return 1.5 * d**3 - 2.5 * d**2 + 1
    return -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 if d < 2 else 0


def weighted(x, size, weight):
    """(N, C, H, W) -> size: means with weight(axis, i, k) of pixel k for pixel i, 0 without any."""
    y = np.zeros((*x.shape[:2], *size))
    for i, j in np.ndindex(*size):
        rows = np.array([weight(0, i, k) for k in range(x.shape[2])])
        columns = np.array([weight(1, j, k) for k in range(x.shape[3])])
        weights = rows[:, None] * columns
        y[:, :, i, j] = (x * weights).sum(axis=(2, 3)) / (weights.sum() or 1)
    return y


def resampled(x, size, kernel, antialias=True):
    factors = [x.shape[2 + a] / size[a] for a in (0, 1)]
    widens = antialias and max(factors) > 1

    def weight(axis, i, k):
        at = i * factors[axis] + factors[1 - axis] / 2 - 0.5
        if kernel is None:
            return k == min(max(floor(at + 0.5), 0), x.shape[2 + axis] - 1)
        return kernel((at - k) / (factors[axis] if widens else 1))

    return weighted(x, size, weight)


@pytest.mark.parametrize("size", [(8, 10), (11, 9), (3, 4), (2, 9)])
@pytest.mark.parametrize(
    ("name", "kernel"), [("NEAREST", None), ("LINEAR", triangle), ("CUBIC", cubic)]
)
def test_resample(ops, name, kernel, size):
    check_layer(
        ops,
        f"type: 'Resample' resample_param {{ type: {name} height: {size[0]} width: {size[1]} }}",
        [(2, 3, 4, 5)],
        lambda x: resampled(x, size, kernel),
    )


def test_resample_without_antialias(ops):
    check_layer(
        ops,
        "type: 'Resample' resample_param { height: 3 width: 4 antialias: false }",
        [(2, 3, 7, 9)],
        lambda x: resampled(x, (3, 4), triangle, antialias=False),
    )


@pytest.mark.parametrize("param", ["", "width: 3 height: 2"])
def test_resample_to_the_size_of_another(ops, param):
    check_layer(
        ops,
        f"type: 'Resample' resample_param {{ type: LINEAR {param} }}",
        [(2, 3, 4, 5), (2, 1, 8, 9)],
        lambda x, like: resampled(x, (8, 9), triangle),
    )


def test_resample_by_a_factor(ops):
    check_layer(
        ops,
        "type: 'Resample' resample_param { factor: 0.5 }",
        [(2, 3, 7, 9)],
        lambda x: resampled(x, (3, 4), triangle),
    )


def downsampled(x, size):
    steps = [(x.shape[2 + a] - 1) / (n - 1) if n > 1 else 0 for a, n in enumerate(size)]
    return weighted(
        x, size, lambda axis, i, k: triangle((i * steps[axis] - k) / max(steps[axis], 1))
    )


@pytest.mark.parametrize("size", [(3, 4), (7, 2), (1, 9)])
def test_downsample(ops, size):
    check_layer(
        ops,
        f"type: 'Downsample' downsample_param {{ top_height: {size[0]} top_width: {size[1]} }}",
        [(2, 3, 7, 9)],
        lambda x: downsampled(x, size),
    )


def test_downsample_to_the_size_of_another(ops):
    check_layer(
        ops,
        "type: 'Downsample'",
        [(2, 3, 7, 9), (2, 1, 3, 4)],
        lambda x, like: downsampled(x, (3, 4)),
    )


def test_downsample_leaves_nan_out(on_ops, rng):
    net = net_of("type: 'Downsample' downsample_param { top_height: 2 top_width: 3 }", (1, 2, 5, 7))
    x = rng.normal(size=(1, 2, 5, 7))
    x[0, 0, 1, 3] = x[0, 1, :, :4] = np.nan
    y = net.forward(x0=x)["y"]
    known = np.nan_to_num(x)
    counted = downsampled(np.isfinite(x).astype(float), (2, 3))
    want = downsampled(known, (2, 3)) / np.where(counted == 0, 1, counted)
    want[counted < 2 / 3] = np.nan
    assert np.isnan(want[0, 1, :, 0]).all()
    assert np.isfinite(want[0, 0]).all()
    assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    dx = net.backward(y=np.ones_like(y))["x0"]
    assert np.isfinite(dx).all()
    assert_array_equal(dx[np.isnan(x)], 0)


def enlarged(x, size):
    steps = [(x.shape[2 + a] - 1) / (n - 1) if n > 1 else 0 for a, n in enumerate(size)]
    return weighted(x, size, lambda axis, i, k: triangle(i * steps[axis] - k))


@pytest.mark.parametrize(
    ("param", "size"),
    [("", (8, 9)), ("size_divisible_by: 5", (10, 10)), ("top_height: 9 top_width: 11", (9, 11))],
)
def test_accum(ops, param, size):
    check_layer(
        ops,
        f"type: 'Accum' accum_param {{ {param} }}",
        [(2, 3, 4, 5), (2, 1, 8, 9)],
        lambda *xs: np.concatenate([enlarged(x, size) for x in xs], axis=1),
    )


def test_accum_with_a_reference(ops):
    check_layer(
        ops,
        "type: 'Accum' accum_param { have_reference: true }",
        [(2, 3, 4, 5), (2, 1, 8, 9)],
        lambda x, like: enlarged(x, (8, 9)),
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


SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "shapes", "text"),
    [
        ("type: 'Resample' resample_param { type: AREA }", [SHAPE], "AREA is not available"),
        ("type: 'Resample' resample_param { width: 5 }", [SHAPE], "width 5 and height 0"),
        ("type: 'Resample'", [SHAPE, (2, 3, 4)], "4 axes, got 3"),
        ("type: 'Downsample'", [SHAPE], r"must be > 0, got \(4, 5\) .*\(0, 0\)"),
        ("type: 'Accum'", [SHAPE, (3, 2, 4, 5)], r"same num: `2 3 4 5 \(120\)` vs. `3 2 4 5"),
        ("type: 'Accum' accum_param { have_reference: true }", [SHAPE], "at least 2 .*, got 1"),
        ("type: 'Accum'", [(2, 3, 4)], "4 axes, got 3"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(layer, shapes, text):
    with pytest.raises(ModelError, match=rf"layer 'it' .*{text}"):
        net_of(layer, *shapes)


@pytest.mark.parametrize(
    "layer",
    [
        "type: 'Resample' resample_param { height: 8 width: 9 }",
        "type: 'Downsample' downsample_param { top_height: 8 top_width: 9 }",
        "type: 'Accum' accum_param { top_height: 8 top_width: 9 }",
    ],
)
def test_an_empty_batch(on_ops, layer):
    net = net_of(layer, (0, 3, 4, 5))
    assert net.forward()["y"].shape == (0, 3, 8, 9)
    assert net.backward()["x0"].shape == (0, 3, 4, 5)


def test_rounding_up_is_to_a_multiple():
    net = net_of("type: 'Accum' accum_param { size_divisible_by: 4 }", (2, 3, 5, 7))
    assert net.blobs["y"].shape == (2, 3, 4 * ceil(5 / 4), 4 * ceil(7 / 4))
