"""How many threads work at once? The pool of the CPU kernels and the limit they put on BLAS.

Above about a millisecond of work, tasks on a pool with BLAS held to one thread beat BLAS's own
threads, since gathering and adding then run on all cores too. The limit is taken by the first such
kernel of a scope (`running`), counted over Python threads, and given back when the last scope ends.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np

Task = TypeVar("Task")


# ---- how many -----------------------------------------------------------------------------------

_chosen: int | None = None


def set_num_threads(n: int | None) -> None:
    """Let the CPU kernels use `n` threads; None: as many as `get_num_threads` finds by itself."""
    global _chosen
    if n is not None and n < 1:
        raise ValueError(f"number of threads must be at least 1, got {n}")
    _chosen = n


def get_num_threads() -> int:
    """What was set; else OMP_NUM_THREADS; else the CPUs this process may use.

    A lower limit that the user put on BLAS (threadpoolctl, OPENBLAS_NUM_THREADS) counts on top where
    nothing was set here.
    """
    if _chosen is not None:
        return _chosen
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else _usable_cpus()


def _usable_cpus() -> int:
    """CPUs of the affinity mask, fewer where a cgroup (version 2) grants less time."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return count


# ---- the limit on BLAS --------------------------------------------------------------------------


class _Blas:
    """The limit of one thread, held while any Python thread holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: set[int] = set()
        self.limiter: Any = None
        self.before = 1

    def take(self) -> None:
        """Hold the limit for this Python thread."""
        with self.lock:
            self.holders.add(threading.get_ident())
            if self.limiter is None:
                # As a list: the largest of NumPy's BLAS and SciPy's, should both be loaded.
                libraries = _controller().lib_controllers
                self.before = max((lib.num_threads or 1 for lib in libraries), default=1)
                self.limiter = _controller().limit(limits=1)

    def drop(self) -> None:
        """Give up this Python thread's hold; the last one restores what was set before."""
        with self.lock:
            self.holders.discard(threading.get_ident())
            if not self.holders and self.limiter is not None:
                limiter, self.limiter = self.limiter, None
                limiter.restore_original_limits()


_known_controller: Any = None


def _controller() -> Any:
    """threadpoolctl's view of the BLAS libraries; made once, as it scans every loaded library."""
    global _known_controller
    if _known_controller is None:
        from threadpoolctl import ThreadpoolController  # 12 ms: not at import

        _known_controller = ThreadpoolController().select(user_api="blas")
    return _known_controller


class _Scope(threading.local):
    depth = 0
    holds = False


_blas = _Blas()
_scope = _Scope()


class running:  # noqa: N801 - reads as a function, and costs a third of a generator's entry
    """Scope of one forward or backward: a limit taken inside it is kept until it ends."""

    def __enter__(self) -> None:
        _scope.depth += 1

    def __exit__(self, *exc: object) -> None:
        _scope.depth -= 1
        if _scope.depth == 0 and _scope.holds:
            _scope.holds = False
            _blas.drop()


@contextmanager
def limited() -> Iterator[int]:
    """BLAS has one thread inside, and until the enclosing `running` ends; gives the threads to use."""
    with running():
        if not _scope.holds:
            _scope.holds = True  # first: an interrupt in between then still ends in a drop
            _blas.take()
        yield get_num_threads() if _chosen is not None else min(get_num_threads(), _blas.before)


# ---- the pool -----------------------------------------------------------------------------------


class _Job:
    """Tasks that the caller and its helpers take one by one."""

    def __init__(self, body: Callable[[Any], None], tasks: Sequence[Any]) -> None:
        self.body, self.tasks = body, tasks
        self.next = itertools.count().__next__
        self.lock = threading.Lock()
        self.helpers = 0
        self.closed = False
        self.idle = threading.Event()
        self.error: BaseException | None = None
        self.errstate = {**np.geterr(), "call": np.geterrcall()}

    def work(self) -> None:
        """Take tasks until none is left or one has failed anywhere."""
        while self.error is None and (index := self.next()) < len(self.tasks):
            self.body(self.tasks[index])

    def help(self) -> None:
        """A pool thread's part; nothing where it comes too late."""
        with self.lock:
            if self.closed:
                return
            self.helpers += 1
        try:
            with np.errstate(**self.errstate):
                self.work()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.error = error
        with self.lock:
            self.helpers -= 1
            if self.closed and self.helpers == 0:
                self.idle.set()

    def close(self) -> None:
        """Let no helper in any more and return when those inside have ended, whatever happens."""
        interrupt: BaseException | None = None
        with self.lock:
            self.closed = True
            busy = self.helpers > 0
        while busy and not self.idle.is_set():
            try:
                self.idle.wait()
            except BaseException as error:  # noqa: BLE001 - helpers still write: raise it after
                interrupt = self.error = error
        if interrupt is not None:
            raise interrupt


class _Pool:
    """Daemon threads that wait for jobs; grown to the largest number asked for."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[_Job] = SimpleQueue()
        self.lock = threading.Lock()
        self.helpers: list[threading.Thread] = []
        self.avoided = -1

    def call(self, job: _Job, helpers: int) -> None:
        """Ask `helpers` threads to help."""
        with self.lock:
            while len(self.helpers) < helpers:
                name = f"pycaffe_lite-{len(self.helpers)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self.helpers.append(thread)
                self.avoided = -1
            self._step_aside()
        for _ in range(helpers):
            self.queue.put(job)

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
        for thread in self.helpers:
            if others and thread.native_id is not None:
                with suppress(OSError):
                    os.sched_setaffinity(thread.native_id, others)

    def _serve(self) -> None:
        queue = self.queue
        while True:
            queue.get().help()


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


def run(body: Callable[[Task], None], tasks: Sequence[Task], threads: int) -> None:
    """body(task) for every task on `threads` threads, the caller being one of them.

    Which thread takes which task is not fixed: a task's result must not depend on it. An exception
    of any task is raised here, after all threads have ended their part.
    """
    helpers = min(threads, len(tasks)) - 1
    if helpers < 1:
        for task in tasks:
            body(task)
        return
    job = _Job(body, tasks)
    try:
        _pool.call(job, helpers)
        job.work()
    except BaseException as error:
        job.error = error
        raise
    finally:
        job.close()
    if job.error is not None:
        raise job.error


def _after_fork() -> None:
    """In the child only the forking thread lives: new pool, and only its own hold on BLAS."""
    global _pool
    _pool = _Pool()
    _blas.lock = threading.Lock()
    _blas.holders &= {threading.get_ident()}
    if not _blas.holders:
        _blas.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
