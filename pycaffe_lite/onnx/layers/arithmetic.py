"""Products, sums and maxima of several blobs, or of one with a smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..registry import exports
from ..writer import LayerWriter


@exports("Eltwise")
def eltwise(w: LayerWriter) -> None:
    """Max, a chain of Mul, or Sum of the bottoms times their coefficients."""
    op = w.layer.op  # type: ignore[attr-defined]
    if op == "MAX":
        w.add("Max", *w.bottom, to=w.top[0])
        return
    if op == "PROD":
        x = w.bottom[0]
        for k, other in enumerate(w.bottom[1:], 2):
            x = w.add("Mul", x, other, to=w.top[0] if k == len(w.bottom) else None)
        return
    coeffs = w.layer.coeffs or [1] * len(w.bottom)  # type: ignore[attr-defined]
    parts = [
        x if coeff == 1 else w.add("Mul", x, w.constant(coeff))
        for x, coeff in zip(w.bottom, coeffs, strict=True)
    ]
    w.add("Add" if len(parts) == 2 else "Sum", *parts, to=w.top[0])


@exports("Scale")
def scale(w: LayerWriter) -> None:
    """Mul, and Add where there is a bias; the smaller factor gets axes of 1 behind its own."""
    has_bias = w.param.bias_term
    product = w.add("Mul", w.bottom[0], _smaller(w), to=None if has_bias else w.top[0])
    if has_bias:
        w.add_bias(product, len(w.params) - 1, w.layer.wide, w.top[0])  # type: ignore[attr-defined]


@exports("Bias")
def bias(w: LayerWriter) -> None:
    """Add."""
    w.add("Add", w.bottom[0], _smaller(w), to=w.top[0])


@exports("Axpy")
def axpy(w: LayerWriter) -> None:
    """scale x + y, the scale (N, C) of whole channels."""
    a, axes = w.bottom[0], len(w.bottom_shapes[0])
    missing = range(axes, len(w.bottom_shapes[1]))
    if missing:
        a = w.add("Unsqueeze", a, w.integers(*missing))
    w.add("Add", w.add("Mul", a, w.bottom[1]), w.bottom[2], to=w.top[0])


@exports("Mean")
def mean(w: LayerWriter) -> None:
    """input_scale output_scale x plus the channel's shift."""
    layer: Any = w.layer
    x = w.bottom[0]
    if layer.scale != 1:
        x = w.add("Mul", x, w.constant(layer.scale))
    channels, spatial = w.bottom_shapes[0][1], len(w.bottom_shapes[0]) - 2
    shifts = np.resize(layer.shifts, (channels, *[1] * spatial))  # from the first on again
    w.add("Add", x, w.constant(shifts), to=w.top[0])


def _smaller(w: LayerWriter) -> str:
    """The parameter or second bottom of Scale and Bias, to be broadcast against the first."""
    wide = w.layer.wide  # type: ignore[attr-defined]
    if len(w.bottom) == 1:
        return w.parameter(0, w.params[0].reshape(wide))
    own = len(w.bottom_shapes[1])
    if own == len(wide):
        return w.bottom[1]
    return w.add("Unsqueeze", w.bottom[1], w.integers(*range(own, len(wide))))
