"""L1Loss, of FlowNet2."""

from __future__ import annotations

from typing import Any

from ..blob import Blob, describe
from ..errors import ModelError
from ..layer import Layer


class L1Loss(Layer):
    """L = sum |d| / N with d = a - b, or a where it is the only bottom; N the first dimension.

    `l2_per_location` takes the root of epsilon (0.01) + sum of d^2 over the channels (axis 1) at
    each location instead of |d|; with `l2_prescale_by_channels` that sum is a mean.
    `normalize_by_num_entries` divides by the entries over the channels instead of N. NaN in d
    counts for nothing, and so does what is below `plateau`: |d|, or the root of the sum of squares.
    As in the original |d| has gradient -1 at 0. ModelError for bottoms of other shapes.
    """

    bottoms = (1, 2)
    loss = True
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self._divisor = Blob((1,))

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(bottom) > 1 and bottom[1].shape != shape:
            raise ModelError(
                f"both inputs must have the same shape: `{describe(shape)}` vs."
                f" `{describe(bottom[1].shape)}`"
            )
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")
        top[0].reshape(())

    def forward(self, bottom: Any, top: Any) -> None:
        xp = self.xp
        d, known = self._gap(bottom)
        divisor = self.state(self._divisor)
        divisor[...] = max(d.shape[0], 1)
        if self.param.normalize_by_num_entries:
            divisor[...] = xp.maximum(known.sum(), 1) / max(d.shape[1], 1)
        sizes = self._roots(d) if self.param.l2_per_location else xp.abs(d)
        top[0].data[...] = sizes.sum() / divisor[0]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not any(propagate_down):
            return
        xp = self.xp
        d, known = self._gap(bottom)
        if self.param.l2_per_location:
            slope = d / self._roots(d)
            slope *= self._above_plateau(d) * self._channel_share(d)
        else:
            slope = xp.where(d > 0, 1, -1) * known
        share = top[0].diff / self.state(self._divisor)[0]
        for sign, wanted, x in zip((1, -1), propagate_down, bottom, strict=False):
            if wanted:
                x.diff[...] = slope * (sign * share)

    def _gap(self, bottom: Any) -> tuple[Any, Any]:
        """d, 0 where it does not count, and where it counts."""
        xp, plateau = self.xp, self.param.plateau
        d = bottom[0].data - bottom[1].data if len(bottom) > 1 else bottom[0].data
        known = d == d
        if plateau and not self.param.l2_per_location:
            known = known & (xp.abs(d) >= plateau)
        return xp.where(known, d, 0), known

    def _squares(self, d: Any) -> Any:
        """(N, 1, ...): the sum of squares over the channels, or their mean."""
        return (d * d).sum(axis=1, keepdims=True) * self._channel_share(d)

    def _channel_share(self, d: Any) -> float:
        return 1 / max(d.shape[1], 1) if self.param.l2_prescale_by_channels else 1.0

    def _above_plateau(self, d: Any) -> Any:
        return self._squares(d) >= self.param.plateau**2

    def _roots(self, d: Any) -> Any:
        squares = self._squares(d) * self._above_plateau(d)
        squares += self.param.epsilon
        return self.xp.sqrt(squares)
