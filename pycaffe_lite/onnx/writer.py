"""Where do nodes and constants of an ONNX graph go, and what does the exporter of a layer see?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..ops.base import Ops
from ..step import describe

Dims = tuple[int | None, ...]
"""A shape in which None stands for a size that may be another one in the next run."""


class Graph:
    """Nodes, initialisers and the names that are taken, of a graph while it is written."""

    def __init__(self, reserved: Sequence[str]) -> None:
        self.nodes: list[Any] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.notes: list[str] = []
        self._names = set(reserved)
        self._node_names: set[str] = set()
        self._constants: dict[tuple[Any, ...], str] = {}
        self._parameters: dict[Any, str] = {}

    def unique(self, name: str) -> str:
        """`name`, or the first of name_1, name_2 .. that no value has; it is taken then."""
        return _unique(name, self._names)

    def add(
        self, layer: str, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Append a node, named after its layer."""
        from onnx import helper

        name = _unique(layer, self._node_names)
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    def constant(self, value: np.ndarray, hint: str) -> str:
        """The name of an initialiser with that value; equal ones are kept once."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self._initializer(value, hint)
        return self._constants[key]

    def parameter(self, key: Any, value: np.ndarray, name: str) -> str:
        """The name of a parameter's initialiser; `key` tells parameters that are shared."""
        if key not in self._parameters:
            self._parameters[key] = self._initializer(value, name)
        return self._parameters[key]

    def _initializer(self, value: np.ndarray, name: str) -> str:
        found = self.unique(name)
        self.initializers[found] = value
        return found


