"""The weight fillers: their formulas, and the statistics of those that draw."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import ModelError, filler
from pycaffe_lite.proto import caffe_pb2

SHAPES = [(), (5,), (2, 3), (2, 3, 4, 5), (2, 3, 4, 5, 6)]


def filled(shape, rng, **fields):
    array = np.full(shape, np.nan, np.float32)
    filler.fill(caffe_pb2.FillerParameter(**fields), array, rng)
    return array


@pytest.mark.parametrize("shape", SHAPES)
def test_constant(shape, rng):
    assert_array_equal(filled(shape, rng, type="constant", value=10), np.full(shape, 10))


def test_the_default_is_constant_0(rng):
    assert_array_equal(filled((2, 3), rng), np.zeros((2, 3)))


@pytest.mark.parametrize("shape", SHAPES)
def test_uniform_stays_within_its_bounds(shape, rng):
    values = filled(shape, rng, type="uniform", min=1, max=2)
    assert ((values >= 1) & (values <= 2)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["gaussian", "xavier", "msra"])
@pytest.mark.parametrize("norm", ["FAN_IN", "FAN_OUT", "AVERAGE"])
def test_blobs_of_any_number_of_axes_are_filled(shape, kind, norm, rng):
    """All the values, and no two alike."""
    values = filled(shape, rng, type=kind, variance_norm=norm)
    assert np.isfinite(values).all()
    assert np.unique(values).size == values.size


def test_uniform_covers_its_range_evenly(rng):
    values = filled((300, 100), rng, type="uniform", min=-3, max=5)
    assert abs(values.mean() - 1) < 3.8 * (8 / sqrt(12)) / sqrt(values.size)
    assert_allclose(values.std(), 8 / sqrt(12), rtol=0.02)


def test_uniform_from_0_to_1_by_default(rng):
    values = filled((100, 30), rng, type="uniform")
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1


def test_uniform_with_its_bounds_swapped(rng):
    with pytest.raises(ModelError, match="min 2.* is greater than max 1"):
        filled((2, 3), rng, type="uniform", min=2, max=1)


def test_gaussian(rng):
    values = filled((300, 100), rng, type="gaussian", mean=10, std=0.1)
    assert abs(values.mean() - 10) < 3.8 * 0.1 / sqrt(values.size)
    assert_allclose(values.std(), 0.1, rtol=0.02)
    inside = np.mean(np.abs(values - 10) < 0.1)
    assert_allclose(inside, 0.6827, atol=0.02)  # a normal distribution, not another of that width


def test_standard_normal_by_default(rng):
    values = filled((300, 100), rng, type="gaussian")
    assert_allclose([values.mean(), values.std()], [0, 1], atol=0.03)


def test_sparse_gaussian_keeps_so_many_of_each_column_on_average(rng):
    values = filled((50, 4000), rng, type="gaussian", sparse=10)
    assert_allclose(np.mean(values != 0), 10 / 50, rtol=0.03)
    assert_allclose(values[values != 0].std(), 1, rtol=0.03)


def test_sparse_0_keeps_nothing(rng):
    assert not filled((5, 7), rng, type="gaussian", sparse=0).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_positive_unitball_rows_sum_to_1(shape, rng):
    values = filled(shape, rng, type="positive_unitball")
    assert ((values >= 0) & (values <= 1)).all()
    rows = values.reshape(shape[0] if shape else 1, -1)
    assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)


FANS = [("FAN_IN", 40), ("FAN_OUT", 20000), ("AVERAGE", 10020)]


@pytest.mark.parametrize(("norm", "fan"), FANS)
def test_xavier_is_uniform_with_variance_1_over_fan(norm, fan, rng):
    values = filled((1000, 2, 4, 5), rng, type="xavier", variance_norm=norm)
    assert_allclose(values.std(), sqrt(1 / fan), rtol=0.02)
    assert_allclose(np.abs(values).max(), sqrt(3 / fan), rtol=0.001)


@pytest.mark.parametrize(("norm", "fan"), FANS)
def test_msra_is_normal_with_variance_2_over_fan(norm, fan, rng):
    values = filled((1000, 2, 4, 5), rng, type="msra", variance_norm=norm)
    assert_allclose(values.std(), sqrt(2 / fan), rtol=0.02)
    assert abs(values.mean()) < 3.8 * sqrt(2 / fan) / sqrt(values.size)
    assert np.abs(values).max() > 3 * sqrt(2 / fan)


@pytest.mark.parametrize("kind", ["xavier", "msra"])
def test_fan_in_by_default(kind, rng):
    values = filled((1000, 2, 4, 5), rng, type=kind)
    assert_allclose(values.std(), sqrt({"xavier": 1, "msra": 2}[kind] / 40), rtol=0.02)


def test_the_fan_of_a_vector(rng):
    """Fan in is 1 and fan out the whole count: there is no second axis."""
    assert np.abs(filled((3000,), rng, type="xavier")).max() > 1.6
    values = filled((3000,), rng, type="xavier", variance_norm="FAN_OUT")
    assert_allclose(np.abs(values).max(), sqrt(3 / 3000), rtol=0.01)


BILINEAR = {
    2: [0.5, 0.5],
    3: [0.5, 1, 0.5],
    4: [0.25, 0.75, 0.75, 0.25],
    6: [1 / 6, 1 / 2, 5 / 6, 5 / 6, 1 / 2, 1 / 6],
    7: [0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25],
}


@pytest.mark.parametrize("size", BILINEAR)
def test_bilinear_has_the_same_kernel_in_every_plane(size, rng):
    values = filled((5, 1, size, size), rng, type="bilinear")
    kernel = [[a * b for b in BILINEAR[size]] for a in BILINEAR[size]]
    assert_allclose(values, np.broadcast_to(kernel, values.shape), rtol=1e-6)


def test_bilinear_needs_square_planes(rng):
    with pytest.raises(ModelError, match="bilinear.*square, not 3 x 4"):
        filled((1, 2, 3, 4), rng, type="bilinear")


def test_bilinear_needs_4_axes(rng):
    with pytest.raises(ModelError, match="bilinear.*4 axes, not 3"):
        filled((2, 3, 3), rng, type="bilinear")


@pytest.mark.parametrize("std", [0, -1])
def test_std_must_be_positive(std, rng):
    with pytest.raises(ModelError, match=f"std must be > 0, got {std}"):
        filled((2, 3), rng, type="gaussian", std=std)


def test_sparse_may_not_be_negative(rng):
    with pytest.raises(ModelError, match="sparse must be >= 0, got -2"):
        filled((2, 3), rng, type="gaussian", sparse=-2)


@pytest.mark.parametrize(
    "kind", ["constant", "uniform", "positive_unitball", "xavier", "msra", "bilinear"]
)
def test_sparse_is_for_gaussian_alone(kind, rng):
    with pytest.raises(ModelError, match=f"sparsity is not supported by the {kind} filler"):
        filled((1, 2, 3, 3), rng, type=kind, sparse=1)


@pytest.mark.parametrize("kind", ["constant", "gaussian", "xavier"])
def test_an_empty_blob_cannot_be_filled(kind, rng):
    with pytest.raises(ModelError, match=r"cannot fill an empty blob of shape.*3 0 \(0\)"):
        filled((3, 0), rng, type=kind)


def test_unknown_filler_names_the_known_ones(rng):
    with pytest.raises(ModelError, match=r"unknown filler name: gausian.*constant, gaussian, msra"):
        filled((2, 3), rng, type="gausian")


NET = (
    "input: 'x' input_shape { dim: [2, 3] } layer { name: 'ip' type: 'InnerProduct' bottom: 'x'"
    " top: 'y' inner_product_param { num_output: 4 weight_filler { type: '%s' } } }"
)


def test_an_error_in_a_net_names_the_layer():
    with pytest.raises(ModelError, match=r"layer 'ip' \(InnerProduct\).*unknown filler name: nope"):
        make_net(NET % "nope")


def test_weights_are_0_without_a_filler():
    net = make_net(NET.replace("weight_filler { type: '%s' }", ""))
    assert not net.params["ip"][0].data.any()
    assert not net.params["ip"][1].data.any()


def test_the_seed_decides_the_weights():
    draws = []
    for seed in (5, 5, 6):
        pycaffe_lite.set_random_seed(seed)
        draws.append(make_net(NET % "xavier").params["ip"][0].data)
    assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).all()


def test_layers_draw_different_numbers():
    net = make_net(
        NET
        % "gaussian"
        + " layer { name: 'b' type: 'InnerProduct' bottom: 'y' top: 'z' inner_product_param"
        " { num_output: 3 weight_filler { type: 'gaussian' } } }"
    )
    first, second = (net.params[name][0].data.ravel() for name in ("ip", "b"))
    assert first.size == second.size
    assert (first != second).all()


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "uniform", "max": np.inf},
        {"type": "uniform", "min": np.nan},
        {"type": "gaussian", "std": np.inf},
        {"type": "gaussian", "mean": np.nan},
    ],
)
def test_bounds_must_be_finite(spec, rng):
    with pytest.raises(ModelError, match=f"{spec['type']} filler: .* must be finite"):
        filler.fill(caffe_pb2.FillerParameter(**spec), np.zeros((2, 3), np.float32), rng)
