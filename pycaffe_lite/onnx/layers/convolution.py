"""Layers that multiply by a matrix of weights: filters, full connections, tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..registry import exports
from ..writer import Dims, LayerWriter


@exports("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise")
def convolution(w: LayerWriter) -> None:
    """Conv: the same numbers, with the pad on both sides."""
    _filters(w, "Conv")


@exports("Deconvolution")
def deconvolution(w: LayerWriter) -> None:
    """ConvTranspose."""
    _filters(w, "ConvTranspose")


@exports("Im2col")
def im2col(w: LayerWriter) -> None:
    """Conv of each channel with one filter a tap, that takes this tap's value."""
    window, axis = w.layer.window, w.layer.axis  # type: ignore[attr-defined]
    channels = w.bottom_shapes[0][axis]
    taps = np.eye(window.taps, dtype="float32").reshape(-1, 1, *window.kernel)
    weights = w.constant(np.tile(taps, (channels, *[1] * (taps.ndim - 1))))
    attributes = _attributes(window, channels)
    _over_maps(w, axis, 0, lambda x, y: w.add("Conv", x, weights, to=y, **attributes))


def _filters(w: LayerWriter, op: str) -> None:
    layer: Any = w.layer
    kernel = layer.window.kernel
    if len(kernel) > 3:
        w.refuse(f"runtimes know {op} over 1 to 3 axes, this one has {len(kernel)}")
    weights = [w.parameter(0) if kernel else w.parameter(0, w.params[0][..., None])]
    if layer.param.bias_term:
        weights.append(w.parameter(1))
    attributes = _attributes(layer.window, layer.group)
    for k in range(len(w.bottom)):
        _over_maps(w, layer.axis, k, lambda x, y: w.add(op, x, *weights, to=y, **attributes))


def _attributes(window: Any, group: int) -> dict[str, Any]:
    if not window.kernel:  # no spatial axes: one position
        return {"group": group, "kernel_shape": [1]}
    return {
        "group": group,
        "kernel_shape": list(window.kernel),
        "strides": list(window.stride),
        "pads": list(window.pad) * 2,
        "dilations": list(window.dilation),
    }


def _over_maps(w: LayerWriter, axis: int, k: int, make: Any) -> None:
    """What `make(x, y)` adds needs (N, C, positions): other forms are reshaped to it and back."""
    x, dims, spatial = w.bottom[k], w.bottom_dims[k], len(w.bottom_shapes[k]) - axis - 1
    if axis == 1 and spatial:
        make(x, w.top[k])
        return
    copied: Sequence[Any] = [("copy", a) for a in range(axis + 1, len(dims))]
    maps = w.reshape(x, dims, [-1, w.bottom_shapes[k][axis], *(copied or [1])])
    found = make(maps, None)
    new = w.top_dims[k]
    inner: Dims = (None, *new[axis:]) if spatial else (None, *new[axis:], 1)
    # The axes before the channels are those of the bottom: their sizes are read from there.
    if all(d is not None for d in new[:axis]) or axis == 1 and not spatial:
        target = [-1 if d is None else d for d in new[: axis + 1]]
        w.reshape(found, inner, [*target, *[("copy", j + 2) for j in range(spatial)]], w.top[k])
        return
    sizes = [w.sizes(k, 0, axis), w.sizes_of(found, inner, 1, 2 + spatial)]
    w.add("Reshape", found, w.add("Concat", *sizes, axis=0), to=w.top[k])


@exports("InnerProduct")
def inner_product(w: LayerWriter) -> None:
    """Gemm behind a Flatten; MatMul and Add where more than one axis stays."""
    layer: Any = w.layer
    axis, dims = layer.axis, w.bottom_dims[0]
    if axis > 1:
        rows = w.reshape(w.bottom[0], dims, [*[("copy", k) for k in range(axis)], layer.size])
        weights = w.params[0] if layer.param.transpose else w.params[0].T
        name = w.parameter(0, np.ascontiguousarray(weights))
        has_bias = layer.param.bias_term
        y = w.add("MatMul", rows, name, to=None if has_bias else w.top[0])
        if has_bias:
            w.add_bias(y, 1, (-1,), w.top[0])
        return
    x = w.bottom[0] if axis == 1 and len(dims) == 2 else w.add("Flatten", w.bottom[0], axis=axis)
    inputs = [x, w.parameter(0)] + ([w.parameter(1)] if layer.param.bias_term else [])
    to = w.top[0] if axis == 1 else None
    y = w.add("Gemm", *inputs, to=to, transB=0 if layer.param.transpose else 1)
    if axis == 0:
        w.reshape(y, (1, layer.outputs), [layer.outputs], w.top[0])


@exports("Embed")
def embed(w: LayerWriter) -> None:
    """Gather of the table's rows."""
    rows = w.cast(w.bottom[0], "INT64")
    has_bias = w.param.bias_term
    found = w.add("Gather", w.parameter(0), rows, to=None if has_bias else w.top[0], axis=0)
    if has_bias:
        w.add_bias(found, 1, (-1,), w.top[0])
