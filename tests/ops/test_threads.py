"""The CPU backend's threads: their number, the limit on BLAS, the pool, forks and failures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

import pycaffe_lite
from pycaffe_lite import TEST, Net, set_ops
from pycaffe_lite.ops.cpu import CpuOps, convolution, pool
from pycaffe_lite.ops.cpu.threads import get_num_threads, limited, running, set_num_threads
from pycaffe_lite.ops.window import Window
from pycaffe_lite.prototxt import parse_net

BLAS = ThreadpoolController().select(user_api="blas").lib_controllers


def blas_threads() -> list[int]:
    return [library.num_threads for library in BLAS]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two for us and, also on one CPU, two for BLAS."""
    set_num_threads(2)
    with threadpool_limits(2):
        yield
    set_num_threads(None)


@pytest.fixture(autouse=True)
def _pool_from_90_million_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than in earnest: the tests' convolutions are to be quick."""
    monkeypatch.setattr(convolution, "SMALL", 80e6)


def convolve() -> np.ndarray:
    """Work enough for the pool: 90 million multiplications."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 90, 110), dtype=np.float32)
    w = rng.standard_normal((48, 3, 7, 5), dtype=np.float32)
    out = np.empty((2, 48, 84, 106), np.float32)
    return CpuOps().conv_forward(x, w, None, Window((7, 5)), 1, out)


# ---- how many ------------------------------------------------------------------------------------


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_num_threads() == 2
    set_num_threads(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert get_num_threads() == 5
    for other in ("", "0", "-1", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", other)
        assert 1 <= get_num_threads() <= (os.cpu_count() or 1)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        set_num_threads(0)


def test_the_users_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_num_threads(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for limit, expected in ((1, 1), (2, 2), (2, 2)):
        with threadpool_limits(limit):
            allowed = blas_threads()
            with running(), limited() as count:
                assert count == min(expected, max(allowed))
            with running():
                with limited():
                    pass
                with limited() as again:  # the limit is ours by now: what was before it counts
                    assert again == count
            assert blas_threads() == allowed


# ---- the limit on BLAS ---------------------------------------------------------------------------


def test_limit_is_kept_to_the_end_of_the_scope() -> None:
    before = blas_threads()
    with CpuOps().running():
        assert blas_threads() == before
        convolve()
        assert blas_threads() == [1] * len(BLAS)
        with running():
            convolve()
        assert blas_threads() == [1] * len(BLAS)
    assert blas_threads() == before
    convolve()
    assert blas_threads() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_limit_is_given_back_after_an_exception(error: type[BaseException]) -> None:
    before = blas_threads()

    def forward() -> None:
        with running():
            convolve()
            raise error

    with pytest.raises(error):
        forward()
    assert blas_threads() == before


@pytest.mark.parametrize("fails", [False, True])
def test_limit_is_counted_over_threads(fails: bool) -> None:
    """Two scopes in two threads: taken once, given back when the last of them has ended."""
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        try:
            with running():
                convolve()
                inside.set()
                leave.wait()
                if fails:
                    raise ValueError
        except ValueError:
            pass

    thread = threading.Thread(target=other)
    with running():
        convolve()
        thread.start()
        assert inside.wait(5)
    assert blas_threads() == [1] * len(BLAS)
    with running(), limited():
        pass
    assert blas_threads() == [1] * len(BLAS)
    leave.set()
    thread.join()
    assert blas_threads() == before


def test_a_scope_knows_nothing_of_the_one_before() -> None:
    """Else a forward would not give what it gave at first, to the last bit."""
    before = blas_threads()
    with running():
        convolve()
    with running():
        assert blas_threads() == before


def test_small_work_leaves_blas_alone() -> None:
    with running():
        x, w = np.ones((1, 2, 5, 4), np.float32), np.ones((3, 2, 3, 2), np.float32)
        CpuOps().conv_forward(x, w, None, Window((3, 2)), 1, np.empty((1, 3, 3, 3), np.float32))
        assert blas_threads() != [1] * len(BLAS) or os.cpu_count() == 1


# ---- the pool ------------------------------------------------------------------------------------


def run(body: Callable[[int], None], tasks: int, threads: int) -> None:
    pool.run(lambda task: partial(body, task), range(tasks), threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 64])
def test_every_task_is_done_once(tasks: int, threads: int) -> None:
    done: list[int] = []
    run(done.append, tasks, threads)
    assert sorted(done) == list(range(tasks))


def test_tasks_run_on_several_threads() -> None:
    meeting = threading.Barrier(2, timeout=5)
    names: set[str] = set()

    def body(task: int) -> None:
        names.add(threading.current_thread().name)
        meeting.wait()

    run(body, 2, 2)
    assert len(names) == 2
    assert threading.current_thread().name in names


@pytest.mark.parametrize("place", ["caller", "helper"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_reaches_the_caller(place: str, error: type[BaseException]) -> None:
    meeting = threading.Barrier(2, timeout=5)
    here, ended = threading.get_ident(), []

    def body(task: int) -> None:
        meeting.wait()
        if (threading.get_ident() == here) == (place == "caller"):
            raise error("task")
        ended.append(task)

    with pytest.raises(error, match="task"):
        run(body, 2, 2)
    assert len(ended) == 1
    done: list[int] = []
    run(done.append, 8, 2)
    assert sorted(done) == list(range(8))


def test_helpers_share_the_callers_errstate() -> None:
    meeting = threading.Barrier(2, timeout=5)
    states: list[str] = []

    def body(task: int) -> None:
        meeting.wait()
        states.append(np.geterr()["over"])

    with np.errstate(over="ignore"):
        run(body, 2, 2)
    assert states == ["ignore", "ignore"]


def test_callers_in_many_threads() -> None:
    expected = convolve()
    results: list[np.ndarray] = []
    callers = [threading.Thread(target=lambda: results.append(convolve())) for _ in range(4)]
    before = blas_threads()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity here")
def test_affinity_is_given_back() -> None:
    before = os.sched_getaffinity(0)
    convolve()
    with pytest.raises(ZeroDivisionError):
        run(lambda task: 1 // 0, 2, 2)
    assert os.sched_getaffinity(0) == before


# ---- processes -----------------------------------------------------------------------------------


SCRIPT = """
import os, sys
import numpy as np
from pycaffe_lite.ops.cpu import CpuOps
from pycaffe_lite.ops.cpu.threads import running, set_num_threads
from pycaffe_lite.ops.window import Window
assert "threadpoolctl" not in sys.modules
set_num_threads(2)
x, w = np.ones((2, 3, 90, 110), np.float32), np.ones((48, 3, 7, 5), np.float32)
def convolve():
    out = np.empty((2, 48, 84, 106), np.float32)
    assert CpuOps().conv_forward(x, w, None, Window((7, 5)), 1, out)[1, 2, 3, 4] == 105
