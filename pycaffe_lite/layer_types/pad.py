"""Padding of an image."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer


class Pad(Layer):
    """(N, C, H, W) with `pad_u` rows above, `pad_d` below, `pad_l` columns left, `pad_r` right.

    CONSTANT fills them with `pad_value` (0); REFLECT mirrors the image at its border, which itself
    is not repeated: ModelError where an image has not that many positions.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.reflects = param.pad_type == param.REFLECT
        self.ends = ((2, param.pad_u, param.pad_d), (3, param.pad_l, param.pad_r))

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ModelError(f"input must have 4 axes, got {len(shape)}")
        for axis, before, after in self.ends:
            if self.reflects and max(before, after) >= max(shape[axis], 1):
                raise ModelError(
                    f"pad {max(before, after)} must be less than the size {shape[axis]} of axis"
                    f" {axis} to be its reflection"
                )
        (_, up, down), (_, left, right) = self.ends
        n, c, h, w = shape
        self.inside = (..., slice(up, up + h), slice(left, left + w))
        top[0].reshape(n, c, h + up + down, w + left + right)

    def forward(self, bottom: Any, top: Any) -> None:
        y = top[0].data
        if not self.reflects:
            y[...] = self.param.pad_value
        y[self.inside] = bottom[0].data
        if self.reflects:
            for beyond, source in self._mirrored(y):
                y[beyond] = y[source]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy = top[0].diff
        if self.reflects:
            dy = dy.copy()
            for beyond, source in reversed(self._mirrored(dy)):
                dy[source] += dy[beyond]
        bottom[0].diff[...] = dy[self.inside]

    def _mirrored(self, y: Any) -> list[tuple[Any, Any]]:
        """What lies beyond each border, and what it repeats; columns need the rows done before."""
        parts: list[tuple[Any, Any]] = []
        for axis, before, after in self.ends:
            rest = (slice(None),) * axis
            last = y.shape[axis] - after - 1
            if before:
                parts.append(((*rest, slice(0, before)), (*rest, slice(2 * before, before, -1))))
            if after:
                stop = last - after - 1
                parts.append(
                    (
                        (*rest, slice(last + 1, None)),
                        (*rest, slice(last - 1, stop if stop >= 0 else None, -1)),
                    )
                )
        return parts
