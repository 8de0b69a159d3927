"""BatchNorm and MVN."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite

SHAPE = (5, 2, 3, 4)
STORED = [np.array([1.5, -2.0]), np.array([0.75, 6.0]), np.array([2.5])]


def net_of(snippet, *shape, phase=pycaffe_lite.TRAIN, top="y", force=True):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        f"force_backward: {'true' if force else 'false'}"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'norm' bottom: 'x' top: '{top}' {snippet} }}",
        phase,
    )


def by_channel(x):
    """(N, C, ...) -> (C, values of the channel)."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


def batch_norm(x, eps):
    rows = by_channel(x)
    wide = (-1, *[1] * (x.ndim - 2))
    mean, variance = rows.mean(axis=1).reshape(wide), rows.var(axis=1).reshape(wide)
    return (x - mean) / np.sqrt(variance + eps)


# ---- BatchNorm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("shape", [SHAPE, (6, 5), (4, 3, 2, 1, 5)])
def test_batch_norm_by_the_moments_of_the_batch(ops, shape, eps):
    check_layer(
        ops,
        f"type: 'BatchNorm' batch_norm_param {{ eps: {eps} }}",
        bottoms=[shape],
        expect=lambda x, *stored: batch_norm(x, eps),
        phase="TRAIN",
    )


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_batch_norm_by_stored_moments(ops, phase):
    def expect(x, mean, variance, factor):
        mean, variance = (a.reshape(2, 1, 1) / factor for a in (mean, variance))
        return (x - mean) / np.sqrt(variance + 1e-5)

    check_layer(
        ops,
        "type: 'BatchNorm' batch_norm_param { use_global_stats: true }",
        bottoms=[SHAPE],
        expect=expect,
        phase=phase,
        params=STORED,
    )


@pytest.mark.parametrize("top", ["x", "y"])
def test_batch_norm_gives_mean_0_and_variance_1(on_ops, rng, top):
    net = net_of("type: 'BatchNorm'", *SHAPE, top=top)
    net.blobs["x"].data[...] = rng.normal(3, 5, SHAPE)
    rows = by_channel(net.forward()[top])
    assert_allclose(rows.mean(axis=1), 0, atol=1e-3)
    assert_allclose(rows.var(axis=1), 1, atol=1e-3)


# https://github.com/BVLC/caffe/issues/4885
def test_third_blob_divides_mean_and_variance(on_ops):
    net = net_of("type: 'BatchNorm'", 1, 1, phase=pycaffe_lite.TEST)
    for blob, value in zip(net.params["norm"], (2, 8, 2), strict=True):
        blob.data[...] = value
    assert_allclose(net.forward(x=[[3]])["y"], [[1]], rtol=1e-5)


def test_moments_without_a_factor_are_zero(on_ops):
    net = net_of("type: 'BatchNorm'", 1, 2, phase=pycaffe_lite.TEST)
    assert [blob.shape for blob in net.params["norm"]] == [(2,), (2,), (1,)]
    assert_allclose(net.forward(x=[[3, -1]])["y"], np.array([[3, -1]]) / 1e-5**0.5, rtol=1e-5)


# https://github.com/farmingyard/caffe-mobilenet/issues/15
# https://github.com/julimueller/tl_ssd/issues/26
@pytest.mark.parametrize("phase", [pycaffe_lite.TRAIN, pycaffe_lite.TEST])
@pytest.mark.parametrize("given", [None, "false", "true"])
def test_which_moments_are_used_and_updated(on_ops, rng, phase, given):
    x = rng.normal(3, 2, SHAPE)
    param = "" if given is None else f"use_global_stats: {given}"
    net = net_of(f"type: 'BatchNorm' batch_norm_param {{ {param} }}", *SHAPE, phase=phase)
    for blob, value in zip(net.params["norm"], STORED, strict=True):
        blob.data[...] = value
    net.forward(x=x)
    stored = given == "true" or (given is None and phase == pycaffe_lite.TEST)
    for blob, value in zip(net.params["norm"], STORED, strict=True):
        assert np.allclose(blob.data, value) == stored


