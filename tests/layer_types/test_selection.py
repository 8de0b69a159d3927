"""Picking items of a batch, and ignoring blobs."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeOps
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError, device


def net_text(type_name, shapes, tops):
    text = "force_backward: true\n"
    for k, shape in enumerate(shapes):
        dims = " ".join(f"dim: {d}" for d in shape)
        text += (
            f"layer {{ name: 'in{k}' type: 'Input' top: 'x{k}'"
            f" input_param {{ shape {{ {dims} }} }} }}\n"
        )
    ends = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    ends += "".join(f" top: 'y{k}'" for k in range(tops))
    return text + f"layer {{ name: 'it' type: '{type_name}' {ends} }}"


# ---- Filter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", [[0, 1, 1, 0], [1, -2, 0.5, 3], [0, 0, 0, 0]])
@pytest.mark.parametrize("axes", [1, 4])
def test_filter(ops, selector, axes):
    rng = np.random.default_rng(3)
    shapes = [(4, 3, 6, 5), (4, 2)]
    check_layer(
        ops,
        "type: 'Filter'",
        bottoms=[*shapes, (4,) + (1,) * (axes - 1)],
        expect=lambda a, b, s: (a[s.reshape(len(s)) != 0], b[s.reshape(len(s)) != 0]),
        tops=2,
        values=[
            *(rng.normal(size=s) for s in shapes),
            np.reshape(selector, (4,) + (1,) * (axes - 1)),
        ],
        gradients=[0, 1],
    )


def test_tops_have_the_whole_batch_until_the_selector_is_known(on_ops):
    net = make_net(net_text("Filter", [(4, 3), (4,)], 1))
    assert net.blobs["y0"].shape == (4, 3)
    net.forward(x0=np.ones((4, 3)), x1=np.array([0, 1, 0, 0]))
    assert net.blobs["y0"].shape == (1, 3)
    net.reshape()
    assert net.blobs["y0"].shape == (1, 3)
    for blob in net.blobs["x0"], net.blobs["x1"]:
        blob.reshape(5, *blob.shape[1:])
    net.reshape()
    assert net.blobs["y0"].shape == (5, 3)


def test_what_comes_after_a_filter_follows_its_shape(on_ops):
    net = make_net(
        net_text("Filter", [(3, 2), (3,)], 1)
        + " layer { name: 'ip' type: 'InnerProduct' bottom: 'y0' top: 'z'"
        " inner_product_param { num_output: 4 bias_filler { value: 1 } } }"
    )
    for selector in ([1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]):
        net.clear_param_diffs()
        z = net.forward(x0=np.ones((3, 2)), x1=np.array(selector))["z"]
        assert_array_equal(z, np.ones((sum(selector), 4)))
        net.blobs["z"].diff[...] = 2
        net.backward()
        assert_array_equal(net.params["ip"][1].diff, np.full(4, 2 * sum(selector)))


def test_a_selector_made_on_a_device_costs_one_small_download():
    fake = FakeOps()
    with device.pretend(fake):
        net = make_net(
            "input: 'x' input_shape { dim: [4, 300] } input: 'r' input_shape { dim: 4 }"
            " layer { name: 's' type: 'ReLU' bottom: 'r' top: 's' }"
            " layer { name: 'it' type: 'Filter' bottom: 'x' bottom: 's' top: 'y' }"
        )
        net._forward(0, 2)
        fake.counters.reset()
        net._forward(0, 2)
        assert fake.counters.download_elements == 4


@pytest.mark.parametrize(
    ("shapes", "tops", "message"),
    [
        ([(4, 3), (5,)], 1, r"same 0th dimension .* bottom 0 is `4 3 \(12\)`, the selector `5 \("),
        ([(4, 3), (4, 2)], 1, r"all axes but the first must be 1: `4 2 \(8\)`"),
        ([(4, 3), ()], 1, r"the selector must have one value an item"),
        ([(), (1,)], 1, r"same 0th dimension as the selector: bottom 0"),
        ([(4, 3), (4, 2), (4,)], 1, r"2 bottoms and a selector need as many tops, got 1"),
        ([(4, 3)], 1, r"Filter layer takes at least 2 bottom blob\(s\), got 1"),
    ],
)
def test_what_cannot_be_filtered(shapes, tops, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Filter\): .*" + message):
        make_net(net_text("Filter", shapes, tops))


def parameter(name, *dims):
    dims = " ".join(f"dim: {d}" for d in dims)
    return (
        f"layer {{ name: '{name}' type: 'Parameter' top: '{name}'"
        f" parameter_param {{ shape {{ {dims} }} }} }}\n"
    )


@pytest.mark.parametrize(
    ("type_name", "what"), [("Filter", "the selector has"), ("BatchReindex", "the indices have")]
)
def test_what_selects_has_no_gradient(type_name, what):
    text = parameter("p", 4, 3) + parameter("q", 4)
    layer = f"layer {{ name: 'it' type: '{type_name}' bottom: 'p' bottom: 'q' top: 'y' "
    net = run_net(text + layer + "loss_weight: 1 }")
    with pytest.raises(ModelError, match=rf"'it' \({type_name}\): {what} no gradient; set propa"):
        net.backward()
    net = run_net(text + layer + "loss_weight: 1 propagate_down: [true, false] }")
    net.backward()
    assert (net.params["q"][0].diff == 0).all()


def test_filter_of_an_empty_batch(on_ops):
    net = run_net(net_text("Filter", [(0, 3), (0,)], 1))
    net.backward()
    assert net.blobs["y0"].data.shape == (0, 3)


# ---- BatchReindex ------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [[4, 0, 4, 0, 1, 2], [3], []])
def test_batch_reindex(ops, index):
    x = np.random.default_rng(3).normal(size=(5, 4, 3, 2))
    check_layer(
        ops,
        "type: 'BatchReindex'",
        bottoms=[x.shape, (len(index),)],
        expect=lambda x, index: np.array([x[int(i)] for i in index]).reshape(-1, 4, 3, 2),
        values=[x, np.array(index, float)],
        gradients=[0],
    )


def test_gradients_of_an_item_taken_twice_add_up(on_ops):
    net = run_net(
        net_text("BatchReindex", [(3, 2), (4,)], 1), x0=np.ones((3, 2)), x1=np.array([2, 0, 2, 2])
    )
    dx = net.backward(y0=np.ones((4, 2)))["x0"]
    assert_array_equal(dx, [[1, 1], [0, 0], [3, 3]])


@pytest.mark.parametrize(("index", "text"), [(3, "3"), (-1, "-1"), (np.nan, "nan")])
def test_index_out_of_range(on_ops, index, text):
    net = make_net(net_text("BatchReindex", [(3, 2), (4,)], 1))
    with pytest.raises(
        ModelError, match=rf"'it' \(BatchReindex\): index {text} out of range: 0 <= index < 3 must"
    ):
        net.forward(x0=np.ones((3, 2)), x1=np.array([0, 2, index, 1]))


def test_no_index_is_right_for_an_empty_batch(on_ops):
    net = run_net(net_text("BatchReindex", [(0, 2), (0,)], 1))
    net.backward()
    assert net.blobs["y0"].data.shape == (0, 2)
    net = make_net(net_text("BatchReindex", [(0, 2), (1,)], 1))
    with pytest.raises(ModelError, match=r"index 0 out of range: 0 <= index < 0 must hold"):
        net.forward()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 2), (4, 1)], r"the list of indices must have 1 axis, got 2"),
        ([(), (4,)], r"the blob to take items of has 0 axes"),
    ],
)
def test_what_cannot_be_reindexed(shapes, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(BatchReindex\): " + message):
        make_net(net_text("BatchReindex", shapes, 1))


# ---- Silence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (4, 5, 1)]])
def test_silence(ops, shapes):
    check_layer(ops, "type: 'Silence'", bottoms=shapes, expect=lambda *xs: (), tops=0)


def test_silent_blobs_are_no_outputs():
    net = make_net(net_text("Silence", [(2, 3), (4, 0)], 0))
    assert net.outputs == []
    assert net.forward() == {}
    net.backward()
