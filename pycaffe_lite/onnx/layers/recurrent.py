"""Recurrent layers: ONNX's LSTM knows no cont, so Scan takes the steps by Caffe's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..registry import exports
from ..writer import LayerWriter


class _Steps:
    """The body of a Scan: one step over the streams. Nodes are added as to the model itself."""

    def __init__(self, w: LayerWriter) -> None:
        self._w, self.nodes = w, list[Any]()

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node of the body; its output's name."""
        return self.add_many(op, inputs, 1, **attributes)[0]

    def add_many(self, op: str, inputs: Any, count: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        from onnx import helper

        names = [self._w.unique(op) for _ in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names


Step = Callable[[_Steps, list[str], str, str], list[str]]
"""(body, states before, this step's projected input, cont) -> states behind, h first."""


@exports("LSTM")
def lstm(w: LayerWriter) -> None:
    """c = f cont c + i g, h = o tanh(c), gates in the order i, f, o, g."""
    weights = _recurrent_weights(w)

    def step(body: _Steps, states: list[str], projected: str, cont: str) -> list[str]:
        h, c = (body.add("Mul", state, cont) for state in states)
        gates = body.add("Add", projected, body.add("MatMul", h, weights))
        return _cell(body, gates, c, axis=1)

    ends = _scan(w, 2, step, w.top[0])
    _expose(w, ends)


@exports("RNN")
def rnn(w: LayerWriter) -> None:
    """h = tanh(W_h cont h + what comes from the input), o = tanh(W_o h + b_o)."""
    weights = _recurrent_weights(w)

    def step(body: _Steps, states: list[str], projected: str, cont: str) -> list[str]:
        h = body.add("MatMul", body.add("Mul", states[0], cont), weights)
        return [body.add("Tanh", body.add("Add", projected, h))]

    hidden = w.unique("hidden")
    _expose(w, _scan(w, 1, step, hidden))
    count = len(w.params)
    product = w.add("MatMul", hidden, _turned(w, count - 2))
    w.add("Tanh", w.add("Add", product, w.parameter(count - 1)), to=w.top[0])


@exports("LSTMUnit")
def lstm_unit(w: LayerWriter) -> None:
    """One step; c first, then h."""
    body = _Steps(w)
    cont = w.add("Unsqueeze", w.bottom[2], w.integers(2))
    h, c = _cell(body, w.bottom[1], w.add("Mul", w.bottom[0], cont), axis=2)
    w.extend(body.nodes)
    for value, top in ((c, w.top[0]), (h, w.top[1])):
        w.add("Identity", value, to=top)


def _cell(body: _Steps, gates: str, c: str, axis: int) -> list[str]:
    """Closed gates and cont c -> h, c."""
    i, f, o, g = body.add_many("Split", [gates], 4, axis=axis)
    i, f, o = (body.add("Sigmoid", gate) for gate in (i, f, o))
    kept, new = body.add("Mul", f, c), body.add("Mul", i, body.add("Tanh", g))
    c = body.add("Add", kept, new)
    return [body.add("Mul", o, body.add("Tanh", c)), c]


def _turned(w: LayerWriter, index: int) -> str:
    return w.parameter(index, np.ascontiguousarray(w.params[index].T))


def _recurrent_weights(w: LayerWriter) -> str:
    return _turned(w, w.layer.recurrent)  # type: ignore[attr-defined]


def _project(w: LayerWriter) -> str:
    """(T, N, rows H): what each step gets from the input, and from the static one."""
    layer: Any = w.layer
    rows = w.reshape(w.bottom[0], w.bottom_dims[0], [("copy", 0), ("copy", 1), layer.size])
    found = w.add("Add", w.add("MatMul", rows, _turned(w, 0)), w.parameter(1))
    if not layer.has_static:
        return found
    new = [("copy", 0), layer.static_size]
    static = w.reshape(w.bottom[2], w.bottom_dims[2], new)
    return w.add("Add", found, w.add("MatMul", static, _turned(w, 2)))


def _starts(w: LayerWriter, states: int) -> list[str]:
    """(N, H) each: the exposed bottoms, or zeros."""
    layer: Any = w.layer
    if layer.exposed:
        given = w.bottom[2 + layer.has_static :]
        return [w.add("Squeeze", name, w.integers(0)) for name in given]
    w.note(
        "each run of the model starts from zeros; in Caffe it goes on from the run before where"
        " cont is not 0 at the first step (expose_hidden: true makes the states inputs)"
    )
    shape = w.add("Concat", w.sizes(0, 1, 2), w.integers(layer.outputs), axis=0)
    return [w.fill(shape, 0.0)] * states


def _scan(w: LayerWriter, states: int, step: Step, to: str) -> list[str]:
    """All steps: `to` gets every h (T, N, H); the names of the last states."""
    from onnx import TensorProto, helper

    cont = w.add("Unsqueeze", w.bottom[1], w.integers(2))
    body = _Steps(w)
    before = [w.unique("before") for _ in range(states)]
    projected, flag = w.unique("projected"), w.unique("cont")
    behind = step(body, before, projected, flag)
    every = body.add("Identity", behind[0])

    def info(names: list[str]) -> list[Any]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]

    graph = helper.make_graph(
        body.nodes,
        f"{w.layer.name}/step",
        info([*before, projected, flag]),
        info([*behind, every]),
    )
    outputs = [*[None] * states, to]
    inputs = [*_starts(w, states), _project(w), cont]
    return w.add_many("Scan", inputs, outputs, body=graph, num_scan_inputs=2)[:states]


def _expose(w: LayerWriter, ends: list[str]) -> None:
    for name, top in zip(ends, w.top[1:], strict=False):
        w.add("Unsqueeze", name, w.integers(0), to=top)
