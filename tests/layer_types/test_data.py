"""Where data enters."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeOps
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import TRAIN, ModelError, device


def test_one_shape_serves_all_tops():
    net = make_net(
        "layer { name: 'in' type: 'Input' top: 'a' top: 'b' input_param { shape { dim: [2, 3] } } }"
    )
    assert net.blobs["a"].shape == net.blobs["b"].shape == (2, 3)
    assert net.inputs == ["a", "b"]


def test_a_shape_for_each_top():
    net = make_net(
        "layer { name: 'in' type: 'Input' top: 'a' top: 'b'"
        " input_param { shape { dim: [2, 3] } shape { dim: 4 } } }"
    )
    assert net.blobs["a"].shape == (2, 3)
    assert net.blobs["b"].shape == (4,)


def test_without_a_shape_the_top_is_a_scalar():
    net = make_net("layer { name: 'in' type: 'Input' top: 'a' }")
    assert net.blobs["a"].shape == ()
    assert net.forward(a=np.float32(3))["a"] == 3


def test_number_of_shapes():
    with pytest.raises(ModelError, match="once, once per top blob, or not at all: 3 tops vs. 2"):
        make_net(
            "layer { name: 'in' type: 'Input' top: 'a' top: 'b' top: 'c'"
            " input_param { shape { dim: 2 } shape { dim: 4 } } }"
        )


def test_a_new_shape_stays():
    net = make_net("input: 'x' input_shape { dim: [2, 3] }")
    net.blobs["x"].reshape(5, 4)
    net.reshape()
    assert net.forward()["x"].shape == (5, 4)


# ---- Parameter ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (2, 1, 5), ()])
def test_parameter(ops, shape):
    dims = " ".join(f"dim: {d}" for d in shape)
    snippet = f"type: 'Parameter' parameter_param {{ shape {{ {dims} }} }}"
    check_layer(ops, snippet, bottoms=[], expect=lambda w: w)


PARAMETER = (
    "layer { name: 'p' type: 'Parameter' top: 'w' parameter_param { shape { dim: [2, 3] } } }"
)


def test_a_parameter_starts_with_zeros():
    assert (run_net(PARAMETER).forward()["w"] == 0).all()


def test_its_gradient_adds_up_over_several_backwards(on_ops):
    net = run_net(
        PARAMETER
        + " layer { name: 'y' type: 'TanH' bottom: 'w' top: 'y' }"
        + " layer { name: 'l' type: 'Reduction' bottom: 'y' top: 'l' loss_weight: 2 }"
    )
    for times in (1, 2, 3):
        net.forward()
        net.backward()
        assert_array_equal(net.params["p"][0].diff, np.full((2, 3), 2 * times))


def test_a_layer_in_place_leaves_the_parameter(on_ops):
    net = make_net(PARAMETER + " layer { name: 'r' type: 'ReLU' bottom: 'w' top: 'w' }")
    net.params["p"][0].data[...] = -1
    for _ in range(2):
        assert (net.forward()["w"] == 0).all()
    assert (net.params["p"][0].data == -1).all()


def test_several_uses_and_layers_of_one_parameter(on_ops):
    one = "layer {{ name: '{0}' type: 'Parameter' top: '{0}' param {{ name: 'shared' }}"
    one += " parameter_param {{ shape {{ dim: 3 }} }} }}"
    add = "layer {{ name: '{2}' type: 'Eltwise' bottom: '{0}' bottom: '{1}' top: '{2}' }}"
    net = make_net(
        one.format("a")
        + one.format("b")
        + add.format("a", "b", "c")
        + add.format("b", "c", "d")
        + " layer { name: 'l' type: 'Reduction' bottom: 'd' top: 'l' loss_weight: 1 }"
    )
    net.params["a"][0].data[...] = [1, 2, 3]
    assert net.forward()["l"] == 18
    net.backward()
    assert_array_equal(net.params["a"][0].diff, [3, 3, 3])


# ---- DummyData ---------------------------------------------------------------------------------


def dummy(tops, param):
    ends = " ".join(f"top: '{name}'" for name in tops)
    return make_net(
        f"layer {{ name: 'it' type: 'DummyData' {ends} dummy_data_param {{ {param} }} }}", TRAIN
    )


@pytest.mark.parametrize("param", ["shape { dim: 3 dim: 5 }", "shape { dim: 4 } shape { dim: 2 }"])
def test_constants_on_every_backend(ops, param):
    """Two shapes for two tops or one for both, and a value for each."""
    shapes = ((3, 5), (3, 5)) if param.count("shape") == 1 else ((4,), (2,))
    check_layer(
        ops,
        f"type: 'DummyData' dummy_data_param {{ {param} data_filler {{ value: 1.5 }}"
        " data_filler { value: -2 } }",
        bottoms=[],
        expect=lambda: (np.full(shapes[0], 1.5), np.full(shapes[1], -2.0)),
        tops=2,
    )


def test_without_a_filler_it_is_zeros():
    net = dummy(["a"], "num: 5 channels: 3 height: 2 width: 4")
    assert_array_equal(net.forward()["a"], np.zeros((5, 3, 2, 4)))
    assert net.inputs == []


def test_old_sizes_are_given_once_or_once_per_top():
    net = dummy(
        ["a", "b"],
        "num: [5, 5] channels: 3 height: [2, 1] width: 4 data_filler { value: 7 }",
    )
    out = net.forward()
    assert_array_equal(out["a"], np.full((5, 3, 2, 4), 7))
    assert_array_equal(out["b"], np.full((5, 3, 1, 4), 7))


THREE = """shape { dim: [5, 3, 2, 4] } data_filler { value: 7 }
    data_filler { type: 'gaussian' mean: 3 std: 0.01 }
    data_filler { type: 'constant' value: 9 }"""


def test_constants_are_there_at_once_and_others_after_the_first_forward(on_ops):
    net = dummy(["a", "b", "c"], THREE)
    a, b, c = (net.blobs[name] for name in "abc")
    assert (a.data == 7).all()
    assert (b.data == 0).all()
    assert (c.data == 9).all()
    drawn = []
    for _ in range(3):
        net.forward()
        assert (a.data == 7).all()
        assert abs(b.data.mean() - 3) < 0.01
        assert (c.data == 9).all()
        drawn.append(b.data.copy())
    assert not (drawn[0] == drawn[1]).any()
    assert not (drawn[1] == drawn[2]).any()


# https://github.com/BVLC/caffe/issues/6414
def test_forward_overwrites_what_the_user_wrote_except_in_constants(on_ops):
    net = dummy(["a", "b", "c"], THREE)
    for blob in net.blobs.values():
        blob.data[...] = -5
    net.forward()
    assert (net.blobs["a"].data == -5).all()
    assert (net.blobs["b"].data > 0).all()
    assert (net.blobs["c"].data == -5).all()


def test_a_top_of_another_shape_is_filled_anew(on_ops):
    net = dummy(["a", "b", "c"], THREE)
    for blob in net.blobs.values():
        blob.reshape(6, 7, 8)
    out = net.forward()
    assert_array_equal(out["a"], np.full((6, 7, 8), 7))
    assert abs(out["b"] - 3).max() < 0.1
    assert_array_equal(out["c"], np.full((6, 7, 8), 9))


def test_constants_do_not_travel_again():
    fake = FakeOps()
    with device.pretend(fake):
        net = make_net(
            "layer { name: 'it' type: 'DummyData' top: 'a' dummy_data_param {"
            " shape { dim: 8 } data_filler { value: 4 } } }"
            " layer { name: 'r' type: 'ReLU' bottom: 'a' top: 'y' }"
        )
        net._forward(0, 1)
        fake.counters.reset()
        net._forward(0, 1)
        assert fake.counters.uploads == fake.counters.downloads == 0


def test_tops_without_elements():
    net = dummy(["a", "b"], "shape { dim: 0 } data_filler { } data_filler { type: 'uniform' }")
    assert [value.shape for value in net.forward().values()] == [(0,), (0,)]


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("", r"must specify 'shape' once or once per top blob: 3 tops vs. 0 shapes"),
        ("shape { } shape { }", r"once or once per top blob: 3 tops vs. 2 shapes"),
        ("shape { } data_filler { } data_filler { }", r"0, 1 or equal to .* tops: 2 vs. 3"),
        ("shape { dim: 2 } num: 2", r"specify either shape or num, channels, height, width; not"),
        ("num: 2 channels: 3 height: 4", r"'width' once or once per top blob: 3 tops vs. 0 values"),
        ("num: [2, 3] channels: 3 height: 4 width: 5", r"'num' once .*: 3 tops vs. 2 values"),
        ("shape { dim: 2 } data_filler { type: 'gausian' }", r"unknown filler name: gausian"),
        ("shape { dim: 2 } data_filler { sparse: 1 }", r"sparsity is not supported by the const"),
    ],
)
def test_what_dummy_data_refuses(param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(DummyData\): .*" + message):
        dummy(["a", "b", "c"], param)
