"""Log lines recorded from Caffe's own command line, and reading lines of both generations of glog.

The tiny net of golden/logs is small enough that Caffe's run of it is a few lines.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import h5py
import numpy as np

FOLDER = Path(__file__).parent / "golden" / "logs"
LINE = re.compile(r"([IWEF])(\d{4}|\d{8}) (\d\d:\d\d:\d\d\.\d{6}) +(\d+) ([\w.]+):(\d+)\] (.*)")
NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?(e-?\d+)?(?![\w.])")


def messages(text: str) -> list[str]:
    """What the lines of a log say; those without a prefix go on with the message before."""
    found: list[str] = []
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match:
            found.append(match[7])
        else:
            found[-1] += "\n" + line
    return found


def masked(message: str) -> str:
    """The same with N for each measured number."""
    if message.startswith(("Initializing", "Memory", "Running", "Testing", "Iteration: ")):
        message = re.sub(r"(?m)\.0$", "", message)  # floats in Python's text form
        return re.sub(r"time: \S+ ms", "time: N ms", message)
    head, equals, value = message.partition("= ")
    if equals:
        return head + equals + NUMBER.sub("N", value)
    return NUMBER.sub("N", message)


def recorded(name: str) -> list[str]:
    """The messages of a recorded log, in order."""
    return messages((FOLDER / name).read_text())


def old_reader_time(line: str) -> datetime:
    """As scripts of Caffe's own folder tools/extra read it, by places: `I0131 12:34:56.123456`."""
    first, second = line.strip().split()[:2]
    return datetime.strptime(f"2024 {first[1:3]} {first[3:]} {second}", "%Y %m %d %H:%M:%S.%f")


def write_data(folder: Path, rows: int = 30) -> None:
    """Random data for the tiny net: list.txt with data.h5, data (rows, 5), label (rows)."""
    draw = np.random.default_rng(11)
    with h5py.File(folder / "data.h5", "w") as file:
        file["data"] = draw.normal(size=(rows, 5)).astype("f4")
        file["label"] = draw.integers(0, 4, rows).astype("f4")
    (folder / "list.txt").write_text("data.h5\n")