def test_moving_sums(on_ops, rng):
    """Two forwards: each multiplies by the fraction, adds the moments, the variance unbiased."""
    net = net_of("type: 'BatchNorm' batch_norm_param { moving_average_fraction: 0.75 }", *SHAPE)
    mean, variance, factor = np.zeros(2), np.zeros(2), 0.0
    for _ in range(2):
        x = rng.normal(3, 2, SHAPE)
        net.forward(x=x)
        rows = by_channel(x)
        mean = 0.75 * mean + rows.mean(axis=1)
        variance = 0.75 * variance + rows.var(axis=1, ddof=1)
        factor = 0.75 * factor + 1
    for blob, value in zip(net.params["norm"], (mean, variance, factor), strict=True):
        assert_allclose(blob.data, value, rtol=1e-5)


def test_moving_variance_of_one_value(on_ops):
    net = net_of("type: 'BatchNorm'", 1, 2)
    assert_array_equal(net.forward(x=[[3, 4]])["y"], [[0, 0]])
    assert_array_equal([blob.data for blob in net.params["norm"]][1], [0, 0])


def test_batch_norm_scale_and_relu_on_one_blob(on_ops, rng):
    """Training with three layers in place gives the gradients of the net without any."""
    x, dy = rng.standard_normal((2, *SHAPE))
    results = []
    for names in (("x", "x", "x"), ("a", "b", "c")):
        bottoms = ("x", *names)
        layers = (
            f"layer {{ name: '{t}' type: '{t}' bottom: '{b}' top: '{top}' {more} }}"
            for t, b, top, more in zip(
                ("BatchNorm", "Scale", "ReLU"),
                bottoms,
                names,
                ("", "scale_param { filler { value: 2 } bias_term: true }", ""),
                strict=False,
            )
        )
        dims = " ".join(f"dim: {d}" for d in SHAPE)
        net = make_net(
            "force_backward: true layer { name: 'in' type: 'Input' top: 'x' input_param {"
            f" shape {{ {dims} }} }} }} {' '.join(layers)}",
            pycaffe_lite.TRAIN,
        )
        net.blobs["x"].data[...] = x
        y = net.forward()[names[-1]].copy()
        net.blobs[names[-1]].diff[...] = dy
        net.backward()
        results.append([y, net.blobs["x"].diff, *(b.diff for b in net.params["Scale"])])
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)
        assert one.any()


# https://github.com/ZhaofanQiu/pseudo-3d-residual-networks/issues/19
@pytest.mark.parametrize("specs", [1, 2])
def test_statistics_cannot_be_given_a_rate(specs):
    text = "type: 'BatchNorm' " + "param { lr_mult: 1 } " * specs
    message = (
        r"'norm' \(BatchNorm\).*cannot configure batch normalization statistics as layer parameters"
        r".*param 0 has lr_mult 1"
    )
    with pytest.raises(pycaffe_lite.ModelError, match=message):
        net_of(text, *SHAPE)


def test_three_rates_are_those_of_old_files():
    net = net_of("type: 'BatchNorm' " + "param { lr_mult: 1 } " * 3, *SHAPE, force=False)
    assert net.layer_dict["norm"].param_propagate_down == [False] * 3


@pytest.mark.parametrize("specs", ["", "param { lr_mult: 0 }", "param { decay_mult: 0 }"])
def test_statistics_do_not_learn(specs):
    net = net_of(f"type: 'BatchNorm' {specs}", *SHAPE, force=False)
    assert net.layer_dict["norm"].param_propagate_down == [False] * 3


@pytest.mark.parametrize(("specs", "wanted"), [("", True), ("param { lr_mult: 0 } " * 3, False)])
def test_batch_norm_on_data_takes_part_in_backward_unless_told_off(specs, wanted):
    """What Caffe does: the gradient of its top is computed though nothing of it can learn."""
    net = make_net(
        "layer { name: 'in' type: 'Input' top: 'x' input_param { shape { dim: 4 dim: 3 } } }"
        f" layer {{ name: 'norm' type: 'BatchNorm' bottom: 'x' top: 'n' {specs} }}"
        " layer { name: 'ip' type: 'InnerProduct' bottom: 'n' top: 'y' loss_weight: 1"
        " inner_product_param { num_output: 1 weight_filler { value: 2 } } }",
        pycaffe_lite.TRAIN,
    )
    net.forward(x=np.arange(12).reshape(4, 3))
    net.backward()
    assert net.blobs["n"].diff.any() == wanted


