"""What reaches into a running net: parameters replaced, hooks, errors, threads, batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import small_layers  # noqa: F401  (defines SquaredGap)
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import CHAIN, DZ, INPUT, X, by_hand, fill

from pycaffe_lite import Blob, Layer, ModelError


@pytest.fixture
def net(on_ops):
    """x (2, 3) -> y (2, 4), ReLU in place -> z (2, 5), on each backend."""
    return fill(make_net("force_backward: true " + CHAIN))


# ---- parameters replaced -----------------------------------------------------------------------


def test_a_blob_put_in_place_of_a_parameter_is_used(net):
    net.forward(x=X)
    blob = Blob((5,))
    blob.data[...] = 100
    wanted = by_hand(net, X)[2] - net.params["b"][1].data + 100
    net.params["b"][1] = blob
    assert_allclose(net.forward(x=X)["z"], wanted, rtol=1e-5, atol=1e-5)
    net.backward(z=DZ)
    assert_allclose(blob.diff, DZ.sum(axis=0), rtol=1e-6)


def test_values_put_in_place_of_a_parameter(net):
    with pytest.raises(TypeError, match=r"a parameter is a Blob, not ndarray.*data\[...\] = "):
        net.params["b"][1] = np.ones(5)
    assert isinstance(net.params["b"][1], Blob)


# ---- hooks -------------------------------------------------------------------------------------


def test_hooks_are_called_around_each_layer(net):
    calls = []
    for name in ("before_forward", "after_forward", "before_backward", "after_backward"):
        getattr(net, name)(lambda k, name=name: calls.append((name, k)))
    net.forward(x=X, start="a", end="relu")
    assert calls == [
        ("before_forward", 1), ("after_forward", 1), ("before_forward", 2), ("after_forward", 2),
    ]  # fmt: skip
    calls.clear()
    net.backward(start="relu", end="a")
    assert calls == [
        ("before_backward", 2), ("after_backward", 2),
        ("before_backward", 1), ("after_backward", 1),
    ]  # fmt: skip


def test_hooks_see_the_values_of_the_moment(net):
    seen = []
    net.before_forward(lambda k: seen.append(net.blobs["y"].data.copy()) if k == 2 else None)
    net.after_forward(lambda k: seen.append(net.blobs["y"].data.copy()) if k == 2 else None)
    net.forward(x=X)
    for value, wanted in zip(seen, by_hand(net, X), strict=False):
        assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    assert len(seen) == 2


def test_what_a_hook_writes_is_used(net):
    def double(k):
        if net._layer_names[k] == "relu":
            net.blobs["y"].data[...] *= 2

    net.after_forward(double)
    y = 2 * by_hand(net, X)[1]
    w, b = (blob.data.astype("f8") for blob in net.params["b"])
    assert_allclose(net.forward(x=X)["z"], y @ w.T + b, rtol=1e-5, atol=1e-5)


def test_several_hooks_run_in_order(net):
    calls = []
    net.before_forward(lambda k: calls.append("first"))
    net.before_forward(lambda k: calls.append("second"))
    net.forward(start="b")
    assert calls == ["first", "second"]


@pytest.mark.parametrize("when", ["before_forward", "after_forward"])
def test_an_exception_in_a_hook_reaches_the_caller(net, when):
    def stop(k):
        if k == 1:
            raise ZeroDivisionError("enough")

    getattr(net, when)(stop)
    with pytest.raises(ZeroDivisionError, match="^enough$"):
        net.forward(x=X)
    assert list(net.forward(start="b")) == ["z"], "the net goes on"


def test_backward_hooks_run_for_layers_that_need_no_backward(caplog):
    calls = []
    net = make_net(INPUT + "layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }")
    net.before_backward(calls.append)
    net.backward()
    assert calls == [1, 0]
    assert "nothing in net" in caplog.text
    assert "force_backward: true" in caplog.text


# ---- errors in the middle ----------------------------------------------------------------------


class StopsAtNan(Layer):
    """A user's layer with an error of its own."""

    in_place = True

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        if np.isnan(float(bottom[0].data.sum())):
            raise ArithmeticError("not a number")
        top[0].data[...] = bottom[0].data


def test_an_exception_of_a_users_layer_passes_unchanged(on_ops):
    net = make_net(INPUT + "layer { name: 'n' type: 'StopsAtNan' bottom: 'x' top: 'y' }")
    with pytest.raises(ArithmeticError, match="^not a number$"):
        net.forward(x=np.full((2, 3), np.nan))
    assert_array_equal(net.forward(x=X)["y"], X)


# ---- threads -----------------------------------------------------------------------------------


