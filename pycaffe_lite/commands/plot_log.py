"""Draw what logs of training say: `plot-log LOG... -o curves.png`, or write it as CSV.

Logs of any Caffe or of this package, and the files of `train -log_csv`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..replacement import replacing

if TYPE_CHECKING:
    from ..logs.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pycaffe-lite plot-log`."""
    parser.add_argument("logs", metavar="LOG", nargs="+", help="a log, or a CSV of train -log_csv")
    parser.add_argument(
        "-o", "--output", type=_png, metavar="FILE.png", help="draw all logs there (matplotlib)"
    )
    parser.add_argument(
        "--x",
        choices=["iterations", "seconds"],
        default="iterations",
        help="the horizontal axis; default: iterations",
    )
    parser.add_argument("--log-loss", action="store_true", help="losses on a logarithmic axis")
    parser.add_argument(
        "--csv", type=Path, metavar="DIR", help="write DIR/<log>.train and .test, as parse_log.py"
    )
    parser.set_defaults(refuse=parser.error)


def run(args: argparse.Namespace) -> int:
    """Read all logs, then write. Raises as `read_log` does, OSError for what cannot be written,
    RuntimeError without matplotlib or where the axis is seconds and a log has no times."""
    from ..logs import plot as log_plot
    from ..logs.reader import read_log

    if args.output is None and args.csv is None:
        args.refuse("nothing to do: give -o FILE.png, --csv DIR or both")
    if args.output:
        log_plot.require()
    logs = [(Path(path), read_log(path)) for path in args.logs]
    if args.output:
        runs = _named(logs)
        if args.x == "seconds":
            _check_times(runs)
        _write(args.output, log_plot.png(runs, args.x, args.log_loss))
    if args.csv:
        _write_csv(args.csv, logs)
    return 0


def _named(logs: Sequence[tuple[Path, list[Run]]]) -> list[tuple[str, Run]]:
    """Each run with the name of its log: of the file, or the whole path where files share it."""
    count = Counter(path.name for path, _ in logs)
    named = []
    for path, runs in logs:
        name = path.name if count[path.name] == 1 else str(path)
        for k, each in enumerate(runs):
            named.append((f"{name}, run {k + 1}" if len(runs) > 1 else name, each))
    return named


def _check_times(runs: Sequence[tuple[str, Run]]) -> None:
    for name, each in runs:
        if any(row.seconds != row.seconds for row in each.rows()):
            raise RuntimeError(f"{name}: its lines say no times; draw it with --x iterations")


def _write_csv(folder: Path, logs: Sequence[tuple[Path, list[Run]]]) -> None:
    from ..logs import csv_tables as log_csv

    folder.mkdir(parents=True, exist_ok=True)
    for path, runs in logs:
        for k, each in enumerate(runs):
            stem = f"{path.name}.run{k + 1}" if len(runs) > 1 else path.name
            tables = {"train": each.train}
            for index, rows in each.tests.items():
                tables[f"test{index or ''}"] = rows
            for kind, rows in tables.items():
                _write(folder / f"{stem}.{kind}", log_csv.write(rows).encode())


def _png(text: str) -> Path:
    if Path(text).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png")
    return Path(text)


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    print(f"wrote {path}", file=sys.stderr)
