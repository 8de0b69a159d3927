"""Rows of a table."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_array_equal

from pycaffe_lite import ModelError

INDICES = np.array([[0, 4, 2], [4, 4, 1]])


def embed(shape, param="num_output: 3 input_dim: 5"):
    dims = " ".join(f"dim: {d}" for d in shape)
    return (
        "force_backward: true"
        f" layer {{ name: 'in' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
        f" layer {{ name: 'it' type: 'Embed' bottom: 'x' top: 'y' embed_param {{ {param} }} }}"
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("indices", [INDICES, np.array(3)])
def test_embed(ops, bias, indices):
    def expect(x, w, b=0):
        return np.stack([w[int(i)] for i in x.flat]).reshape(*x.shape, 10) + b

    check_layer(
        ops,
        f"type: 'Embed' embed_param {{ num_output: 10 input_dim: 5 bias_term: {str(bias).lower()}"
        " weight_filler { type: 'uniform' min: -10 max: 10 } }",
        bottoms=[indices.shape],
        expect=expect,
        values=[indices],
        gradients=[],
    )


def test_top_has_one_axis_more():
    net = make_net(embed((4, 1, 1, 1), "num_output: 10 input_dim: 5"))
    assert net.blobs["y"].shape == (4, 1, 1, 1, 10)
    assert [b.shape for b in net.params["it"]] == [(5, 10), (10,)]


def test_gradients_of_a_row_used_twice_add_up(on_ops):
    net = run_net(embed((2, 3)), x=INDICES)
    net.backward(y=np.ones((2, 3, 3)))
    assert_array_equal(net.params["it"][0].diff[:, 0], [1, 1, 1, 0, 3])
    assert_array_equal(net.params["it"][1].diff, [6, 6, 6])


def test_fractions_are_cut_off(on_ops):
    net = make_net(embed((4,)))
    net.params["it"][0].data[...] = np.arange(5)[:, None]
    y = net.forward(x=np.array([0.9, 3.99, -0.5, 4.5]))["y"]
    assert_array_equal(y[:, 0], [0, 3, 0, 4])


@pytest.mark.parametrize(("index", "text"), [(5, "5"), (-1, "-1"), (np.nan, "nan"), (1e9, "1e.09")])
def test_index_out_of_range(on_ops, index, text):
    net = make_net(embed((3,)))
    with pytest.raises(
        ModelError, match=rf"layer 'it' \(Embed\): index {text} out of range: 0 <= index < 5 must"
    ):
        net.forward(x=np.array([0, index, 1]))


@pytest.mark.parametrize(
    ("param", "message"),
    [("input_dim: 5", "num_output must be > 0, got 0"), ("num_output: 5", "input_dim must be > 0")],
)
def test_sizes_must_be_given(param, message):
    with pytest.raises(ModelError, match=r"layer 'it' \(Embed\): " + message):
        make_net(embed((3,), param))


def test_indices_have_no_gradient():
    net = run_net(
        "layer { name: 'p' type: 'Parameter' top: 'p' parameter_param { shape { dim: 5 } } }"
        "layer { name: 'it' type: 'Embed' bottom: 'p' top: 'y' loss_weight: 1"
        " embed_param { num_output: 3 input_dim: 4 } }"
    )
    with pytest.raises(ModelError, match=r"'it' \(Embed\): the indices have no gradient"):
        net.backward()


def test_an_empty_batch(on_ops):
    net = run_net(embed((0, 4)))
    net.backward()
    assert net.blobs["y"].data.shape == (0, 4, 3)
    assert (net.params["it"][0].diff == 0).all()
