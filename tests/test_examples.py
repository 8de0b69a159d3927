"""The examples run as a user runs them, and compute what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.signal import correlate2d

import pycaffe_lite
from pycaffe_lite.ops import gpu

ROOT = Path(__file__).parents[1]
TIMING = ROOT / "examples" / "stride_timing" / "stride_timing.py"
LOOPED = ROOT / "examples" / "looped_vs_batched" / "looped_vs_batched.py"


def run_script(script: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python(str(script), *args, cwd=cwd)


def run_python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    place = str(Path(pycaffe_lite.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": place},
    )


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """looped_vs_batched.py as a module."""
    spec = importlib.util.spec_from_file_location("looped_vs_batched", LOOPED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# ---- stride_timing ------------------------------------------------------------------------------


def test_stride_timing(tmp_path: Path) -> None:
    done = run_script(TIMING, "--size", "31", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for stride, line in enumerate(lines, 1):
        assert re.fullmatch(rf"Stride {stride}: \d+\.\d\d ms", line)


def test_stride_timing_has_the_published_net() -> None:
    net = pycaffe_lite.Net(str(TIMING.with_name("convolution.prototxt")), pycaffe_lite.TEST)
    assert net.blobs["data"].shape == (1, 1, 227, 227)
    assert net.blobs["conv"].shape == (1, 96, 217, 217)


def test_the_published_script_runs(tmp_path: Path) -> None:
    """Through `pycaffe-lite run`; only the mode and Python 2's print are changed."""
    folder = ROOT.parent / "shared" / "published"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))]
    found = [text for text in texts if "caffe.set_mode_gpu()" in text and "import numpy" in text]
    if not found:
        pytest.skip("the text of the published script is not part of the project")
    start = found[0].index("import numpy")
    script = found[0][start : found[0].index("\n", found[0].index("print total"))]
    for old, new in (
        (r"caffe\.set_mode_gpu\(\).*", "caffe.set_mode_cpu()"),
        (r"print (.*)", r"print(\1)"),
    ):
        script, count = re.subn(old, new, script)
        assert count == 1
    assert "import caffe" in script
    assert "caffe.set_device(0)" in script
    model = TIMING.with_name("convolution.prototxt").read_text()
    (tmp_path / "convolution.prototxt").write_text(model)
    (tmp_path / "script.py").write_text(script)
    done = run_python("-m", "pycaffe_lite", "run", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) > 0


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu(tmp_path: Path) -> None:
    if gpu.missing():
        pytest.skip(f"no GPU: {gpu.missing()}")
    assert run_script(TIMING, "--mode", "gpu", "--size", "31", cwd=tmp_path).returncode == 0
    done = run_script(LOOPED, "--device", "both", "--sizes", "13", "--runs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "13 x 13: on the GPU the loops run" in done.stdout


# ---- looped_vs_batched --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_looped_vs_batched(activation: str, tmp_path: Path) -> None:
    args = ["--sizes", "13", "9", "--activation", activation, "--filters", "4", "--runs", "1"]
    done = run_script(LOOPED, *args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "both ways give the same numbers" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[2:4]]
    assert [row[:3] for row in rows] == [["13", "x", "13"], ["9", "x", "9"]]
    assert [row[3] for row in rows] == ["24", "24"]  # 2 images, 4 filters, 3 channels
    assert [row[5] for row in rows] == ["2", "2"]  # Convolution and the activation
    assert "CPU, 13 x 13: the loops make 24 calls of 0.00202 million" in done.stdout


def test_looped_vs_batched_refuses_what_does_not_fit(tmp_path: Path) -> None:
    done = run_script(LOOPED, "--sizes", "4", cwd=tmp_path)
    assert done.returncode == 2
    assert "a kernel of 5 does not fit into 4" in done.stderr
    assert run_script(LOOPED, "--images", "0", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", lambda y: np.where(y > 0, y, 0)), ("sigmoid", lambda y: 1 / (1 + np.exp(-y)))],
)
def test_loops_compute_the_layer(
    example: ModuleType,
    activation: str,
    function: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> None:
    from scipy.signal import convolve2d

    task = example.Task(11, 2, 3, 4, 5, activation)
    x = rng.standard_normal((2, 3, 11, 11))
    w, b = rng.standard_normal((4, 3, 5, 5)), rng.standard_normal(4)
    expected = np.empty((2, 4, 7, 7))
    for n in range(2):
        for o in range(4):
            maps = [correlate2d(x[n, c], w[o, c], "valid") for c in range(3)]
            expected[n, o] = function(sum(maps) + b[o])
    y = example.looped(x, w, b, task, np, convolve2d)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)


def test_different_numbers_are_an_error(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = example.looped
    monkeypatch.setattr(example, "looped", lambda *args: right(*args) + 0.01)
    with pytest.raises(AssertionError, match="different numbers"):
        example.measure(example.Task(9, 1, 2, 3, 5, "relu"), "cpu", 1)


def test_explanations_follow_the_figures(example: ModuleType) -> None:
    task = example.Task(227, 2, 3, 16, 5, "relu")

    def figures(looped: float, batched: float, floor: float) -> object:
        return example.Figures(task, looped, batched, 2, floor)

    busy = example.explain(figures(960.0, 9.6, 0.1), "cpu")
    assert "96 calls of 1.24 million multiplications, 10 ms each" in busy
    assert "0.1 ms, 1 % of that. Nearly all of it is inside the calls" in busy
    assert "100.0 times as many" in busy
    assert "Most of the time goes into calling" in example.explain(figures(96, 1, 0.9), "gpu")
    assert "Calling is a visible part" in example.explain(figures(96, 1, 0.3), "gpu")
    assert "no more than the loops" in example.explain(figures(1, 2, 0.001), "cpu")
    said = example.compare([figures(100, 10, 1)], [figures(1000, 2, 1)])
    assert said == (
        "227 x 227: on the GPU the loops run 10.0 times slower, the batched layer 5.0 times faster."
    )


# ---- benchmarks ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [("stride", r"\n +4 .* 1\.60  (met|missed)"), ("import_cost", r"target 1\.5: (met|missed)")],
)
def test_benchmarks_print_figures_and_targets(name: str, said: str, tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / f"{name}.py"
    done = run_script(script, "--runs", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(said, done.stdout)
