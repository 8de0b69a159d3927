"""How long did that take? pycaffe's Timer."""

from __future__ import annotations

import logging
import time

from . import device

log = logging.getLogger("pycaffe_lite")


class Timer:
    """A stopwatch: `start()`, `stop()`, then `ms`.

    As in Caffe, starting one that runs changes nothing, and reading one that runs stops it. Both
    `start` and `stop` wait until the device of the current mode is idle, so that the time between
    them is that of the work and not of handing it over.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._ms: float | None = None

    def start(self) -> None:
        """Begin at zero."""
        if self._start is None:
            device.current().synchronize()
            self._start = time.perf_counter()

    def stop(self) -> None:
        """End the time that `start` began; does nothing where none runs."""
        if self._start is not None:
            device.current().synchronize()
            self._ms = 1000 * (time.perf_counter() - self._start)
            self._start = None

    @property
    def ms(self) -> float:
        """Milliseconds between the last start and stop; 0 and a word in the log before."""
        self.stop()
        if self._ms is None:
            log.warning("Timer has never been run before reading time.")
            return 0.0
        return self._ms
