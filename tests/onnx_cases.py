"""Small nets, one a case, for tests of the models that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from harness import make_net

from pycaffe_lite import Net
from pycaffe_lite.onnx import Export, convert
from pycaffe_lite.onnx.saving import with_initializers

Shape = tuple[int, ...]


def one_layer(
    snippet: str, shapes: Sequence[Shape], tops: int = 1, params: Sequence[Any] = ()
) -> Net:
    """A net of inputs x0, x1 .. of those shapes and one layer "it" with tops y0, y1 ..

    Its parameters are random, positive where they are variances, or those given.
    """
    lines = []
    for k, shape in enumerate(shapes):
        dims = " ".join(f"dim: {d}" for d in shape)
        lines.append(
            f"layer {{ name: 'x{k}' type: 'Input' top: 'x{k}'"
            f" input_param {{ shape {{ {dims} }} }} }}"
        )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    names = " ".join(f"top: 'y{k}'" for k in range(tops))
    lines.append(f"layer {{ name: 'it' {bottoms} {names} {snippet} }}")
    net = make_net("\n".join(lines))
    fill(net)
    for blob, value in zip(net.layer_dict["it"].blobs, params, strict=False):
        blob.data[...] = value
    return net


def fill(net: Net, seed: int = 5) -> Net:
    """Random parameters of order 1; those that are variances or their factors are positive."""
    draw = np.random.default_rng(seed)
    for layer in net.layers:
        for k, blob in enumerate(layer.blobs):
            values = draw.normal(size=blob.shape)
            positive = layer.type == "BatchNorm" and k > 0 or layer.type == "BN" and k == 3
            blob.data[...] = np.abs(values) + 0.5 if positive else values
    return net


def ops_of(model: Export) -> list[str]:
    """The operators, in order."""
    return [node.op_type for node in model.model.proto.graph.node]


def assert_same(net: Net, tolerance: float = 5e-6, **how: Any) -> Export:
    """The net's model computes the same on every run, and not only zeros; the model."""
    model = convert(net, **how)
    proof = model.prove(tolerance)
    assert proof.rows
    assert [row for row in proof.rows if not row.relative <= tolerance] == []
    assert proof.blank == []  # else nothing was seen
    return model


def run_model(model: Export, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's results, by onnxruntime."""
    session = onnxruntime.InferenceSession(
        with_initializers(model.model).SerializeToString(),
        onnxruntime.SessionOptions(),
        providers=["CPUExecutionProvider"],
    )
    return dict(zip(model.outputs, session.run(model.outputs, feeds), strict=True))
