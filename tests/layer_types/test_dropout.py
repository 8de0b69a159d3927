"""Dropout: what is kept, how it is scaled, and the fields that forks added."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN


def dropout(*shape, param="", phase=TRAIN, top="y", before=""):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ {dims} }} {before}"
        f" layer {{ name: 'd' type: 'Dropout' bottom: '{'p' if before else 'x'}' top: '{top}'"
        f" dropout_param {{ {param} }} }}",
        phase,
    )


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_in_test_phase_is_the_identity(ops, ratio):
    check_layer(
        ops,
        f"type: 'Dropout' dropout_param {{ dropout_ratio: {ratio} }}",
        bottoms=[(2, 3, 5)],
        expect=lambda x: x,
    )


@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_in_train_phase(ops, ratio):
    snippet = f"type: 'Dropout' dropout_param {{ dropout_ratio: {ratio} }}"
    check_layer(ops, snippet, bottoms=[(2, 3, 5)], expect=None, phase="TRAIN")


# https://github.com/BVLC/caffe/issues/5784
@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_dropout_keeps_the_right_share_and_scales_it(on_ops, ratio):
    net = dropout(40, 50, param=f"dropout_ratio: {ratio}")
    x = np.linspace(1, 2, 2000, dtype=np.float32).reshape(40, 50)
    y = net.forward(x=x)["y"].copy()
    kept = y != 0
    assert_allclose(y[kept], x[kept] / (1 - ratio), rtol=1e-6)
    bound = 4 * np.sqrt(ratio * (1 - ratio) / x.size)
    assert abs(kept.mean() - (1 - ratio)) < bound
    dx = net.backward(y=np.ones_like(x))["x"]
    assert_allclose(dx, kept / (1 - ratio), rtol=1e-6)
    assert (net.forward(x=x)["y"] != y).any()


def test_half_is_dropped_by_default(on_ops):
    y = dropout(40, 50).forward(x=np.ones((40, 50)))["y"]
    assert set(np.unique(y)) == {0, 2}


def test_dropout_repeats_with_the_seed(on_ops):
    net = dropout(30)
    drawn = []
    for seed in (3, 3, 4):
        pycaffe_lite.set_random_seed(seed)
        drawn.append(net.forward(x=np.ones(30))["y"].copy())
    assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("ratio", [0, 1, 1.5])
def test_dropout_ratio_must_be_a_share(ratio):
    with pytest.raises(pycaffe_lite.ModelError, match=f"dropout_ratio .*{ratio}"):
        dropout(3, param=f"dropout_ratio: {ratio}")


POOL = """layer { name: 'p' type: 'Pooling' bottom: 'x' top: 'p'
    pooling_param { kernel_size: 3 stride: 2 } }"""


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_dropout_in_place_behind_pooling_of_ones(on_ops, phase):
    """Each pooled value stays 1 or becomes 0 or 2, and its gradient reaches one input."""
    net = dropout(2, 3, 6, 5, phase=phase, top="p", before=POOL)
    y = net.forward(x=np.ones((2, 3, 6, 5)))["p"]
    assert y.shape == (2, 3, 3, 2)
    assert set(np.unique(y)) == ({0, 2} if phase == TRAIN else {1})
    total = y.sum()
    dx = net.backward(p=np.ones(y.shape))["x"]
    assert dx.sum() == total


# ---- forks --------------------------------------------------------------------------------------


# https://github.com/ShaoqingRen/faster_rcnn/issues/14
@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_without_scaling_in_training_the_test_phase_scales(ops, ratio):
    check_layer(
        ops,
        f"type: 'Dropout' dropout_param {{ scale_train: false dropout_ratio: {ratio} }}",
        bottoms=[(2, 3, 5)],
        expect=lambda x: x * (1 - ratio),
    )


def test_without_scaling_in_training_what_is_kept_stays_as_it_is(on_ops):
    net = dropout(30, 20, param="scale_train: false dropout_ratio: 0.75")
    x = np.linspace(1, 2, 600, dtype=np.float32).reshape(30, 20)
    y = net.forward(x=x)["y"]
    kept = y != 0
    assert_array_equal(y, x * kept)
    assert abs(kept.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 600)
    assert_array_equal(net.backward(y=x)["x"], x * kept)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("scale", ["true", "false"])
def test_what_forks_draw(ops, phase, scale):
    param = f"scale_train: {scale} sample_weights_test: true"
    snippet = f"type: 'Dropout' dropout_param {{ {param} }}"
    check_layer(ops, snippet, bottoms=[(2, 3, 5)], expect=None, phase=phase)


def test_dropping_in_the_test_phase_too(on_ops):
    """As nets do that estimate how sure they are from many forwards."""
    net = dropout(30, 20, param="sample_weights_test: true", phase=TEST)
    x = np.ones((30, 20))
    y = net.forward(x=x)["y"].copy()
    assert set(np.unique(y)) == {0, 2}
    assert (net.forward(x=x)["y"] != y).any()
