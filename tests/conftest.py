"""Fixtures for every test: backends, a fresh seed, CPU mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import FakeOps

import pycaffe_lite
from pycaffe_lite import device
from pycaffe_lite.ops import gpu
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps
from pycaffe_lite.ops.jit import JitOps

BACKENDS = {
    "generic": Ops,
    "cpu": CpuOps,
    "jit": JitOps,
    "fake": FakeOps,
    "gpu": lambda: gpu.GpuOps(0),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.gpu if name == "gpu" else ()) for name in BACKENDS]
)
def ops(request: pytest.FixtureRequest) -> Ops:
    """Each backend in turn; the real GPU only where there is one."""
    if request.param == "gpu" and gpu.missing():
        pytest.skip(f"no GPU: {gpu.missing()}")
    if request.param == "jit" and not JitOps.available():
        pytest.skip("no llvmlite, or a CPU that the compiled kernels do not know")
    return BACKENDS[request.param]()


@pytest.fixture
def on_ops(ops: Ops) -> Iterator[Ops]:
    """The same, and every net of the test runs on it."""
    with device.pretend(ops):
        yield ops


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The same random numbers for each test, and no mode left over from another."""
    np.random.seed(1701)  # noqa: NPY002  (what users' scripts draw from)
    pycaffe_lite.set_random_seed(1701)
    yield
    pycaffe_lite.set_mode_cpu()
    pycaffe_lite.set_device(0)
    pycaffe_lite.set_ops(None)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1701)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a prototxt and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "net.prototxt"
        path.write_text(text)
        return path

    return write


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests were skipped, a line for each reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
