"""What happens to gradients before an update? Clipped, then averaged, then regularized."""

from __future__ import annotations

import logging
from typing import Any

from ..ops.base import Array, Ops

log = logging.getLogger("pycaffe_lite")


def clip(grads: list[Array], limit: float, ops: Ops) -> None:
    """Scale flat gradients, in place, to the L2 norm `limit` where that of all is larger.

    As in Caffe they are the sums over iter_size batches. Without a log nothing waits for a device.
    """
    if not grads:
        return
    norm = ops.xp.sqrt(sum((ops.xp.dot(g, g) for g in grads), 0.0))
    scale = ops.xp.where(norm > limit, limit / norm, 1)  # 1 where the norm is 0 or NaN, too
    if log.isEnabledFor(logging.INFO) and float(norm) > limit:
        log.info(
            "Gradient clipping: scaling down gradients (L2 norm %g > %g) by scale factor %g",
            float(norm),
            limit,
            float(scale),
        )
    for g in grads:
        g *= scale


def average(g: Array, count: int) -> None:
    """Divide a sum over `count` batches by their number, in place."""
    if count > 1:
        g *= 1 / count


def regularize(w: Array, g: Array, decay: float, norm: str, spare: Array, xp: Any) -> None:
    """Add the gradient of decay/2 |w|^2 (norm "L2") or of decay |w| ("L1") to g.

    All arrays are flat and of equal length; `spare` is for intermediate values.
    """
    if not decay:
        return
    if norm == "L1":
        xp.sign(w, out=spare)
        spare *= decay
    else:
        xp.multiply(w, decay, out=spare)
    g += spare
