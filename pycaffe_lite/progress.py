"""How does long work show how far it is? A bar on the terminal, where there is one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show `what` and how much of `total` steps is done; gives what to call with steps done since.

    None is a total that nobody knows.
    Nothing is shown where standard error is no terminal or rich (the extra [cli]) is missing. The
    bar is gone when the block ends.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield _nothing
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        yield _nothing
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(what, total=total)
        yield lambda steps: display.advance(task, steps)


def _nothing(steps: int) -> None:
    """What is called where nothing is shown."""
