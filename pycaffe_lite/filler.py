"""What values do new parameters start with? Caffe's weight fillers, one small function each.

A filler is a function (filler message, array, random generator) that writes the array; `fill`
finds it by the message's `type`. Formulas are Caffe's; random streams are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite, sqrt
from typing import Any

import numpy as np

from .blob import describe
from .errors import ModelError

Filler = Callable[[Any, np.ndarray, "np.random.Generator"], None]  # quoted: 6 ms to import

_fillers: dict[str, Filler] = {}


def fill(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Write `array` (any shape) by the FillerParameter `spec`.

    Raises ModelError for an unknown type, an empty array, `sparse` with a type other than gaussian,
    and what the filler itself cannot do.
    """
    check(spec)
    if array.size == 0:
        raise ModelError(f"cannot fill an empty blob of shape {describe(array.shape)}")
    _fillers[spec.type](spec, array, rng)


def check(spec: Any) -> None:
    """Raise what `fill` would for the type and `sparse` of `spec`, before there is an array."""
    if spec.type not in _fillers:
        known = ", ".join(sorted(_fillers))
        raise ModelError(f"unknown filler name: {spec.type} (known fillers: {known})")
    if spec.sparse != -1 and spec.type != "gaussian":
        raise ModelError(f"sparsity is not supported by the {spec.type} filler")


def _register(function: Filler) -> Filler:
    _fillers[function.__name__] = function
    return function


@_register
def constant(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Every element is `value`."""
    array[...] = spec.value


@_register
def uniform(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Uniform over [min, max]."""
    _check_finite(spec, "min", "max")
    if spec.min > spec.max:
        raise ModelError(f"uniform filler: min {spec.min} is greater than max {spec.max}")
    array[...] = rng.uniform(spec.min, spec.max, array.shape)


@_register
def gaussian(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Normal with `mean` and `std`; with `sparse` = s an element is kept with chance s / dim 0."""
    _check_finite(spec, "mean", "std")
    if not spec.std > 0:
        raise ModelError(f"gaussian filler: std must be > 0, got {spec.std}")
    array[...] = rng.normal(spec.mean, spec.std, array.shape)
    if spec.sparse < -1:
        raise ModelError(f"gaussian filler: sparse must be >= 0, got {spec.sparse}")
    if spec.sparse != -1:
        outputs = array.shape[0] if array.ndim else 1
        array *= rng.random(array.shape) < spec.sparse / outputs


@_register
def positive_unitball(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Uniform over [0, 1], each slice of dim 0 then divided by its sum."""
    array[...] = rng.random(array.shape)
    rows = array.reshape(array.shape[0] if array.ndim else 1, -1)
    rows /= rows.sum(axis=1, keepdims=True)


@_register
def xavier(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Uniform over [-a, a], a = sqrt(3 / fan)."""
    bound = sqrt(3.0 / _fan(spec, array))
    array[...] = rng.uniform(-bound, bound, array.shape)


@_register
def msra(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """Normal with mean 0 and std sqrt(2 / fan)."""
    array[...] = rng.normal(0.0, sqrt(2.0 / _fan(spec, array)), array.shape)


@_register
def bilinear(spec: Any, array: np.ndarray, rng: np.random.Generator) -> None:
    """The kernel of bilinear upsampling in every plane: (1 - |x/f - c|) (1 - |y/f - c|).

    f = ceil(K / 2), c = (K - 1) / (2 f); needs 4 axes and square planes.
    """
    if array.ndim != 4:
        raise ModelError(f"bilinear filler: blob must have 4 axes, not {array.ndim}")
    height, width = array.shape[2:]
    if height != width:
        raise ModelError(f"bilinear filler: filter must be square, not {height} x {width}")
    f = ceil(width / 2)
    ramp = 1 - np.abs(np.arange(width) / f - (width - 1) / (2 * f))
    array[...] = np.outer(ramp, ramp)


def _check_finite(spec: Any, *fields: str) -> None:
    for field in fields:
        if not isfinite(getattr(spec, field)):
            raise ModelError(
                f"{spec.type} filler: {field} must be finite, got {getattr(spec, field)}"
            )


def _fan(spec: Any, array: np.ndarray) -> float:
    """The number of weights that meet at one unit: FAN_IN, FAN_OUT or AVERAGE of the two.

    As in Caffe, fan out is count / dim 1, and the whole count where there is no such axis.
    """
    fan_in = array.size / (array.shape[0] if array.ndim else 1)
    fan_out = array.size / (array.shape[1] if array.ndim > 1 else 1)
    return {0: fan_in, 1: fan_out, 2: (fan_in + fan_out) / 2}[spec.variance_norm]
