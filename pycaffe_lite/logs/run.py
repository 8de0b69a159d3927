"""What is known of a training afterwards? Rows of numbers, as logs and CSV files have them."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass
class Row:
    """What the log says of one display, or of one test of a net."""

    iteration: int
    seconds: float
    """Of training, from the line "Solving .." on; NaN where lines have no time."""
    outputs: dict[str, float] = field(default_factory=dict)
    """In the log's order; of an output with several numbers, the others are `name[1]` .."""
    loss: float | None = None
    """Caffe's own mean over `average_loss` iterations; None for tests."""
    rate: float = math.nan
    """The learning rate at that iteration, or at the last display before."""

    def add(self, name: str, value: float) -> None:
        """Take one more number of the output `name`."""
        key, k = name, 0
        while key in self.outputs:
            k += 1
            key = f"{name}[{k}]"
        self.outputs[key] = value


@dataclass
class Run:
    """One training. A log that goes on from a snapshot of it adds to it."""

    train: list[Row] = field(default_factory=list)
    tests: dict[int, list[Row]] = field(default_factory=dict)
    """Number of the test net -> its rows."""
    rates: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, learning rate), ascending."""
    losses: set[str] = field(default_factory=set)
    """The outputs that have a loss weight."""

    def rows(self) -> list[Row]:
        """Those of training, then those of each test net."""
        return [row for rows in (self.train, *self.tests.values()) for row in rows]

    def drop_from(self, iteration: int) -> None:
        """Forget that iteration and all later ones."""
        self.train = [row for row in self.train if row.iteration < iteration]
        for k, rows in self.tests.items():
            self.tests[k] = [row for row in rows if row.iteration < iteration]
        self.rates = [rate for rate in self.rates if rate[0] < iteration]

    def drop_empty(self) -> None:
        """Forget tests that were interrupted before they gave any number."""
        for k, rows in self.tests.items():
            self.tests[k] = [row for row in rows if row.outputs]

    def set_rates(self) -> None:
        """Give each row the learning rate of its iteration, else the last one before it.

        Caffe's parse_log.py gives it that of the display before, as the line comes after the rest.
        """
        steps = [iteration for iteration, _ in self.rates]
        for row in self.rows() if steps else ():
            row.rate = self.rates[max(bisect_right(steps, row.iteration) - 1, 0)][1]


class Runs:
    """Sorts what comes in the order of a log into runs: `found`."""

    def __init__(self) -> None:
        self.found: list[Run] = []
        self.offset = 0.0
        """Seconds of training before the process that writes now."""
        self._last = -1

    @property
    def current(self) -> Run:
        """The run that is being written; there is one after `reach`."""
        return self.found[-1]

    def reach(self, iteration: int, started: bool = False) -> bool:
        """Come to an iteration; True where another process writes from here on.

        `started` is True where the log says so; a lower iteration than before says so, too. It goes
        on with the run before where that has been there, from which the iterations that it computes
        anew are dropped; else a run begins.
        """
        started |= not self.found or iteration < self._last
        self._last = iteration
        if not started:
            return False
        before = self.current.rows() if self.found else []
        if before and iteration > min(row.iteration for row in before):
            self.current.drop_from(iteration)
            self.offset = max(row.seconds for row in self.current.rows())
        else:
            self.found.append(Run())
            self.offset = 0.0
        return True
