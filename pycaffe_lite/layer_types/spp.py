"""Spatial pyramid pooling: a vector of fixed length from an image of any size."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window


class SPP(Layer):
    """Level l pools (N, C, H, W) into 2^l x 2^l bins; the levels follow each other in the top.

    Top: (N, C (1 + 4 + 16 ..)) for `pyramid_height` levels, (N, C, 1, 1) for one. A bin of level l
    is ceil(H / 2^l) high and as many rows from the next; rows that are missing are pad, half of
    them (rounded up) before the image, which must be less than a bin. `pool` is MAX (NaN and equal
    values as in Pooling) or AVE (pad counts in the divisor); STOCHASTIC is an error.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.pyramid_height < 1:
            raise ModelError(f"pyramid_height must be > 0, got {param.pyramid_height}")
        if param.pool == param.STOCHASTIC:
            raise ModelError("pool is MAX or AVE, not STOCHASTIC")
        self.is_max = param.pool == param.MAX
        self._masks: list[Blob] = []

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ModelError(
                "input must have 4 axes, corresponding to (num, channels, height, width),"
                f" got {len(shape)}"
            )
        # A height that is far too large ends here, at the first level that has too many bins.
        levels = range(self.param.pyramid_height)
        self.windows = [level_window(level, shape[2:]) for level in levels]
        self._masks = self._masks or [Blob(dtype="int32") for _ in levels]
        for level, mask in enumerate(self._masks):
            mask.reshape(*shape[:2], 2**level, 2**level)
        bins = sum(4**level for level in range(len(self._masks)))
        top[0].reshape(*shape[:2], 1, 1) if bins == 1 else top[0].reshape(shape[0], shape[1] * bins)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        for window, mask, part in self._levels(y):
            pooled = self.xp.empty(mask.shape, dtype=x.dtype)
            if self.is_max:
                winners = self.state(mask) if self.needs_backward else None
                self.ops.pool_max(x, window, pooled, winners)
            else:
                self.ops.pool_ave(x, window, pooled)
            part[...] = pooled.reshape(part.shape)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dx = bottom[0].diff
        share = self.xp.empty(dx.shape, dtype=dx.dtype)
        for level, (window, mask, part) in enumerate(self._levels(top[0].diff)):
            dy = self.xp.ascontiguousarray(part).reshape(mask.shape)
            out = share if level else dx
            if self.is_max:
                self.ops.pool_max_backward(dy, self.state(mask), window, out)
            else:
                self.ops.pool_ave_backward(dy, window, out)
            if level:
                dx += share

    def _levels(self, y: Any) -> list[tuple[Window, Blob, Any]]:
        """For each level its window, its mask and its part of the top (N, values)."""
        n, start, levels = y.shape[0], 0, []
        rows = y.reshape(n, prod(y.shape[1:]))
        for window, mask in zip(self.windows, self._masks, strict=True):
            stop = start + prod(mask.shape[1:])
            levels.append((window, mask, rows[:, start:stop]))
            start = stop
        return levels


def level_window(level: int, spatial: tuple[int, ...]) -> Window:
    """What makes 2^level bins of each axis. ModelError where the pad is not less than a bin."""
    bins = 2**level
    kernel, pad = [], []
    for name, size in zip("hw", spatial, strict=True):
        k = -(-size // bins)
        p = (k * bins - size + 1) // 2
        if p >= k:
            raise ModelError(
                f"level {level} cannot make {bins} bins of {size} positions:"
                f" pad_{name} < kernel_{name} must hold ({p} vs. {k})"
            )
        kernel.append(k)
        pad.append(p)
    return Window(tuple(kernel), tuple(kernel), tuple(pad))
