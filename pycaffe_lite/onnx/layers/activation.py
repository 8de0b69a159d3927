"""Activations: one value at a time."""

from __future__ import annotations

import numpy as np

from ..registry import exports
from ..writer import LayerWriter


@exports("ReLU")
def relu(w: LayerWriter) -> None:
    """Relu, or LeakyRelu with a negative_slope."""
    slope = w.param.negative_slope
    if slope:
        w.add("LeakyRelu", w.bottom[0], to=w.top[0], alpha=float(slope))
    else:
        w.add("Relu", w.bottom[0], to=w.top[0])


@exports("ReLU6")
def relu6(w: LayerWriter) -> None:
    """(Leaky) ReLU, and not above 6."""
    slope, x = w.param.negative_slope, w.bottom[0]
    cap = w.constant(w.layer.cap)  # type: ignore[attr-defined]
    if slope:
        w.add("Min", w.add("LeakyRelu", x, alpha=float(slope)), cap, to=w.top[0])
    else:
        w.add("Clip", x, w.constant(0.0), cap, to=w.top[0])


@exports("NegReLU")
def negative_relu(w: LayerWriter) -> None:
    """-LeakyRelu(-x)."""
    turned = w.add("Neg", w.bottom[0])
    slope = float(w.param.negative_slope)
    w.add("Neg", w.add("LeakyRelu", turned, alpha=slope), to=w.top[0])


@exports("CReLU")
def concatenated_relu(w: LayerWriter) -> None:
    """Relu of x and of -x, one behind the other."""
    parts = w.add("Relu", w.bottom[0]), w.add("Relu", w.add("Neg", w.bottom[0]))
    w.add("Concat", *parts, to=w.top[0], axis=1)


@exports("HardSigmoid")
def hard_sigmoid(w: LayerWriter) -> None:
    """HardSigmoid."""
    alpha, beta = float(w.param.alpha), float(w.param.beta)
    w.add("HardSigmoid", w.bottom[0], to=w.top[0], alpha=alpha, beta=beta)


@exports("HardSwish")
def hard_swish(w: LayerWriter) -> None:
    """HardSwish."""
    w.add("HardSwish", w.bottom[0], to=w.top[0])


@exports("PReLU")
def prelu(w: LayerWriter) -> None:
    """PRelu; the slopes get axes of 1 behind the channels."""
    slopes = w.params[0]
    wide = (-1,) if w.param.channel_shared else (-1, *[1] * (len(w.bottom_shapes[0]) - 2))
    w.add("PRelu", w.bottom[0], w.parameter(0, slopes.reshape(wide)), to=w.top[0])


@exports("ELU")
def elu(w: LayerWriter) -> None:
    """Elu."""
    w.add("Elu", w.bottom[0], to=w.top[0], alpha=float(w.param.alpha))


@exports("Sigmoid")
def sigmoid(w: LayerWriter) -> None:
    """Sigmoid."""
    w.add("Sigmoid", w.bottom[0], to=w.top[0])


@exports("TanH")
def tanh(w: LayerWriter) -> None:
    """Tanh."""
    w.add("Tanh", w.bottom[0], to=w.top[0])


@exports("AbsVal")
def absolute(w: LayerWriter) -> None:
    """Abs."""
    w.add("Abs", w.bottom[0], to=w.top[0])


@exports("BNLL")
def bnll(w: LayerWriter) -> None:
    """log(1 + exp(x)) is Softplus."""
    w.add("Softplus", w.bottom[0], to=w.top[0])


@exports("Threshold")
def threshold(w: LayerWriter) -> None:
    """Greater, as 0 and 1."""
    w.cast(w.add("Greater", w.bottom[0], w.constant(w.param.threshold)), "FLOAT", w.top[0])


@exports("Clip")
def clip(w: LayerWriter) -> None:
    """Clip."""
    low, high = w.constant(w.param.min), w.constant(w.param.max)
    w.add("Clip", w.bottom[0], low, high, to=w.top[0])


@exports("Swish")
def swish(w: LayerWriter) -> None:
    """x sigmoid(beta x)."""
    x = w.bottom[0]
    inner = x if w.param.beta == 1 else w.add("Mul", x, w.constant(w.param.beta))
    w.add("Mul", x, w.add("Sigmoid", inner), to=w.top[0])


@exports("Dropout")
def dropout(w: LayerWriter) -> None:
    """Identity in phase TEST; a factor with the forks' `scale_train: false`."""
    if w.param.sample_weights_test:
        w.refuse("it draws at random in phase TEST (sample_weights_test: true)")
    if w.param.scale_train:
        w.add("Identity", w.bottom[0], to=w.top[0])
    else:
        w.add("Mul", w.bottom[0], w.constant(1 - w.param.dropout_ratio), to=w.top[0])


@exports("Power")
def power(w: LayerWriter) -> None:
    """(shift + scale x)^power; ConstantOfShape where power or scale is 0, and x does not count."""
    scale, shift, exponent = w.param.scale, w.param.shift, w.param.power
    if scale * exponent == 0:
        shape = w.sizes(0, 0, len(w.bottom_shapes[0]))
        w.fill(shape, float(np.float64(shift) ** exponent), w.top[0])
        return
    steps = _affine(scale, shift) + ([("Pow", exponent)] if exponent != 1 else [])
    _chain(w, steps)


@exports("Exp")
def exponential(w: LayerWriter) -> None:
    """exp(shift + scale x), with the base's logarithm in both."""
    _chain(w, [*_affine(w.layer.scale, w.layer.shift), ("Exp", None)])  # type: ignore[attr-defined]


@exports("Log")
def logarithm(w: LayerWriter) -> None:
    """log(shift + scale x), divided by the base's."""
    base = w.layer.log_base  # type: ignore[attr-defined]
    steps = [*_affine(w.param.scale, w.param.shift), ("Log", None)]
    _chain(w, steps + ([("Div", base)] if base != 1 else []))


def _affine(scale: float, shift: float) -> list[tuple[str, float | None]]:
    steps: list[tuple[str, float | None]] = []
    if scale != 1:
        steps.append(("Mul", scale))
    if shift:
        steps.append(("Add", shift))
    return steps


def _chain(w: LayerWriter, steps: list[tuple[str, float | None]]) -> None:
    """One operator after the other, each with a number where it has one."""
    x = w.bottom[0]
    for k, (op, number) in enumerate(steps or [("Identity", None)]):
        more = [] if number is None else [w.constant(number)]
        x = w.add(op, x, *more, to=w.top[0] if k >= len(steps) - 1 else None)
