"""caffe.io.Transformer: from images to what a net takes, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite as caffe
from pycaffe_lite import ModelError

RECORDED = Path(__file__).parent / "golden" / "io.npz"
SHAPE = (1, 3, 6, 7)


@pytest.fixture(scope="module")
def recorded():
    """What the original read, and what it gave."""
    with np.load(RECORDED) as case:
        return dict(case)


def transformer(shape=SHAPE, **settings):
    """For a blob 'data', with each setting made by its setter."""
    made = caffe.io.Transformer({"data": shape})
    for name, value in settings.items():
        getattr(made, f"set_{name}")("data", value)
    return made


FULL = {
    "transpose": (2, 0, 1),
    "channel_swap": (2, 1, 0),
    "raw_scale": 255,
    "mean": np.array([104.0, 117.0, 123.0]),
    "input_scale": 0.017,
}


# ---- recorded ----------------------------------------------------------------------------------


def test_recorded_preprocess(recorded):
    got = transformer(**FULL).preprocess("data", recorded["transformer:in"])
    assert got.dtype == np.float32
    assert_allclose(got, recorded["transformer:out"], atol=1e-5)


def test_recorded_deprocess(recorded):
    got = transformer(**FULL).deprocess("data", recorded["transformer:out"])
    assert got.dtype == np.float32
    assert_allclose(got, recorded["transformer:deprocess"], atol=1e-6)


def test_recorded_mean_of_another_size(recorded):
    made = transformer(transpose=(2, 0, 1), mean=recorded["transformer_mean3d:mean"])
    got = made.preprocess("data", recorded["transformer:in"])
    assert_allclose(got, recorded["transformer_mean3d:out"], atol=1e-4)


# ---- preprocess --------------------------------------------------------------------------------


# https://github.com/BVLC/caffe/issues/5040
def test_order_of_the_steps():
    made = transformer((1, 1, 2, 3), raw_scale=255, input_scale=0.01, mean=np.array([100.0]))
    assert_allclose(made.preprocess("data", np.full((2, 3, 1), 0.5)), 0.275, rtol=1e-6)


def test_each_step(rng):
    image = rng.random((6, 7, 3)).astype("f4")
    mean = rng.random((3, 6, 7))
    wanted = {
        "transpose": lambda x: x.transpose(2, 1, 0),
        "channel_swap": lambda x: x[[1, 2, 0]],
        "raw_scale": lambda x: x * 12,
        "mean": lambda x: x - mean,
        "input_scale": lambda x: x * 0.3,
    }
    values = {
        "transpose": (2, 1, 0),
        "channel_swap": (1, 2, 0),
        "raw_scale": 12,
        "input_scale": 0.3,
    }
    assert_array_equal(transformer().preprocess("data", image), image)
    for name in values:
        got = transformer(**{name: values[name]}).preprocess("data", image)
        assert_allclose(got, wanted[name](image), rtol=1e-6)
    got = transformer(transpose=(2, 0, 1), mean=mean).preprocess("data", image)
    assert_allclose(got, wanted["mean"](image.transpose(2, 0, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
@pytest.mark.parametrize("size", [(6, 7), (9, 4)])
@pytest.mark.parametrize("left_out", [None, *FULL])
def test_no_array_of_the_caller_is_changed(rng, dtype, size, left_out):
    """Caffe changes float32 images of the right size."""
    settings = {name: value for name, value in FULL.items() if name != left_out}
    if left_out == "transpose":
        del settings["mean"]
    image = (rng.random((*size, 3)) * 255).astype(dtype)
    before = image.copy()
    made = transformer(**settings)
    out = made.preprocess("data", image)
    out[...] = 0
    assert_array_equal(image, before)
    values = rng.random((1, 3, 6, 7)).astype(dtype)
    before = values.copy()
    made.deprocess("data", values)[...] = 0
    assert_array_equal(values, before)


def test_the_mean_is_a_copy():
    mean = np.array([1.0, 2.0, 3.0])
    made = transformer(transpose=(2, 0, 1), mean=mean)
    mean[...] = 100
    assert_array_equal(made.preprocess("data", np.zeros((6, 7, 3)))[:, 0, 0], [-1, -2, -3])
    made.deprocess("data", np.zeros(SHAPE))
    assert_array_equal(made.mean["data"].ravel(), [1, 2, 3])


def test_into_a_net(rng):
    """Shapes may come from the net itself; one grey channel may fill three."""
    net = make_net("input: 'data' input_shape { dim: 2 dim: 3 dim: 6 dim: 7 }")
    made = caffe.io.Transformer({"data": net.blobs["data"].data.shape})
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (0, 0, 0))
    image = rng.random((6, 7, 1)).astype("f4")
    net.blobs["data"].data[...] = made.preprocess("data", image)
    assert_array_equal(net.blobs["data"].data[1, 2], image[:, :, 0])


def test_blobs_that_are_no_images(rng):
    values = rng.random((4, 5)).astype("f4")
    made = transformer((2, 4, 5), raw_scale=3, mean=np.arange(4))
    got = made.preprocess("data", values)
    assert_allclose(got, values * 3 - np.arange(4)[:, np.newaxis], rtol=1e-5, atol=1e-6)
    assert_allclose(made.deprocess("data", got), values, atol=1e-6)


def test_images_that_do_not_fit():
    made = transformer(transpose=(2, 0, 1), channel_swap=(2, 1, 0))
    with pytest.raises(ModelError, match=r"shape \(6, 7, 1\) does not fit blob 'data' of shape"):
        made.preprocess("data", np.zeros((6, 7, 1)))
    with pytest.raises(ModelError, match=r"shape \(6, 7\) does not fit blob 'data'"):
        made.preprocess("data", np.zeros((6, 7)))
    made = transformer(transpose=(2, 0, 1), mean=np.arange(3))
    with pytest.raises(ModelError, match=r"shape \(6, 7, 1\) does not fit blob 'data'"):
        made.preprocess("data", np.zeros((6, 7, 1)))


# ---- deprocess ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [True, False])
def test_there_and_back(rng, batch):
    image = rng.random((6, 7, 3)).astype("f4")
    made = transformer(
        transpose=(2, 1, 0),
        channel_swap=(1, 2, 0),
        raw_scale=255,
        mean=rng.random(3),
        input_scale=0.5,
    )
    out = made.preprocess("data", image)
    assert out.shape == (3, 7, 6)
    back = made.deprocess("data", out[np.newaxis] if batch else out)
    assert_allclose(back, image, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 6, 7), (1, 6, 7), (6, 7)])
def test_a_grey_image_comes_back_without_channels(rng, shape):
    made = transformer((1, 1, 6, 7), transpose=(2, 0, 1), mean=np.array([2.0]), channel_swap=[0])
    values = rng.random(shape)
    got = made.deprocess("data", values)
    assert got.dtype == np.float64
    assert_allclose(got, values.reshape(6, 7) + 2)


def test_integers_become_floats():
    got = transformer(input_scale=2).deprocess("data", np.ones((3, 6, 7), np.int64))
    assert got.dtype == np.float32
    assert_array_equal(got, np.full((3, 6, 7), 0.5))


def test_one_of_a_batch_comes_back():
    with pytest.raises(ModelError, match=r"shape \(2, 3, 6, 7\) is none of blob 'data'"):
        transformer(**FULL).deprocess("data", np.zeros((2, 3, 6, 7)))


# ---- setters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FULL)
def test_setters_know_the_inputs(name):
    made = transformer()
    with pytest.raises(ModelError, match="'date' is not one of the net inputs.*'data'"):
        getattr(made, f"set_{name}")("date", FULL[name])


def test_runs_know_the_inputs():
    for run in transformer().preprocess, transformer().deprocess:
        with pytest.raises(Exception, match="is not one of the net inputs"):
            run("nope", np.zeros((6, 7, 3)))


def test_settings_can_be_read_and_unset():
    made = transformer(**FULL)
    assert made.inputs == {"data": SHAPE}
    assert made.transpose["data"] == (2, 0, 1)
    assert made.channel_swap["data"] == (2, 1, 0)
    assert (made.raw_scale["data"], made.input_scale["data"]) == (255, 0.017)
    assert made.mean["data"].shape == (3, 1, 1)
    made.set_raw_scale("data", None)
    made.set_input_scale("data", None)
    assert_array_equal(made.preprocess("data", np.zeros((6, 7, 3)))[:, 0, 0], [-104, -117, -123])


@pytest.mark.parametrize("order", [(1, 0), (0, 3, 1, 2), (0, 1, 1)])
def test_a_transpose_names_each_axis(order):
    with pytest.raises(ModelError, match="Transpose order.*'data' has 3"):
        transformer(transpose=order)


def test_a_swap_names_as_many_channels():
    with pytest.raises(ModelError, match="Channel swap.* 2 vs. 3 of blob 'data'"):
        transformer(channel_swap=(1, 0))


# https://github.com/BVLC/caffe/issues/420
@pytest.mark.parametrize(
    ("mean", "text"),
    [
        ((2,), r"Mean channels incompatible with input: 2 vs. 3.*\(2,\).*\(1, 3, 6, 7\)"),
        ((28,), r"Mean channels incompatible with input: 28 vs. 3"),
        ((6, 7, 3), r"Mean channels .*\(6, 7, 3\).*transpose\(2, 0, 1\)"),
        ((1, 6, 7), r"Mean channels incompatible with input: 1 vs. 3"),
        ((6, 7), r"Mean shape invalid: \(6, 7\) for blob 'data' of shape \(1, 3, 6, 7\)"),
        ((1, 3, 6, 7), r"Mean shape invalid: \(1, 3, 6, 7\)"),
        ((), r"Mean shape invalid: \(\)"),
    ],
)
def test_means_that_do_not_fit(mean, text):
    with pytest.raises(ValueError, match=text):
        transformer(mean=np.zeros(mean))


def test_a_mean_of_two_axes_is_for_one_channel(rng):
    mean = rng.random((6, 7))
    made = transformer((1, 1, 6, 7), transpose=(2, 0, 1), mean=mean)
    assert_allclose(made.preprocess("data", np.zeros((6, 7, 1)))[0], -mean, rtol=1e-6)
    with pytest.raises(ModelError, match=r"Mean shape invalid: \(7, 6\)"):
        transformer((1, 1, 6, 7), mean=mean.T)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_constant_mean_stays_constant(channels):
    """In Caffe it becomes NaN where it has to be resized."""
    made = transformer((1, channels, 6, 7), mean=np.full((channels, 9, 8), 117))
    assert_array_equal(made.mean["data"], np.full((channels, 6, 7), 117.0))
