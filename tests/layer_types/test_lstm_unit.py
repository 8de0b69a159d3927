"""One step of an LSTM against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError

N, H = 3, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(c, gates, cont):
    i, f, o, g = np.split(gates[0], 4, axis=1)
    after = cont.reshape(-1, 1) * sigmoid(f) * c[0] + sigmoid(i) * np.tanh(g)
    return after[None], (sigmoid(o) * np.tanh(after))[None]


@pytest.mark.parametrize("cont", [[0, 0, 0], [1, 1, 1], [1, 0, 0.3]])
def test_lstm_unit(ops, rng, cont):
    inputs = [rng.normal(size=(1, N, H)), rng.normal(size=(1, N, 4 * H)), np.array([cont])]
    check_layer(
        ops,
        "type: 'LSTMUnit'",
        bottoms=[v.shape for v in inputs],
        expect=unit,
        tops=2,
        values=inputs,
        gradients=[0, 1],
    )


def unit_net(shapes):
    inputs = " ".join(
        f"input: 'x{k}' input_shape {{ dim: {list(shape)} }}" for k, shape in enumerate(shapes)
    )
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'it' type: 'LSTMUnit' bottom: 'x0'"
        " bottom: 'x1' bottom: 'x2' top: 'c' top: 'h' }"
    )


def test_lstm_unit_saturates_without_overflow(on_ops):
    net = unit_net([(1, 2, 1), (1, 2, 4), (1, 2)])
    gates = np.array([[[1e4, 1e4, 1e4, 1e4], [-1e4, -1e4, -1e4, -1e4]]])
    out = net.forward(x0=np.full((1, 2, 1), 3), x1=gates, x2=np.ones((1, 2)))
    assert_allclose(out["c"][0, :, 0], [4, 0])
    assert_allclose(out["h"][0, :, 0], [np.tanh(4), 0], rtol=1e-6)


def test_lstm_unit_without_streams(on_ops):
    net = unit_net([(1, 0, 5), (1, 0, 20), (1, 0)])
    assert net.forward()["h"].shape == (1, 0, 5)
    assert net.backward()["x1"].shape == (1, 0, 20)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3, 5), (2, 3, 20), (2, 3)], r"c_prev, bottom 0, has shape `2 3 5 \(30\)`.* 1 step"),
        ([(1, 3, 5), (1, 3, 15), (1, 3)], r"gates, bottom 1, .*`1 3 15 \(45\)`.*`1 3 20 \(60\)`"),
        ([(1, 3, 5), (1, 3, 20), (3, 1)], r"cont, bottom 2, .*`3 1 \(3\)`, expected `1 3 \(3\)`"),
    ],
)
def test_lstm_unit_refuses_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(ModelError, match=rf"layer 'it' \(LSTMUnit\): {message}"):
        unit_net(shapes)


@pytest.mark.parametrize("v", [-12, -16, -18, -30])
def test_a_nearly_closed_gate_keeps_its_digits(on_ops, v):
    net = make_net(
        "input: 'c0' input: 'gates' input: 'cont' input_shape { dim: [1, 1, 1] }"
        " input_shape { dim: [1, 1, 4] } input_shape { dim: [1, 1] } layer { name: 'u'"
        " type: 'LSTMUnit' bottom: 'c0' bottom: 'gates' bottom: 'cont' top: 'c' top: 'h' }"
    )
    out = net.forward(c0=[[[0]]], gates=[[[v, 0, 0, 20]]], cont=[[1]])
    np.testing.assert_allclose(out["c"].item(), 1 / (1 + np.exp(-float(v))), rtol=1e-5)