class LayerWriter:
    """What the exporter of a layer type gets: the layer, its values' names, and where to write.

    `bottom` and `top` are names of ONNX values, `bottom_shapes` and `top_shapes` what they are
    now, `bottom_dims` and `top_dims` the same with None where the model leaves a size open.
    `params` are the values of the layer's parameters, float32 arrays.
    """

    def __init__(
        self,
        graph: Graph,
        layer: Layer,
        names: tuple[list[str], list[str]],
        shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
        dims: tuple[list[Dims], list[Dims]],
    ) -> None:
        self._graph, self.layer = graph, layer
        self.param = layer.param
        self.bottom, self.top = names
        self.bottom_shapes, self.top_shapes = shapes
        self.bottom_dims, self.top_dims = dims

    @property
    def params(self) -> list[np.ndarray]:
        """The parameters' values."""
        return [blob.data for blob in self.layer.blobs]

    # ---- nodes ---------------------------------------------------------------------------------

    def add(self, op: str, *inputs: str, to: str | None = None, **attributes: Any) -> str:
        """A node with one output, named `to` or by itself; the output's name."""
        output = self._graph.unique(f"{self.layer.name}/{op}") if to is None else to
        self._graph.add(self.layer.name, op, inputs, [output], **attributes)
        return output

    def add_many(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str | None], **attributes: Any
    ) -> list[str]:
        """A node with several outputs; those that are None get names of their own."""
        names = [
            self._graph.unique(f"{self.layer.name}/{op}") if name is None else name
            for name in outputs
        ]
        self._graph.add(self.layer.name, op, inputs, names, **attributes)
        return names

    def extend(self, nodes: Sequence[Any]) -> None:
        """Append nodes made elsewhere."""
        self._graph.nodes.extend(nodes)

    def cast(self, x: str, kind: str, to: str | None = None) -> str:
        """x as another type: FLOAT, INT64 or BOOL. Numbers are cut towards zero."""
        from onnx import TensorProto

        output = self.unique("Cast") if to is None else to
        self._graph.add(self.layer.name, "Cast", [x], [output], to=TensorProto.DataType.Value(kind))
        return output

    def fill(self, shape: str, value: float, to: str | None = None) -> str:
        """One float everywhere, of a shape that is a list of int64."""
        from onnx import numpy_helper

        one = numpy_helper.from_array(np.array([value], "float32"))
        return self.add("ConstantOfShape", shape, to=to, value=one)

    def unique(self, what: str) -> str:
        """A name for a value inside the layer."""
        return self._graph.unique(f"{self.layer.name}/{what}")

    # ---- constants -----------------------------------------------------------------------------

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """An initialiser with that value, a number or an array."""
        return self._graph.constant(np.asarray(value, dtype), f"{self.layer.name}/const")

    def integers(self, *values: int) -> str:
        """A constant list of integers: axes, sizes, pads."""
        return self.constant(values, "int64")

    def parameter(self, index: int, value: np.ndarray | None = None) -> str:
        """Parameter `index` as an initialiser, or `value`, which was made from it."""
        blob = self.layer.blobs[index]
        array = blob.data if value is None else value
        key = (id(blob.storages[0]), array.shape, array.tobytes() if value is not None else b"")
        return self._graph.parameter(key, array, f"{self.layer.name}/param{index}")

    def add_bias(self, x: str, index: int, wide: Sequence[int], to: str) -> str:
        """x plus parameter `index`, reshaped to `wide` to be broadcast."""
        return self.add("Add", x, self.parameter(index, self.params[index].reshape(wide)), to=to)

    def made_of_shapes(self) -> np.ndarray:
        """The top of a layer that reads its bottoms' shapes only."""
        self.layer.bind(Ops())
        top = Blob(self.top_shapes[0])
        self.layer.forward([Blob(shape) for shape in self.bottom_shapes], [top])
        return top.data.copy()

    # ---- shapes --------------------------------------------------------------------------------

    def sizes(self, bottom: int, start: int, stop: int) -> str:
        """The sizes of axes start .. stop - 1 of a bottom, a list of int64, known only in a run
        where one of them is open."""
        return self.sizes_of(self.bottom[bottom], self.bottom_dims[bottom], start, stop)

    def sizes_of(self, x: str, dims: Dims, start: int, stop: int) -> str:
        """The same of any value whose dims are known."""
        known = [d for d in dims[start:stop] if d is not None]
        if len(known) == stop - start:
            return self.integers(*known)
        shape = self.add("Shape", x)
        if (start, stop) == (0, len(dims)):
            return shape
        return self.add("Slice", shape, self.integers(start), self.integers(stop))

    def reshape(self, x: str, dims: Dims, new: Sequence[Any], to: str | None = None) -> str:
        """x, of `dims`, in another shape: of each axis a size, -1, or ("copy", axis of x)."""
        rest_is_free = -1 not in new
        entries: list[int | str] = []
        for k, entry in enumerate(new):
            size: int | str
            if isinstance(entry, int):
                size = entry
            elif dims[entry[1]] is not None:
                size = dims[entry[1]]  # type: ignore[assignment]
            elif entry[1] == k:
                size = 0
            elif rest_is_free:
                size, rest_is_free = -1, False
            else:
                size = self.sizes_of(x, dims, entry[1], entry[1] + 1)
            entries.append(size)
        if all(isinstance(e, int) for e in entries):
            shape = self.integers(*entries)  # type: ignore[arg-type]
        else:
            parts = [self.integers(e) if isinstance(e, int) else e for e in entries]
            shape = self.add("Concat", *parts, axis=0)
        return self.add("Reshape", x, shape, to=to)

    def is_image_free(self, bottom: int = 0) -> bool:
        """Is the size of a bottom's images, the axes behind the second, left open?"""
        return None in self.bottom_dims[bottom][2:]

    # ---- what users are told ---------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Something about this layer that users of the model should know."""
        self._graph.notes.append(f"{describe(self.layer)}: {text}")

    def refuse(self, why: str, instead: str = "") -> NoReturn:
        """ModelError: ONNX cannot say this layer, why, and what can be done."""
        raise refusal(self.layer, self.bottom[:1], why, instead)


def refusal(layer: Layer, bottom: Sequence[str], why: str, instead: str = "") -> ModelError:
    """The error for a layer that ONNX cannot say; `bottom` are its bottoms' names."""
    cut = f"end the model before it (--end {bottom[0]})" if bottom else "leave the layer out"
    ways = f"{instead}, or {cut}" if instead else cut
    return ModelError(f"{describe(layer)}: cannot be said in ONNX: {why}; {ways}")


def _unique(name: str, taken: set[str]) -> str:
    found, k = name, 0
    while found in taken:
        k += 1
        found = f"{name}_{k}"
    taken.add(found)
    return found
