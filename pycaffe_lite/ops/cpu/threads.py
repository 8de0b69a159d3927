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
        self.before: list[tuple[Any, int]] = []

    def take(self) -> None:
        """Hold the limit for this Python thread."""
        libraries = _libraries()
        with self.lock:
            self.holders.add(threading.get_ident())
            if not self.before:
                # Not threadpoolctl's own limiter: it reads all about a library, for 150 us not 2.
                self.before = [(library, library.num_threads or 1) for library in libraries]
                for library, _ in self.before:
                    library.set_num_threads(1)

    def drop(self) -> None:
        """Give up this Python thread's hold; the last one restores what was set before."""
        with self.lock:
            self.holders.discard(threading.get_ident())
            if not self.holders:
                for library, number in self.before:
                    library.set_num_threads(number)
                self.before = []

    def allowed(self) -> int:
        """The user's limit, while held."""
        return max((number for _, number in self.before), default=get_num_threads())


_known_libraries: list[Any] | None = None


def _libraries() -> list[Any]:
    """The BLAS libraries; found once, as threadpoolctl looks through every loaded library."""
    global _known_libraries
    if _known_libraries is None:
        from threadpoolctl import ThreadpoolController  # 12 ms: not at import

        _known_libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return _known_libraries


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
    """BLAS has one thread inside and until the end of `running`; gives the threads to use."""
    with running():
        if not _scope.holds:
            _scope.holds = True  # first: an interrupt in between then still ends in a drop
            _blas.take()
        yield get_num_threads() if _chosen is not None else min(get_num_threads(), _blas.allowed())


def _after_fork() -> None:
    """In the child only the forking thread lives, and only its own hold on BLAS."""
    _blas.lock = threading.Lock()
    _blas.holders &= {threading.get_ident()}
    if not _blas.holders:
        _blas.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
