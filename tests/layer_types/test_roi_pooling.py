"""ROIPooling and PSROIPooling against loops over the pixels of each bin."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError

MAPS = (2, 3, 7, 9)
REGIONS = np.array([
    [0, 2, 4, 25, 20],
    [1, 0, 0, 35, 27],
    [1, 6, 10, 6, 10],
    [0, -9, 11, 60, 17],
    [0, 40, 40, 60, 60],
])  # fmt: skip


def away(v):
    """Rounded, halves away from 0."""
    return floor(abs(v) + 0.5) * (1 if v >= 0 else -1)


def clipped(first, last, limit):
    return range(min(max(first, 0), limit), min(max(last, 0), limit))


def roi_max(x, regions, bins, scale):
    y = np.zeros((len(regions), x.shape[1], *bins))
    for r, (image, x1, y1, x2, y2) in enumerate(regions):
        starts = away(y1 * scale), away(x1 * scale)
        ends = away(y2 * scale), away(x2 * scale)
        for at in np.ndindex(*bins):
            spans = []
            for k in (0, 1):
                side = max(ends[k] - starts[k] + 1, 1) / bins[k]
                first, last = floor(at[k] * side), ceil((at[k] + 1) * side)
                spans.append(clipped(first + starts[k], last + starts[k], x.shape[2 + k]))
            for c in range(x.shape[1]):
                found = [x[int(image), c, i, j] for i in spans[0] for j in spans[1]]
                y[(r, c, *at)] = max(found, default=0)
    return y


def roi_mean(x, regions, outputs, group, scale):
    y = np.zeros((len(regions), outputs, group, group))
    for r, (image, x1, y1, x2, y2) in enumerate(regions):
        starts = away(y1) * scale, away(x1) * scale
        ends = (away(y2) + 1) * scale, (away(x2) + 1) * scale
        for d, p, q in np.ndindex(outputs, group, group):
            spans = []
            for k, at in ((0, p), (1, q)):
                side = max(ends[k] - starts[k], 0.1) / group
                first, last = floor(at * side + starts[k]), ceil((at + 1) * side + starts[k])
                spans.append(clipped(first, last, x.shape[2 + k]))
            plane = x[int(image), (d * group + p) * group + q]
            found = [plane[i, j] for i in spans[0] for j in spans[1]]
            y[r, d, p, q] = sum(found) / max(len(found), 1)
    return y


@pytest.mark.parametrize("bins", [(2, 3), (4, 5), (1, 2)])
@pytest.mark.parametrize("scale", [0.25, 0.2])
def test_roi_pooling(ops, bins, scale):
    x = (np.random.default_rng(2).permutation(np.prod(MAPS)) * 0.05).reshape(MAPS) - 8
    check_layer(
        ops,
        f"type: 'ROIPooling' roi_pooling_param {{ pooled_h: {bins[0]} pooled_w: {bins[1]}"
        f" spatial_scale: {scale} }}",
        bottoms=[MAPS, REGIONS.shape],
        expect=lambda x, r: roi_max(x, r, bins, np.float32(scale)),
        values=[x, REGIONS],
        gradients=[0],
    )


@pytest.mark.parametrize(("outputs", "group"), [(2, 3), (5, 2), (4, 1)])
@pytest.mark.parametrize("scale", [0.25, 0.1875])
def test_psroi_pooling(ops, outputs, group, scale):
    x = np.random.default_rng(2).normal(size=(2, outputs * group * group, 7, 9))
    check_layer(
        ops,
        f"type: 'PSROIPooling' psroi_pooling_param {{ output_dim: {outputs}"
        f" group_size: {group} spatial_scale: {scale} }}",
        bottoms=[x.shape, REGIONS.shape],
        expect=lambda x, r: roi_mean(x, r, outputs, group, scale),
        values=[x, REGIONS],
        gradients=[0],
    )


LAYERS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.25 }",
    "PSROIPooling": "psroi_pooling_param { output_dim: 3 group_size: 1 spatial_scale: 0.25 }",
}


def net_of(kind, maps=MAPS, regions=(1, 5), param=None):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(maps)} }}"
        f" input: 'r' input_shape {{ dim: {list(regions)} }} layer {{ name: 'pool' type: '{kind}'"
        f" bottom: 'x' bottom: 'r' top: 'y' {param or LAYERS[kind]} }}"
    )


def test_a_malformed_region_passes_no_gradient(on_ops):
    """Forward it is one pixel; backward nothing."""
    net = net_of("ROIPooling", regions=(2, 5))
    x = np.arange(378).reshape(MAPS)
    y = net.forward(x=x, r=[[0, 20, 8, 12, 12], [0, 20, 8, 20, 8]])["y"]
    assert (y[:, :, 0, 0] == x[0, :, 2, 5]).all()
    dx = net.backward(y=np.ones(y.shape))["x"]
    assert dx.sum() == y[1].size
    assert (dx[0, :, 2, 5] == 6).all()


def test_a_region_that_ends_before_it_begins_is_a_tenth_wide(on_ops):
    """By R-FCN's means: the pixel where it begins."""
    net = net_of("PSROIPooling", regions=(1, 5))
    x = np.arange(378).reshape(MAPS)
    y = net.forward(x=x, r=[[0, 20, 8, 4, 5]])["y"]
    assert_array_equal(y[0, :, 0, 0], x[0, :, 2, 5])


