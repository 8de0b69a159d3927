"""Local response normalisation, over neighbouring channels or positions."""

from __future__ import annotations

from typing import Any

from .. import memory
from ..blob import Blob
from ..errors import ModelError
from ..ops.window import Window
from .activation import _KeepsInput


class LRN(_KeepsInput):
    """y = x s^-beta, s = k + alpha / n * (sum of x^2 over the n = local_size channels around).

    With `norm_region: WITHIN_CHANNEL` s = 1 + alpha / n^2 * (sum over the n x n positions around);
    k is not read there, as in Caffe. What lies outside counts as 0. Defaults: local_size 5, which
    must be odd and may exceed the channels, alpha 1, beta 0.75, k 1. 4 axes (N, C, H, W). May run
    in place (Caffe's gradient is wrong there).
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param = self.param
        if param.local_size % 2 == 0:
            raise ModelError(f"LRN only supports odd values for local_size, got {param.local_size}")
        self.size, self.beta, self.k = param.local_size, param.beta, param.k
        self.alpha = param.alpha
        self.within = param.norm_region == param.WITHIN_CHANNEL
        self.window = Window((self.size,) * 2, (1, 1), (self.size // 2,) * 2)
        self._scale = Blob()

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ModelError(
                "input must have 4 axes, corresponding to (num, channels, height, width),"
                f" got {len(shape)}"
            )
        super().reshape(bottom, top)
        self._scale.reshape(shape)
        if self.within:
            memory.check_padded(shape, self.window, shape[2:])

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        x, y = bottom[0].data, top[0].data
        scale = self.state(self._scale) if self.needs_backward else None
        if self.within:
            self._forward_within(x, y, scale)
        else:
            self.ops.lrn(x, self.size, self.alpha, self.beta, self.k, y, scale)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        x, scale = self.kept(bottom), self.state(self._scale)
        dy, dx = top[0].diff, bottom[0].diff
        if self.within:
            self._backward_within(x, scale, dy, dx)
        else:
            self.ops.lrn_backward(x, scale, dy, self.size, self.alpha, self.beta, dx)

    def _forward_within(self, x: Any, y: Any, scale: Any) -> None:
        # Every window lies in the padded plane, so that the average divides by n^2.
        scale = self.xp.empty_like(x) if scale is None else scale
        self.ops.pool_ave(x * x, self.window, scale)
        scale *= self.alpha
        scale += 1
        self.xp.multiply(x, scale**-self.beta, out=y)

    def _backward_within(self, x: Any, scale: Any, dy: Any, dx: Any) -> None:
        factor = scale**-self.beta
        share = self.xp.empty_like(x)
        self.ops.pool_ave_backward(dy * x * factor / scale, self.window, share)
        share *= x
        share *= 2 * self.alpha * self.beta
        self.xp.multiply(dy, factor, out=dx)
        dx -= share
