"""How do batches get read while the net computes? A thread keeps a few of them ready."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from queue import SimpleQueue
from typing import Any

import numpy as np

Batch = list[np.ndarray]
"""One array a top."""

_Item = tuple[Batch, dict[str, Any], BaseException | None]
_PATIENCE = 5.0  # seconds that ending waits for a batch being read


class Source(ABC):
    """Where batches come from, one after another, without end. It knows no layer and no net.

    All its random numbers come from `rng`, its own generator, so that reading ahead changes none.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    @abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the arrays of the first batch; called before any is read."""

    @abstractmethod
    def read(self) -> Batch:
        """The arrays of the next batch, new ones."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Where the next read stands, in values that JSON can hold; without the generator."""

    @abstractmethod
    def seek(self, position: dict[str, Any]) -> None:
        """Let the next read stand where `position` says; ModelError where it cannot."""

    def close(self) -> None:  # noqa: B027  (most sources keep nothing open)
        """Let go of files; nothing is read afterwards."""

    def state(self) -> dict[str, Any]:
        """What the next read depends on: `position` and the generator, fit for JSON."""
        return {**self.position(), "generator": self.rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Read on as the source did whose `state()` this is."""
        self.seek(state)
        self.rng.bit_generator.state = state["generator"]


class Prefetcher:
    """Hands out a source's batches, `depth` of them read ahead by a thread; 0: without a thread.

    The thread starts with the first `take`, holds the source and nothing else, and ends when the
    Prefetcher is gone, closed, or at the interpreter's exit; nothing waits for it longer than a few
    seconds. The batches are those that the source gives without a thread. Whoever has built a
    Prefetcher leaves the source to it. For use by one thread at a time.
    """

    def __init__(self, source: Source, depth: int) -> None:
        self._source, self._depth = source, depth
        self._state = source.state()
        self._error: BaseException | None = None
        self._worker: _Worker | None = None
        self._running: list[_Worker] = []  # shared with the finalizer, which must not hold self
        self._process = os.getpid()
        self._ended = weakref.finalize(self, _end, source, self._running)

    def take(self) -> Batch:
        """The next batch.

        Raises whatever reading it raised, then and at every later call until `restore`; ValueError
        after `close`.
        """
        if not self._ended.alive:
            raise ValueError("the source of the data is closed")
        if self._process != os.getpid():  # the thread stayed behind in the parent
            self._running.clear()
            self.restore(self._state)
        if self._error is not None:
            raise self._error
        if not self._depth:
            batch, state, error = _read(self._source)
        else:
            if not self._running:
                self._running.append(_Worker(self._source, self._depth))
            batch, state, error = self._running[0].take()
        if error is not None:
            self._error = error
            raise error
        self._state = state
        return batch

    def state(self) -> dict[str, Any]:
        """The source's state after the last batch taken, whatever has been read ahead."""
        return self._state

    def restore(self, state: dict[str, Any]) -> None:
        """The next batch is the one that followed where `state()` gave this; ends an error too.

        What has been read ahead is dropped. Raises what the source's `restore` raises.
        """
        while self._running:
            self._running.pop().end()
        self._source.restore(state)
        self._process, self._state, self._error = os.getpid(), state, None

    def close(self) -> None:
        """End the thread and close the source; happens by itself when the Prefetcher is gone."""
        self._ended()


class _Worker(threading.Thread):
    """The thread: reads a batch for each slot that it is given."""

    def __init__(self, source: Source, depth: int) -> None:
        super().__init__(name="pycaffe_lite prefetch", daemon=True)
        self._source = source
        # Of all queues only these may be put into by a finalizer, whatever its thread was doing.
        self._slots: SimpleQueue[None] = SimpleQueue()
        self._items: SimpleQueue[_Item] = SimpleQueue()
        self._ending = False
        for _ in range(depth):
            self._slots.put(None)
        self.start()

    def run(self) -> None:
        failed = False
        while not failed:
            self._slots.get()
            if self._ending:
                return
            item = _read(self._source)
            failed = item[2] is not None
            self._items.put(item)

    def take(self) -> _Item:
        item = self._items.get()
        self._slots.put(None)
        return item

    def end(self, patience: float | None = None) -> None:
        """Stop after the batch being read, and wait for that."""
        self._ending = True
        self._slots.put(None)
        if threading.current_thread() is not self:  # the collector runs in any thread
            self.join(patience)


def _read(source: Source) -> _Item:
    """The next batch and the state after it, or what went wrong."""
    try:
        return source.read(), source.state(), None
    except BaseException as error:  # whoever takes the batch raises it
        return [], {}, error


def _end(source: Source, running: list[_Worker]) -> None:
    for worker in running:
        worker.end(_PATIENCE)
    if not any(worker.is_alive() for worker in running):
        source.close()
    running.clear()
