"""Trainings that are killed again and again, as a program: `kill_loop.py FOLDER END KILLS WHEN`.

The folder has solver.prototxt; END is "" or ".h5", the end of its snapshots' names. Kills come at
random moments where WHEN is "anytime", while a snapshot is written where it is "snapshot". A
training that reaches its end before it is killed is compared with one that was never killed, and
another begins. The last line says what was done, the status is 0 where all went on as they should.

Trainings are forks of this process: a start of Python a kill would take most of the time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from pycaffe_lite import WeightsError, get_solver  # noqa: F401  (loaded before the forks)
from pycaffe_lite.__main__ import main

FOLDER, END, KILLS, WHEN = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]


def count_of(path: Path) -> int:
    return int(path.name.partition("_iter_")[2].partition(".")[0])


def newest() -> Path | None:
    """The last snapshot in the working directory."""
    return max(Path().glob(f"s_iter_*.solverstate{END}"), key=count_of, default=None)


def start() -> int:
    """A process that trains from the newest snapshot on; its id."""
    child = os.fork()
    if child:
        return child
    state = newest()
    more = [] if state is None else [f"-snapshot={state}"]
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    os._exit(main(["train", "-solver=solver.prototxt", *more]))


def unfinished() -> set[str]:
    """Files that are being written, or that kills have left."""
    return {path.name for path in Path().glob(".s_iter_*")}


def kill(child: int) -> int | None:
    """Kill it at the moment asked for; its status where it ended before."""
    end = time.monotonic() + (random.uniform(0, LENGTH) if WHEN == "anytime" else 60)
    seen, last = unfinished(), random.randint(1, 5)  # a snapshot is two files
    last += len(seen)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if WHEN == "anytime":
            time.sleep(0.0005)
            continue
        seen |= unfinished()
        if len(seen) >= last:
            time.sleep(random.uniform(0, 0.002))
            break
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == -signal.SIGKILL else status


def clear() -> None:
    for path in [*Path().glob("s_iter_*"), *Path().glob(".s_iter_*")]:
        path.unlink()


def content(state: Path) -> list[np.ndarray]:
    """All that a snapshot holds: parameters, history, and whatever else decides what follows."""
    solver = get_solver("solver.prototxt")
    solver.restore(state)
    solver.step(1)  # the next batch and dropout too
    blobs = [blob for blobs in solver.net.params.values() for blob in blobs]
    return [blob.data.copy() for blob in [*blobs, *solver.history]]


def check(state: Path, expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(content(state), expected, strict=True):
        assert ours.tobytes() == theirs.tobytes(), "a killed training ended with other values"


def finish(child: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, Path("log").read_text()[-2000:]


os.chdir(FOLDER)
random.seed(11)
begin = time.monotonic()
finish(start())
LENGTH = time.monotonic() - begin
expected = content(newest())
clear()
kills = ends = resumed = 0
while kills < KILLS:
    resumed += newest() is not None
    status = kill(start())
    if status is None:
        kills += 1
        continue
    assert status == 0, Path("log").read_text()[-2000:]
    check(newest(), expected)
    ends += 1
    clear()
resumed += newest() is not None
finish(start())
check(newest(), expected)
print(f"{kills} kills, {resumed} resumed, {ends + 1} ended")
