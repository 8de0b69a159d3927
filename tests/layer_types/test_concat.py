"""Joining, cutting and repeating along an axis."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def inputs(*shapes):
    dims = [" ".join(f"dim: {d}" for d in shape) for shape in shapes]
    return "force_backward: true\n" + "\n".join(
        f"layer {{ name: 'in{k}' type: 'Input' top: 'x{k}' input_param {{ shape {{ {d} }} }} }}"
        for k, d in enumerate(dims)
    )


def layer(type_name, bottoms, tops, param=""):
    ends = [f"bottom: '{b}'" for b in bottoms.split()] + [f"top: '{t}'" for t in tops.split()]
    return f"\nlayer {{ name: 'it' type: '{type_name}' {' '.join(ends)} {param} }}"


# ---- Concat ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "axis"), [("", 1), ("axis: -3", 1), ("concat_dim: 1", 1), ("axis: 2", 2)]
)
def test_concat(ops, param, axis):
    shape = [2, 3, 6, 5]
    shapes = []
    for size in (3, 4, 1):
        shape[axis] = size
        shapes.append(tuple(shape))
    check_layer(
        ops,
        f"type: 'Concat' concat_param {{ {param} }}",
        bottoms=shapes,
        expect=lambda *xs: np.concatenate(xs, axis=axis),
    )


def test_concat_of_batches(ops):
    check_layer(
        ops,
        "type: 'Concat' concat_param { axis: 0 }",
        bottoms=[(2, 3, 6), (5, 3, 6)],
        expect=lambda a, b: np.concatenate([a, b]),
    )


def test_concat_of_one_is_the_identity_in_its_storage(ops):
    check_layer(ops, "type: 'Concat'", bottoms=[(2, 3, 5)], expect=lambda x: x)
    net = run_net(inputs((2, 3)) + layer("Concat", "x0", "y"))
    assert np.shares_memory(net.blobs["y"].data, net.blobs["x0"].data)


def test_only_bottoms_that_are_asked_for_get_gradients(on_ops):
    net = run_net(
        "layer { name: 'p' type: 'Parameter' top: 'p' parameter_param { shape { dim: [2, 3] } } }"
        "layer { name: 'q' type: 'Parameter' top: 'q' parameter_param { shape { dim: [2, 4] } } }"
        + layer("Concat", "p q", "y", "propagate_down: [false, true] loss_weight: 3")
    )
    net.backward()
    assert (net.params["p"][0].diff == 0).all()
    assert (net.params["q"][0].diff == 3).all()


@pytest.mark.parametrize(
    ("shapes", "param", "message"),
    [
        (
            [(2, 3, 4), (2, 5, 6)],
            "",
            r"except at concat_axis \(1\): `2 3 4 \(24\)` of bottom 0 vs. `2 5 6 \(60\)` of bot",
        ),
        ([(2, 3, 4), (2, 3)], "", r"must have the same #axes: 3 of bottom 0 vs. 2 of bottom 1"),
        ([(2, 3)], "axis: 2", r"axis 2 out of range for 2-D blob with shape `2 3 \(6\)`"),
        ([(2, 3)], "concat_dim: 3", r"axis 3 out of range for 2-D blob"),
        ([(2, 3)], "axis: 1 concat_dim: 0", r"either axis or concat_dim .*not both: 1 and 0"),
    ],
)
def test_what_cannot_be_joined(shapes, param, message):
    names = " ".join(f"x{k}" for k in range(len(shapes)))
    with pytest.raises(ModelError, match=r"layer 'it' \(Concat\): .*" + message):
        make_net(inputs(*shapes) + layer("Concat", names, "y", f"concat_param {{ {param} }}"))


def test_concat_with_parts_that_are_empty(on_ops):
    values = {"x0": np.ones((2, 0)), "x1": np.full((2, 3), 4)}
    net = run_net(inputs((2, 0), (2, 3)) + layer("Concat", "x0 x1", "y"), **values)
    assert_array_equal(net.blobs["y"].data, np.full((2, 3), 4))
    net.backward(y=np.ones((2, 3)))
    assert_array_equal(net.blobs["x1"].diff, np.ones((2, 3)))


# ---- Slice -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "tops", "cuts", "axis"),
    [
        ("", 3, 3, 1),
        ("slice_dim: 1", 2, 2, 1),
        ("axis: 0", 3, 3, 0),
        ("axis: -1 slice_point: 1", 2, [1], 3),
        ("axis: 1 slice_point: 3", 2, [3], 1),
        ("slice_point: 2 slice_point: 8", 3, [2, 8], 1),
    ],
)
def test_slice(ops, param, tops, cuts, axis):
    check_layer(
        ops,
        f"type: 'Slice' slice_param {{ {param} }}",
        bottoms=[(6, 12, 2, 3)],
        expect=lambda x: tuple(np.split(x, cuts, axis)),
        tops=tops,
    )


@pytest.mark.parametrize("count", [2, 3])
def test_slice_of_batches(on_ops, rng, count):
    x = rng.normal(size=(6, 12, 2, 3)).astype(np.float32)
    tops = " ".join(f"y{k}" for k in range(count))
    net = run_net(inputs(x.shape) + layer("Slice", "x0", tops, "slice_param { axis: 0 }"), x0=x)
    for name, part in zip(tops.split(), np.split(x, count), strict=True):
        assert_array_equal(net.blobs[name].data, part)


def test_slice_into_one_is_the_identity_in_its_storage(ops):
    check_layer(ops, "type: 'Slice'", bottoms=[(2, 3, 5)], expect=lambda x: x)
    net = run_net(inputs((2, 3)) + layer("Slice", "x0", "y"))
    assert np.shares_memory(net.blobs["y"].data, net.blobs["x0"].data)


# https://github.com/Tencent/ncnn/issues/68
# https://github.com/BVLC/caffe/issues/6361
@pytest.mark.parametrize(
    ("size", "count", "param", "sizes"),
    [
        (6, 3, "", [2, 2, 2]),
        (15, 5, "slice_point: [3, 6, 9, 12]", [3, 3, 3, 3, 3]),
        (14, 5, "slice_dim: 1 slice_point: [3, 6, 9, 12]", [3, 3, 3, 3, 2]),
    ],
)
def test_sizes_of_slices(size, count, param, sizes):
    tops = " ".join(f"y{k}" for k in range(count))
    net = make_net(inputs((2, size)) + layer("Slice", "x0", tops, f"slice_param {{ {param} }}"))
    assert [net.blobs[name].shape for name in tops.split()] == [(2, n) for n in sizes]


# https://github.com/opencv/opencv/issues/15133
# https://github.com/opencv/opencv_contrib/issues/1173
def test_maxout_is_slice_and_eltwise_max(on_ops, rng):
    x = rng.normal(size=(1, 4, 3, 2)).astype(np.float32)
    net = run_net(
        inputs(x.shape)
        + layer("Slice", "x0", "a b", "slice_param { axis: 1 slice_point: 2 }")
        + "layer { name: 'max' type: 'Eltwise' bottom: 'a' bottom: 'b' top: 'y'"
        " eltwise_param { operation: MAX } }",
        x0=x,
    )
    assert_array_equal(net.blobs["y"].data, np.maximum(x[:, :2], x[:, 2:]))


@pytest.mark.parametrize(
    ("count", "param", "message"),
    [
        (4, "", r"number of top blobs \(4\) should evenly divide input slice axis \(6\)"),
        (3, "slice_point: 2", r"1 slice_point values for 3 tops; there must be 2"),
        (3, "slice_point: [4, 4]", r"increase strictly .* slice axis \(6\), got \[4, 4\]"),
        (3, "slice_point: [4, 2]", r"increase strictly .*got \[4, 2\]"),
        (2, "slice_point: 0", r"increase strictly .*got \[0\]"),
        (2, "slice_point: 7", r"lie within the slice axis \(6\), got \[7\]"),
        (2, "axis: 2", r"axis 2 out of range for 2-D blob"),
        (2, "axis: 1 slice_dim: 1", r"either axis or slice_dim should be specified; not both"),
    ],
)
def test_what_cannot_be_cut(count, param, message):
    tops = " ".join(f"y{k}" for k in range(count))
    with pytest.raises(ModelError, match=r"layer 'it' \(Slice\): .*" + message):
        make_net(inputs((2, 6)) + layer("Slice", "x0", tops, f"slice_param {{ {param} }}"))


def test_slice_of_an_empty_batch(on_ops):
    for axis in (0, 1):
        text = layer("Slice", "x0", "a b", f"slice_param {{ axis: {axis} }}")
        net = run_net(inputs((0, 6)) + text)
        net.backward()
        assert net.blobs["b"].data.shape == ((0, 6) if axis == 0 else (0, 3))


# ---- Tile --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "tiles"), [(0, 3), (1, 3), (2, 2), (-1, 4), (1, 1)])
def test_tile(ops, axis, tiles):
    reps = [1, 1, 1, 1]
    reps[axis] = tiles
    check_layer(
        ops,
        f"type: 'Tile' tile_param {{ axis: {axis} tiles: {tiles} }}",
        bottoms=[(2, 3, 4, 5)],
        expect=lambda x: np.tile(x, reps),
    )


def test_tiles_are_whole_blocks(on_ops):
    param = "tile_param { tiles: 2 }"
    net = run_net(inputs((1, 3)) + layer("Tile", "x0", "y", param), x0=np.array([[1, 2, 3]]))
    assert_array_equal(net.blobs["y"].data, [[1, 2, 3, 1, 2, 3]])


@pytest.mark.parametrize("param", ["", "tiles: 0", "tiles: -2"])
def test_number_of_tiles(param):
    with pytest.raises(ModelError, match=r"'it' \(Tile\): number of tiles must be positive, got"):
        make_net(inputs((2, 3)) + layer("Tile", "x0", "y", f"tile_param {{ {param} }}"))


def test_tile_of_an_empty_batch(on_ops):
    net = run_net(inputs((0, 6)) + layer("Tile", "x0", "y", "tile_param { tiles: 2 }"))
    net.backward()
    assert net.blobs["y"].data.shape == (0, 12)
