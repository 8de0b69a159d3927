"""Where sequences begin, for recurrent layers."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer


class ContinuationIndicator(Layer):
    """(time_step, batch_size): 0 in the first row, where sequences begin, and 1 in all others.

    No bottom. ModelError unless both fields are greater than 0.
    """

    bottoms = 0

    def reshape(self, bottom: Any, top: Any) -> None:
        times, batch = self.param.time_step, self.param.batch_size
        if min(times, batch) < 1:
            raise ModelError(f"time_step and batch_size must be > 0, got {times} and {batch}")
        top[0].reshape(times, batch)

    def forward(self, bottom: Any, top: Any) -> None:
        y = top[0].data
        y[0], y[1:] = 0, 1
