"""Activations of forks that cut off at one or both ends, by pieces of lines and parabolas."""

from __future__ import annotations

from typing import Any

from ..blob import canonical_axis
from ..layer import Layer
from .activation import _KeepsInput, _Neuron


class ReLU6(_Neuron):
    """y = min(x, 6) where x > 0, else negative_slope * x; MobileNet's. May run in place (slope
    >= 0).

    dx is 0 where x >= 6; where x <= 0 it is negative_slope dy. Forks differ in what relu6_param
    holds: negative_slope (0) here, `threshold` (6) in others.
    """

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.slope, self.cap = self.param.negative_slope, self.param.threshold

    def forward(self, bottom: Any, top: Any) -> None:
        xp, x, y = self.xp, bottom[0].data, top[0].data
        if self.slope:
            y[...] = xp.where(x > 0, x, self.slope * x)
            xp.minimum(y, self.cap, out=y)
        else:
            xp.clip(x, 0, self.cap, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = bottom[0].data, top[0].diff  # in place, x holds y: on the same side of 0 and 6
            slope = self.xp.where(x > 0, dy, self.slope * dy)
            bottom[0].diff[...] = slope * (x < self.cap)


class NegReLU(_Neuron):
    """y = x where x < 0, else negative_slope * x; FlowNet2's. May run in place (slope >= 0)."""

    param_field = "relu_param"
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.slope = self.param.negative_slope

    def forward(self, bottom: Any, top: Any) -> None:
        x = bottom[0].data
        top[0].data[...] = self.xp.where(x < 0, x, self.slope * x)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = bottom[0].data, top[0].diff
            bottom[0].diff[...] = self.xp.where(x < 0, dy, self.slope * dy)


class CReLU(Layer):
    """y = max(x, 0) and, behind it along the channels (axis 1), max(-x, 0): twice as many."""

    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(1, shape)
        self.channels = shape[axis]
        top[0].reshape(*shape[:axis], 2 * self.channels, *shape[axis + 1 :])

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        self.xp.maximum(x, 0, out=y[:, : self.channels])
        self.xp.maximum(-x, 0, out=y[:, self.channels :])

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = bottom[0].data, top[0].diff
            dx = dy[:, : self.channels] * (x > 0)
            dx -= dy[:, self.channels :] * (x < 0)
            bottom[0].diff[...] = dx


class HardSigmoid(_Neuron):
    """y = alpha x + beta, at least 0 and at most 1; alpha is 0.2, beta 0.5. May run in place."""

    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.alpha, self.beta = self.param.alpha, self.param.beta

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        self.xp.multiply(x, self.alpha, out=y)
        y += self.beta
        self.xp.clip(y, 0, 1, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            bottom[0].diff[...] = self.alpha * dy * ((y > 0) & (y < 1))


class HardSwish(_KeepsInput):
    """y = x min(max(x + 3, 0), 6) / 6; MobileNet v3's. May run in place."""

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        x = bottom[0].data
        gate = self.xp.clip(x + 3, 0, 6)
        gate /= 6
        self.xp.multiply(x, gate, out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = self.kept(bottom), top[0].diff
            slope = self.xp.where(x <= -3, 0, self.xp.where(x >= 3, 1, (2 * x + 3) / 6))
            bottom[0].diff[...] = dy * slope
