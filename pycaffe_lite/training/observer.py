"""Who watches a training? What a solver tells those in its list `observers`, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .solver import Solver


class TrainingObserver:
    """Called by the solver while it trains; what a subclass does not define does nothing.

    What `solver.smoothed_loss` and `solver.last_lr` give is of the iteration just computed.
    """

    def displayed(self, solver: Solver) -> None:
        """A display's lines are in the log: blobs hold iteration `solver.iter`, parameters are
        still those it was computed with."""

    def tested(self, solver: Solver, index: int, loss: float | None, lines: Sequence[str]) -> None:
        """Test net number `index` was evaluated: its mean loss where that is asked for, and the
        lines in the log that say what its outputs come to."""

    def iterated(self, solver: Solver) -> None:
        """An iteration is complete: parameters are updated and `solver.iter` counts it."""
