"""What does a training log say? Losses, outputs and learning rates over iterations and seconds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from ..errors import MissingFileError, ModelError
from . import csv_tables as log_csv
from .run import Row, Run, Runs

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_WORDS = ("Iteration ", " net output #", "Test score #", "Solving ")
# Speed stands between number and loss in Caffe of 2017, and more in NVIDIA's.
_VALUE = re.compile(rf"Iteration (\d+)\b[^=]*?, (loss|lr) = {_NUMBER}")
_TESTING = re.compile(r"Iteration (\d+), Testing net(?: \(#(\d+)\))?")
_OUTPUT = re.compile(rf"(Train|Test) net output #\d+: (.+?) = {_NUMBER}( \(\* )?")
_SCORE = re.compile(rf"Test (score) #(\d+): {_NUMBER}")  # before outputs had names
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)[.,](?P<fraction>\d{1,6})"
_GLOG = re.compile(
    rf"[IWEF](?P<year>\d{{4}})?(?P<month>\d\d)(?P<day>\d\d) {_CLOCK} +\d+ [^\]\s]+\] "
)
_ISO = re.compile(rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[ T]{_CLOCK}")

_Stamp = tuple[int | None, tuple[int, int, int, int, int, int]]
"""A year where the log has it; month, day, hour, minute, second, microsecond."""


def read_log(path: str | os.PathLike[str]) -> list[Run]:
    """The trainings in a log: of any Caffe or pycaffe_lite, or the CSV of `train --log-csv`.

    Lines may begin as glog of either generation writes them, with a date as Python's logging
    writes it, or with no time. What a training that was resumed in the same file computes anew
    counts once; one that begins again is a run of its own. A last line without an end, of a
    training that was interrupted, is left out. Raises MissingFileError, and ModelError where the
    file has no such lines.
    """
    name = os.fspath(path)
    try:
        lines: Iterator[str] = _lines(Path(path))
        first = next(lines, "")
    except FileNotFoundError:
        raise MissingFileError(f"log not found: {name}; looked in {Path.cwd()}") from None
    lines = chain([first], lines)
    if log_csv.is_header(first):
        runs = log_csv.read(lines, is_test=name.endswith(".test"))
    else:
        runs = _read_text(lines)
    for run in runs:
        run.drop_empty()
    runs = [run for run in runs if run.rows()]
    if not runs:
        raise ModelError(
            f"{name} is no training log: it has no line like 'Iteration 100, loss = 0.5' or"
            " 'Test net output #0: accuracy = 0.9'"
        )
    for run in runs:
        run.set_rates()
    return runs


def _lines(path: Path) -> Iterator[str]:
    """The complete lines of a text file, without their ends."""
    with path.open("rb") as file:
        start = file.read(2)
    encoding = "utf-16" if start == b"\xff\xfe" else "utf-8-sig"  # PowerShell's `>` writes UTF-16
    with path.open(encoding=encoding, errors="replace", newline=None) as text:
        for line in text:
            if line.endswith("\n"):
                yield line[:-1]


# ---- text ---------------------------------------------------------------------------------------


def _read_text(lines: Iterable[str]) -> list[Run]:
    stamps, messages = [], []
    for line in lines:
        if any(word in line for word in _WORDS):
            stamp, message = _split(line)
            stamps.append(stamp)
            messages.append(message)
    reader = _Reader()
    for moment, message in zip(_moments(stamps), messages, strict=True):
        reader.take(moment, message)
    return reader.runs.found


def _split(line: str) -> tuple[_Stamp | None, str]:
    """When a line was written, and what it says.

    Where a process ended within a line and another went on there, the second's counts.
    """
    match = next(reversed(list(_GLOG.finditer(line))), None)
    message = line[match.end() :] if match else line
    match = match or _ISO.search(line)
    if match is None:
        return None, message
    month, day, hour, minute, second = (
        int(match[name]) for name in ("month", "day", "hour", "minute", "second")
    )
    micros = int(match["fraction"].ljust(6, "0"))
    year = int(match["year"]) if match["year"] else None
    return (year, (month, day, hour, minute, second, micros)), message


def _moments(stamps: list[_Stamp | None]) -> list[datetime | None]:
    """When each line was written; the year is anyone in which all the days exist."""
    for first in range(2001, 2005):
        try:
            return list(_in_years_from(first, stamps))
        except ValueError:  # no 29th of February in that year
            continue
    return [None] * len(stamps)


def _in_years_from(year: int, stamps: Iterable[_Stamp | None]) -> Iterator[datetime | None]:
    before = None
    for stamp in stamps:
        if stamp is None:
            yield None
            continue
        known, rest = stamp
        moment = datetime(known or year, *rest)
        # Half a year back is a new year; less is a clock that was set, say to winter time.
        if known is None and before is not None and before - moment > timedelta(days=180):
            year += 1
            moment = datetime(year, *rest)
        before = moment
        yield moment


class _Reader:
    """Takes one line after the other; `runs` are what they came to."""

    def __init__(self) -> None:
        self.runs = Runs()
        self._now: datetime | None = None
        self._elapsed = timedelta(0)
        """Since the process that writes began to solve."""
        self._starting = True
        self._rows: dict[str, Row] = {}

    def take(self, moment: datetime | None, message: str) -> None:
        """Read what a line says; `moment` is when it was written."""
        self._tick(moment)
        if match := _VALUE.search(message):
            self._reach(int(match[1]))
            if match[2] == "lr":
                self.runs.current.rates.append((int(match[1]), float(match[3])))
            else:
                row = self._row("Train", int(match[1]), self.runs.current.train)
                row.loss = float(match[3])
        elif match := _TESTING.search(message):
            self._reach(int(match[1]))
            rows = self.runs.current.tests.setdefault(int(match[2] or 0), [])
            self._row("Test", int(match[1]), rows)
        elif match := _OUTPUT.search(message):
            self._add(match[1], match[2], float(match[3]))
            if match[1] in self._rows and match[4]:
                self.runs.current.losses.add(match[2])
        elif match := _SCORE.search(message):
            self._add("Test", f"{match[1]} {match[2]}", float(match[3]))
        elif "Solving " in message:
            self._elapsed, self._starting = timedelta(0), True

    def _tick(self, moment: datetime | None) -> None:
        if moment is not None and self._now is not None:
            # A clock that is set back, to winter time say, stands still: curves never turn round.
            self._elapsed += max(moment - self._now, timedelta(0))
        self._now = moment

    def _reach(self, iteration: int) -> None:
        if self.runs.reach(iteration, self._starting):
            if not self._starting:  # the line that says so is cut off
                self._elapsed = timedelta(0)
            self._starting, self._rows = False, {}

    def _row(self, kind: str, iteration: int, rows: list[Row]) -> Row:
        row = self._rows[kind] = Row(iteration, self._seconds())
        rows.append(row)
        return row

    def _add(self, kind: str, name: str, value: float) -> None:
        row = self._rows.get(kind)
        if row is None:  # the line that it belongs to is cut off
            return
        if not row.outputs:
            row.seconds = self._seconds()  # after the test's batches, as parse_log.py's
        row.add(name, value)

    def _seconds(self) -> float:
        if self._now is None:
            return math.nan
        return self.runs.offset + self._elapsed.total_seconds()
