"""Running nets: forward and backward, their arguments and results, and new shapes."""

from __future__ import annotations

import numpy as np
import pytest
import small_layers  # noqa: F401  (defines SquaredGap, Sum)
from fake_device import FakeOps
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import CHAIN, DZ, X, by_hand, fill, ip

from pycaffe_lite import ModelError, device


@pytest.fixture
def net(on_ops):
    """x (2, 3) -> y (2, 4), ReLU in place -> z (2, 5), on each backend."""
    return fill(make_net("force_backward: true " + CHAIN))


# ---- forward -----------------------------------------------------------------------------------


def test_forward_gives_the_outputs(net):
    out = net.forward(x=X)
    assert type(out) is dict
    assert list(out) == ["z"]
    assert_allclose(out["z"], by_hand(net, X)[2], rtol=1e-5, atol=1e-5)


def test_results_are_live_writable_float32_views(net):
    out = net.forward(x=X)["z"]
    assert type(out) is np.ndarray
    assert out.dtype == np.float32
    out[1, 2] = 99
    assert net.blobs["z"].data[1, 2] == 99
    again = net.forward(x=2 * X)["z"]
    assert np.shares_memory(out, again)
    assert_allclose(out, by_hand(net, 2 * X)[2], rtol=1e-5, atol=1e-5)


def test_inputs_may_be_written_beforehand(net):
    net.blobs["x"].data[...] = X
    assert_allclose(net.forward()["z"], by_hand(net, X)[2], rtol=1e-5, atol=1e-5)
    net.blobs["x"].data[1] = X[0]
    assert_allclose(net.forward()["z"], by_hand(net, X[[0, 0]])[2], rtol=1e-5, atol=1e-5)


# https://github.com/BVLC/caffe/blob/master/python/caffe/pycaffe.py
def test_more_blobs(net):
    out = net.forward(blobs=["y", "x", "z"], x=X)
    assert list(out) == ["z", "y", "x"], "each once, the outputs first"
    assert_allclose(out["y"], by_hand(net, X)[1], rtol=1e-5, atol=1e-5)
    assert_array_equal(out["x"], X)


def test_arguments_by_position(net):
    assert list(net.forward(["x"], "a", "relu", x=X)) == ["y", "x"]


def test_an_end_gives_that_layers_tops(net):
    out = net.forward(end="a", x=X)
    assert list(out) == ["y"]
    assert_allclose(out["y"], by_hand(net, X)[0], rtol=1e-5, atol=1e-5, err_msg="before the ReLU")
    assert list(net.forward(blobs=["x"], end="relu")) == ["y", "x"]


# https://github.com/BVLC/caffe/issues/2725
def test_a_start_keeps_what_is_above(net):
    net.forward(x=X)
    net.blobs["y"].data[...] = 1
    net.blobs["x"].data[...] = 9
    wanted = net.params["b"][0].data.sum(axis=1) + net.params["b"][1].data
    assert_allclose(net.forward(start="b")["z"], [wanted, wanted], rtol=1e-5, atol=1e-5)


