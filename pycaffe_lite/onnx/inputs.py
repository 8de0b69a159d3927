"""What to run a net on, to see whether a model of it is right: random values and the extremes."""

from __future__ import annotations

import numpy as np

from ..net import Net

KINDS = ("random", "zeros", "large", "negative")
"""Of values: normal ones of deviation 1; zeros; normal ones of deviation 100; none above 0."""


def values(net: Net, kind: str, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Each input's values (float32, of its blob's shape): of that kind, or what it must hold.

    Indices, flags of sequences and regions are drawn within their limits, whatever the kind.
    """
    found = {}
    for name in net.inputs:
        blob = net.blobs[name]
        special = _special(net, name, blob.shape, draw)
        x = draw.normal(size=blob.shape) if special is None else special
        if special is None:
            x = {"zeros": 0 * x, "large": 100 * x, "negative": -np.abs(x)}.get(kind, x)
        found[name] = x.astype("float32")
    return found


def _special(
    net: Net, name: str, shape: tuple[int, ...], draw: np.random.Generator
) -> np.ndarray | None:
    """The values of an input that cannot be any."""
    for layer in net.layers:
        for k, bottom in enumerate(layer.spec.bottom):
            if (
                bottom == name
                or bottom.startswith(f"{name}_")
                and bottom.rsplit("_", 1)[0].endswith("_split")
            ):
                if layer.type == "Embed":
                    return draw.integers(0, layer.param.input_dim, shape)
                if layer.type == "BatchReindex" and k == 1:
                    items = net.blobs[layer.spec.bottom[0]].shape[0]
                    return draw.integers(0, items, shape)
                if layer.type in ("LSTM", "RNN") and k == 1 or layer.type == "LSTMUnit" and k == 2:
                    return (draw.random(shape) < 0.7).astype("f8")
                if layer.type == "Filter" and k == len(layer.spec.bottom) - 1:
                    return draw.integers(0, 2, shape)
                if layer.type in ("ROIPooling", "PSROIPooling") and k == 1:
                    return _regions(net.blobs[layer.spec.bottom[0]].shape, layer, shape, draw)
                if layer.type == "Upsample" and k == 1:
                    return _places(net.blobs[layer.spec.top[0]].shape, shape, draw)
    return None


def _regions(
    images: tuple[int, ...], layer: object, shape: tuple[int, ...], draw: np.random.Generator
) -> np.ndarray:
    """(R, 5): an image's index and a box in pixels of the net's input."""
    scale = layer.param.spatial_scale or 1  # type: ignore[attr-defined]
    height, width = (size / scale for size in images[2:])
    x, y = (np.sort(draw.random((shape[0], 2)) * size, axis=1) for size in (width, height))
    image = draw.integers(0, images[0], shape[0])
    found = np.stack([image, x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1)
    return np.round(found).reshape(shape)


def _places(
    planes: tuple[int, ...], shape: tuple[int, ...], draw: np.random.Generator
) -> np.ndarray:
    """Indices in the top's planes, each once a plane."""
    size = planes[2] * planes[3]
    rows = [draw.permutation(size)[: shape[2] * shape[3]] for _ in range(shape[0] * shape[1])]
    return np.stack(rows).reshape(shape)
