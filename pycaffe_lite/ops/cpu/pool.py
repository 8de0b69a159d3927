"""Who works? A pool of threads that help a kernel with its tasks; the caller is one of them."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np

from .threads import limit_helper

Task = TypeVar("Task")
Begin = Callable[[Task], Callable[[], None]]
"""Gets a task ready, quickly and in Python; what it returns does the task, mostly in NumPy."""


class _Job:
    """Tasks in one run a thread, taken one by one: the thread's own, then what others have left.

    Keeping to a run keeps each part of the output in one core's cache from call to call.
    """

    def __init__(self, begin: Begin[Any], tasks: Sequence[Any], threads: int) -> None:
        self.begin = begin
        cuts = [len(tasks) * i // threads for i in range(threads + 1)]
        self.runs = [deque(tasks[a:b]) for a, b in itertools.pairwise(cuts)]
        self.lock = threading.Lock()
        self.helpers = 0
        self.closed = False
        self.left = False
        self.idle = threading.Lock()  # released once the job is closed and no helper is inside
        self.idle.acquire()
        self.error: BaseException | None = None
        self.errstate: Any = {**np.geterr(), "call": np.geterrcall()}

    def work(self, own: int) -> None:
        """Take tasks until none is left or one has failed anywhere."""
        for run, take in (
            (self.runs[own], deque.popleft),
            *((run, deque.pop) for run in self.runs),
        ):
            while run and self.error is None:
                try:
                    task = take(run)
                except IndexError:  # another thread has taken the last one
                    break
                self.begin(task)()

    def help(self, own: int) -> None:
        """A pool thread's part; nothing where it comes too late."""
        with self.lock:
            if self.closed:
                return
            self.helpers += 1
        try:
            with np.errstate(**self.errstate):
                self.work(own)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.error = error
        with self.lock:
            self.helpers -= 1
            if self.closed and self.helpers == 0:
                self.left = True
                self.idle.release()

    def close(self) -> None:
        """Let no helper in any more and return when those inside have ended, whatever happens."""
        interrupt: BaseException | None = None
        with self.lock:
            self.closed = True
            if self.helpers == 0:
                self.left = True
        while not self.left:
            try:
                self.idle.acquire()
            except BaseException as error:  # noqa: BLE001 - helpers still write: raise it after
                interrupt = self.error = error
        if interrupt is not None:
            raise interrupt


class _Pool:
    """Daemon threads that wait for jobs; grown to the largest number asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.helpers: list[tuple[threading.Thread, SimpleQueue[_Job]]] = []
        self.avoided = -1

    def call(self, job: _Job, helpers: int) -> None:
        """Ask `helpers` threads to help."""
        with self.lock:
            self._grow(helpers)
            self._step_aside()
            for _, queue in self.helpers[:helpers]:
                queue.put(job)

    def _grow(self, helpers: int) -> None:
        while len(self.helpers) < helpers:
            own, queue = len(self.helpers) + 1, SimpleQueue[_Job]()
            name = f"pycaffe_lite-{own}"
            thread = threading.Thread(target=_serve, args=(queue, own), name=name, daemon=True)
            thread.start()
            self.helpers.append((thread, queue))
            self.avoided = -1

    def _step_aside(self) -> None:
        """Keep the helpers off the caller's CPU.

        Left alone, a kernel that does not see the CPUs share a cache (virtual machines) wakes a
        helper where it last ran, even beside the caller with all others idle, and both share that
        CPU for milliseconds: the layers of `benchmarks/conv_vs_gemm.py` then take up to twice as
        long. The check costs 1 us, the move, needed only after the caller has moved, 5 us.
        """
        cpu = _current_cpu()
        if cpu == self.avoided:
            return
        self.avoided = cpu
        others = os.sched_getaffinity(0) - {cpu}
        for thread, _ in self.helpers:
            if others and thread.native_id is not None:
                with suppress(OSError):
                    os.sched_setaffinity(thread.native_id, others)


def _serve(queue: SimpleQueue[_Job], own: int) -> None:
    limit_helper()
    while True:
        queue.get().help(own)


def _find_current_cpu() -> Callable[[], int]:
    """sched_getcpu of the C library, or a function that gives -1."""
    try:
        call = ctypes.PyDLL(None).sched_getcpu
        os.sched_getaffinity(0)
    except (AttributeError, OSError, TypeError):
        return lambda: -1
    call.restype, call.argtypes = ctypes.c_int, ()
    return cast(Callable[[], int], call)


_current_cpu = _find_current_cpu()
_pool = _Pool()


def run(begin: Begin[Task], tasks: Sequence[Task], threads: int) -> None:
    """begin(task)() for every task on `threads` threads, the caller being one of them.

    Which thread takes which task is not fixed: a task's result must not depend on it. An exception
    of any task is raised here, after all threads have ended their part.
    """
    threads = min(threads, len(tasks))
    if threads < 2:
        for task in tasks:
            begin(task)()
        return
    job = _Job(begin, tasks, threads)
    try:
        # The caller's first task is made ready before the helpers wake up: by the time they want
        # the interpreter, 20 to 65 us later, it is inside NumPy. Otherwise each waits for the other
        # two or three times, asleep, for 50 us each.
        first = begin(job.runs[0].popleft())
        _pool.call(job, threads - 1)
        first()
        job.work(0)
    except BaseException as error:
        job.error = error
        raise
    finally:
        job.close()
    if job.error is not None:
        raise job.error


def _after_fork() -> None:
    """In the child only the forking thread lives."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