def test_two_nets_in_two_threads(on_ops):
    """Each with its own weights and sizes; neither sees the other's scratch memory."""
    model = (
        "input: 'x' input_shape { dim: [%d, 3, 9, 8] } layer { name: 'c' type: 'Convolution'"
        " bottom: 'x' top: 'y' convolution_param { num_output: 5 kernel_size: 3 pad: 1 } }"
    )
    nets = [fill(make_net(model % n), seed=n) for n in (2, 3)]
    inputs = [np.random.default_rng(n).normal(size=(n, 3, 9, 8)) for n in (2, 3)]
    wanted = [net.forward(x=x)["y"].copy() for net, x in zip(nets, inputs, strict=True)]
    results = [[], []]

    def work(k):
        for _ in range(10):
            results[k].append(nets[k].forward(x=inputs[k])["y"].copy())

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in (0, 1):
        assert len(results[k]) == 10
        for y in results[k]:
            assert_allclose(y, wanted[k], rtol=1e-5, atol=1e-6)


# ---- batches -----------------------------------------------------------------------------------

ROWS = np.random.default_rng(8).normal(size=(7, 3)).astype(np.float32)


def test_inputs_of_any_length_run_in_batches(net):
    """Four batches of two, the last one padded and cut again."""
    sizes = []
    net.after_forward(lambda k: sizes.append(net.blobs["z"].shape[0]) if k == 3 else None)
    out = net.forward_all(x=ROWS)
    assert sizes == [2, 2, 2, 2]
    assert list(out) == ["z"]
    assert_allclose(out["z"], by_hand(net, ROWS)[2], rtol=1e-4, atol=1e-6)


def test_the_last_batch_is_padded_with_zeros(net):
    net.forward_all(x=ROWS)
    assert_array_equal(net.blobs["x"].data, [ROWS[6], np.zeros(3)])


def test_outputs_of_batches_are_copies(net):
    out = net.forward_all(blobs=["y", "x"], x=ROWS[:2])
    assert list(out) == ["z", "y", "x"]
    net.forward(x=np.zeros((2, 3)))
    assert_array_equal(out["x"], ROWS[:2])
    assert_allclose(out["y"], by_hand(net, ROWS[:2])[1], rtol=1e-4, atol=1e-6)


def test_lists_are_inputs_too(net):
    wanted = net.forward_all(x=ROWS)["z"]
    assert_array_equal(net.forward_all(x=list(ROWS))["z"], wanted)


GAP = (
    "force_backward: true input: 'a' input: 'b' input_shape { dim: [2, 3] }"
    " input_shape { dim: [2, 3] } layer { name: 'l' type: 'SquaredGap' bottom: 'a' bottom: 'b'"
    " top: 'l' }"
)


def test_a_scalar_output_has_a_value_for_each_batch(on_ops):
    out = make_net(GAP).forward_all(a=ROWS, b=np.zeros((7, 3)))
    halves = (ROWS.astype("f8") ** 2).sum(axis=1) / 2
    wanted = [halves[k : k + 2].sum() for k in (0, 2, 4, 6)]
    assert_allclose(out["l"], wanted, rtol=1e-5, atol=1e-5)


def test_inputs_of_different_lengths():
    with pytest.raises(ModelError, match=r"one common length.*'a': 7, 'b': 4"):
        make_net(GAP).forward_all(a=ROWS, b=ROWS[:4])


@pytest.mark.parametrize("verb", ["forward_all", "forward_backward_all"])
@pytest.mark.parametrize("inputs", [{}, {"a": ROWS}, {"a": ROWS, "b": ROWS, "nope": ROWS}])
def test_batches_of_the_wrong_inputs(verb, inputs):
    with pytest.raises(ModelError, match="arguments do not match net"):
        getattr(make_net(GAP), verb)(**inputs)


def test_gradients_in_batches(net):
    dz = np.random.default_rng(9).normal(size=(7, 5)).astype(np.float32)
    net.clear_param_diffs()
    blobs, diffs = net.forward_backward_all(blobs=["y"], diffs=["z"], x=ROWS, z=dz)
    assert list(blobs) == ["z", "y"]
    assert list(diffs) == ["x", "z"]
    linear, _, z = by_hand(net, ROWS)
    w1, w2 = (net.params[k][0].data.astype("f8") for k in "ab")
    dl = (dz @ w2) * (linear > 0)
    assert_allclose(blobs["z"], z, rtol=1e-4, atol=1e-6)
    assert_allclose(diffs["x"], dl @ w1, rtol=1e-4, atol=1e-6)
    assert_array_equal(diffs["z"], dz)
    assert_allclose(net.params["a"][1].diff, dl.sum(axis=0), rtol=1e-4, atol=1e-6)


def test_gradients_in_batches_from_a_loss(on_ops):
    _, diffs = make_net(GAP).forward_backward_all(a=ROWS, b=np.zeros((7, 3)))
    assert_allclose(diffs["a"], ROWS, rtol=1e-6)
    assert_allclose(diffs["b"], -ROWS, rtol=1e-6)
