"""pycaffe's functions of the module itself: the log, several solvers, the timer."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator

import pytest
from fake_device import FakeOps

import pycaffe_lite as caffe
from pycaffe_lite import device

LOGGER = logging.getLogger("pycaffe_lite")


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What was written to stderr since the last call; the log is afterwards as it was."""
    level = LOGGER.level
    yield lambda: capsys.readouterr().err
    caffe.init_log()
    LOGGER.setLevel(level)


# ---- the log ------------------------------------------------------------------------------------


def test_the_log_is_quiet_until_asked_for(stderr: Callable[[], str]) -> None:
    caffe.log("one")
    caffe.init_log()
    caffe.log("two")
    caffe.init_log(0, False)
    caffe.log("three")
    assert stderr() == ""


def test_log_lines_are_those_of_glog(stderr: Callable[[], str]) -> None:
    caffe.init_log(0, True)
    caffe.log("Using devices [0] 100 %s")
    LOGGER.warning("slow")
    LOGGER.error("bad")
    LOGGER.critical("worse")
    lines = stderr().splitlines()
    shape = r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_module_functions\.py:\d+\] (.*)"
    found = [re.fullmatch(shape, line) for line in lines]
    said = [m.groups() if m else None for m in found]
    text = "Using devices [0] 100 %s"
    assert said == [("I", text), ("W", "slow"), ("E", "bad"), ("F", "worse")]


@pytest.mark.parametrize(("level", "seen"), [(0, "IWEF"), (1, "WEF"), (2, "EF"), (3, "F")])
def test_log_level(stderr: Callable[[], str], level: int, seen: str) -> None:
    caffe.init_log(level, stderr=True)
    caffe.log("a")
    for write in (LOGGER.warning, LOGGER.error, LOGGER.critical):
        write("a")
    assert "".join(line[0] for line in stderr().splitlines()) == seen


def test_a_second_init_log_replaces_the_first(stderr: Callable[[], str]) -> None:
    caffe.init_log(0, True)
    caffe.init_log(0, True)
    caffe.log("once")
    assert stderr().count("once") == 1
    caffe.init_log(0)
    caffe.log("unseen")
    assert "unseen" not in stderr()


def test_the_log_is_pythons(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        caffe.log("to whoever listens")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pycaffe_lite", logging.INFO)
    assert record.getMessage() == "to whoever listens"


@pytest.mark.parametrize("level", [-1, 4])
def test_unknown_log_level(level: int) -> None:
    with pytest.raises(ValueError, match=rf"0 \(info\) to 3 \(fatal\), got {level}"):
        caffe.init_log(level)


# ---- several solvers ----------------------------------------------------------------------------


def test_solvers() -> None:
    assert (caffe.solver_count(), caffe.solver_rank()) == (1, 0)
    try:
        caffe.set_solver_rank(2)
        caffe.set_solver_count(3)
        caffe.set_multiprocess(True)
        assert (caffe.solver_count(), caffe.solver_rank()) == (3, 2)
        with pytest.raises(ValueError, match="at least 1, got 0"):
            caffe.set_solver_count(0)
        with pytest.raises(ValueError, match="not be negative, got -1"):
            caffe.set_solver_rank(-1)
        assert (caffe.solver_count(), caffe.solver_rank()) == (3, 2)
    finally:
        caffe.set_solver_rank(0)
        caffe.set_solver_count(1)


def test_no_nccl() -> None:
    assert caffe.has_nccl() is False


# ---- Timer --------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the clock says, one after the other."""
    ticks: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: ticks.pop(0))
    return ticks


def test_timer(clock: list[float]) -> None:
    timer = caffe.Timer()
    clock += [10.0, 10.25]
    timer.start()
    timer.stop()
    assert timer.ms == 250
    assert timer.ms == 250
    timer.stop()  # it does not run
    assert timer.ms == 250
    clock += [20.0, 20.5]
    timer.start()
    timer.start()  # it runs already
    assert timer.ms == 500  # reading stops it
    assert clock == []


def test_timer_measures_time() -> None:
    timer = caffe.Timer()
    timer.start()
    time.sleep(0.02)
    timer.stop()
    assert 19 < timer.ms < 5000


def test_timer_that_never_ran(caplog: pytest.LogCaptureFixture) -> None:
    assert caffe.Timer().ms == 0
    assert "Timer has never been run before reading time." in caplog.text


def test_timer_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    ops, waits = FakeOps(), []
    monkeypatch.setattr(ops, "synchronize", lambda: waits.append(1))
    timer = caffe.Timer()
    with device.pretend(ops):
        timer.start()
        assert len(waits) == 1
        timer.stop()
    assert len(waits) == 2
