"""Softmax over one axis."""

from __future__ import annotations

from typing import Any

from ..blob import canonical_axis
from ..layer import Layer


class Softmax(Layer):
    """y = exp(x - max) / sum over `axis` (default 1); dx = y (dy - sum(dy y)). May run in place."""

    in_place = True
    keeps_top = True

    def reshape(self, bottom: Any, top: Any) -> None:
        self.axis = canonical_axis(self.param.axis, bottom[0].shape)
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom: Any, top: Any) -> None:
        self.ops.softmax(bottom[0].data, self.axis, top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            self.ops.softmax_backward(y, dy, self.axis, bottom[0].diff)
