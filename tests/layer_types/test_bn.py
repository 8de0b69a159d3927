"""The two layers named BN, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TEST, TRAIN, ModelError

SHAPES = [(4, 3), (2, 3, 4, 5)]


def wide(param, x):
    return param.reshape(-1, *[1] * (x.ndim - 2))


def affine(x, scale, shift, mean, variance, eps):
    normal = (x - wide(mean, x)) / np.sqrt(wide(variance, x) + eps)
    return wide(scale, x) * normal + wide(shift, x)


def of_batch(x, scale, shift, eps):
    axes = (0, *range(2, x.ndim))
    return affine(x, scale, shift, x.mean(axis=axes), x.var(axis=axes), eps)


# https://github.com/xiamenwcy/ScleraSegNet/issues/3
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("shape", SHAPES)
def test_segnets_takes_the_moments_of_the_batch(ops, shape, phase):
    check_layer(
        ops,
        "type: 'BN' bn_param { scale_filler { value: 1 } shift_filler { value: 0.001 } }",
        [shape],
        lambda x, scale, shift: of_batch(x, scale, shift, 1e-9),
        phase=phase,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_segnets_with_merged_moments(ops, shape):
    check_layer(
        ops,
        "type: 'BN' bn_param { bn_mode: INFERENCE }",
        [shape],
        lambda x, scale, shift: wide(scale, x) * x + wide(shift, x),
    )


@pytest.mark.parametrize("momentum", [0.9, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_pspnets_in_train(ops, shape, momentum):
    check_layer(
        ops,
        f"type: 'BN' bn_param {{ momentum: {momentum} eps: 0.01 }}",
        [shape],
        lambda x, scale, shift, mean, variance: of_batch(x, scale, shift, 0.01),
        phase="TRAIN",
    )


def stored():
    rng = np.random.default_rng(3)
    params = [rng.normal(size=(1, 3, 1, 1)) for _ in range(3)]
    return [*params, rng.uniform(0.5, 2, (1, 3, 1, 1))]


@pytest.mark.parametrize("shape", SHAPES)
def test_pspnets_in_test(ops, shape):
    check_layer(
        ops,
        "type: 'BN'",
        [shape],
        lambda x, *params: affine(x, *params, 1e-5),
        params=stored(),
    )


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_frozen_layer_uses_what_is_stored_and_does_not_learn(on_ops, rng, phase):
    net = net_of("bn_param { frozen: true }", phase=phase)
    assert [float(blob.data[0, 0, 0, 0]) for blob in net.params["it"]] == [1, 0, 0, 1]
    for blob, value in zip(net.params["it"], stored(), strict=True):
        blob.data[...] = value
    x, dy = rng.normal(size=(2, 2, 3, 4, 5))
    y = net.forward(x=x)["y"]
    scale, shift, mean, variance = stored()
    assert_allclose(y, affine(x, scale, shift, mean, variance, 1e-5), rtol=1e-4, atol=1e-5)
    dx = net.backward(y=dy)["x"]
    slope = (scale / np.sqrt(variance + 1e-5)).reshape(3, 1, 1)
    assert_allclose(dx, dy * slope, rtol=1e-4, atol=1e-5)
    assert all((blob.diff == 0).all() for blob in net.params["it"])


def test_stored_moments_move_towards_those_of_the_batch(on_ops, rng):
    net = net_of("bn_param { momentum: 0.75 }", phase=TRAIN)
    x = rng.normal(size=(2, 3, 4, 5)) + 2
    net.forward(x=x)
    net.forward(x=x)
    _, _, mean, variance = (blob.data.reshape(-1) for blob in net.params["it"])
    share = 1 - 0.75**2
    assert_allclose(mean, share * x.mean(axis=(0, 2, 3)), rtol=1e-5)
    assert_allclose(variance, share * x.var(axis=(0, 2, 3)), rtol=1e-5)


def net_of(param, shape="2, 3, 4, 5", phase=TEST, tops="top: 'y'"):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: [{shape}] }}"
        f" layer {{ name: 'it' type: 'BN' bottom: 'x' {tops} {param} }}",
        phase,
    )


@pytest.mark.parametrize("param", ["", "bn_param { bn_mode: LEARN }"])
def test_more_tops_of_segnets_are_the_moments(on_ops, rng, param):
    net = net_of(param, tops="top: 'y' top: 'mean' top: 'variance'")
    x = rng.normal(size=(2, 3, 4, 5))
    out = net.forward(x=x)
    assert_allclose(out["mean"].reshape(-1), x.mean(axis=(0, 2, 3)), rtol=1e-5)
    assert_allclose(out["variance"].reshape(-1), x.var(axis=(0, 2, 3)), rtol=1e-5)


def test_merged_moments_are_0_and_1(on_ops):
    tops = "top: 'y' top: 'mean' top: 'variance'"
    out = net_of("bn_param { bn_mode: INFERENCE }", tops=tops).forward()
    assert_array_equal(out["mean"], np.zeros((1, 3, 1, 1)))
    assert_array_equal(out["variance"], np.ones((1, 3, 1, 1)))


BLOB = "blobs { shape { dim: [1, 3, 1, 1] } data: [1, 1, 1] }"


@pytest.mark.parametrize(
    ("param", "count"),
    [
        ("", 4),
        ("bn_param { }", 4),
        ("bn_param { engine: CUDNN }", 4),
        ("bn_param { slope_filler { value: 1 } bias_filler { value: 0 } }", 4),
        ("bn_param { shift_filler { value: 1 } }", 2),
        ("bn_param { bn_mode: INFERENCE }", 2),
        (BLOB * 2, 2),
        (BLOB * 4, 4),
    ],
)
def test_which_of_the_two_is_meant(param, count):
    params = net_of(param).params["it"]
    assert [blob.shape for blob in params] == [(1, 3, 1, 1)] * count


@pytest.mark.parametrize(("frozen", "learns"), [("false", 2), ("true", 0)])
def test_rates_that_are_given_do_not_let_stored_moments_learn(frozen, learns):
    net = make_net(
        "layer { name: 'x' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: [2, 3] } } }"
        f" layer {{ name: 'it' type: 'BN' bottom: 'x' top: 'y' {'param { lr_mult: 1 } ' * 4}"
        f" loss_weight: 1 bn_param {{ frozen: {frozen} }} }}",
        TRAIN,
    )
    layer = net.layer_dict["it"]
    assert layer.param_propagate_down == [k < learns for k in range(4)]
    assert [param.decay_mult for param in layer.spec.param] == [k < learns for k in range(4)]


@pytest.mark.parametrize(
    ("param", "shape", "tops", "text"),
    [
        ("", "3", "top: 'y'", "at least 2 axes .*, got 1"),
        ("bn_param { eps: 1 bn_mode: LEARN }", "2, 3", "top: 'y'", "bn_mode is SegNet's, eps PSP"),
        ("bn_param { var_eps: 1 }", "2, 3", "top: 'y'", "var_eps of weiliu89/caffe's fcn branch"),
        ("bn_param { eps: 1 }", "2, 3", "top: 'y' top: 'm'", "produces 1 top .* got 2"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(param, shape, tops, text):
    with pytest.raises(ModelError, match=rf"'it' .*{text}"):
        net_of(param, shape, tops=tops)


@pytest.mark.parametrize("param", ["bn_param { bn_mode: LEARN }", "", "bn_param { eps: 1 }"])
def test_the_number_of_channels_stays(param):
    net = net_of(param)
    net.blobs["x"].reshape(2, 4, 5, 6)
    with pytest.raises(ModelError, match="those of 3 channels; the bottom has 4"):
        net.reshape()


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("param", ["bn_param { bn_mode: LEARN }", ""])
def test_an_empty_batch(on_ops, param, phase):
    net = net_of(param, "0, 3, 4", phase)
    assert net.forward()["y"].shape == (0, 3, 4)
    assert net.backward()["x"].shape == (0, 3, 4)
    assert all((blob.diff == 0).all() for blob in net.params["it"])
