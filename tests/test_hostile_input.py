"""No model, however wrong, ends the interpreter, runs for ever or takes more memory than it may.

Recorded nets with tokens or bytes changed are built and run in another process, which must answer
in time, and with a result or an error of ours.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path

import hostile_models
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pycaffe_lite

NETS = hostile_models.recorded_nets()
WORDS = hostile_models.words_of(NETS)
MEMORY = 64 * 2**20
SECONDS = 60
WORKER = Path(__file__).with_name("hostile_worker.py")


class Worker:
    """The other process, and a folder for what it reads and writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, dict[int, bytes]()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, model: bytes, phase: int, weights: bytes | None) -> str:
        """What became of a model; "DIED" or "HANGS" where there is no answer."""
        files = {"net.prototxt": model, "net.caffemodel": weights}
        for name, data in files.items():
            if data is not None:
                (self.folder / name).write_bytes(data)
        case = {
            "model": "net.prototxt",
            "phase": phase,
            "weights": None if weights is None else "net.caffemodel",
        }
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], SECONDS)[0]:
            self.end()
            return f"HANGS: no answer in {SECONDS} s"
        answer = process.stdout.readline()
        if not answer:
            process.wait()
            return f"DIED: {self.end()}"
        return str(json.loads(answer))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self.folder,
                env={**os.environ, **one, "PYCAFFE_LITE_MEMORY": str(MEMORY)},
            )
        return self._process

    def end(self) -> int | None:
        """Its status; the next question starts another."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.communicate()
        return process.returncode

    def weights(self, k: int) -> bytes:
        """The caffemodel of a recorded net, as its fillers make it."""
        if k not in self.saved:
            (self.folder / "whole.prototxt").write_text(NETS[k])
            net = pycaffe_lite.Net(self.folder / "whole.prototxt", pycaffe_lite.TEST)
            net.save(self.folder / "whole.caffemodel")
            self.saved[k] = (self.folder / "whole.caffemodel").read_bytes()
        return self.saved[k]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("hostile"))
    yield worker
    worker.end()


def check(worker: Worker, net: int, seed: int, kind: str, phase: int) -> None:
    mutator = hostile_models.Mutator(random.Random(seed), WORDS)
    model, weights = NETS[net].encode(), None
    if kind == "tokens":
        model = mutator.text(NETS[net]).encode()
    elif kind == "bytes":
        model = mutator.bytes(model)
    else:
        weights = mutator.bytes(worker.weights(net))
    answer = worker.ask(model, phase, weights)
    assert answer.startswith(("ran", "refused")), f"{answer}\n{model.decode(errors='replace')}"


CASES = {
    "net": st.integers(0, len(NETS) - 1),
    "seed": st.integers(0, 2**32 - 1),
    "kind": st.sampled_from(["tokens"] * 8 + ["bytes", "weights"]),
    "phase": st.sampled_from([pycaffe_lite.TRAIN, pycaffe_lite.TEST]),
}
COMMON = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)


@pytest.mark.slow
@settings(COMMON, max_examples=500, derandomize=True)
@given(**CASES)
def test_what_is_wrong_does_no_harm(worker, net, seed, kind, phase):
    check(worker, net, seed, kind, phase)


@pytest.mark.slow
@pytest.mark.nightly
@settings(COMMON, max_examples=10_000)
@given(**CASES)
def test_no_night_finds_harm(worker, net, seed, kind, phase):
    check(worker, net, seed, kind, phase)


@pytest.mark.parametrize(
    ("then", "answer"),
    [("raise SystemExit(3)", "DIED: 3"), ("import time; time.sleep(9)", "HANGS")],
)
def test_the_worker_that_does_not_answer(tmp_path, monkeypatch, then, answer):
    silent = tmp_path / "silent.py"
    silent.write_text(f"import sys; sys.stdin.readline(); {then}")
    monkeypatch.setattr(sys.modules[__name__], "WORKER", silent)
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 0.3 if answer == "HANGS" else 60)
    assert Worker(tmp_path).ask(b"", 1, None).startswith(answer)
