"""Signals as a solver's action."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pycaffe_lite.training.signals import Signals, handled

INT, HUP = int(signal.SIGINT), int(getattr(signal, "SIGHUP", 1))
needs_hangup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")


@pytest.mark.parametrize("effect", ["stop", "snapshot", "none"])
def test_each_signal_counts_once(effect):
    signals = Signals({INT: effect})
    assert signals() == "none"
    signals.receive(INT)
    assert signals() == effect
    assert signals() == "none"


def test_hangup_counts_first():
    signals = Signals({HUP: "snapshot", INT: "stop"})
    signals.receive(INT)
    signals.receive(HUP)
    assert [signals(), signals(), signals()] == ["snapshot", "stop", "none"]


def test_a_signal_without_effect_hides_no_other():
    signals = Signals({HUP: "none", INT: "stop"})
    signals.receive(HUP)
    signals.receive(INT)
    assert signals() == "stop"


@pytest.mark.parametrize("answered", [False, True])
def test_a_second_interrupt_ends_at_once(answered):
    signals = Signals({INT: "stop"})
    signals.receive(INT)
    if answered:
        assert signals() == "stop"
    with pytest.raises(KeyboardInterrupt):
        signals.receive(INT)


def test_snapshots_can_be_asked_for_again_and_again():
    signals = Signals({INT: "snapshot"})
    for _ in range(3):
        signals.receive(INT)
        assert signals() == "snapshot"
    signals.receive(INT)
    with pytest.raises(KeyboardInterrupt):
        signals.receive(INT)


def test_an_interrupt_without_effect_never_ends():
    signals = Signals({INT: "none"})
    for _ in range(3):
        signals.receive(INT)
    assert signals() == "none"


def test_hangups_never_end_at_once():
    signals = Signals({HUP: "stop"})
    signals.receive(HUP)
    signals.receive(HUP)
    assert signals() == "stop"
    signals.receive(HUP)


def test_an_unknown_effect():
    with pytest.raises(ValueError, match="one of stop, snapshot, none: 'sotp'"):
        Signals({INT: "sotp"})


@needs_hangup
def test_handlers_are_set_and_put_back():
    before = signal.getsignal(INT), signal.getsignal(HUP)
    with handled("snapshot", "stop") as signals:
        os.kill(os.getpid(), INT)
        assert signals() == "snapshot"
        os.kill(os.getpid(), HUP)
        assert signals() == "stop"
    assert (signal.getsignal(INT), signal.getsignal(HUP)) == before


def test_a_stopped_training_can_be_killed_by_the_keyboard():
    before = signal.getsignal(INT)

    def interrupt_twice():
        with handled("stop", "none"):
            os.kill(os.getpid(), INT)
            os.kill(os.getpid(), INT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert signal.getsignal(INT) == before


def test_in_another_thread_nothing_comes():
    found = []

    def work():
        with handled("stop", "snapshot") as signals:
            found.append(signals())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["none"]
