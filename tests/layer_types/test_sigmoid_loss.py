"""SigmoidCrossEntropyLoss against its definition, far from 0 too, and its normalisers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


def cross_entropy(x, t, mode="BATCH_SIZE", ignored=None):
    """Sum of -(t log s + (1 - t) log(1 - s)) by definition, over the divisor."""
    s = 1 / (1 + np.exp(-x))
    losses = -(t * np.log(s) + (1 - t) * np.log(1 - s))
    counted = np.trunc(t) != ignored
    divisor = {
        "FULL": x.size,
        "VALID": counted.sum(),
        "BATCH_SIZE": len(x),
        "NONE": 1,
    }[mode]
    return losses[counted].sum() / max(1, divisor)


def loss_net(shape, target, layer=""):
    dims = [" ".join(f"dim: {d}" for d in s) for s in (shape, target)]
    return (
        f"input: 'x' input_shape {{ {dims[0]} }} input: 't' input_shape {{ {dims[1]} }}"
        " force_backward: true layer { name: 'loss' type: 'SigmoidCrossEntropyLoss'"
        f" bottom: 'x' bottom: 't' top: 'loss' {layer} }}"
    )


def draw(shape, low=0.0):
    """Scores, and targets some of which are soft and some -1."""
    rng = np.random.default_rng(5)
    t = rng.uniform(size=shape)
    t.reshape(-1)[::2] = rng.integers(0, 2, size=t.reshape(-1)[::2].size)
    if low < 0:
        t.reshape(-1)[::3] = -1
    return rng.normal(size=shape), t


@pytest.mark.parametrize("mode", ["FULL", "VALID", "BATCH_SIZE", "NONE"])
@pytest.mark.parametrize("ignored", [None, -1])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4, 5), (7,)])
def test_sigmoid_loss(ops, mode, ignored, shape):
    x, t = draw(shape, -1 if ignored else 0)
    rule = "" if ignored is None else f"ignore_label: {ignored}"
    check_layer(
        ops,
        f"type: 'SigmoidCrossEntropyLoss' loss_param {{ normalization: {mode} {rule} }}",
        bottoms=[shape, shape],
        expect=lambda x, t: cross_entropy(x, t, mode, ignored),
        values=[x, t],
        gradients=[0],
    )


# https://github.com/BVLC/caffe/pull/4986
@pytest.mark.parametrize(
    ("param", "divisor"),
    [
        ("", 2),
        ("normalize: true", 3),
        ("normalize: false", 2),
        ("normalize: true normalization: BATCH_SIZE", 2),
        ("normalize: false normalization: VALID", 3),
        ("normalization: NONE", 1),
        ("normalization: FULL", 6),
    ],
)
def test_normalisation_is_by_the_batch_unless_told(on_ops, param, divisor):
    t = np.array([[0, 1, -1], [-1, -1, 1.0]])
    text = loss_net((2, 3), (2, 3), f"loss_param {{ ignore_label: -1 {param} }}")
    net = run_net(text, x=np.zeros((2, 3)), t=t)
    assert_allclose(net.blobs["loss"].data, 3 * np.log(2) / divisor, rtol=1e-6)
    expect = np.where(t == -1, 0, 0.5 - t) / divisor
    assert_allclose(net.backward()["x"], expect, rtol=1e-6)


def test_scores_far_from_0_stay_finite(on_ops):
    net = make_net(loss_net((1, 4), (1, 4)))
    loss = net.forward(x=[[1e4, -1e4, 1e4, -1e4]], t=[[1, 0, 0, 1]])["loss"]
    assert_allclose(loss, 2e4)
    assert_array_equal(net.backward()["x"], [[0, 0, 1, -1]])


def test_what_an_ignored_score_is_does_not_matter(on_ops):
    net = make_net(loss_net((1, 2), (1, 2), "loss_param { ignore_label: -1 }"))
    assert_allclose(net.forward(x=[[np.nan, 0]], t=[[-1, 0]])["loss"], np.log(2), rtol=1e-6)
    assert_array_equal(net.backward()["x"], [[0, 0.5]])


def test_ignored_halves_get_no_gradient(on_ops):
    x, t = draw((10, 5))
    t[:5] = -1
    net = run_net(loss_net(x.shape, t.shape, "loss_param { ignore_label: -1 }"), x=x, t=t)
    grad = net.backward()["x"]
    assert_array_equal(grad[:5], 0)
    assert (grad[5:] != 0).all()


def test_loss_and_gradient_scale_with_the_weight(on_ops):
    x, t = draw((10, 5))
    net = run_net(loss_net(x.shape, t.shape, "loss_weight: 3.7"), x=x, t=t)
    assert_allclose(net._forward(0, len(net.layers) - 1), 3.7 * cross_entropy(x, t), rtol=1e-5)
    expect = 3.7 * (1 / (1 + np.exp(-x)) - t) / 10
    assert_allclose(net.backward()["x"], expect, rtol=1e-4, atol=1e-6)


def test_targets_may_have_another_shape(on_ops):
    x, t = draw((2, 6))
    net = run_net(loss_net((2, 3, 2, 1), (2, 6)), x=x.reshape(2, 3, 2, 1), t=t)
    assert_allclose(net.blobs["loss"].data, cross_entropy(x, t), rtol=1e-5)
    net.backward()


def test_an_empty_batch_has_loss_0(on_ops):
    net = make_net(loss_net((0, 4), (0, 4), "loss_param { ignore_label: 1 }"))
    assert net.forward()["loss"] == 0
    assert net.backward()["x"].shape == (0, 4)


@pytest.mark.parametrize(
    ("shape", "target", "match"),
    [
        ((5, 4), (5, 3), r"inputs must have the same count \(20 vs. 15\)"),
        ((5, 4), (4, 5), r"data and label should have the same first dimension \(5 vs. 4\)"),
    ],
)
def test_what_is_refused(shape, target, match):
    with pytest.raises(ModelError, match=rf"'loss' \(SigmoidCrossEntropyLoss\): {match}"):
        make_net(loss_net(shape, target))
