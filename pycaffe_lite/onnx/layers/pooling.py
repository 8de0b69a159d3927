"""Pooling, with Caffe's sizes: rounded up, clipped, pad counted in averages but not beyond it."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from ...ops.window import Window
from ..registry import exports
from ..writer import LayerWriter


@exports("Pooling")
def pooling(w: LayerWriter) -> None:
    """MaxPool or AveragePool whose pads say the size that Caffe computes."""
    param, axes = w.param, len(w.bottom_shapes[0]) - 2
    if axes > 3:
        w.refuse(f"runtimes pool over 1 to 3 axes, this one has {axes}")
    if param.global_pooling:
        _global(w)
    elif param.pool == param.STOCHASTIC:
        _stochastic(w)
    else:
        window = w.layer.window  # type: ignore[attr-defined]
        if param.pool == param.MAX:
            y, mask = max_pool(w, window, w.top[0], len(w.top) > 1)
            if mask:
                _places(w, mask)
        else:
            average_pool(w, w.bottom[0], window, w.top[0])


def _global(w: LayerWriter) -> None:
    param = w.param
    if param.pool == param.AVE:
        w.add("GlobalAveragePool", w.bottom[0], to=w.top[0])
    elif param.pool == param.STOCHASTIC:
        x = w.bottom[0]
        squares = w.add("GlobalAveragePool", w.add("Mul", x, x))
        _ratio(w, squares, w.add("GlobalAveragePool", x))
    elif len(w.top) == 1:
        w.add("GlobalMaxPool", w.bottom[0], to=w.top[0])
    elif w.is_image_free():
        w.refuse("the mask of a global pooling over images of any size", "fix the sizes")
    else:
        _, mask = max_pool(w, Window(w.bottom_shapes[0][2:]), w.top[0], True)
        _places(w, mask)


def max_pool(
    w: LayerWriter, window: Window, to: str | None, with_mask: bool = False
) -> tuple[str, str]:
    """MaxPool over the bottom, with the indices that ONNX gives ("" where not asked for)."""
    attributes = _attributes(w, window)
    if with_mask:
        outputs = w.add_many("MaxPool", [w.bottom[0]], [to, None], **attributes)
        return outputs[0], outputs[1]
    return w.add("MaxPool", w.bottom[0], to=to, **attributes), ""


def average_pool(w: LayerWriter, x: str, window: Window, to: str | None) -> str:
    """AveragePool over a value of the bottom's shape, divided as Caffe does."""
    attributes = _attributes(w, window)
    if not any(window.pad):  # what lies past the image does not count, in ONNX as in Caffe
        return w.add("AveragePool", x, to=to, count_include_pad=0, **attributes)
    if w.is_image_free():
        # Pad that is part of the value counts; what rounding up adds behind it does not. (The
        # optimizer of onnxruntime 1.23 makes one pad of both: the proof fails there.)
        pad = list(window.pad)
        padded = w.add("Pad", x, w.integers(0, 0, *pad, 0, 0, *pad))
        attributes["pads"] = [0] * len(pad) * 2
        return w.add("AveragePool", padded, to=to, count_include_pad=0, **attributes)
    factor = _correction(w, window)
    y = w.add(
        "AveragePool",
        x,
        to=to if factor is None else None,
        count_include_pad=1,
        **attributes,
    )
    return y if factor is None else w.add("Mul", y, w.constant(factor), to=to)


def _attributes(w: LayerWriter, window: Window) -> dict[str, Any]:
    """Kernel, strides and pads. Those behind the image are as long as the last window needs."""
    found: dict[str, Any] = {"kernel_shape": list(window.kernel), "strides": list(window.stride)}
    if w.is_image_free():
        return found | _open_attributes(w, window)
    ends = []
    for size, pooled, k, s, p in _axes(w, window):
        last = (pooled - 1) * s - p  # where the last window starts
        if last >= size:
            w.refuse(
                f"a window of {k} starts at {last} of {size} positions: it holds no value"
                " (stride larger than kernel)"
            )
        ends.append(max(last + k - size, 0))
    return found | {"pads": [*window.pad, *ends]}


def _open_attributes(w: LayerWriter, window: Window) -> dict[str, Any]:
    """Where sizes are open ONNX rounds by itself; its clipping must not differ from Caffe's."""
    round_up = w.layer.round_up  # type: ignore[attr-defined]
    for k, s, p in zip(window.kernel, window.stride, window.pad, strict=True):
        if round_up and k < p + s:
            w.refuse(
                f"of images of any size it drops a last window by another rule (kernel {k}, stride"
                f" {s}, pad {p})",
                "fix the sizes",
            )
    return {"pads": list(window.pad) * 2, "ceil_mode": int(round_up)}


def _axes(w: LayerWriter, window: Window) -> list[tuple[int, ...]]:
    """Of each spatial axis: size, pooled size, kernel, stride, pad."""
    sizes = w.bottom_shapes[0][2:]
    round_up = getattr(w.layer, "round_up", True)
    pooled = window.pool_shape(sizes, round_up)
    return list(zip(sizes, pooled, window.kernel, window.stride, window.pad, strict=True))


def _correction(w: LayerWriter, window: Window) -> np.ndarray | None:
    """What an average over whole windows is multiplied by: kernel / (its part up to the pad's end).

    None where every window ends within the pad.
    """
    factors = []
    for size, pooled, k, s, p in _axes(w, window):
        starts = np.arange(pooled) * s - p
        factors.append(k / (np.minimum(starts + k, size + p) - starts))
    factor = functools.reduce(np.multiply.outer, factors).astype("float32")
    return None if (factor == 1).all() else factor[None, None]


def _places(w: LayerWriter, mask: str) -> None:
    """ONNX counts through the whole blob, Caffe's mask through a plane; as floats."""
    if w.is_image_free():
        sizes = w.sizes(0, 2, len(w.bottom_shapes[0]))
        plane = w.add("ReduceProd", sizes, axes=[0], keepdims=1)
    else:
        plane = w.integers(prod(w.bottom_shapes[0][2:]))
    w.cast(w.add("Mod", mask, plane), "FLOAT", w.top[1])


def _stochastic(w: LayerWriter) -> None:
    """In TEST the sum of x^2 over that of x, so the averages' ratio; 0 where the sum is <= 0."""
    window = w.layer.window  # type: ignore[attr-defined]
    x = w.bottom[0]
    squares = average_pool(w, w.add("Mul", x, x), window, None)
    _ratio(w, squares, average_pool(w, x, window, None))


def _ratio(w: LayerWriter, squares: str, total: str) -> None:
    zero, one = w.constant(0.0), w.constant(1.0)
    is_nothing = w.add("LessOrEqual", total, zero)
    above = w.add("Where", is_nothing, zero, squares)
    w.add("Div", above, w.add("Where", is_nothing, one, total), to=w.top[0])


@exports("SPP")
def pyramid(w: LayerWriter) -> None:
    """A pooling a level, flattened and joined."""
    if w.is_image_free():
        w.refuse("its windows depend on the image's size", "fix the sizes")
    layer: Any = w.layer
    single = len(layer.windows) == 1
    parts = []
    for window in layer.windows:
        to = w.top[0] if single else None
        if layer.is_max:
            pooled, _ = max_pool(w, window, to)
        else:
            pooled = average_pool(w, w.bottom[0], window, to)
        if not single:
            parts.append(w.add("Flatten", pooled, axis=1))
    if not single:
        w.add("Concat", *parts, to=w.top[0], axis=1)
