"""Elementwise functions without parameters of their own, and dropout."""

from __future__ import annotations

from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer


class _Neuron(Layer):
    """One bottom, one top of the same shape, computed element by element."""

    in_place = True

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(bottom[0].shape)


class ReLU(_Neuron):
    """y = x where x > 0, else negative_slope * x. May run in place (slope >= 0)."""

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.slope = self.param.negative_slope

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if self.slope:
            y[...] = self.xp.where(x > 0, x, self.slope * x)
        else:
            self.xp.maximum(x, 0, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = bottom[0].data, top[0].diff  # in place, x holds y: the same sign
            bottom[0].diff[...] = self.xp.where(x > 0, dy, self.slope * dy)


class Sigmoid(_Neuron):
    """y = 1 / (1 + exp(-x)), computed as tanh(x / 2) / 2 + 1/2; dx = dy y (1 - y). In place."""

    keeps_top = True

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        self.xp.multiply(x, 0.5, out=y)
        self.xp.tanh(y, out=y)
        y *= 0.5
        y += 0.5

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            bottom[0].diff[...] = dy * (y * (1 - y))


class TanH(_Neuron):
    """y = tanh(x); dx = dy (1 - y^2). May run in place."""

    keeps_top = True

    def forward(self, bottom: Any, top: Any) -> None:
        self.xp.tanh(bottom[0].data, out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            bottom[0].diff[...] = dy * (1 - y * y)


class Dropout(_Neuron):
    """TRAIN: y = x m / (1 - r), m drawn anew each forward, 1 with chance 1 - r; TEST: y = x.

    r is `dropout_ratio`, 0 < r < 1. May run in place.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        ratio = self.param.dropout_ratio
        if not 0 < ratio < 1:
            raise ModelError(f"dropout_ratio must lie between 0 and 1, got {ratio:g}")
        self.ratio = ratio
        self._scale = Blob()  # 0 or 1 / (1 - r) an element, as the last forward drew it

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(bottom[0].shape)
        self._scale.reshape(bottom[0].shape)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if self.phase == self.TEST:
            if x is not y:
                y[...] = x
            return
        scale = self.state(self._scale)
        drawn = self.rng.random(x.shape, dtype=x.dtype)
        self.xp.multiply(drawn >= self.ratio, 1 / (1 - self.ratio), out=scale)
        self.xp.multiply(x, scale, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy = top[0].diff
        if self.phase != self.TEST:
            dy = dy * self.state(self._scale)
        bottom[0].diff[...] = dy
