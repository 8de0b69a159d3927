"""Pooling over one and three spatial axes, against loops over windows."""

from __future__ import annotations

from math import ceil, floor, prod

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TEST, TRAIN, ModelError


def pool(x, kernel, stride, pad, mode, *, round_up=True):
    """(N, C, *S) by definition, the same k, s and p on every axis: values and winners' indices."""
    rounded = ceil if round_up else floor
    spatial, pooled = x.shape[2:], []
    for size in spatial:
        count = rounded((size + 2 * pad - kernel) / stride) + 1
        if pad and (count - 1) * stride >= size + pad:
            count -= 1
        pooled.append(count)
    y, mask = np.zeros((*x.shape[:2], *pooled)), np.zeros((*x.shape[:2], *pooled))
    for at in np.ndindex(*y.shape):
        starts = [i * stride - pad for i in at[2:]]
        stops = [min(a + kernel, size + pad) for a, size in zip(starts, spatial, strict=True)]
        divisor = prod(b - a for a, b in zip(starts, stops, strict=True))
        cells = [
            (x[at[:2]][cell], np.ravel_multi_index(cell, spatial))
            for cell in np.ndindex(*spatial)
            if all(a <= i < b for a, i, b in zip(starts, cell, stops, strict=True))
        ]
        values = [value for value, _ in cells]
        if mode == "MAX":
            y[at], mask[at] = max(cells, key=lambda cell: cell[0])
        elif mode == "AVE":
            y[at] = sum(values) / divisor
        else:
            y[at] = sum(v * v for v in values) / sum(values)
    return y, mask


CASES = {
    "one": ((2, 3, 7), "kernel_size: 3 stride: 2", (3, 2, 0)),
    "one, pad": ((2, 3, 8), "kernel_size: 3 stride: 2 pad: 1", (3, 2, 1)),
    "three": ((2, 1, 5, 4, 6), "kernel_size: 2 stride: 2", (2, 2, 0)),
    "three, pad": ((1, 2, 3, 5, 4), "kernel_size: 3 stride: 2 pad: 1", (3, 2, 1)),
}


@pytest.mark.parametrize("rounding", ["", "ceil_mode: false"])
@pytest.mark.parametrize("mode", ["MAX", "AVE"])
@pytest.mark.parametrize("case", CASES)
def test_pooling(ops, case, mode, rounding):
    shape, param, sizes = CASES[case]
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: {mode} {param} {rounding} }}",
        bottoms=[shape],
        expect=lambda x: pool(x, *sizes, mode, round_up=not rounding)[0],
        spaced=mode == "MAX",
    )


@pytest.mark.parametrize("case", ["one", "three"])
def test_stochastic_pooling_in_test_phase(ops, rng, case):
    shape, param, sizes = CASES[case]
    check_layer(
        ops,
        f"type: 'Pooling' pooling_param {{ pool: STOCHASTIC {param} }}",
        bottoms=[shape],
        expect=lambda x: pool(x, *sizes, "STOCHASTIC")[0],
        values=[rng.uniform(0.1, 1, shape)],
    )


def net_of(param, shape, phase=TEST, tops="top: 'y'"):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'it'"
        f" type: 'Pooling' bottom: 'x' {tops} pooling_param {{ {param} }} }}",
        phase,
    )


@pytest.mark.parametrize("case", ["one", "three"])
def test_the_mask_holds_indices_in_the_volume(on_ops, rng, case):
    shape, param, sizes = CASES[case]
    net = net_of(param, shape, tops="top: 'y' top: 'mask'")
    x = rng.permutation(prod(shape)).reshape(shape)
    out = net.forward(x=x)
    y, mask = pool(x, *sizes, "MAX")
    assert_array_equal(out["y"], y)
    assert_array_equal(out["mask"], mask)


@pytest.mark.parametrize("case", ["one", "three"])
def test_a_drawn_element_gets_the_gradient(on_ops, rng, case):
    shape, param, _ = CASES[case]
    x = rng.uniform(0.1, 1, shape).astype(np.float32)
    net = net_of(f"pool: STOCHASTIC {param}", shape, TRAIN)
    y = net.forward(x=x)["y"].copy()
    dx = net.backward(y=np.ones_like(y))["x"]
    assert_allclose((dx * x).sum(), y.sum(), rtol=1e-5)
    assert set(x[dx > 0]) == set(y.ravel())


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5, 6)])
def test_global_pooling_takes_all_axes(on_ops, rng, shape):
    net = net_of("pool: AVE global_pooling: true", shape)
    x = rng.normal(size=shape)
    axes = tuple(range(2, len(shape)))
    assert_allclose(net.forward(x=x)["y"], x.mean(axis=axes, keepdims=True), rtol=1e-5, atol=1e-6)


def test_height_and_width_are_for_two_axes():
    with pytest.raises(ModelError, match=r"'it'.*kernel_h and kernel_w are for 2.* bottom has 3"):
        net_of("kernel_h: 2 kernel_w: 3", (2, 3, 4, 5, 6))


def test_the_number_of_axes_stays():
    net = net_of("kernel_size: 2", (2, 3, 7))
    net.blobs["x"].reshape(2, 3, 7, 6)
    with pytest.raises(ModelError, match=r"input must have 3 axes, got 4"):
        net.reshape()


def test_a_pad_as_large_as_the_kernel_names_the_axis():
    with pytest.raises(ModelError, match=r"pad_0 < kernel_0 must hold \(2 vs. 2\)"):
        net_of("kernel_size: 2 pad: 2", (2, 3, 7))
