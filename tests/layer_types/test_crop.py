"""Cropping."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError


def crop_net(shape, like, param=""):
    dims = [" ".join(f"dim: {d}" for d in dims) for dims in (shape, like)]
    return make_net(
        "force_backward: true"
        + "".join(
            f" layer {{ name: '{name}' type: 'Input' top: '{name}'"
            f" input_param {{ shape {{ {d} }} }} }}"
            for name, d in zip(("x", "like"), dims, strict=True)
        )
        + " layer { name: 'it' type: 'Crop' bottom: 'x' bottom: 'like' top: 'y'"
        f" crop_param {{ {param} }} }}"
    )


@pytest.mark.parametrize(
    ("param", "shape"),
    [("axis: 0", (2, 3, 4, 2)), ("", (2, 4, 4, 2)), ("axis: -1", (2, 4, 5, 2))],
)
def test_shapes(param, shape):
    assert crop_net((2, 4, 5, 4), (2, 3, 4, 2), param).blobs["y"].shape == shape


@pytest.mark.parametrize(
    ("param", "like", "part"),
    [
        ("axis: 0 offset: [0, 1, 1, 2]", (2, 3, 4, 6), np.s_[:, 1:4, 1:5, 2:8]),
        ("axis: 1 offset: 1 offset: 1 offset: 2", (2, 3, 4, 6), np.s_[:, 1:4, 1:5, 2:8]),
        ("offset: 1 offset: 2", (2, 1, 4, 6), np.s_[:, :, 1:5, 2:8]),
        ("offset: 1", (2, 9, 4, 6), np.s_[:, :, 1:5, 1:7]),
        ("axis: -1", (2, 1, 1, 6), np.s_[..., :6]),
    ],
)
def test_crop(ops, param, like, part):
    check_layer(
        ops,
        f"type: 'Crop' crop_param {{ {param} }}",
        bottoms=[(2, 4, 5, 8), like],
        expect=lambda x, like: x[part],
    )


def test_crop_of_the_batch_too(on_ops, rng):
    x = rng.normal(size=(2, 4, 5, 4)).astype(np.float32)
    net = crop_net(x.shape, (2, 3, 4, 2), "axis: 0 offset: [0, 1, 1, 2]")
    net.blobs["x"].data[...] = x
    assert_array_equal(net.forward()["y"], x[:, 1:, 1:, 2:])


def test_crop_of_some_items_of_the_batch(ops):
    check_layer(
        ops,
        "type: 'Crop' crop_param { axis: 0 offset: [2, 0, 1] }",
        bottoms=[(5, 4, 3), (3, 1, 2)],
        expect=lambda x, like: x[2 : 2 + len(like), :1, 1:],
    )


def test_crop_of_5_axes(ops):
    check_layer(
        ops,
        "type: 'Crop' crop_param { axis: 2 offset: [1, 2, 0] }",
        bottoms=[(2, 4, 5, 6, 3), (2, 7, 4, 3, 1)],
        expect=lambda x, like: x[:, :, 1:5, 2:5, 0:1],
    )


# https://github.com/opencv/opencv/issues/10577
# https://github.com/apache/mxnet/issues/9720
# https://github.com/BVLC/caffe/issues/5850
def test_without_offset_the_first_corner_is_taken(on_ops):
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    net = crop_net(x.shape, (1, 1, 4, 4))
    net.blobs["x"].data[...] = x
    assert_array_equal(net.forward()["y"], x[:, :, :4, :4])


# https://github.com/asiryan/caffe2onnx/issues/3
def test_channels_are_kept(on_ops):
    net = crop_net((1, 21, 50, 60), (1, 3, 40, 50))
    assert net.blobs["y"].shape == (1, 21, 40, 50)


@pytest.mark.parametrize(
    ("like", "param", "message"),
    [
        ((2, 4, 2, 4), "offset: 3 offset: 0", r"dimension 2 is out-of-bounds with size 2 and offs"
         r"et 3: the input has 4"),
        ((2, 4, 5, 4), "", r"dimension 2 is out-of-bounds with size 5 and offset 0: the input h"),
        ((2, 4, 2, 4), "offset: [1, 1, 1]", r"number of offset values .*: 3 vs. 2"),
        ((2, 4, 2, 4), "axis: 4", r"axis 4 out of range for 4-D blob"),
        ((2, 4, 2), "", r"the blob to crop has 4 axes, the one to crop to has 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_cropped(like, param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Crop\): .*" + message):
        crop_net((2, 3, 4, 5), like, param)


def test_the_blob_to_crop_to_gets_no_gradient(on_ops):
    net = run_net(
        "layer { name: 'p' type: 'Parameter' top: 'p' parameter_param { shape { dim: [5, 4] } } }"
        "layer { name: 'q' type: 'Parameter' top: 'q' parameter_param { shape { dim: [3, 2] } } }"
        "layer { name: 'it' type: 'Crop' bottom: 'p' bottom: 'q' top: 'y' loss_weight: 3"
        " crop_param { axis: 0 offset: 1 } }"
    )
    net.backward()
    assert net.params["p"][0].diff.sum() == 18
    assert (net.params["q"][0].diff == 0).all()


def test_an_empty_batch(on_ops):
    net = crop_net((0, 2, 5, 4), (0, 2, 3, 1))
    assert net.forward()["y"].shape == (0, 2, 3, 1)
    net.backward()


# ---- CropCenter --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "part"),
    [
        ("[0, 0, 2, 1]", np.s_[:, :, 2:5, 1:5]),
        ("[0, 1]", np.s_[:, 1:4]),
        ("[]", np.s_[:]),
    ],
)
def test_crop_center(ops, cut, part):
    check_layer(
        ops,
        f"type: 'CropCenter' crop_center_param {{ crop_size: {cut} }}",
        bottoms=[(2, 5, 7, 6)],
        expect=lambda x: x[part],
    )


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        ("[0, 0, 0, 3]", "the crop for dimension 3 is out-of-bounds: 3 at either end of 6"),
        ("[0, 0, 0, 0, 1]", "crop_size has 5 entries, the input 4 axes"),
    ],
)
def test_what_crop_center_cannot_cut(cut, text):
    with pytest.raises(ModelError, match=rf"layer 'it' \(CropCenter\): {text}"):
        make_net(
            "input: 'x' input_shape { dim: [2, 5, 7, 6] } layer { name: 'it' type: 'CropCenter'"
            f" bottom: 'x' top: 'y' crop_center_param {{ crop_size: {cut} }} }}"
        )


def test_crop_center_of_an_empty_batch(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: [0, 5, 7] } layer { name: 'it'"
        " type: 'CropCenter' bottom: 'x' top: 'y' crop_center_param { crop_size: [0, 1] } }"
    )
    assert net.forward()["y"].shape == (0, 3, 7)
    assert net.backward()["x"].shape == (0, 5, 7)
