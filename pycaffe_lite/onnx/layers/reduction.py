"""Layers that boil axes down."""

from __future__ import annotations

from typing import Any

from ..registry import exports
from ..writer import LayerWriter


@exports("Reduction")
def reduction(w: LayerWriter) -> None:
    """ReduceSum, ReduceL1, ReduceSumSquare or ReduceMean, times coeff."""
    axes = list(range(w.param.axis % len(w.bottom_shapes[0]), len(w.bottom_shapes[0])))
    op = w.layer.op  # type: ignore[attr-defined]
    to = w.top[0] if w.param.coeff == 1 else None
    if op == "SUM":  # its axes are an input since opset 13
        y = w.add("ReduceSum", w.bottom[0], w.integers(*axes), to=to, keepdims=0)
    else:
        name = {"ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}[op]
        y = w.add(name, w.bottom[0], to=to, axes=axes, keepdims=0)
    if to is None:
        w.add("Mul", y, w.constant(w.param.coeff), to=w.top[0])


@exports("ArgMax")
def argmax(w: LayerWriter) -> None:
    """Indices, as floats, of the top_k largest values, of equal ones the later first."""
    layer: Any = w.layer
    if layer.by_axis:
        size = w.bottom_shapes[0][layer.axis]
        values, index = _largest(w, w.bottom[0], layer.axis, size)
        w.add("Identity", values if w.param.out_max_val else index, to=w.top[0])
        return
    rows = w.add("Flatten", w.bottom[0], axis=1)
    size = 1
    for d in w.bottom_shapes[0][1:]:
        size *= d
    values, index = _largest(w, rows, 1, size)
    if w.param.out_max_val:
        index = w.add("Concat", index, values, axis=1)
    shape = w.top_shapes[0]
    entries: list[Any] = [("copy", 0), *shape[1:]]
    w.reshape(index, (w.bottom_dims[0][0], None), entries, w.top[0])


def _largest(w: LayerWriter, x: str, axis: int, size: int) -> tuple[str, str]:
    """(values, indices as floats) along the axis. TopK prefers the earlier: x is turned round."""
    top_k = int(w.param.top_k)
    if top_k == 1:
        index = w.add("ArgMax", x, axis=axis, keepdims=1, select_last_index=1)
        return w.add("ReduceMax", x, axes=[axis], keepdims=1), w.cast(index, "FLOAT")
    dims = w.bottom_dims[0]
    if None in (dims[axis : axis + 1] if w.param.HasField("axis") else dims[1:]):
        w.refuse("top_k over an axis whose size is open", "fix the sizes")
    back = (w.integers(-1), w.integers(-(2**31)), w.integers(axis), w.integers(-1))
    turned = w.add("Slice", x, *back)
    values, index = w.add_many("TopK", [turned, w.integers(top_k)], [None, None], axis=axis)
    return values, w.cast(w.add("Sub", w.integers(size - 1), index), "FLOAT")
