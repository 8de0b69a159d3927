"""Layers that bring values to a common scale, and Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.window import Window
from ..registry import exports
from ..writer import LayerWriter


@exports("LRN")
def lrn(w: LayerWriter) -> None:
    """LRN across channels is ONNX's; within a channel the average of squares says it."""
    param, x = w.param, w.bottom[0]
    if param.norm_region == param.ACROSS_CHANNELS:
        w.add(
            "LRN",
            x,
            to=w.top[0],
            size=int(param.local_size),
            alpha=float(param.alpha),
            beta=float(param.beta),
            bias=float(param.k),
        )
        return
    size = int(param.local_size)
    mean = _average(w, w.add("Mul", x, x), size)
    scale = w.add("Add", w.add("Mul", mean, w.constant(param.alpha)), w.constant(1.0))
    w.add("Mul", x, w.add("Pow", scale, w.constant(-param.beta)), to=w.top[0])


def _average(w: LayerWriter, x: str, size: int) -> str:
    window = Window((size, size), (1, 1), (size // 2, size // 2))
    return w.add(
        "AveragePool",
        x,
        count_include_pad=1,
        kernel_shape=list(window.kernel),
        strides=[1, 1],
        pads=list(window.pad) * 2,
    )


@exports("BatchNorm")
def batch_norm(w: LayerWriter) -> None:
    """BatchNormalization by the stored moments, divided by their factor; or by the batch's."""
    layer: Any = w.layer
    if not layer.is_global:
        _batch_moments(w, layer.axes, layer.eps, (), w.top[0])
        return
    mean, variance, factor = w.params
    divisor = factor[0] or 1
    if factor[0] == 0:
        mean, variance = np.zeros_like(mean), np.zeros_like(variance)
    w.add(
        "BatchNormalization",
        w.bottom[0],
        w.constant(np.ones_like(mean)),
        w.constant(np.zeros_like(mean)),
        w.parameter(0, mean * (np.float32(1) / divisor)),
        w.parameter(1, variance * (np.float32(1) / divisor)),
        to=w.top[0],
        epsilon=float(layer.eps),
    )


def _batch_moments(
    w: LayerWriter, axes: tuple[int, ...], eps: float, moments: Sequence[str], to: str | None = None
) -> str:
    """(x - mean) / sqrt(variance + eps) over the axes; `moments` are tops for the two."""
    mean = w.add("ReduceMean", w.bottom[0], axes=list(axes))
    centred = w.add("Sub", w.bottom[0], mean)
    variance = w.add("ReduceMean", w.add("Mul", centred, centred), axes=list(axes))
    for top, value in zip(moments, (mean, variance), strict=False):
        w.add("Reshape", value, w.integers(1, -1, 1, 1), to=top)
    return w.add("Div", centred, w.add("Sqrt", w.add("Add", variance, w.constant(eps))), to=to)


@exports("MVN")
def mean_variance(w: LayerWriter) -> None:
    """(x - mean) / (deviation + eps) over rows; differences to the first value keep 0 exact."""
    param, dims = w.param, w.bottom_dims[0]
    before = 1 if param.across_channels else min(2, len(dims))
    kept: list[Any] = [("copy", k) for k in range(before)]
    last = 1 if before == len(dims) else -1
    rows = w.reshape(w.bottom[0], dims, [*kept, last])
    first = w.add("Slice", rows, w.integers(0), w.integers(1), w.integers(before))
    near = w.add("Sub", rows, first)
    y = w.add("Sub", near, w.add("ReduceMean", near, axes=[before]))
    if param.normalize_variance:
        variance = w.add("ReduceMean", w.add("Mul", y, y), axes=[before])
        deviation = w.add("Add", w.add("Sqrt", variance), w.constant(param.eps))
        y = w.add("Div", y, deviation)
    shape = w.sizes(0, 0, len(dims))
    missing = len(w.top_shapes[0]) - len(dims)
    if missing:
        shape = w.add("Concat", shape, w.integers(*[1] * missing), axis=0)
    w.add("Reshape", y, shape, to=w.top[0])


@exports("Normalize")
def normalize(w: LayerWriter) -> None:
    """s x / sqrt(sum(x^2) + eps)."""
    layer: Any = w.layer
    x, axes = w.bottom[0], len(w.bottom_shapes[0])
    squares = w.add("ReduceSumSquare", x, axes=list(layer.summed), keepdims=1)
    length = w.add("Sqrt", w.add("Add", squares, w.constant(w.param.eps)))
    scale = w.params[0]
    name = w.parameter(0, scale.reshape(scale.size, *[1] * (axes - 2)))
    w.add("Mul", x, w.add("Div", name, length), to=w.top[0])


@exports("Softmax")
def softmax(w: LayerWriter) -> None:
    """Softmax over one axis, as ONNX has it since opset 13."""
    w.add("Softmax", w.bottom[0], to=w.top[0], axis=w.layer.axis)  # type: ignore[attr-defined]


@exports("ChannelNorm")
def channel_norm(w: LayerWriter) -> None:
    """The length over the channels."""
    w.add("ReduceL2", w.bottom[0], to=w.top[0], axes=[1], keepdims=1)


@exports("BN")
def bn(w: LayerWriter) -> None:
    """PSPNet's four parameters are BatchNormalization's; SegNet's has the batch's own moments."""
    layer: Any = w.layer
    if len(w.params) == 4:
        flat = [w.parameter(k, p.reshape(-1)) for k, p in enumerate(w.params)]
        w.add("BatchNormalization", w.bottom[0], *flat, to=w.top[0], epsilon=float(layer.eps))
        return
    scale = w.parameter(0, w.params[0].reshape(layer.wide))
    x = w.bottom[0]
    if layer.uses_batch:
        x = _batch_moments(w, layer.axes, layer.eps, w.top[1:])
    else:
        for top, value in zip(w.top[1:], (0.0, 1.0), strict=False):
            w.fill(w.integers(1, layer.channels, 1, 1), value, top)
    w.add_bias(w.add("Mul", x, scale), 1, layer.wide, w.top[0])