def test_empty_batch_leaves_the_statistics(on_ops):
    net = net_of("type: 'BatchNorm'", 0, 2, 3)
    for blob, value in zip(net.params["norm"], STORED, strict=True):
        blob.data[...] = value
    assert net.forward()["y"].shape == (0, 2, 3)
    assert net.backward()["x"].shape == (0, 2, 3)
    for blob, value in zip(net.params["norm"], STORED, strict=True):
        assert_array_equal(blob.data, value)


def test_batch_norm_needs_channels():
    with pytest.raises(pycaffe_lite.ModelError, match=r"'norm' \(BatchNorm\).*least 2 axes.*got 1"):
        net_of("type: 'BatchNorm'", 3)


def test_batch_norm_refuses_another_number_of_channels():
    net = net_of("type: 'BatchNorm'", *SHAPE)
    net.blobs["x"].reshape(5, 7, 3)
    with pytest.raises(pycaffe_lite.ModelError, match=r"'norm' \(BatchNorm\).* of 2 .* 7"):
        net.forward()


def test_stored_statistics_are_only_read():
    """So that nothing takes them for changed after a forward."""
    net = net_of("type: 'BatchNorm'", *SHAPE, phase=pycaffe_lite.TEST)
    before = [blob.storages[0].version for blob in net.params["norm"]]
    net.forward()
    assert [blob.storages[0].version for blob in net.params["norm"]] == before


# ---- MVN ---------------------------------------------------------------------------------------


def mvn(x, axes, eps=1e-9, variance=True):
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / (centred.std(axis=axes, keepdims=True) + eps) if variance else centred


@pytest.mark.parametrize("across", ["false", "true"])
@pytest.mark.parametrize("variance", ["false", "true"])
def test_mvn(ops, across, variance):
    axes = (1, 2, 3) if across == "true" else (2, 3)
    check_layer(
        ops,
        f"type: 'MVN' mvn_param {{ across_channels: {across} normalize_variance: {variance} }}",
        bottoms=[SHAPE],
        expect=lambda x: mvn(x, axes, variance=variance == "true"),
    )


def test_mvn_of_five_axes(ops):
    check_layer(ops, "type: 'MVN'", [(2, 3, 4, 1, 5)], lambda x: mvn(x, (2, 3, 4)))


# https://github.com/opencv/opencv/pull/14747
def test_mvn_adds_eps_outside_the_root(on_ops):
    net = net_of("type: 'MVN' mvn_param { eps: 0.01 }", 1, 1, 1, 2)
    y = net.forward(x=np.array([[[[0, 2]]]]))["y"]
    assert_allclose(y.ravel(), [-0.990099, 0.990099], rtol=1e-6)


# https://github.com/BVLC/caffe/issues/1938
@pytest.mark.parametrize("across", ["false", "true"])
@pytest.mark.parametrize("value", [0.1, 0.0, 123.456])
def test_mvn_of_equal_values_is_zero(on_ops, value, across):
    net = net_of(f"type: 'MVN' mvn_param {{ across_channels: {across} }}", 2, 3, 7, 5)
    assert_array_equal(net.forward(x=np.full((2, 3, 7, 5), value))["y"], np.zeros((2, 3, 7, 5)))
    assert np.isfinite(net.backward(y=np.ones((2, 3, 7, 5)))["x"]).all()


def test_mvn_of_fewer_axes(on_ops, rng):
    """Across channels it normalises the rows of a matrix, into Caffe's four axes."""
    x, dy = rng.standard_normal((2, 2, 6))
    results = []
    for top in ("x", "y"):
        net = net_of("type: 'MVN' mvn_param { across_channels: true }", 2, 6, top=top)
        for _ in range(2):
            net.blobs["x"].data[...] = x
            net.forward()
        results.append(net.blobs[top].data.copy())
        net.blobs[top].diff[...] = dy.reshape(net.blobs[top].shape)
        net.backward()
        results.append(net.blobs["x"].diff)
    y, dx, wide, same = results
    assert wide.shape == (2, 6, 1, 1)
    assert_allclose(y, mvn(x, (1,)), rtol=1e-5, atol=1e-6)
    assert_array_equal(wide.reshape(2, 6), y)
    assert_array_equal(same, dx)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 3, 0, 4)])
def test_mvn_of_empty_blobs(on_ops, shape):
    net = net_of("type: 'MVN'", *shape)
    assert net.forward()["y"].shape == shape
    assert net.backward()["x"].shape == shape
