"""How does a training learn of a signal? Asked between its iterations, where it can act on one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EFFECTS = ("stop", "snapshot", "none")


class Signals:
    """A solver's `action`: what the signals that have come since the last call ask for.

    `effects` gives an effect for each signal number, of which the first in it counts first. Each
    signal counts once. The interrupt of the keyboard is KeyboardInterrupt at once where the one
    before was not answered yet or has asked for a stop, which may be hours off or stuck.
    """

    def __init__(self, effects: dict[int, str]) -> None:
        for effect in effects.values():
            if effect not in EFFECTS:
                raise ValueError(f"a signal's effect is one of {', '.join(EFFECTS)}: {effect!r}")
        self.effects = effects
        self._came: dict[int, bool] = dict.fromkeys(effects, False)
        self._stopping = False

    def __call__(self) -> str:
        """What to do now: "stop", "snapshot" or "none"."""
        for number, came in self._came.items():
            if came:
                self._came[number] = False
                if self.effects[number] != "none":
                    self._stopping |= self.effects[number] == "stop"
                    return self.effects[number]
        return "none"

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """A signal has come; Python's handlers have this form."""
        again = self._came[number] or self._stopping
        if number == signal.SIGINT and again and self.effects[number] != "none":
            raise KeyboardInterrupt
        self._came[number] = True


@contextmanager
def handled(sigint: str, sighup: str) -> Iterator[Signals]:
    """Inside, SIGINT and SIGHUP have these effects on a solver that has the result as `action`.

    SIGHUP counts first, as in Caffe; where there is none (Windows), `sighup` is not used. Outside
    the main thread Python can set no handlers, and nothing comes.
    """
    effects = {signal.SIGINT: sigint}
    if hasattr(signal, "SIGHUP"):
        effects = {signal.SIGHUP: sighup, **effects}
    signals = Signals({int(number): effect for number, effect in effects.items()})
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.receive) for number in effects}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: C's own