# https://github.com/BVLC/caffe/issues/3414
def test_a_start_behind_an_in_place_layer_skips_it(net):
    """Names are those of layers: blob y holds what the user wrote, not its positive part."""
    net.forward(x=X)
    net.blobs["y"].data[...] = -1
    (w, b) = (blob.data for blob in net.params["b"])
    assert_allclose(net.forward(start="b")["z"][0], b - w.sum(axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(net.forward(start="relu")["z"][0], b, rtol=1e-5, atol=1e-5)


def test_pieces_equal_the_whole(net):
    whole = net.forward(x=X)["z"].copy()
    net.blobs["z"].data[...] = 0
    net.blobs["y"].data[...] = 0
    net.forward(end="relu")
    assert_array_equal(net.forward(start="b")["z"], whole)


def test_one_layer(net):
    net.forward(x=X)
    net.blobs["y"].data[...] = -1
    assert_array_equal(net.forward(start="relu", end="relu")["y"], np.zeros((2, 4)))


def test_a_start_behind_the_end_runs_nothing(net):
    net.forward(x=X)
    net.blobs["y"].data[...] = 7
    assert_array_equal(net.forward(start="b", end="a")["y"], np.full((2, 4), 7))


# https://github.com/BVLC/caffe/issues/3366
# https://github.com/jolibrain/deepdetect/issues/325
def test_in_place_layers_and_reading_a_blob(net):
    linear, y, _ = by_hand(net, X)
    assert (linear < 0).any()
    net.forward(x=X)
    assert_allclose(net.blobs["y"].data, y, rtol=1e-5, atol=1e-5)
    net.forward(end="a")
    assert_allclose(net.blobs["y"].data, linear, rtol=1e-5, atol=1e-5)


def test_values_of_other_types_are_converted(net):
    wanted = net.forward(x=np.ones((2, 3)))["z"].copy()
    for value in (np.ones((2, 3), int), [[1, 1, 1], [1, 1, 1]], np.ones((2, 1), np.float16)):
        net.blobs["x"].data[...] = 5
        assert_array_equal(net.forward(x=value)["z"], wanted)


WRONG_INPUTS = [
    ({"nope": X}, r"Input blob arguments do not match net inputs.*\['nope'\].*\['x'\]"),
    ({"x": X, "y": X}, "Input blob arguments do not match net inputs"),
    ({"x": X[:1]}, r"Input is not batch sized: 'x' .* has shape \(1, 3\), its blob \(2, 3\)"),
    ({"x": np.ones(3)}, "Input is not batch sized"),
    ({"x": 1.0}, "Input is not batch sized"),
    ({"x": np.ones((2, 4))}, r"input does not fit: 'x' .* has shape \(2, 4\), its blob \(2, 3\)"),
    ({"x": np.ones((2, 3, 1))}, r"input does not fit: 'x' .* has shape \(2, 3, 1\)"),
]


# https://github.com/BVLC/caffe/issues/4480
@pytest.mark.parametrize(("inputs", "message"), WRONG_INPUTS)
def test_inputs_that_do_not_fit(net, inputs, message):
    net.forward(x=X)
    with pytest.raises(ModelError, match=message):
        net.forward(**inputs)
    assert_array_equal(net.blobs["x"].data, X, err_msg="nothing was written")
    assert isinstance(ModelError(""), ValueError)


def test_some_inputs_are_not_enough(on_ops):
    net = make_net("input: 'a' input: 'b' input_shape { dim: 2 } input_shape { dim: 3 }")
    with pytest.raises(ModelError, match="do not match net inputs"):
        net.forward(a=[1, 2])
    assert not net.blobs["a"].data.any()


@pytest.mark.parametrize("verb", ["forward", "backward"])
@pytest.mark.parametrize("which", ["start", "end"])
def test_an_unknown_layer(net, verb, which):
    with pytest.raises(ValueError, match="'nope' is not in list"):
        getattr(net, verb)(**{which: "nope"})


def test_an_unknown_blob(net):
    with pytest.raises(KeyError, match="nope"):
        net.forward(blobs=["nope"])
    with pytest.raises(KeyError, match="nope"):
        net.backward(diffs=["nope"])


def test_results_are_complete_on_the_host():
    """On a device they are copied before the call returns; what nobody asked for is not."""
    fake = FakeOps()
    with device.pretend(fake):
        net = fill(make_net(CHAIN))
        net.forward(x=X)
        fake.counters.reset()
        out = net.forward()
        assert fake.counters.download_elements == out["z"].size
        fake.counters.reset()
        assert_allclose(out["z"], by_hand(net, X)[2], rtol=1e-5, atol=1e-5)
        assert fake.counters.downloads == 0


def test_a_second_forward_sends_its_inputs_to_the_device_and_nothing_else():
    fake = FakeOps()
    with device.pretend(fake):
        net = fill(make_net(CHAIN + ip("c", "x", "w", 6, "loss_weight: 2")))
        net.forward(x=X)
        for _ in range(2):
            fake.counters.reset()
            net.forward(x=2 * X)
            assert (fake.counters.uploads, fake.counters.upload_elements) == (1, X.size)
            assert fake.counters.allocations == 0
            assert fake.counters.syncs == 0


def test_the_loss_is_all_that_the_inner_forward_copies():
    fake = FakeOps()
    with device.pretend(fake):
        net = fill(make_net(CHAIN.replace("top: 'z'", "top: 'z' loss_weight: 0.5")))
        net.forward(x=X)
        fake.counters.reset()
        loss = net._forward(0, len(net.layers) - 1)
        assert (fake.counters.downloads, fake.counters.syncs) == (0, 1)
        assert_allclose(loss, by_hand(net, X)[2].sum() / 2, rtol=1e-5, atol=1e-5)


# ---- backward ----------------------------------------------------------------------------------


def grads_by_hand(net, x, dz):
    """Gradients of y (before and behind the ReLU), x, and weights and bias of a and b."""
    linear, y, _ = by_hand(net, x)
    w1, w2 = (net.params[k][0].data.astype("f8") for k in "ab")
    dy = dz @ w2
    dl = dy * (linear > 0)
    return dy, dl, dl @ w1, dl.T @ x, dl.sum(axis=0), dz.T @ y, dz.sum(axis=0)


def test_backward_gives_the_gradients_of_the_inputs(net):
    net.forward(x=X)
    out = net.backward(z=DZ)
    assert type(out) is dict
    assert list(out) == ["x"]
    assert out["x"].dtype == np.float32
    assert_allclose(out["x"], grads_by_hand(net, X, DZ)[2], rtol=1e-5, atol=1e-5)
    out["x"][0, 1] = 99
    assert net.blobs["x"].diff[0, 1] == 99


def test_gradients_of_parameters_add_up_until_they_are_cleared(net):
    wanted = grads_by_hand(net, X, DZ)[3:]
    for times in (1, 2):
        net.forward(x=X)
        net.backward(z=DZ)
        diffs = [blob.diff for name in "ab" for blob in net.params[name]]
        for diff, value in zip(diffs, wanted, strict=True):
            assert_allclose(diff, times * value, rtol=1e-5, atol=1e-5)
    net.clear_param_diffs()
    assert not any(blob.diff.any() for name in "ab" for blob in net.params[name])


def test_clearing_gradients_copies_nothing():
    fake = FakeOps()
    with device.pretend(fake):
        net = fill(make_net("force_backward: true " + CHAIN))
        net.forward(x=X)
        net.backward(z=DZ)
        fake.counters.reset()
        net.clear_param_diffs()
        net.backward()
        assert fake.counters.uploads == 0
        assert fake.counters.download_elements == X.size, "the result"
        assert_allclose(net.params["b"][1].diff, DZ.sum(axis=0), rtol=1e-5, atol=1e-5)


# https://github.com/BVLC/caffe/issues/3086
def test_gradients_may_be_written_beforehand(net):
    net.forward(x=X)
    net.blobs["z"].diff[...] = DZ
    assert_allclose(net.backward()["x"], grads_by_hand(net, X, DZ)[2], rtol=1e-5, atol=1e-5)


def test_more_gradients(net):
    net.forward(x=X)
    out = net.backward(diffs=["z", "y", "x"], z=DZ)
    assert list(out) == ["x", "z", "y"]
    assert_array_equal(out["z"], DZ)


def test_an_end_gives_that_layers_bottoms(net):
    dy, dl, dx, *_ = grads_by_hand(net, X, DZ)
    net.forward(x=X)
    out = net.backward(end="b", z=DZ)
    assert list(out) == ["y"]
    assert_allclose(out["y"], dy, rtol=1e-5, atol=1e-5)
    assert_allclose(net.backward(start="relu", end="relu")["y"], dl, rtol=1e-5, atol=1e-5)
    assert_allclose(net.backward(["y"], "a")["x"], dx, rtol=1e-5, atol=1e-5)


def test_an_end_above_the_start_runs_nothing(net):
    net.forward(x=X)
    net.blobs["y"].diff[...] = 7
    assert_array_equal(net.backward(start="a", end="b", z=DZ)["y"], np.full((2, 4), 7))


@pytest.mark.parametrize(
    ("diffs", "message"),
    [
        ({"x": X}, r"Top diff arguments do not match net outputs.*\['x'\].*\['z'\]"),
        ({"z": DZ[:1]}, r"Diff is not batch sized: 'z' .* has shape \(1, 5\), its blob \(2, 5\)"),
        ({"z": X}, r"diff does not fit: 'z' .* has shape \(2, 3\), its blob \(2, 5\)"),
    ],
)
def test_gradients_that_do_not_fit(net, diffs, message):
    net.forward(x=X)
    with pytest.raises(ModelError, match=message):
        net.backward(**diffs)


def test_gradients_of_scalars(on_ops):
    net = make_net(
        "force_backward: true input: 'a' input: 'b' input_shape { dim: 3 } input_shape { dim: 3 }"
        "layer { name: 'l' type: 'SquaredGap' bottom: 'a' bottom: 'b' top: 'l' }"
    )
    out = net.forward(a=[3, 4, 5], b=[1, 1, 1])
    assert out["l"].shape == ()
    assert out["l"] == 14.5
    for value in (2.0, np.array(2.0), np.float32(2)):
        assert_array_equal(net.backward(l=value)["a"], [4, 6, 8])


# ---- reshape -----------------------------------------------------------------------------------


# https://github.com/BVLC/caffe/issues/2684
# https://github.com/BVLC/caffe/issues/4102
@pytest.mark.parametrize("explicit", [True, False], ids=["net.reshape", "forward alone"])
def test_a_new_batch_size_reaches_every_blob(net, explicit):
    for rows in (5, 1, 3, 7):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        net.blobs["x"].reshape(rows, 3)
        if explicit:
            net.reshape()
            assert net.blobs["z"].shape == (rows, 5), "without a forward"
        assert_allclose(net.forward(x=x)["z"], by_hand(net, x)[2], rtol=1e-4, atol=1e-5)
        dz = np.ones((rows, 5), np.float32)
        wanted = grads_by_hand(net, x, dz)[2]
        assert_allclose(net.backward(z=dz)["x"], wanted, rtol=1e-4, atol=1e-5)


# https://github.com/BVLC/caffe/issues/5307
def test_a_smaller_batch_costs_less_on_a_device():
    fake = FakeOps()
    with device.pretend(fake):
        net = fill(make_net(CHAIN))
        net.forward(x=X)
        net.blobs["x"].reshape(1, 3)
        net.forward(x=X[:1])
        fake.counters.reset()
        net.forward(x=X[:1])
        assert (fake.counters.upload_elements, fake.counters.download_elements) == (3, 5)
        assert fake.counters.allocations == 0


def test_alternating_sizes_give_the_same_numbers_each_time(on_ops):
    net = fill(
        make_net(
            "input: 'x' input_shape { dim: [2, 3, 12, 10] }"
            "layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c'"
            " convolution_param { num_output: 5 kernel_size: 3 stride: 2 } }"
            "layer { name: 'r' type: 'ReLU' bottom: 'c' top: 'c' }"
            "layer { name: 'p' type: 'Pooling' bottom: 'c' top: 'p'"
            " pooling_param { kernel_size: 2 stride: 2 } }"
            "layer { name: 's' type: 'Softmax' bottom: 'p' top: 's' }"
        )
    )
    draw = np.random.default_rng(5)
    inputs = [draw.normal(size=shape) for shape in ((2, 3, 12, 10), (4, 3, 9, 11))]
    first = []
    for turn in range(3):
        for k, x in enumerate(inputs):
            net.blobs["x"].reshape(*x.shape)
            out = net.forward(x=x)["s"].copy()
            if turn == 0:
                first.append(out)
            assert_array_equal(out, first[k])
    assert [out.shape for out in first] == [(2, 5, 3, 2), (4, 5, 2, 3)]


def test_a_size_that_a_layer_refuses_and_back_again(net):
    wanted = net.forward(x=X)["z"].copy()
    for verb in (net.reshape, net.forward):
        net.blobs["x"].reshape(2, 7)
        with pytest.raises(ModelError, match="layer 'a'.*inner product parameters: 7 vs. 3"):
            verb()
        net.blobs["x"].reshape(2, 3)
        assert_array_equal(net.forward(x=X)["z"], wanted)


def test_a_blob_in_the_middle_reshaped_by_the_user(on_ops):
    """Layers from there on follow it."""
    net = fill(make_net(CHAIN))
    net.forward(x=X)
    net.blobs["y"].reshape(3, 4)
    net.blobs["y"].data[...] = 1
    assert net.forward(start="b")["z"].shape == (3, 5)
    assert net.forward(x=X)["z"].shape == (2, 5)


def test_results_that_are_no_numbers_raise_no_warning(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: 4 }"
        " layer { name: 'l' type: 'Log' bottom: 'x' top: 'y' }"
    )
    y = net.forward(x=np.float32([-1, 0, 1, np.inf]))["y"]
    assert_array_equal(y, [np.nan, -np.inf, 0, np.inf])
    assert_array_equal(net.backward(y=np.ones(4))["x"], [-1, np.inf, 1, 0])
