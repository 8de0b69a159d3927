"""The loss of independent yes-or-no predictions."""

from __future__ import annotations

from math import prod
from typing import Any

from ..errors import ModelError
from ..ops.base import Array
from .loss import _NormalizedLoss


class SigmoidCrossEntropyLoss(_NormalizedLoss):
    """L = sum(max(x, 0) - x t + log(1 + exp(-|x|))) / norm: -log of s = sigmoid(x) against t.

    x, t: (N, ...) of equal count, t in [0, 1] and soft if need be; nothing counts where t is
    loss_param's `ignore_label`. dx = (s - t) / norm, times the weight. norm: BATCH_SIZE (N) unless
    `normalization` (or old `normalize`) says otherwise. Raises ModelError where counts differ.
    """

    default_normalization = "BATCH_SIZE"
    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        x, t = (prod(b.shape) for b in bottom)
        if x != t:
            raise ModelError(f"inputs must have the same count ({x} vs. {t})")

    def forward(self, bottom: Any, top: Any) -> None:
        xp, x = self.xp, bottom[0].data
        t = bottom[1].data.reshape(x.shape)
        losses = xp.log1p(xp.exp(-xp.abs(x)))
        losses += xp.maximum(x, 0)
        losses -= x * t
        valid = self._valid(t)
        if valid is not None:
            xp.copyto(losses, 0, where=~valid)
        top[0].data[...] = losses.sum() / self._divisor(x.shape, valid)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        xp, x, dx = self.xp, bottom[0].data, bottom[0].diff
        t = bottom[1].data.reshape(x.shape)
        xp.multiply(x, 0.5, out=dx)
        xp.tanh(dx, out=dx)
        dx *= 0.5
        dx += 0.5
        dx -= t
        valid = self._valid(t)
        dx *= self.share(top[0].diff, self._divisor(x.shape, valid))
        if valid is not None:
            xp.copyto(dx, 0, where=~valid)

    def _valid(self, t: Array) -> Array | None:
        return None if self.ignored is None else self.xp.trunc(t) != self.ignored

    def _divisor(self, shape: tuple[int, ...], valid: Array | None) -> Any:
        return self.divisor(shape[0], prod(shape[1:]), valid)
