"""Layers that copy or rearrange and compute nothing."""

from __future__ import annotations

from typing import Any

from ..layer import Layer


class Split(Layer):
    """Each top is the bottom, in the bottom's own storage; dx is the sum of the tops' gradients.

    Nets insert it by themselves after a blob with several consumers. Where a later layer overwrites
    a top in place the tops are copies, so that the others keep their values (in Caffe they change).
    """

    tops = (1, None)
    copies = False

    def reshape(self, bottom: Any, top: Any) -> None:
        for y in top:
            y.reshape(bottom[0].shape)
            if not self.copies:
                y.share_data(bottom[0])
            elif y.shares_data(bottom[0]):
                y.own_data()

    def forward(self, bottom: Any, top: Any) -> None:
        for y in top if self.copies else ():
            y.data[...] = bottom[0].data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dx = bottom[0].diff
        dx[...] = top[0].diff
        for y in top[1:]:
            dx += y.diff
