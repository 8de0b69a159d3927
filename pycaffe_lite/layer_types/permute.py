"""Axes in another order."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer


class Permute(Layer):
    """y = x with its axes in the order `order`, those not listed behind, as they came (SSD).

    Any number of axes; without `order` y = x. Raises ModelError for an axis that the bottom has
    not, and for one listed twice.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        self.order = tuple(self.param.order)
        for axis in self.order:
            if self.order.count(axis) > 1:
                raise ModelError(
                    f"there are duplicate orders: axis {axis} is listed"
                    f" {self.order.count(axis)} times"
                )

    def reshape(self, bottom: Any, top: Any) -> None:
        axes = range(len(bottom[0].shape))
        for axis in self.order:
            if axis >= len(axes):
                raise ModelError(
                    f"order should be less than the input dimension: axis {axis} of {len(axes)}"
                )
        self.axes = (*self.order, *(axis for axis in axes if axis not in self.order))
        self.inverse = tuple(self.axes.index(axis) for axis in axes)
        top[0].reshape(tuple(bottom[0].shape[axis] for axis in self.axes))

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data.transpose(self.axes)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.transpose(self.inverse)
