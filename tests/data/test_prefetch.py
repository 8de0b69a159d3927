"""Prefetcher: the source's batches in order, read ahead; states; errors; when the thread ends."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

from pycaffe_lite.data.prefetch import Prefetcher, Source

THREAD = "pycaffe_lite prefetch"


class Counting(Source):
    """Batch k holds k and a random number; `fails_at` raises instead."""

    def __init__(self, fails_at=None, error=ValueError):
        super().__init__(seed=11)
        self.count, self.reads, self.closed = 0, 0, 0
        self.fails_at, self.error = fails_at, error
        self.threads = set()

    def shapes(self):
        return [(2,)]

    def read(self):
        self.threads.add(threading.get_ident())
        if self.count == self.fails_at:
            raise self.error
        batch = [np.array([self.count, self.rng.integers(1000)])]
        self.count += 1
        self.reads += 1
        return batch

    def position(self):
        return {"count": self.count}

    def seek(self, position):
        self.count = position["count"]

    def close(self):
        self.closed += 1


def taken(prefetcher, count):
    return [tuple(map(int, prefetcher.take()[0])) for _ in range(count)]


def plain(count):
    """What the source gives without a Prefetcher."""
    source = Counting()
    return [tuple(map(int, source.read()[0])) for _ in range(count)]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def wait_until(true):
    for _ in range(2000):
        if true():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen")


@pytest.fixture(autouse=True)
def _no_thread_left():
    assert threads() == []
    yield
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_the_batches_of_the_source(depth):
    assert taken(Prefetcher(Counting(), depth), 20) == plain(20)


def test_as_many_as_depth_are_read_ahead_by_one_other_thread():
    source = Counting()
    prefetcher = Prefetcher(source, 3)
    assert threads() == []
    assert source.reads == 0
    for k in range(1, 6):
        prefetcher.take()
        wait_until(lambda k=k: source.reads == k + 3)
    time.sleep(0.01)
    assert source.reads == 8
    assert len(source.threads) == len(threads()) == 1
    assert threading.get_ident() not in source.threads


def test_without_depth_there_is_no_thread():
    source = Counting()
    taken(Prefetcher(source, 0), 3)
    assert source.threads == {threading.get_ident()}


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_the_state_is_that_after_the_last_batch_taken(depth, before):
    prefetcher = Prefetcher(Counting(), depth)
    taken(prefetcher, before)
    state = json.loads(json.dumps(prefetcher.state()))
    rest = plain(before + 6)[before:]
    assert taken(prefetcher, 6) == rest
    other = Prefetcher(Counting(), 2)
    taken(other, 9)
    for one in (prefetcher, other):
        one.restore(state)
        assert one.state() == state
        assert taken(one, 6) == rest


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt])
def test_an_error_comes_when_its_batch_is_due_and_stays(depth, kind):
    prefetcher = Prefetcher(Counting(3, kind), depth)
    assert taken(prefetcher, 3) == plain(3)
    state = prefetcher.state()
    for _ in range(3):
        with pytest.raises(kind):
            prefetcher.take()
    wait_until(lambda: threads() == [])
    assert prefetcher.state() == state
    prefetcher.restore({**state, "count": 0})
    prefetcher.take()


def test_it_ends_when_nobody_holds_it():
    """By itself, without the collector."""
    gc.disable()
    try:
        source = Counting()
        prefetcher = Prefetcher(source, 2)
        taken(prefetcher, 2)
        gone = weakref.ref(prefetcher)
        assert len(threads()) == 1
        del prefetcher
        assert gone() is None
        assert threads() == []
        assert source.closed == 1
    finally:
        gc.enable()


def test_one_that_never_took_a_batch_closes_its_source():
    source = Counting()
    Prefetcher(source, 2)
    assert source.closed == 1


def test_closing():
    source = Counting()
    prefetcher = Prefetcher(source, 2)
    prefetcher.take()
    prefetcher.close()
    prefetcher.close()
    assert threads() == []
    assert source.closed == 1
    with pytest.raises(ValueError, match="closed"):
        prefetcher.take()


def test_collected_in_its_own_thread():
    """The garbage collector may run anywhere."""

    class Dropping(Counting):
        def read(self):
            if self.count == 1:
                alone.wait()
                held.clear()
            return super().read()

    alone, source = threading.Event(), Dropping()
    held = [Prefetcher(source, 1)]
    held[0].take()
    alone.set()
    wait_until(lambda: not held and threads() == [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_on_by_itself():
    prefetcher = Prefetcher(Counting(), 2)
    taken(prefetcher, 3)
    wanted = plain(6)[3:]
    child = os.fork()
    if not child:
        os._exit(0 if taken(prefetcher, 3) == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert taken(prefetcher, 3) == wanted


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise ZeroDivisionError"])
@pytest.mark.parametrize("seconds", [0, 0.05])
def test_the_interpreter_ends_while_a_thread_reads(end, seconds):
    code = f"""
        import time, numpy as np
        from pycaffe_lite.data.prefetch import Prefetcher, Source
        class Slow(Source):
            def shapes(self): return [(2,)]
            def read(self):
                time.sleep({seconds})
                return [np.zeros(2)]
            def position(self): return {{}}
            def seek(self, position): pass
        prefetcher = Prefetcher(Slow(1), 3)
        prefetcher.take()
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == (3 if "3" in end else 1 if end else 0)
    assert ("ZeroDivisionError" in done.stderr) == ("Zero" in end)
    assert end or done.stderr == ""
