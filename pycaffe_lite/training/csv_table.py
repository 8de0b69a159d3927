"""How does a training's course get into a table? A row a display and a test, as they come."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ModelError
from .observer import TrainingObserver

if TYPE_CHECKING:
    from ..net import Net
    from .solver import Solver

log = logging.getLogger("pycaffe_lite")

PathLike = str | os.PathLike[str]

COLUMNS = ("iteration", "phase", "seconds", "learning_rate", "smoothed_loss")
"""What each row begins with; a column for each number of each net's outputs follows."""

_OUTPUT = re.compile(r"    Test net output #\d+: (.*?) = (\S+)(?: \(\* .* loss\))?")


class TrainingCsv(TrainingObserver):
    """Appends a row to a CSV file at each display and each test of a solver.

    A row of phase "train" has the smoothed loss and the outputs of that iteration. One of phase
    "test", or "test 1" for the second test net, has the mean loss, where the solver computes it,
    and the means of the outputs, in the log's six digits. An output of several numbers is in
    columns `name`, `name[1]` and so on. What a row does not know is empty. `seconds` count from the
    making of this object on. The header is written once, where the file is new or empty. Each row
    is handed to the system when it is written; one that a kill has cut off is ended before the
    next.

    Raises OSError for a file that cannot be written now, and ModelError for one with another
    header; a row that cannot be written later is a warning, and no more are tried.
    """

    def __init__(self, path: PathLike, solver: Solver) -> None:
        self.path = Path(path)
        param = solver.param
        self._train = _names(solver.net, single=False)
        detects = param.eval_type == "detection"  # then an output has one value, its precision
        tests = [_names(net, single=detects) for net in solver.test_nets]
        outputs = dict.fromkeys(name for names in (self._train, *tests) for name in names)
        self._columns = [*COLUMNS, *outputs]
        self._start = time.perf_counter()
        self._failed = False
        self._append(self._beginning())

    def _beginning(self) -> str:
        """What must be appended before the first row."""
        header = _line(self._columns)
        if not self.path.exists() or not self.path.is_file() or not self.path.stat().st_size:
            return header
        with self.path.open("rb") as file:
            found = file.readline().decode(errors="replace").replace("\r\n", "\n")
            file.seek(-1, os.SEEK_END)
            is_ended = file.read() == b"\n"
        if found.rstrip("\n") != header.rstrip("\n"):
            raise ModelError(
                f"cannot append to {self.path}: its columns are {found.strip()[:200]!r}, this"
                f" training's {header.strip()[:200]!r}; give another file"
            )
        return "" if is_ended else "\n"

    def displayed(self, solver: Solver) -> None:
        net, row = solver.net, self._row(solver, "train")
        row["smoothed_loss"] = _number(solver.smoothed_loss)
        for name in net.outputs:
            values = net.blobs[name].data.reshape(-1).tolist()
            row |= zip(_keys(name, len(values)), map(_number, values), strict=True)
        self._write(row)

    def tested(self, solver: Solver, index: int, loss: float | None, lines: Sequence[str]) -> None:
        row = self._row(solver, f"test {index}" if index else "test")
        row["smoothed_loss"] = "" if loss is None else _number(loss)
        found: dict[str, list[str]] = {}
        for match in filter(None, map(_OUTPUT.fullmatch, lines)):
            found.setdefault(match[1], []).append(match[2])
        for name, values in found.items():
            row |= zip(_keys(name, len(values)), values, strict=True)
        self._write(row)

    def _row(self, solver: Solver, phase: str) -> dict[str, str]:
        return {
            "iteration": str(solver.iter),
            "phase": phase,
            "seconds": f"{time.perf_counter() - self._start:.6f}",
            "learning_rate": "" if solver.last_lr is None else _number(solver.last_lr),
        }

    def _write(self, row: dict[str, str]) -> None:
        if self._failed:
            return
        try:
            self._append(_line(row.get(column, "") for column in self._columns))
        except OSError as error:
            self._failed = True
            log.warning("%s: no more rows are written: %s", self.path, error)

    def _append(self, text: str) -> None:
        """In one piece, so that a kill or another writer hardly ever comes between."""
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode())


def _names(net: Net, single: bool) -> list[str]:
    return [
        key for name in net.outputs for key in _keys(name, 1 if single else net.blobs[name].count)
    ]


def _keys(name: str, count: int) -> Iterator[str]:
    """The columns of an output."""
    shown = f"output {name}" if name in COLUMNS else name
    return (f"{shown}[{k}]" if k else shown for k in range(count))


def _number(value: float) -> str:
    return str(np.float32(value))  # as few digits as tell it from all others


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
