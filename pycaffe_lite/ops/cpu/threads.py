"""How many threads may work? Their number, and the limit put on BLAS while they do.

Above a fraction of a millisecond of work, tasks on a pool with BLAS held to one thread beat BLAS's
own threads, since gathering then runs on all cores too. The limit is taken by the first such kernel
of a scope (`running`), counted over Python threads, and given back when the last scope ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

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

    Where nothing was set, a lower limit that the user put on BLAS (threadpoolctl,
    OPENBLAS_NUM_THREADS) counts too.
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
    return min(count, _quota() or count)


@cache
def _quota() -> int | None:
    """CPUs that a cgroup (version 2) grants, read once: kernels ask each time."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return None


# ---- the limit on BLAS --------------------------------------------------------------------------


class _Blas:
    """The limit of one thread on the libraries that have one for the process: held while any Python
    thread holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: set[int] = set()
        self.before: Numbers = []

    def take(self) -> None:
        """Hold the limit for this Python thread."""
        shared, _ = _libraries()
        with self.lock:
            self.holders.add(threading.get_ident())
            if not self.before:
                self.before = _lower(shared)

    def drop(self) -> None:
        """Give up this Python thread's hold; the last one restores what was set before."""
        with self.lock:
            self.holders.discard(threading.get_ident())
            if not self.holders:
                _restore(self.before)
                self.before = []


Numbers = list[tuple[Any, int]]
"""Libraries and their numbers of threads."""


def _lower(libraries: list[Any]) -> Numbers:
    """One thread each; what was set before.

    Not by threadpoolctl's own limiter, which reads all about a library first, 150 us not 2.
    """
    before = [(library, library.num_threads or 1) for library in libraries]
    _restore([(library, 1) for library in libraries])
    return before


def _restore(numbers: Numbers) -> None:
    for library, number in numbers:
        # From threadpoolctl 3.8 on the public method does nothing, silently, in all threads but the
        # first that called it; a count over threads needs the last of them to restore.
        setter = getattr(library, "_real_set_num_threads", library.set_num_threads)
        setter(number)


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """BLAS libraries with one limit for the process, and with one a thread (OpenBLAS on OpenMP).

    Found once, as threadpoolctl looks through every loaded library.
    """
    from threadpoolctl import ThreadpoolController  # 12 ms: not at import

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    shared: list[Any] = []
    own: list[Any] = []
    for library in found:
        per_thread = getattr(library, "threading_layer", None) == "openmp"
        (own if per_thread and library.internal_api == "openblas" else shared).append(library)
    return shared, own


def limit_helper() -> None:
    """In a thread of our own: one thread, for good, of the libraries with a limit a thread."""
    _lower(_libraries()[1])


class _Scope(threading.local):
    depth = 0
    holds = False
    before: Numbers = []  # never changed in place


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
            before, _scope.before = _scope.before, []
            _restore(before)
            _blas.drop()


@contextmanager
def limited() -> Iterator[int]:
    """BLAS has one thread inside and until the end of `running`; gives the threads to use."""
    with running():
        if not _scope.holds:
            _scope.holds = True  # first: an interrupt in between then still ends in a drop
            _blas.take()
            _scope.before = _lower(_libraries()[1])
        yield _chosen if _chosen is not None else min(get_num_threads(), _allowed())


def is_limited() -> bool:
    """True where a kernel of this scope has taken the limit."""
    return _scope.holds


def _allowed() -> int:
    """The user's limit on BLAS, while ours is held."""
    numbers = [number for _, number in (*_blas.before, *_scope.before)]
    return max(numbers, default=get_num_threads())


def _after_fork() -> None:
    """In the child only the forking thread lives, and only its own hold on BLAS."""
    _blas.lock = threading.Lock()
    _blas.holders &= {threading.get_ident()}
    if not _blas.holders:
        _blas.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
