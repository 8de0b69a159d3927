"""The loss of box regression: quadratic near 0, linear further away."""

from __future__ import annotations

import logging
from math import prod
from typing import Any

from ..errors import ModelError
from ..ops.base import Array
from .loss import _NormalizedLoss

log = logging.getLogger(__name__.partition(".")[0])


class SmoothL1Loss(_NormalizedLoss):
    """L = sum(v f(w (a - b))) / norm; f(d) = s d^2 / 2 where |d| < 1 / s, |d| - 1 / 2s elsewhere.

    Bottoms: a and b, then the weights w and v, 1 where not given, all (N, C, ...) of one shape;
    s = `sigma`^2 (1). da = w v f'(w (a - b)) / norm = -db, times the weight of the loss. Three
    forks have a layer of this name, which differ in norm:

    - SSD (two bottoms) and Fast R-CNN (two or four, `smooth_l1_loss_param`): N;
    - R-FCN (two or three bottoms; a second top (N, 1, ...), each place's sum over C; `loss_param`):
      as `normalization` says, VALID and FULL being the number of places. Here w counts in da as
      above; in the original's gradient it does not.

    Two bottoms alone do not tell: with a `loss_weight`, which SSD's nets leave out, the layer is
    taken for R-FCN's. The difference, none for (N, C), is logged; a `loss_param` or
    `smooth_l1_loss_param` says what is meant. Without loss_weight the loss counts once, as
    everywhere (in two of the forks not at all). Raises ModelError where shapes differ.
    """

    bottoms = (2, 4)
    tops = (1, 2)
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.sharpness = self.param.sigma**2
        if self.sharpness <= 0:
            raise ModelError(f"sigma must be positive, got {self.param.sigma:g}")
        if len(bottom) == 4 and len(top) == 2:
            raise ModelError("with 4 bottoms there is 1 top, got 2")
        self.by_place = self._is_by_place(bottom, top)

    def _is_by_place(self, bottom: Any, top: Any) -> bool:
        spec = self.spec
        if len(bottom) == 4:
            return False
        if len(bottom) == 3 or len(top) == 2 or spec.HasField("loss_param"):
            return True
        if spec.HasField("smooth_l1_loss_param") or not spec.loss_weight:
            return False
        if prod(bottom[0].shape[2:]) > 1:
            log.warning(
                "layer %r (%s): taken for R-FCN's, which divides by all places; for Fast R-CNN's,"
                " which divides by the batch, write smooth_l1_loss_param { sigma: 1 }",
                self.name,
                self.type,
            )
        return True

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        for other in bottom[1:]:
            if prod(other.shape) != prod(shape) or other.shape[:1] != shape[:1]:
                raise ModelError(f"inputs must have the same shape ({shape} vs. {other.shape})")
        if len(top) == 2:
            top[1].reshape((*shape[:1], 1, *shape[2:]))
        self.norm = max(shape[0], 1)
        if self.by_place:
            self.norm = self.divisor(shape[0], prod(shape[2:]), None)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, d = self.xp, self._gap(bottom)
        far = xp.abs(d) - 0.5 / self.sharpness
        losses = xp.where(self._is_near(d), 0.5 * self.sharpness * d * d, far)
        if len(bottom) == 4:
            losses *= bottom[3].data.reshape(losses.shape)
        top[0].data[...] = losses.sum() / self.norm
        if len(top) == 2:
            top[1].data[...] = losses.sum(axis=1, keepdims=True)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if any(propagate_down[2:]):
            raise ModelError(f"{self.type} layer cannot backpropagate to its weights")
        if not any(propagate_down):
            return
        d = self._gap(bottom)
        grad = self.xp.where(self._is_near(d), self.sharpness * d, self.xp.sign(d))
        for weight in bottom[2:]:
            grad *= weight.data.reshape(grad.shape)
        scale = self.share(top[0].diff, self.norm)
        grad *= scale + top[1].diff if len(top) == 2 else scale
        for k, sign in ((0, 1), (1, -1)):
            if propagate_down[k]:
                bottom[k].diff[...] = (sign * grad).reshape(bottom[k].shape)

    def _gap(self, bottom: Any) -> Array:
        """w (a - b)."""
        a = bottom[0].data
        d = a - bottom[1].data.reshape(a.shape)
        if len(bottom) > 2:
            d *= bottom[2].data.reshape(a.shape)
        return d

    def _is_near(self, d: Array) -> Array:
        return self.xp.abs(d) < 1 / self.sharpness

    def allow_force_backward(self, index: int) -> bool:
        return index < 2
