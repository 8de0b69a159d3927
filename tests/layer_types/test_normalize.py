"""Normalize against loops by definition; scales of channels that differ."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError


def normalized(x, scale, across, eps):
    y = np.empty(x.shape)
    for n in range(x.shape[0]):
        for at in np.ndindex(*x.shape[2:]):
            vector = x[n] if across else x[(n, slice(None), *at)]
            length = np.sqrt(sum(float(v) ** 2 for v in vector.reshape(-1)) + eps)
            for c in range(x.shape[1]):
                s = scale.reshape(-1)[c if scale.size > 1 else 0]
                y[(n, c, *at)] = s * x[(n, c, *at)] / length
    return y


# https://github.com/Tencent/ncnn/issues/239
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3), (2, 3, 5)])
def test_normalize(ops, across, shared, shape):
    words = {True: "true", False: "false"}
    check_layer(
        ops,
        f"type: 'Normalize' norm_param {{ across_spatial: {words[across]}"
        f" channel_shared: {words[shared]} eps: 0.01 }}",
        bottoms=[shape],
        expect=lambda x, scale: normalized(x, scale, across, 0.01),
        params=[np.full((() if shared else shape[1]), 1.75)],
    )


def test_scales_of_channels_that_differ(ops, rng):
    check_layer(
        ops,
        "type: 'Normalize' norm_param { across_spatial: false channel_shared: false eps: 0.01 }",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x, scale: normalized(x, scale, False, 0.01),
        params=[np.array([0.5, -2, 3])],
        gradients=[],  # SSD's is none then: see below
    )


def test_the_gradient_is_that_of_ssd(on_ops, rng):
    """Its sum over the channels has no scale in it."""
    x, dy, scale = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), np.array([0.5, -2, 3])
    net = net_of((2, 3), "across_spatial: false channel_shared: false")
    net.params["norm"][0].data[...] = scale
    net.forward(x=x)
    got = net.backward(y=dy)["x"]
    for row in range(2):
        length = np.sqrt((x[row] ** 2).sum() + 1e-10)
        inner = (x[row] * dy[row]).sum() / length**2
        assert_allclose(got[row], scale * (dy[row] - x[row] * inner) / length, rtol=1e-4)


def net_of(shape, param=""):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ {dims} }} layer {{ name: 'norm'"
        f" type: 'Normalize' bottom: 'x' top: 'y' norm_param {{ {param} }} }}"
    )


def test_the_scale_begins_at_1_or_as_its_filler_says():
    assert net_of((2, 3, 4, 5)).params["norm"][0].data == 1
    filler = "scale_filler { type: 'constant' value: 20 } channel_shared: false"
    assert net_of((2, 3, 4, 5), filler).params["norm"][0].data.tolist() == [20, 20, 20]


def test_a_vector_of_zeros_stays_zero(on_ops):
    net = net_of((2, 3), "across_spatial: false")
    assert_allclose(net.forward(x=[[3, 0, 4], [0, 0, 0]])["y"], [[0.6, 0, 0.8], [0, 0, 0]])
    assert np.isfinite(net.backward()["x"]).all()


def test_a_fixed_scale_does_not_learn():
    net = net_of((2, 3), "fix_scale: true")
    assert net.layer_dict["norm"].fixed_params == {0}


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 0, 5)])
def test_nothing_is_normalized(on_ops, shape):
    net = net_of(shape, "channel_shared: false")
    assert net.forward()["y"].shape == shape
    net.backward()
    assert (net.params["norm"][0].diff == 0).all()


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"layer 'norm' \(Normalize\): .*must be >= 2, got 1"):
        net_of((3,))
    net = net_of((2, 3, 4), "channel_shared: false")
    net.blobs["x"].reshape(2, 5, 4)
    with pytest.raises(ModelError, match="'norm'.*one scale a channel: 3 for 5 channels"):
        net.forward()
