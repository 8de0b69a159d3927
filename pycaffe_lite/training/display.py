"""How does a training show where it is? A live line below its log, on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .observer import TrainingObserver

if TYPE_CHECKING:
    from .solver import Solver

log = logging.getLogger("pycaffe_lite")

_PAUSE = 0.25  # seconds between two refreshes: losses are fetched from the device for each
_KEEP = 0.7  # of the speed known before, at a refresh


class Pace:
    """Iterations a second of late, and how long the rest will take.

    Times are seconds of one clock, given by the caller.
    """

    def __init__(self, iteration: int, now: float) -> None:
        self._last = (iteration, now)
        self.speed = 0.0
        """Iterations a second, 0 before the first update."""

    def update(self, iteration: int, now: float) -> None:
        """Say where the training is."""
        before, start = self._last
        self._last = (iteration, now)
        fresh = (iteration - before) / max(now - start, 1e-9)
        self.speed = _KEEP * self.speed + (1 - _KEEP) * fresh if self.speed else fresh

    def left(self, iterations: int) -> str:
        """The time for so many iterations as `h:mm:ss`, `-:--:--` while nobody knows."""
        if not self.speed:
            return "-:--:--"
        minutes, seconds = divmod(round(iterations / self.speed), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class _Line(TrainingObserver):
    """Keeps a line of rich.progress up to date."""

    def __init__(self, progress: Any, task: Any, solver: Solver) -> None:
        self._progress, self._task = progress, task
        self._pace = Pace(solver.iter, time.perf_counter())
        self._next = 0.0

    def iterated(self, solver: Solver) -> None:
        now, end = time.perf_counter(), solver.param.max_iter
        if now < self._next and solver.iter < end:
            return
        self._next = now + _PAUSE
        self._pace.update(solver.iter, now)
        speed = self._pace.speed
        text = (
            f"loss {solver.smoothed_loss:g}  lr {solver.last_lr:g}"
            f"  {speed:{'.0f' if speed >= 100 else '.3g'}} it/s"
            f"  ETA {self._pace.left(end - solver.iter)}"
        )
        self._progress.update(self._task, completed=solver.iter, figures=text, refresh=True)


@contextmanager
def training_display(solver: Solver) -> Iterator[None]:
    """Inside, show the training's iteration, loss, learning rate, speed and time left.

    Nothing is shown where standard error is no terminal or rich (the extra [cli]) is missing. Lines
    of the log pass above it as they are; it is gone when the block ends.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        yield
        return
    columns = (
        TextColumn("Iteration"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    console = Console(stderr=True)
    # No thread: lines and refreshes come from one place, in order.
    with (
        _above(console),
        Progress(*columns, console=console, transient=True, auto_refresh=False) as progress,
    ):
        task = progress.add_task("", total=solver.param.max_iter, completed=solver.iter, figures="")
        line = _Line(progress, task, solver)
        solver.observers.append(line)
        try:
            yield
        finally:
            solver.observers.remove(line)


class _Above:
    """A log handler's stream that writes above what rich shows, each line as it is."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def write(self, text: str) -> None:
        self._console.print(
            text, end="", markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def flush(self) -> None:
        """All is written already."""


@contextmanager
def _above(console: Any) -> Iterator[None]:
    """Inside, the log's handlers that write to standard error write above the console's display."""
    found: list[logging.StreamHandler[Any]] = [
        handler
        for handler in log.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    ]
    for handler in found:
        handler.setStream(_Above(console))
    try:
        yield
    finally:
        for handler in found:
            handler.setStream(sys.stderr)