convolve()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT + code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_exit_does_not_hang() -> None:
    result = python("print('end')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("scope", ["if True", "with running()"])
def test_fork(scope: str) -> None:
    """A child that works on while the parent's helpers exist only in the parent."""
    result = python(f"""
{scope}:
    convolve()
    child = os.fork()
    convolve()
    if child:
        assert os.waitpid(child, 0)[1] == 0
print("end")
""")
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\nend\n", "")


@pytest.mark.parametrize("fails", [False, True])
def test_two_nets_in_two_threads_share_the_limit(fails: bool) -> None:
    """BLAS has one thread while either net runs, and the user's number after both, errors too."""
    set_ops("cpu")  # the compiled kernels do without BLAS
    before, seen, failed = blas_threads(), [], []
    text = (
        "input: 'x' input_shape { dim: [2, 3, 90, 110] } layer { name: 'c' type: 'Convolution'"
        " bottom: 'x' top: 'y' convolution_param { num_output: 48 kernel_h: 7 kernel_w: 5 } }"
    )
    nets = [Net(parse_net(text), TEST) for _ in range(2)]
    both_inside = threading.Barrier(2, timeout=20)

    def after(layer: int) -> None:
        if layer == 1:
            both_inside.wait()
            seen.append(blas_threads())
            both_inside.wait()
            if fails:
                raise KeyError("the user's own")

    def work(net: Net) -> None:
        net.after_forward(after)
        try:
            net.forward()
        except KeyError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[1] * len(BLAS)] * 2
    assert len(failed) == 2 * fails
    assert blas_threads() == before


def test_the_number_is_set_from_the_package() -> None:
    pycaffe_lite.set_num_threads(3)
    assert pycaffe_lite.get_num_threads() == get_num_threads() == 3
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pycaffe_lite.set_num_threads(0)
