"""A net's layers, one after the other, as an ONNX model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layer import Layer
from ..net import Net
from .freedom import Freedom
from .part import RAW, Part, is_automatic, without_splits
from .registry import exporter
from .writer import Graph, LayerWriter, refusal

log = logging.getLogger("pycaffe_lite")

OPSET = 17
"""The version of ONNX's operators that is written."""

IR_VERSION = 8
"""The version of the file format, the one that came with that opset."""

_WITHOUT_NODES = {"Input", "Silence"}


@dataclass(frozen=True)
class Top:
    """One top of one layer: the blob's name, and the name of its value in the model.

    In an in-place chain each layer has a value of its own; the last one has the blob's name.
    """

    layer: int
    layer_name: str
    layer_type: str
    blob: str
    blob_index: int
    value: str
    bottoms: tuple[tuple[int, str], ...]
    """The layer's bottoms: which blob, and the name of its value."""


@dataclass
class Model:
    """An ONNX model without its large initialisers, and these by name; what its tops are called."""

    proto: Any
    initializers: dict[str, np.ndarray]
    tops: list[Top]
    outputs: list[str]
    notes: list[str]


def build(part: Part, freedom: Freedom) -> Model:
    """The model of a part of a net. Raises ModelError for the first layer that ONNX cannot say."""
    net = part.net
    _check_layers(net)
    names = _Names(net)
    graph = Graph(names.reserved)
    names.graph = graph
    tops: list[Top] = []
    ids = net._wiring.ids
    for k, layer in enumerate(net.layers):
        bottom, top = ids[k]
        if is_automatic(layer.spec):
            names.alias(bottom[0], top)
            continue
        bottoms = [names.value(i) for i in bottom]
        values = [names.write(i, layer) for i in top]
        if layer.type in _WITHOUT_NODES:
            continue
        function = exporter(layer.type)
        assert function is not None  # _check_layers has looked
        function(LayerWriter(graph, layer, (bottoms, values), *_shapes(net, freedom, bottom, top)))
        read = tuple(zip(bottom, bottoms, strict=True))
        tops += [
            Top(k, layer.name, layer.type, net._blob_names[i], i, value, read)
            for i, value in zip(top, values, strict=True)
        ]
    outputs = [names.value(net._blob_names.index(name)) for name in part.outputs]
    proto = _model(net, graph, freedom, outputs, names)
    return Model(proto, graph.initializers, tops, outputs, graph.notes)


def _check_layers(net: Net) -> None:
    """Before anything is written: has each type an exporter?"""
    bottoms = {layer.name: list(layer.bottom) for layer in without_splits(net.spec).layer}
    for layer in net.layers:
        if layer.type not in _WITHOUT_NODES and exporter(layer.type) is None:
            why = "no exporter is known for this type"
            if layer.type == "Python":
                why = "what it computes is Python code"
            instead = "--raw-heads makes its bottoms the results" if layer.type in RAW else ""
            raise refusal(layer, bottoms.get(layer.name, []), why, instead)


def _shapes(net: Net, freedom: Freedom, bottom: list[int], top: list[int]) -> tuple[Any, Any]:
    """(shapes of bottoms, of tops), and the same with None for what is open."""
    shapes, dims = [], []
    for ids in (bottom, top):
        blobs = [(net._blob_names[i], net._blobs[i].shape) for i in ids]
        shapes.append([shape for _, shape in blobs])
        dims.append([freedom.dims(name, shape) for name, shape in blobs])
    return (shapes[0], shapes[1]), (dims[0], dims[1])


class _Names:
    """Blobs are overwritten in place, ONNX values are not: which value has a blob now?"""

    def __init__(self, net: Net) -> None:
        self.graph: Graph
        self._blobs = net._blob_names
        self._writes = Counter(i for _, top in net._wiring.ids for i in top)
        self._inputs = set(net._inputs)
        self._current: dict[int, str] = {}
        self.reserved = list(dict.fromkeys(net._blob_names))

    def value(self, index: int) -> str:
        """The value that blob `index` has."""
        return self._current[index]

    def alias(self, source: int, copies: Sequence[int]) -> None:
        """Blobs that an automatic Split makes are the source's value."""
        for index in copies:
            self._current[index] = self._current[source]
            self._writes[index] -= 1

    def write(self, index: int, layer: Layer) -> str:
        """A new value of the blob, which the layer computes. An input keeps the blob's name."""
        self._writes[index] -= 1
        name = self._blobs[index]
        is_first_input = index in self._inputs and index not in self._current
        is_last = self._writes[index] == 0 and (index not in self._inputs or is_first_input)
        if not (is_last or is_first_input):
            name = self.graph.unique(f"{name}/{layer.name}")
        self._current[index] = name
        return name


def _model(net: Net, graph: Graph, freedom: Freedom, outputs: list[str], names: _Names) -> Any:
    from onnx import TensorProto, helper

    def info(value: str, shape: Any) -> Any:
        return helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)

    inputs = [info(name, freedom.symbols(name, net.blobs[name].shape)) for name in net.inputs]
    shapes: dict[str, Any] = {}
    for index, name in enumerate(net._blob_names):
        if index in names._current:
            shapes[names.value(index)] = _output_shape(net, freedom, name)
    results = [info(value, shapes[value]) for value in outputs]
    proto = helper.make_graph(graph.nodes, net.name or "net", inputs, results)
    from ..version import __version__

    return helper.make_model(
        proto,
        producer_name="pycaffe_lite",
        producer_version=__version__,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _output_shape(net: Net, freedom: Freedom, name: str) -> list[int | str | None]:
    """A result's shape: "N" where the first axis is the inputs' open batch, None if it is open."""
    shape = net.blobs[name].shape
    found: list[int | str | None] = list(freedom.dims(name, shape))
    batch = next((net.blobs[n].shape[0] for n, known in freedom.inputs.items() if 0 in known), None)
    if found and found[0] is None and shape[0] == batch:
        found[0] = "N"
    return found
