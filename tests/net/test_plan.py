"""A planned net gives the plain net's blobs, whatever the user does to parameters meanwhile."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose

from pycaffe_lite import TRAIN, ModelError
from pycaffe_lite.blob import Blob
from pycaffe_lite.plan import ConvolutionChain, optimize

X = np.random.default_rng(1).normal(size=(2, 4, 5, 7)).astype("f4")
FOLLOWERS = {
    "bn": "type: 'BatchNorm'",
    "scale": "type: 'Scale' scale_param { bias_term: true }",
    "bare": "type: 'Scale'",
    "relu": "type: 'ReLU'",
    "dropout": "type: 'Dropout'",
}


def text(followers, more=""):
    layers = "".join(
        f"layer {{ name: '{f}' {FOLLOWERS[f]} bottom: 'y' top: 'y' }}\n" for f in followers
    )
    return (
        "input: 'x' input_shape { dim: [2, 4, 5, 7] }\n"
        "layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'y' convolution_param {"
        f" num_output: 6 kernel_size: 3 {more} }} }}\n{layers}"
    )


def fill(net, seed=5):
    draw = np.random.default_rng(seed)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = draw.uniform(0.5, 2, blob.shape) * draw.choice((1, -1), blob.shape)
    if "bn" in net.params:
        for k in (1, 2):
            net.params["bn"][k].data[...] = np.abs(net.params["bn"][k].data)
    return net


def planned_and_plain(net):
    y = net.forward(x=X)["y"].copy()
    net.plan = False
    plain = net.forward(x=X)["y"].copy()
    net.plan = True
    return y, plain


def check(net):
    y, plain = planned_and_plain(net)
    assert_allclose(y, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize("more", ["", "bias_term: false", "group: 2"])
@pytest.mark.parametrize(
    "followers",
    [c for n in (1, 2, 3, 4) for c in itertools.combinations(("bn", "scale", "relu", "dropout"), n)]
    + [("bn", "bare"), ("bare",)],
)
def test_blobs_are_the_plain_nets(on_ops, followers, more):
    net = fill(make_net(text(followers, more)))
    chain = optimize(net._steps)[-1]
    assert isinstance(chain, ConvolutionChain)
    assert len(chain.steps) == len(followers) + 1
    check(net)


def test_factor_0_and_infinite_factors():
    net = fill(make_net(text(("bn", "scale"))))
    net.params["bn"][2].data[...] = 0
    check(net)
    net.params["scale"][0].data[1] = np.inf
    np.testing.assert_array_equal(*planned_and_plain(net))


def test_part_hooks_and_train_run_the_plain_steps():
    net = fill(make_net(text(("bn", "relu"))))
    net.forward(x=X)
    raw = net.forward(end="c", x=X)["y"].copy()
    assert (raw < 0).any()
    seen = []
    net.after_forward(seen.append)
    net.forward(x=X)
    assert seen == [0, 1, 2, 3]
    net = fill(make_net("debug_info: true\n" + text(("bn",))))
    assert net._steps_of(0, len(net._steps) - 1) == net._steps
    trained = fill(make_net(text(("relu",)), phase=TRAIN))
    assert trained._steps_of(0, 2) == trained._steps


def test_values_written_by_any_way_are_seen(tmp_path):
    net = fill(make_net(text(("bn", "scale", "relu"))))
    check(net)
    for name, k in (("c", 0), ("c", 1), ("bn", 0), ("bn", 1), ("bn", 2), ("scale", 0)):
        net.params[name][k].data[...] *= 1.5
        check(net)
        held = net.params[name][k].data
        part = net.params[name][k].data[:1].T
        del held
        gc.collect()
        check(net)
        part[...] += 0.25
        check(net)
    del part
    net.params["c"][0] = Blob(net.params["c"][0].shape)
    net.params["c"][0].data[...] = 0.125
    check(net)
    net.layers[1].blobs[1].data[...] = -0.5
    check(net)
    other = fill(make_net(text(("bn", "scale", "relu"))), 8)
    path = str(tmp_path / "w.caffemodel")
    other.save(path)
    net.copy_from(path)
    check(net)
    assert_allclose(net.forward(x=X)["y"], other.forward(x=X)["y"], rtol=0, atol=1e-4)
    other = fill(other, 9)
    other.save_hdf5(str(tmp_path / "w.h5"))
    net.load_hdf5(str(tmp_path / "w.h5"))
    check(net)
    assert_allclose(net.forward(x=X)["y"], other.forward(x=X)["y"], rtol=0, atol=1e-4)
    net.share_with(other)
    held = other.params["c"][0].data
    check(net)
    held[2] = 3
    check(net)
    net.params["c"][0].reshape(6, 4, 9)
    with pytest.raises(ModelError):
        net.forward(x=X)


def test_shapes_may_change(on_ops):
    net = fill(make_net(text(("bn", "scale"))))
    check(net)
    net.blobs["x"].reshape(3, 4, 9, 8)
    net.blobs["x"].data[...] = np.random.default_rng(2).normal(size=(3, 4, 9, 8))
    y = net.forward()["y"].copy()
    net.plan = False
    plain = net.forward()["y"]
    assert y.shape == (3, 6, 7, 6)
    assert_allclose(y, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


def test_values_are_those_of_the_formulas():
    net = fill(make_net(text(("bn", "scale", "relu"))))
    (w, b), (mean, var, factor), (s, t) = (
        [blob.data.astype("f8") for blob in net.params[name]] for name in ("c", "bn", "scale")
    )
    windows = np.lib.stride_tricks.sliding_window_view(X.astype("f8"), (3, 3), axis=(2, 3))
    y = np.einsum("ncijkl,ockl->oijn", windows, w).T + b
    y = (y - mean / factor) / np.sqrt(var / factor + 1e-5) * s + t
    y = np.maximum(y, 0).transpose(0, 3, 2, 1)
    for _ in range(2):
        assert_allclose(net.forward(x=X)["y"], y, rtol=0, atol=1e-5 * y.max())
