"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeOps

import pycaffe_lite
from pycaffe_lite import MissingFileError, ModelError, commands, device, stride
from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import stride as command
from pycaffe_lite.ops import gpu
from pycaffe_lite.stride import plot as stride_plot
from pycaffe_lite.stride.figures import Experiment, Report

Capture = pytest.CaptureFixture[str]


def run_module(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m pycaffe_lite ARGS` in a process of its own, warnings being errors."""
    place = str(Path(pycaffe_lite.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pycaffe_lite", *args],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": place} | env,
    )


def leave(*args: str) -> int:
    """The exit status where argparse ends the process."""
    with pytest.raises(SystemExit) as raised:
        main(args)
    assert isinstance(raised.value.code, int)
    return raised.value.code


# ---- commands -----------------------------------------------------------------------------------


def test_no_command_prints_usage(capsys: Capture) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: pycaffe-lite")
    assert "stride" in out


def test_version(capsys: Capture) -> None:
    assert leave("--version") == 0
    assert capsys.readouterr().out == f"pycaffe-lite {pycaffe_lite.__version__}\n"


def test_unknown_command_and_option(capsys: Capture) -> None:
    assert leave("swim") == 2
    assert "invalid choice: 'swim'" in capsys.readouterr().err
    assert leave("stride", "--swim") == 2


def test_every_module_of_the_folder_is_a_command(capsys: Capture) -> None:
    files = Path(commands.__file__).parent.glob("[!_]*.py")
    found = commands.find()
    assert sorted(found) == sorted(file.stem.replace("_", "-") for file in files)
    assert main([]) == 0
    words = "".join(capsys.readouterr().out.split())  # lines are broken at hyphens, too
    for module in found.values():
        assert module.__doc__
        assert "".join(module.__doc__.partition("\n")[0].split()) in words


def test_as_a_module() -> None:
    done = run_module("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert pycaffe_lite.__version__ in done.stdout


def test_starting_it_imports_nothing_heavy() -> None:
    code = "import sys, pycaffe_lite.__main__ as m; m.main([]); print(*sys.modules)"
    place = str(Path(pycaffe_lite.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": place},
    )
    heavy = {"matplotlib", "scipy", "cupy", "pycaffe_lite.stride", "threadpoolctl"}
    assert heavy.isdisjoint(done.stdout.splitlines()[-1].split())


def fake_command(monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], int]) -> None:
    module = types.ModuleType("dance", "Dance a little.")
    module.__dict__.update(add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(commands, "find", lambda: {"dance": module})


@pytest.mark.parametrize(
    "error",
    [
        ModelError("layer 'a' is wrong"),
        RuntimeError("cannot use GPU: none"),
        MissingFileError("Could not open file x"),
        FileNotFoundError(2, "No such file or directory", "x"),
    ],
)
def test_expected_errors_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(args: Any) -> int:
        raise error

    fake_command(monkeypatch, fail)
    assert main(["dance"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"pycaffe-lite: error: {error}\n"
    for args in (["-v", "dance"], ["dance", "-v"], ["dance", "--verbose"]):
        with pytest.raises(type(error)):
            main(args)


@pytest.mark.parametrize("error", [RecursionError("deep"), TypeError("ours"), KeyError("ours")])
def test_faults_of_the_program_keep_their_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: Any) -> int:
        raise error

    fake_command(monkeypatch, fail)
    with pytest.raises(type(error)):
        main(["dance"])


def test_status_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, lambda args: 3)
    assert main(["dance"]) == 3


# ---- stride -------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment in milliseconds of work."""
    monkeypatch.setattr(stride, "PAUSE", 0.0)
    monkeypatch.setattr(stride, "LOOP", 1)
    monkeypatch.setattr(stride, "Experiment", partial(Experiment, size=31, outputs=5))


@pytest.mark.usefixtures("small")
def test_stride_prints_tables_and_sentences(capsys: Capture) -> None:
    assert main(["stride", "--device", "cpu", "--runs", "2", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert f"CPU (backend {device.current().name}, 1 thread): median [quartiles] of 2" in out
    for side in (21, 11, 7, 6):
        assert f"{side} x {side}" in out
    for word in ("mean of 3", "im2col", "GEMM", "bias", "GFLOP/s", "columns MB", "sgemm alone"):
        assert word in out
    assert "CPU: from stride 1 to 2, 3 and 4 the output positions become" in out
    tables = [block for block in out.split("\n\n") if "stride  " in block]
    for table in tables:
        rows = [r for r in table.splitlines() if r.strip()[:1] in "1234" or r.startswith("stride")]
        assert len({len(row) for row in rows}) == 1, "columns are aligned"


FIELDS = {
    "stride": int, "side": int, "flop": int, "memory": dict, "first_three": list, "forward": dict,
    "kernels": type(None), "stages": dict, "sgemm": dict, "ratio": dict, "positions": int,
    "published_way": float, "gflops": float, "sgemm_gflops": float,
}  # fmt: skip


@pytest.mark.usefixtures("small")
def test_json_has_every_figure(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert main(["stride", "--device", "cpu", "--runs", "1", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert data["format"] == 1
    assert data["experiment"] == {"size": 31, "kernel": 11, "outputs": 5, "strides": [1, 2, 3, 4]}
    machine = data["machine"]
    assert {"cpu", "cores", "usable_cores", "system", "python", "versions", "blas"} == set(machine)
    assert machine["versions"]["pycaffe-lite"] == pycaffe_lite.__version__
    assert {"name", "version", "threads", "kernels"} == set(machine["blas"][0])
    (shown,) = data["devices"]
    fields = {"kind", "backend", "name", "threads", "floor", "floor_kernels", "strides"}
    assert set(shown) == fields
    for entry in shown["strides"]:
        assert {name: type(value) for name, value in entry.items()} == FIELDS
        assert set(entry["stages"]) == {"im2col", "gemm", "bias", "upload", "download"}
        assert set(entry["memory"]) == {"input", "weights", "columns", "output"}
        assert set(entry["forward"]) == {"median", "low", "high", "runs"}
    assert all(isinstance(line, str) for line in data["explanation"])
    assert [f.name for f in tmp_path.iterdir()] == ["figures.json"]


@pytest.mark.usefixtures("small")
def test_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "figures.png"
    assert main(["stride", "--device", "cpu", "--runs", "1", "--plot", str(file)]) == 0
    content = file.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 5000


@pytest.mark.usefixtures("small")
def test_both_devices_in_text_json_and_picture() -> None:
    pytest.importorskip("matplotlib")
    experiment = stride.Experiment()
    cpu = stride.measure("cpu", 1)
    with device.pretend(FakeOps()):
        pretended = stride.measure_current(experiment, 1)
    report = Report(experiment, cpu.machine, (*cpu.devices, pretended))
    out = command.render(report)
    for word in ("GPU (backend fake, ", "kernels/sgemm", "host to device", "CPU against GPU: "):
        assert word in out
    data = json.loads(json.dumps(command.as_dict(report)))
    assert [each["kind"] for each in data["devices"]] == ["cpu", "gpu"]
    assert data["devices"][1]["strides"][0]["kernels"]["median"] > 0
    assert len(stride_plot.png(report)) > len(stride_plot.png(cpu)) > 5000


@pytest.fixture
def _never_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("measured before it found the fault")

    monkeypatch.setattr(stride, "measure", refuse)


@pytest.mark.usefixtures("_never_measures")
def test_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["stride", "--plot", str(tmp_path / "a.png")]) == 1
    assert "pip install 'pycaffe-lite[plot]'" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="plot"):
        stride_plot.require()


@pytest.mark.usefixtures("_never_measures")
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written(option: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["stride", option, str(tmp_path / "missing" / "a.png")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "b.png").mkdir()
    assert main(["stride", option, str(tmp_path / "b.png")]) == 1
    assert "it is a folder" in capsys.readouterr().err


@pytest.mark.usefixtures("_never_measures")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--runs", "0"], "'0' is no whole number of at least 1"),
        (["--runs", "-3"], "'-3' is no whole number of at least 1"),
        (["--runs", "2.5"], "'2.5' is no whole number of at least 1"),
        (["--threads", "none"], "'none' is no whole number of at least 1"),
        (["--threads", "5000"], "5000 threads are more than the"),
        (["--json", ""], "a file's name is empty"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--plot", "figure.pdf"], "'figure.pdf' does not end in .png"),
    ],
)
def test_wrong_arguments(args: list[str], said: str, capsys: Capture) -> None:
    assert leave("stride", *args) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def refuse() -> None:
        raise RuntimeError("cannot use GPU: none is plugged in")

    monkeypatch.setattr("pycaffe_lite.device.set_mode_gpu", refuse)
    assert main(["stride", "--runs", "1"]) == 0
    assert "No GPU measured: cannot use GPU: none is plugged in" in capsys.readouterr().out
    assert main(["stride", "--runs", "1", "--device", "gpu"]) == 1
    assert capsys.readouterr().err == "pycaffe-lite: error: cannot use GPU: none is plugged in\n"


@pytest.mark.slow
def test_stride_as_published(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = run_module("stride", "--device", "cpu", "--runs", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "217 x 217" in done.stdout
    assert "49.77" in done.stdout
    assert len(json.loads(file.read_text())["devices"][0]["strides"]) == 4


@pytest.mark.gpu
@pytest.mark.usefixtures("small")
def test_stride_on_a_gpu(capsys: Capture) -> None:
    if gpu.missing():
        pytest.skip(f"no GPU: {gpu.missing()}")
    assert main(["stride", "--runs", "1"]) == 0
    assert "CPU against GPU: " in capsys.readouterr().out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_colour_on_a_terminal_where_rich_is(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    commands.show("stride [bold] 3.5 ms")
    said = screen.getvalue()
    assert ("\x1b[" in said) == rich
    assert re.sub(r"\x1b\[[0-9;]*m", "", said) == "stride [bold] 3.5 ms\n"
