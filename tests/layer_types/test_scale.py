"""Scale and Bias: parameters or second bottoms that are repeated over the other axes."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite

SHAPE = (2, 3, 4, 5)
# What the smaller blob covers: its axis, its number of axes, its shape.
COVERED = [
    (0, -1, SHAPE),
    (0, 2, (2, 3)),
    (1, 1, (3,)),
    (1, 2, (3, 4)),
    (-2, 2, (4, 5)),
    (2, 0, ()),
]


def at(small, axis, shape=SHAPE):
    """The smaller array, repeated to `shape`."""
    start = axis % len(shape) if small.ndim else 0
    wide = small.reshape(*small.shape, *[1] * (len(shape) - start - small.ndim))
    return np.broadcast_to(wide, shape)


def net_of(snippet, *shapes, top="y"):
    inputs = [
        f"layer {{ name: 'in{k}' type: 'Input' top: 'x{k}'"
        f" input_param {{ shape {{ {' '.join(f'dim: {d}' for d in shape)} }} }} }}"
        for k, shape in enumerate(shapes)
    ]
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"force_backward: true {' '.join(inputs)}"
        f" layer {{ name: 'it' {bottoms} top: '{top}' {snippet} }}"
    )


@pytest.mark.parametrize(("axis", "num_axes", "shape"), COVERED)
@pytest.mark.parametrize("bias", ["false", "true"])
def test_scale_by_a_parameter(ops, axis, num_axes, shape, bias):
    snippet = f"scale_param {{ axis: {axis} num_axes: {num_axes} bias_term: {bias} }}"

    def scale(x, s, b=None):
        assert s.shape == shape
        return x * at(s, axis, x.shape) + (0 if b is None else at(b, axis, x.shape))

    check_layer(ops, f"type: 'Scale' {snippet}", bottoms=[SHAPE], expect=scale)


@pytest.mark.parametrize(("axis", "num_axes", "shape"), COVERED)
def test_bias_by_a_parameter(ops, axis, num_axes, shape):
    def bias(x, b):
        assert b.shape == shape
        return x + at(b, axis, x.shape)

    snippet = f"type: 'Bias' bias_param {{ axis: {axis} num_axes: {num_axes} }}"
    check_layer(ops, snippet, bottoms=[SHAPE], expect=bias)


@pytest.mark.parametrize("type_name", ["Scale", "Bias"])
@pytest.mark.parametrize(("axis", "shape"), [(a, s) for a, _, s in COVERED if s])
def test_second_bottom(ops, type_name, axis, shape):
    def expect(x, s):
        s = at(s, axis, x.shape)
        return x * s if type_name == "Scale" else x + s

    snippet = f"type: '{type_name}' {type_name.lower()}_param {{ axis: {axis} }}"
    check_layer(ops, snippet, bottoms=[SHAPE, shape], expect=expect)


def test_second_bottom_and_a_bias(ops):
    check_layer(
        ops,
        "type: 'Scale' scale_param { bias_term: true }",
        bottoms=[SHAPE, (3, 4)],
        expect=lambda x, s, b: x * at(s, 1) + at(b, 1),
    )


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("type_name", ["Scale", "Bias"])
def test_second_bottom_of_one_number(on_ops, rng, type_name, axis):
    x, dy = rng.standard_normal((2, *SHAPE))
    net = net_of(f"type: '{type_name}' {type_name.lower()}_param {{ axis: {axis} }}", SHAPE, ())
    y = net.forward(x0=x, x1=np.array(0.75))["y"]
    dx = net.backward(y=dy)
    is_scale = type_name == "Scale"
    assert_allclose(y, x * 0.75 if is_scale else x + 0.75, rtol=1e-6)
    assert_allclose(dx["x0"], dy * 0.75 if is_scale else dy, rtol=1e-6)
    assert_allclose(dx["x1"], (dy * x).sum() if is_scale else dy.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    "snippet",
    [
        "type: 'Scale'",
        "type: 'Bias'",
        "type: 'Scale' scale_param { bias_term: true bias_filler { value: 2 } }",
    ],
)
@pytest.mark.parametrize("shapes", [[SHAPE, (3, 4)], [SHAPE]])
def test_in_place(on_ops, rng, snippet, shapes):
    """Output and all gradients are those of the net that uses a blob of its own."""
    inputs = {f"x{k}": rng.standard_normal(shape) for k, shape in enumerate(shapes)}
    dy = rng.standard_normal(SHAPE)
    results = []
    for top in ("x0", "y"):
        net = net_of(snippet, *shapes, top=top)
        for name, value in inputs.items():
            net.blobs[name].data[...] = value
        y = net.forward()[top].copy()
        net.blobs[top].diff[...] = dy
        net.backward()
        diffs = [net.blobs[name].diff for name in inputs]
        results.append([y, *diffs, *(blob.diff for blob in net.layer_dict["it"].blobs)])
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)
        assert one.any()


# https://github.com/PaddlePaddle/Paddle/issues/6696, https://github.com/XiaoMi/mace/issues/205
# https://github.com/Tencent/TNN/issues/149
def test_scale_needs_no_batch_norm_before_it(on_ops):
    filler = "filler { type: 'constant' value: 0.1 }"
    net = net_of(f"type: 'Scale' scale_param {{ {filler} bias_term: false }}", (2, 3))
    assert [blob.shape for blob in net.params["it"]] == [(3,)]
    x = np.arange(6).reshape(2, 3)
    assert_allclose(net.forward(x0=x)["y"], x / 10, rtol=1e-6)


def test_first_values():
    net = net_of("type: 'Scale' scale_param { bias_term: true }", SHAPE)
    scale, bias = net.params["it"]
    assert_array_equal(scale.data, [1, 1, 1])
    assert_array_equal(bias.data, [0, 0, 0])
    assert_array_equal(net_of("type: 'Bias'", SHAPE).params["it"][0].data, [0, 0, 0])


def test_gradients_add_up_where_the_parameter_covers_all(on_ops):
    """Caffe overwrites that of the scale there."""
    net = net_of("type: 'Scale' scale_param { axis: 0 num_axes: -1 }", (1, 3))
    net.forward(x0=[[1, 2, 3]])
    for _ in range(2):
        net.backward(y=[[1, 1, 1]])
    assert_array_equal(net.params["it"][0].diff, [[2, 4, 6]])


@pytest.mark.parametrize("type_name", ["Scale", "Bias"])
def test_empty_batch(on_ops, type_name):
    net = net_of(f"type: '{type_name}'", (0, 3, 4))
    assert net.forward()["y"].shape == (0, 3, 4)
    assert net.backward()["x0"].shape == (0, 3, 4)
    assert_array_equal(net.params["it"][0].diff, [0, 0, 0])


@pytest.mark.parametrize("type_name", ["Scale", "Bias"])
@pytest.mark.parametrize(
    ("param", "shapes", "message"),
    [
        ("axis: 2 num_axes: 3", [SHAPE], r"extends past bottom\[0\]'s shape.* axis 2: 3 axes of 4"),
        ("axis: 4", [SHAPE], "axis 4 out of range for 4-D"),
        ("num_axes: -2", [SHAPE], "num_axes must be >= 0, or -1.*-2"),
        ("axis: 1", [SHAPE, (3, 5)], r"dimension mismatch.*2 3 4 5 .*axis 1 on.*3 5 \(15\)"),
        ("axis: 3", [SHAPE, (5, 2)], r"dimension mismatch.*2 3 4 5 .*axis 3 on.*5 2 \(10\)"),
    ],
)
def test_shapes_that_do_not_fit(type_name, param, shapes, message):
    text = f"type: '{type_name}' {type_name.lower()}_param {{ {param} }}"
    with pytest.raises(pycaffe_lite.ModelError, match=rf"'it' \({type_name}\).*{message}"):
        net_of(text, *shapes)


@pytest.mark.parametrize("type_name", ["Scale", "Bias"])
def test_another_number_of_channels(type_name):
    net = net_of(f"type: '{type_name}'", SHAPE)
    net.blobs["x0"].reshape(2, 7, 4)
    with pytest.raises(pycaffe_lite.ModelError, match=rf"'it' \({type_name}\).*2 7 4 .*`3 \(3\)"):
        net.forward()


def test_bias_does_not_follow_a_second_bottom_of_another_shape():
    net = net_of("type: 'Scale' scale_param { bias_term: true }", SHAPE, (3,))
    net.blobs["x1"].reshape(3, 4)
    with pytest.raises(pycaffe_lite.ModelError, match=r"'it' \(Scale\).*`3 \(3\)`.*`3 4 \(12\)`"):
        net.forward()
