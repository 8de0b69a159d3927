"""How are trainings kept as CSV? Rows of numbers under a header that names them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

from .run import Row, Run, Runs

_ITERATION = ("iteration", "numiters")
_SECONDS = ("seconds",)
_RATE = ("learning_rate", "learningrate")


def is_header(line: str) -> bool:
    """True for the first line of such a file: names with commas between, one of them iterations."""
    return "," in line and any(name.strip().lower() in _ITERATION for name in line.split(","))


def read(lines: Iterable[str], is_test: bool = False) -> list[Run]:
    """The trainings in lines of CSV, the header first, then a row for each display and each test.

    As `train -log_csv` writes them, columns `iteration,phase,seconds,learning_rate,smoothed_loss`
    and the outputs, phase being "train", "test", "test 1" for the second test net and so on; or as
    Caffe's parse_log.py does, where `is_test` says what the rows are. Rows of a killed process that
    have lost their end are left out.
    """
    table = csv.reader(lines)
    header = [name.strip() for name in next(table)]
    runs, before = Runs(), math.inf
    for cells in table:
        if len(cells) == len(header):
            row = _Cells(dict(zip(header, cells, strict=True)))
            seconds = row.take(*_SECONDS)
            phase, _, index = row.text("phase").partition(" ")
            tests = is_test if not phase else phase == "test"
            test = (int(index) if index.isdecimal() else 0) if tests else None
            _add(row, runs, seconds, test, started=seconds < before)
            before = seconds
    return runs.found


def _add(cells: _Cells, runs: Runs, seconds: float, test: int | None, started: bool) -> None:
    """Put a row of training, or of test net number `test`, where it belongs; one without a number
    of iterations nowhere."""
    iteration, rate = cells.take(*_ITERATION), cells.take(*_RATE)
    loss = cells.take("smoothed_loss")
    if not math.isfinite(iteration):
        return
    runs.reach(int(iteration), started)
    row = Row(int(iteration), runs.offset + seconds, cells.outputs())
    if not math.isnan(rate):
        runs.current.rates.append((row.iteration, rate))
    if test is not None:
        runs.current.tests.setdefault(test, []).append(row)
    else:
        row.loss = None if math.isnan(loss) else loss
        runs.current.train.append(row)


class _Cells:
    """The cells of one row by their columns' names, which are taken one after the other."""

    def __init__(self, cells: dict[str, str]) -> None:
        self._cells = cells

    def text(self, name: str) -> str:
        """The cell of that column, empty without one."""
        return self._cells.pop(name, "")

    def take(self, *names: str) -> float:
        """The number of the column with one of these names, in lower case; NaN without any."""
        for name in list(self._cells):
            if name.lower() in names:
                return _number(self._cells.pop(name))
        return math.nan

    def outputs(self) -> dict[str, float]:
        """The numbers of all columns left; empty cells are none."""
        return {name: _number(text) for name, text in self._cells.items() if text.strip()}


def write(rows: Iterable[Row]) -> str:
    """The rows as Caffe's parse_log.py writes them: NumIters,Seconds,LearningRate, then outputs.

    The smoothed loss is in it, as `loss`, only where no row has outputs.
    """
    rows = list(rows)
    if any(row.outputs for row in rows):
        table = [(row, row.outputs) for row in rows if row.outputs]
    else:
        table = [(row, {} if row.loss is None else {"loss": row.loss}) for row in rows]
    names = list(dict.fromkeys(name for _, outputs in table for name in outputs))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["NumIters", "Seconds", "LearningRate", *names])
    for row, outputs in table:
        values = [outputs.get(name, "") for name in names]
        writer.writerow([float(row.iteration), row.seconds, row.rate, *values])
    return text.getvalue()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