def test_of_equal_values_the_first_gets_the_gradient(on_ops):
    net = net_of("ROIPooling")
    net.forward(x=np.ones(MAPS), r=[[1, 0, 0, 35, 27]])
    dx = net.backward(y=np.ones((1, 3, 2, 3)))["x"]
    assert_array_equal(np.argwhere(dx[1, 0]), [[0, 0], [0, 3], [0, 6], [4, 0], [4, 3], [4, 6]])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("index", [-1, 2, 99, float("nan")])
def test_a_region_on_a_map_that_is_not_there(on_ops, kind, index):
    net = net_of(kind)
    match = rf"'pool' \({kind}\): the batch index of a region, {index:g}, .* 2 maps \(0 to 1\)"
    with pytest.raises(ModelError, match=match):
        net.forward(x=np.ones(MAPS), r=[[index, 0, 0, 3, 3]])


def test_a_region_without_end(on_ops):
    with pytest.raises(ModelError, match="'pool'.*regions must be finite"):
        net_of("ROIPooling").forward(x=np.ones(MAPS), r=[[0, 0, 0, float("inf"), 3]])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("maps", "regions"), [(MAPS, (0, 5)), ((0, 3, 7, 9), (0, 5))])
def test_no_regions(on_ops, kind, maps, regions):
    net = net_of(kind, maps, regions)
    assert net.forward()["y"].shape[:2] == (0, 3)
    net.backward()
    assert (net.blobs["x"].diff == 0).all()


def test_maps_without_channels(on_ops):
    net = net_of("ROIPooling", (2, 0, 7, 9), (4, 5))
    shape = net.blobs["y"].shape
    assert shape[:2] == (4, 0)
    net.forward(x=np.ones((2, 0, 7, 9)), r=np.zeros((4, 5)))
    assert net.backward(y=np.ones(shape))["x"].shape == (2, 0, 7, 9)


@pytest.mark.parametrize("kind", LAYERS)
def test_shapes_that_are_refused(kind):
    with pytest.raises(ModelError, match=r"'pool'.*must have 4 axes .*, got `2 3 \(6\)`"):
        net_of(kind, maps=(2, 3))
    with pytest.raises(ModelError, match=r"'pool'.*must be \(R, 5\), got `3 4 \(12\)`"):
        net_of(kind, regions=(3, 4))


REFUSED = {
    "roi_pooling_param { pooled_w: 3 }": "pooled_h must be > 0, got 0",
    "psroi_pooling_param { output_dim: 3 group_size: 0 spatial_scale: 1 }": "group_size .*got 0",
    "psroi_pooling_param { output_dim: 3 group_size: 2 spatial_scale: 1 }":
        r"channel number 3 does not match layer parameters, .* = 12",
}  # fmt: skip


@pytest.mark.parametrize("param", REFUSED)
def test_parameters_that_are_refused(param):
    kind = "PSROIPooling" if param.startswith("ps") else "ROIPooling"
    with pytest.raises(ModelError, match=rf"'pool' \({kind}\): .*{REFUSED[param]}"):
        net_of(kind, param=param)
