"""Layers that copy or rearrange."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TRAIN, ModelError


@pytest.mark.parametrize("tops", [2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 5), (4,)])
def test_split(ops, shape, tops):
    check_layer(ops, "type: 'Split'", [shape], expect=lambda x: (x,) * tops, tops=tops)


def test_tops_of_a_split_are_the_bottom_itself(on_ops):
    """What is written into a blob reaches its consumers although a split lies between."""
    net = make_net(
        "input: 'x' input_shape { dim: 3 }"
        " layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'y' }"
        " layer { name: 'b' type: 'ReLU' bottom: 'y' top: 'b' }"
        " layer { name: 'c' type: 'TanH' bottom: 'y' top: 'c' }",
        TRAIN,
    )
    net.forward(x=np.array([1, 2, 3]))
    net.blobs["y"].data[...] = [7, 8, 9]
    out = net.forward(start="b")
    assert_array_equal(out["b"], [7, 8, 9])
    assert_array_equal(out["c"], np.tanh(np.float32([7, 8, 9])))


# ---- Flatten and Reshape -----------------------------------------------------------------------

INPUT = (
    "force_backward: true"
    " layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
    " layer {{ name: 'it' type: '{type}' bottom: 'x' top: 'y' {param} }}"
)


def net_of(type_name, shape, param=""):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(INPUT.format(dims=dims, type=type_name, param=param))


def reshape_net(shape, dims, param=""):
    dims = " ".join(f"dim: {d}" for d in dims)
    return net_of("Reshape", shape, f"reshape_param {{ shape {{ {dims} }} {param} }}")


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("", (2, 90)),
        ("axis: 2", (2, 3, 30)),
        ("end_axis: -2", (2, 18, 5)),
        ("axis: 0 end_axis: -2", (36, 5)),
        ("axis: -1 end_axis: 3", (2, 3, 6, 5)),
    ],
)
def test_flatten(ops, param, shape):
    def expect(x):
        return x.reshape(shape if len(x) == 2 else (shape[0] * 2, *shape[1:]))

    snippet = f"type: 'Flatten' flatten_param {{ {param} }}"
    check_layer(ops, snippet, bottoms=[(2, 3, 6, 5)], expect=expect)


@pytest.mark.parametrize(
    ("dims", "param", "shape"),
    [
        ([0, -1, 1, 1], "", (2, 90, 1, 1)),
        ([0, 0, 0, 0], "", (2, 3, 6, 5)),
        ([0, 3, 10, -1], "", (2, 3, 10, 3)),
        ([3, 10, -1], "axis: 1", (2, 3, 10, 3)),
        ([-1], "axis: 1 num_axes: 2", (2, 18, 5)),
        ([0, -1], "axis: -3", (2, 3, 6, 5)),
        ([], "", None),
    ],
)
def test_reshape(ops, dims, param, shape):
    if shape is None:  # a scalar's worth: the whole shape may go
        net = reshape_net((1, 1), [], param)
        assert net.blobs["y"].shape == ()
        return

    def expect(x):
        return x.reshape(shape if len(x) == 2 else (shape[0] * 2, *shape[1:]))

    dims = " ".join(f"dim: {d}" for d in dims)
    check_layer(
        ops,
        f"type: 'Reshape' reshape_param {{ shape {{ {dims} }} {param} }}",
        bottoms=[(2, 3, 6, 5)],
        expect=expect,
    )


@pytest.mark.parametrize(
    ("axis", "shape"),
    [(0, (1, 1, 1, 2, 3, 6, 5)), (2, (2, 3, 1, 1, 1, 6, 5)), (-1, (2, 3, 6, 5, 1, 1, 1))],
)
def test_axes_are_inserted_where_num_axes_is_0(ops, axis, shape):
    net = reshape_net((2, 3, 6, 5), [1, 1, 1], f"axis: {axis} num_axes: 0")
    assert net.blobs["y"].shape == shape
    check_layer(
        ops,
        f"type: 'Reshape' reshape_param {{ shape {{ dim: [1, 1, 1] }} axis: {axis} num_axes: 0 }}",
        bottoms=[(2, 3, 6, 5)],
        expect=lambda x: x.reshape([len(x) if n == 2 else n for n in shape]),
    )


# https://github.com/BVLC/caffe/pull/2217
# https://github.com/DagnyT/hardnet/issues/11
# https://github.com/XiaoMi/mace/issues/352
# https://github.com/microsoft/MMdnn/issues/57
@pytest.mark.parametrize(
    ("old", "dims", "param", "new"),
    [
        ((2, 8, 3), [0, -1], "", (2, 24)),
        ((2, 8, 3), [1], "axis: 0 num_axes: 0", (1, 2, 8, 3)),
        ((256,), [1], "axis: -1 num_axes: 0", (256, 1)),
        ((1, 2, 8000), [0, 2, 8000, 1], "", (1, 2, 8000, 1)),
    ],
)
def test_shapes_that_converters_got_wrong(old, dims, param, new):
    assert reshape_net(old, dims, param).blobs["y"].shape == new


def test_reshape_keeps_the_order_of_elements(on_ops, rng):
    x = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    net = reshape_net(x.shape, [6, 2, 3, 5])
    assert_array_equal(net.forward(x=x)["y"], x.reshape(6, 2, 3, 5))
    net.blobs["x"].reshape(4, 3, 3, 5)
    assert_array_equal(net.forward(x=x.reshape(4, 3, 3, 5))["y"], x.reshape(6, 2, 3, 5))


@pytest.mark.parametrize(
    ("type_name", "param"),
    [("Flatten", ""), ("Reshape", "reshape_param { shape { dim: [0, -1] } }")],
)
def test_values_are_shared_and_gradients_are_not(on_ops, type_name, param):
    net = net_of(type_name, (2, 3, 5), param)
    net.forward()
    net.blobs["x"].data[...] = 7
    assert (net.blobs["y"].data == 7).all()
    net.blobs["x"].diff[...] = 4
    net.blobs["y"].diff[...] = 3
    assert (net.blobs["x"].diff == 4).all()
    net.backward()
    assert (net.blobs["x"].diff == 3).all()


@pytest.mark.parametrize("type_name", ["Flatten", "Reshape", "Split"])
def test_not_in_place(type_name):
    with pytest.raises(ModelError, match=f"{type_name} does not allow in-place computation"):
        make_net(
            "input: 'x' input_shape { dim: [2, 3] }"
            f" layer {{ name: 'it' type: '{type_name}' bottom: 'x' top: 'x' }}"
        )


@pytest.mark.parametrize("type_name", ["Flatten", "Reshape", "Split"])
def test_gradients_stay_right_where_the_next_layer_works_in_place(on_ops, type_name):
    """The values that the layer before needs are those that it made."""
    x = np.float32([[0.5, -1, 2], [1, -2, 0.25]])
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: [2, 3] }"
        " layer { name: 'a' type: 'TanH' bottom: 'x' top: 'a' }"
        f" layer {{ name: 'it' type: '{type_name}' bottom: 'a' top: 'y'"
        " reshape_param { shape { dim: [0, 0] } } }"
        " layer { name: 'r' type: 'ReLU' bottom: 'y' top: 'y' }"
    )
    y = np.tanh(x)
    assert_allclose(net.forward(x=x)["y"], np.maximum(y, 0), rtol=1e-6)
    dx = net.backward(y=np.ones_like(x))["x"]
    assert_allclose(dx, (x > 0) * (1 - y * y), rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "dims", "param", "message"),
    [
        ((2, 3, 4), [2, 5], "", r"output count must match input count \(10 vs. 24\)"),
        ((2, 3, 4), [-1, -1], "", r"multiple -1 dims \(2\); at most a single \(1\) value"),
        ((2, 3, 4), [5, -1], "", r"count \(24\) must be divisible by .* dimensions \(5\)"),
        ((2, 3, 4), [0, -1, 0], "axis: 1 num_axes: 2", r"no corresponding bottom axis .*axis 3 o"),
        ((2, 3, 4), [-2, 12], "", r"new shape has dim -2; none may be less than -1"),
        ((2, 3, 4), [24], "axis: 4", r"axis 4 out of range for 3-D blob with shape `2 3 4 \(24\)"),
        ((2, 3, 4), [24], "axis: -5", r"axis -5 out of range for 3-D blob"),
        ((2, 3, 4), [24], "axis: 1 num_axes: 3", r"num_axes 3 from axis 1 on .* the 3 axes of"),
        ((2, 3, 4), [24], "num_axes: -2", r"num_axes must be >= 0, or -1 for all, got -2"),
    ],
)
def test_shapes_that_do_not_fit(old, dims, param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Reshape\): .*" + message):
        reshape_net(old, dims, param)


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("axis: 3", r"axis 3 out of range for 3-D blob with shape `2 3 4 \(24\)`"),
        ("end_axis: -4", r"axis -4 out of range for 3-D blob"),
        ("axis: 2 end_axis: 1", r"end_axis 1 must not come before axis 2"),
    ],
)
def test_axes_that_cannot_be_flattened(param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Flatten\): " + message):
        net_of("Flatten", (2, 3, 4), f"flatten_param {{ {param} }}")


@pytest.mark.parametrize(
    ("dims", "shape"), [([0, -1], (0, 24)), ([-1, 24], (0, 24)), ([0, 4, -1], (0, 4, 6))]
)
def test_an_empty_batch_is_reshaped(on_ops, dims, shape):
    net = reshape_net((0, 8, 3), dims)
    assert net.forward()["y"].shape == shape
    net.backward()


def test_an_empty_batch_is_flattened(on_ops):
    net = net_of("Flatten", (0, 8, 3))
    assert net.forward()["y"].shape == (0, 24)
    net.backward()


@pytest.mark.parametrize(
    ("dim", "shape"), [(0, (1, 4, 3)), (1, (4, 1, 3)), (2, (4, 3, 1)), (-1, (4, 3, 1))]
)
def test_unsqueeze(ops, dim, shape):
    check_layer(
        ops,
        f"type: 'Unsqueeze' unsqueeze_param {{ dim: {dim} }}",
        bottoms=[(4, 3)],
        expect=lambda x: x.reshape([len(x) if d == 4 else d for d in shape]),
    )


def test_unsqueeze_names_an_axis_that_is_not_there():
    with pytest.raises(ModelError, match=r"layer 'it' \(Unsqueeze\).*axis 3 out of range for 3-D"):
        net_of("Unsqueeze", (4, 3), "unsqueeze_param { dim: 3 }")
