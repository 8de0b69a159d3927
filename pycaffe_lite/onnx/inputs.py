"""What to run a net on, to see whether a model of it is right: random values and the extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..layer import Layer
from ..net import Net
from .part import is_automatic

KINDS = ("random", "zeros", "large", "negative")
"""Of values: normal ones of deviation 1; zeros; normal ones of deviation 100; none above 0."""

_KEEPING_ORDER = {"Reshape", "Flatten"}
"""Layers that only say the shape anew."""

Shape = tuple[int, ...]
Draw = np.random.Generator
Special = Callable[[Layer, list[Shape], Shape, Draw], np.ndarray]
"""(layer, shapes of its bottoms and tops, the input's shape, generator) -> values."""


def values(net: Net, kind: str, draw: Draw) -> dict[str, np.ndarray]:
    """Each input's values (float32, of its blob's shape): of that kind, or what it must hold.

    Indices, flags of sequences and regions are drawn within their limits, whatever the kind.
    """
    found = {}
    for name, index in zip(net.inputs, net._inputs, strict=True):
        x = _special(net, index, net.blobs[name].shape, draw)
        if x is None:
            x = draw.normal(size=net.blobs[name].shape)
            x = {"zeros": 0 * x, "large": 100 * x, "negative": -np.abs(x)}.get(kind, x)
        found[name] = np.asarray(x, "float32")  # NumPy draws for shape () a number, no array
    return found


def _special(net: Net, index: int, shape: Shape, draw: Draw) -> np.ndarray | None:
    """The values of an input that cannot be any, as the layers that read it say."""
    same = {index}
    for layer, (bottom, top) in zip(net.layers, net._wiring.ids, strict=True):
        is_same = is_automatic(layer.spec) or layer.type in _KEEPING_ORDER
        if is_same and bottom[0] in same:
            same.update(top)
        for k, i in enumerate(bottom):
            rule = _RULES.get((layer.type, k)) or _RULES.get((layer.type, k - len(bottom)))
            if i in same and rule is not None:
                shapes = [net._blobs[j].shape for j in (*bottom, *top)]
                return np.reshape(rule(layer, shapes, net._blobs[i].shape, draw), shape)
    return None


def _rows_of_a_table(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    return draw.integers(0, layer.param.input_dim, shape)


def _items(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    return draw.integers(0, shapes[0][0], shape)


def _choice(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    return draw.integers(0, 2, shape)


def _continues(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    flags = (draw.random(shape) < 0.7).astype("f8")
    if not layer.spec.recurrent_param.expose_hidden:
        flags[0] = 0  # else a net would go on from its last run
    return flags


def _regions(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    """(R, 5): an image's index and a box in pixels of the net's input."""
    images, scale = shapes[0], layer.param.spatial_scale or 1
    height, width = (size / scale for size in images[2:])
    x, y = (np.sort(draw.random((shape[0], 2)) * size, axis=1) for size in (width, height))
    image = draw.integers(0, images[0], shape[0])
    found = np.stack([image, x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1)
    return np.round(found).reshape(shape)


def _places(layer: Layer, shapes: list[Shape], shape: Shape, draw: Draw) -> Any:
    """Indices in the top's planes, each once a plane."""
    size = shapes[2][2] * shapes[2][3]
    rows = [draw.permutation(size)[: shape[2] * shape[3]] for _ in range(shape[0] * shape[1])]
    return np.stack(rows).reshape(shape)


_RULES: dict[tuple[str, int], Special] = {
    ("Embed", 0): _rows_of_a_table,
    ("BatchReindex", 1): _items,
    ("Filter", -1): _choice,
    ("LSTM", 1): _continues,
    ("RNN", 1): _continues,
    ("LSTMUnit", 2): _choice,
    ("ROIPooling", 1): _regions,
    ("Upsample", 1): _places,
    ("MaxUnPool", 1): _places,
}
"""(layer type, which bottom) -> what that bottom must hold."""
