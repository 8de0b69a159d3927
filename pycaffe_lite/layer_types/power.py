"""Powers, exponentials and logarithms of a blob, element by element."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ModelError
from .activation import _KeepsInput, _Neuron


class Power(_KeepsInput):
    """y = (shift + scale x)^power; dx = dy power scale (shift + scale x)^(power - 1).

    Defaults: power 1, scale 1, shift 0. A broken power of a negative base is NaN. With power 0 or
    scale 0 the output is constant (power 0: 1) and dx = 0. May run in place (Caffe's gradient is
    right there for power 1 only, and NaN at x = 0 where shift is 0).
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param = self.param
        self.power, self.scale, self.shift = param.power, param.scale, param.shift
        self.is_constant = self.power * self.scale == 0

    def forward(self, bottom: Any, top: Any) -> None:
        y = top[0].data
        if self.is_constant:
            y[...] = self.shift if self.power else 1
        else:
            if self.power != 1:
                self.keep(bottom)
            _affine(self.xp, bottom[0].data, self.scale, self.shift, y)
        if self.power not in (0, 1):
            y **= self.power

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.is_constant:
            dx[...] = 0
        elif self.power == 1:
            self.xp.multiply(dy, self.scale, out=dx)
        else:
            x = self.kept(bottom)
            slope = _affine(self.xp, x, self.scale, self.shift, self.xp.empty_like(x))
            slope **= self.power - 1
            slope *= self.power * self.scale
            self.xp.multiply(dy, slope, out=dx)


class Exp(_Neuron):
    """y = base^(shift + scale x); dx = dy y scale log(base). May run in place.

    Defaults: base e (written -1), scale 1, shift 0. ModelError for any other base <= 0.
    """

    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        log_base = _log_of_base(param.base)
        self.scale, self.shift = log_base * param.scale, log_base * param.shift

    def forward(self, bottom: Any, top: Any) -> None:
        y = _affine(self.xp, bottom[0].data, self.scale, self.shift, top[0].data)
        self.xp.exp(y, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            self.xp.multiply(top[0].diff, top[0].data, out=dx)
            dx *= self.scale


class Log(_KeepsInput):
    """y = log(shift + scale x) / log(base); dx = dy scale / (log(base) (shift + scale x)).

    Defaults: base e (written -1), scale 1, shift 0. ModelError for base 1 and any other <= 0. May
    run in place (Caffe's gradient is wrong there).
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param = self.param
        self.log_base = _log_of_base(param.base)
        if self.log_base == 0:
            raise ModelError(f"base must not be {param.base:g}: its logarithm is 0, the result inf")
        self.scale, self.shift = param.scale, param.shift

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        y = _affine(self.xp, bottom[0].data, self.scale, self.shift, top[0].data)
        self.xp.log(y, out=y)
        if self.log_base != 1:
            y /= self.log_base

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x = self.kept(bottom)
            base = _affine(self.xp, x, self.scale, self.shift, self.xp.empty_like(x))
            self.xp.divide(self.scale / self.log_base, base, out=base)
            self.xp.multiply(top[0].diff, base, out=bottom[0].diff)


class BNLL(_Neuron):
    """y = log(1 + exp(x)); dx = dy exp(x) / (1 + exp(x)) = dy (1 - exp(-y)).

    No x overflows. May run in place (Caffe's gradient is wrong there).
    """

    keeps_top = True

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        rest = self.xp.abs(x)
        self.xp.negative(rest, out=rest)
        self.xp.exp(rest, out=rest)
        self.xp.log1p(rest, out=rest)
        self.xp.maximum(x, 0, out=y)
        y += rest

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = -self.xp.expm1(-top[0].data) * top[0].diff


def _affine(xp: Any, x: Any, scale: float, shift: float, out: Any) -> Any:
    """shift + scale x -> out; out may be x."""
    xp.multiply(x, scale, out=out)
    if shift:
        out += shift
    return out


def _log_of_base(base: float) -> float:
    """log(base), with Caffe's -1 for e. ModelError where there is none."""
    if base == -1:
        return 1.0
    if base <= 0:
        raise ModelError(f"base must be strictly positive (or -1 for e), got {base:g}")
    return math.log(base)
