"""SmoothL1Loss as three forks have it, against a loop; which one a net means."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError

SHAPE = (3, 4, 2, 5)


def losses(a, b, sigma=1.0, inside=None, outside=None):
    found = np.zeros(a.shape)
    for at in np.ndindex(*a.shape):
        d = a[at] - b[at]
        d *= 1 if inside is None else inside[at]
        bound = 1 / sigma**2
        found[at] = 0.5 * sigma**2 * d * d if abs(d) < bound else abs(d) - 0.5 * bound
        found[at] *= 1 if outside is None else outside[at]
    return found


def drawn(count, shape=SHAPE):
    rng = np.random.default_rng(12)
    return [rng.normal(size=shape) * 1.5 for _ in range(count)]


def test_ssd(ops):
    check_layer(
        ops,
        "type: 'SmoothL1Loss'",
        bottoms=[SHAPE, SHAPE],
        expect=lambda a, b: losses(a, b).sum() / len(a),
    )


@pytest.mark.parametrize("sigma", [0.5, 1, 3])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("weight", ["", "loss_weight: 1"])
def test_fast_rcnn(ops, sigma, count, weight):
    check_layer(
        ops,
        f"type: 'SmoothL1Loss' {weight} smooth_l1_loss_param {{ sigma: {sigma} }}",
        bottoms=[SHAPE] * count,
        expect=lambda a, b, *w: losses(a, b, sigma, *w).sum() / len(a),
        values=drawn(count),
        gradients=[0, 1],
    )


NORMS = {"FULL": 30, "VALID": 30, "BATCH_SIZE": 3, "NONE": 1, "PRE_FIXED": 7}


@pytest.mark.parametrize("mode", NORMS)
@pytest.mark.parametrize(("count", "tops"), [(2, 1), (3, 2)])
def test_rfcn(ops, mode, count, tops):
    def expect(a, b, *w):
        norm = NORMS[mode] * (len(a) / 3 if mode in ("FULL", "VALID", "BATCH_SIZE") else 1)
        each = losses(a, b, 1, *w)
        return (each.sum() / norm, each.sum(axis=1, keepdims=True))[:tops]

    check_layer(
        ops,
        f"type: 'SmoothL1Loss' loss_param {{ normalization: {mode} pre_fixed_normalizer: 7 }}",
        bottoms=[SHAPE] * count,
        expect=expect,
        tops=tops,
        values=drawn(count),
        gradients=[0, 1],
    )


def net_of(shapes, layer):
    inputs = "".join(
        f" input: 'x{k}' input_shape {{ dim: {list(s)} }}" for k, s in enumerate(shapes)
    )
    bottoms = "".join(f" bottom: 'x{k}'" for k in range(len(shapes)))
    return f"force_backward: true {inputs} layer {{ name: 'loss' top: 'loss' {bottoms} {layer} }}"


@pytest.mark.parametrize(
    ("layer", "norm", "logged"),
    [
        ("", 3, False),
        ("loss_weight: 1", 30, True),
        ("loss_weight: 1 smooth_l1_loss_param {}", 3, False),
        ("loss_weight: 1 loss_param {}", 30, False),
    ],
)
def test_which_fork_is_meant(layer, norm, logged, caplog):
    values = dict(zip(("x0", "x1"), drawn(2), strict=True))
    with caplog.at_level(logging.WARNING, logger="pycaffe_lite"):
        net = run_net(net_of([SHAPE, SHAPE], f"type: 'SmoothL1Loss' {layer}"), **values)
    assert_allclose(net.blobs["loss"].data, losses(*drawn(2)).sum() / norm, rtol=1e-5)
    assert any("'loss'" in r.getMessage() for r in caplog.records) == logged


def test_an_empty_batch_has_loss_0(on_ops):
    net = run_net(net_of([(0, 4), (0, 4)], "type: 'SmoothL1Loss'"))
    assert net.blobs["loss"].data == 0
    assert net.backward()["x0"].shape == (0, 4)


def test_what_is_refused():
    start = r"'loss' \(SmoothL1Loss\): .*"
    with pytest.raises(ModelError, match=start + r"\(3, 4\) vs. \(3, 5\)"):
        make_net(net_of([(3, 4), (3, 5)], "type: 'SmoothL1Loss'"))
    layer = "type: 'SmoothL1Loss' smooth_l1_loss_param { sigma: 0 }"
    with pytest.raises(ModelError, match=start + "sigma must be positive, got 0"):
        make_net(net_of([(3, 4), (3, 4)], layer))
    with pytest.raises(ModelError, match=start + "with 4 bottoms there is 1 top, got 2"):
        make_net(net_of([(3, 4)] * 4, "type: 'SmoothL1Loss' top: 'more'"))
