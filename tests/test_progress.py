"""The progress bar: on a terminal only."""

from __future__ import annotations

import io
import sys

import pytest

from pycaffe_lite.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work():
    with progress("3 [red] files", 3) as advance:
        for _ in range(3):
            advance(1)
    return sys.stderr.getvalue() if sys.stderr else ""


def test_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    text = work()
    assert "3 [red] files" in text
    assert "3/3" in text


def test_where_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert work() == ""
    monkeypatch.setattr(sys, "stderr", None)
    assert work() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert work() == ""


def test_an_error_passes_through(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(TypeError), progress("x", 2) as advance:
        advance("no number")
