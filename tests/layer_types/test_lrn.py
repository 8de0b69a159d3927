"""Local response normalisation over channels and within them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

import pycaffe_lite

ACROSS = (2, 7, 3, 4)
WITHIN = (2, 3, 5, 4)


def across(x, size, alpha, beta=0.75, k=1.0):
    y = np.empty_like(x)
    for n, c, h, w in np.ndindex(*x.shape):
        near = x[n, max(c - size // 2, 0) : c + size // 2 + 1, h, w]
        y[n, c, h, w] = x[n, c, h, w] * (k + alpha / size * (near**2).sum()) ** -beta
    return y


def within(x, size, alpha, beta=0.75):
    y = np.empty_like(x)
    reach = range(-(size // 2), size // 2 + 1)
    for n, c, h, w in np.ndindex(*x.shape):
        total = 0.0
        for i, j in itertools.product(reach, reach):
            if 0 <= h + i < x.shape[2] and 0 <= w + j < x.shape[3]:
                total += x[n, c, h + i, w + j] ** 2
        y[n, c, h, w] = x[n, c, h, w] * (1 + alpha / size**2 * total) ** -beta
    return y


def snippet(**params):
    return f"type: 'LRN' lrn_param {{ {' '.join(f'{k}: {v}' for k, v in params.items())} }}"


def net_of(text, *shape):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        "force_backward: true"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'norm' bottom: 'x' top: 'y' {text} }}"
    )


@pytest.mark.parametrize("size", [5, 15, 3, 1])
def test_across_channels(ops, size):
    check_layer(ops, snippet(local_size=size), [ACROSS], lambda x: across(x, size, 1.0))


@pytest.mark.parametrize(("alpha", "beta", "k"), [(2, 0.5, 2), (0.5, 1, 3), (0, 0.75, 2)])
def test_parameters_across_channels(ops, alpha, beta, k):
    text = snippet(local_size=3, alpha=alpha, beta=beta, k=k)
    check_layer(ops, text, [(2, 5, 1, 3)], lambda x: across(x, 3, alpha, beta, k))


@pytest.mark.parametrize(("size", "alpha", "beta"), [(3, 1, 0.75), (5, 2, 0.5), (9, 1, 1)])
def test_within_channels(ops, size, alpha, beta):
    text = snippet(local_size=size, alpha=alpha, beta=beta, norm_region="WITHIN_CHANNEL", k=3)
    check_layer(ops, text, [WITHIN], lambda x: within(x, size, alpha, beta))


# https://github.com/BVLC/caffe/issues/1453, https://github.com/uxlfoundation/oneDNN/issues/396
# https://github.com/MarcBS/keras/pull/4
def test_alpha_is_divided_by_the_size(on_ops):
    net = net_of(snippet(local_size=3, alpha=3, beta=1, k=1), 1, 3, 1, 1)
    y = net.forward(x=np.array([1, 2, 3]).reshape(1, 3, 1, 1))["y"]
    assert_allclose(y.ravel(), [1 / 6, 2 / 15, 3 / 14], rtol=1e-6)


# https://github.com/BVLC/caffe/issues/1864
def test_more_neighbours_than_channels(on_ops, rng):
    x = rng.standard_normal((1, 30, 2, 3))
    net = net_of(snippet(local_size=61), *x.shape)
    y = net.forward(x=x)["y"]
    assert_allclose(y, across(x, 61, 1.0), rtol=1e-5)
    assert np.isfinite(net.backward(y=x)["x"]).all()


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)])
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_empty_blobs(on_ops, region, shape):
    net = net_of(snippet(norm_region=region), *shape)
    assert net.forward()["y"].shape == shape
    assert net.backward()["x"].shape == shape


@pytest.mark.parametrize("size", [4, 0])
def test_size_must_be_odd(size):
    with pytest.raises(pycaffe_lite.ModelError, match=rf"'norm' \(LRN\).*odd values.*got {size}"):
        net_of(snippet(local_size=size), *ACROSS)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5, 6)])
def test_needs_4_axes(shape):
    with pytest.raises(pycaffe_lite.ModelError, match=rf"'norm' \(LRN\).*4 axes.*got {len(shape)}"):
        net_of(snippet(local_size=3), *shape)
