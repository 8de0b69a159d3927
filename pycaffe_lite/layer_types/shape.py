"""Layers that copy or rearrange and compute nothing."""

from __future__ import annotations

from typing import Any

from ..layer import Layer


class Split(Layer):
    """Each top is the bottom, in the bottom's own storage; dx is the sum of the tops' gradients.

    Nets insert it by themselves after a blob with several consumers.
    """

    tops = (1, None)

    def reshape(self, bottom: Any, top: Any) -> None:
        for y in top:
            y.reshape(bottom[0].shape)
            y.share_data(bottom[0])

    def forward(self, bottom: Any, top: Any) -> None:
        """Nothing: the tops share the bottom's values."""

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dx = bottom[0].diff
        dx[...] = top[0].diff
        for y in top[1:]:
            dx += y.diff
