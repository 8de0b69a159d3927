"""When does a training go wrong, and where? Looked for in each iteration, before its update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import device

if TYPE_CHECKING:
    from ..blob import Blob
    from .solver import Solver


def stop_at_nan(solver: Solver) -> None:
    """From now on, an iteration whose loss or parameters' gradients are not finite ends training.

    By a RuntimeError that names the iteration, and the first parameter, blob or gradient with NaN
    or infinity in it in the order of the computation, and its layer. The parameters are then still
    those the iteration was computed with. The loss is waited for in each iteration: training is a
    little slower, more so on a GPU.
    """
    solver.add_callback(_nothing, lambda: _check(solver))


def _nothing() -> None:
    """Before an iteration there is nothing to look for."""


def _check(solver: Solver) -> None:
    loss = solver.smoothed_loss
    blobs = (blob for blobs in solver.net.params.values() for blob in blobs)
    if math.isfinite(loss) and all(map(_has_finite_gradient, blobs)):
        return
    where = solver.first_bad_blob()
    found = f"the first not to be finite is the {where}" if where else "no blob holds it any more"
    raise RuntimeError(
        f"training has diverged in iteration {solver.iter}: loss = {loss:g}; {found}"
    )


def _has_finite_gradient(blob: Blob) -> bool:
    ops = device.current()
    with np.errstate(all="ignore"), ops.running():
        return bool(ops.xp.isfinite(blob.array(ops, diff=True, write=False)).all())
