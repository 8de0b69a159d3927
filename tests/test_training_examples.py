"""The examples that train run as a user runs them, with few steps and with all of them."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import pycaffe_lite

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def python(tmp_path):
    """Run Python in a copy of an example's folder; what it wrote to stdout and stderr."""

    def python(example: str, *args: str) -> tuple[str, str]:
        folder = tmp_path / example
        if not folder.exists():
            shutil.copytree(EXAMPLES / example, folder)
        done = subprocess.run(
            [sys.executable, "-W", "error", *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path(pycaffe_lite.__file__).parents[1])},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return python


def columns(printed: str, row: str) -> list[list[float]]:
    """The numbers of the lines that match `row`, by columns."""
    lines = [line for line in printed.splitlines() if re.fullmatch(row, line)]
    return [list(map(float, column)) for column in zip(*map(str.split, lines), strict=True)]


# ---- lenet_digits -------------------------------------------------------------------------------


def accuracies(log: str) -> list[float]:
    return [float(value) for value in re.findall(r"Test net output #0: accuracy = (\S+)", log)]


def train_digits(python, tmp_path, iterations: int) -> list[float]:
    printed, errors = python("lenet_digits", "make_databases.py")
    assert printed == "digits_train_lmdb: 1437 images\ndigits_test_lmdb: 360 images\n"
    assert errors == ""
    solver = tmp_path / "lenet_digits" / "solver.prototxt"
    text = solver.read_text()
    solver.write_text(text.replace("max_iter: 300", f"max_iter: {iterations}"))
    _, log = python("lenet_digits", "-m", "pycaffe_lite", "train", "-solver", "solver.prototxt")
    assert "Optimization Done." in log
    (tmp_path / "lenet_digits" / "train.log").write_text(log)
    return accuracies(log)


@pytest.mark.slow
def test_a_few_steps_of_lenet(python, tmp_path):
    found = train_digits(python, tmp_path, 3)
    assert len(found) == 1
    assert (tmp_path / "lenet_digits" / "digits_iter_3.caffemodel").exists()


@pytest.mark.slow
def test_lenet_learns_digits(python, tmp_path):
    found = train_digits(python, tmp_path, 300)
    assert found[0] < 0.3
    assert found[-1] >= 0.97
    args = ("-m", "pycaffe_lite", "test", "-model", "lenet_train_test.prototxt")
    args += ("-weights", "digits_iter_300.caffemodel", "-iterations", "6")
    _, log = python("lenet_digits", *args)
    assert float(re.findall(r"\] accuracy = (\S+)", log)[-1]) == found[-1]
    python("lenet_digits", "-m", "pycaffe_lite", "plot-log", "train.log", "-o", "curves.png")
    assert (tmp_path / "lenet_digits" / "curves.png").read_bytes()[1:4] == b"PNG"


# ---- fine_tuning --------------------------------------------------------------------------------

REPORT = (
    "weights pretrained.caffemodel: 3 layers loaded; ignored, not in the net: digit; left at their"
    " fillers, not in the file: parity"
)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_fine_tuning(full, python):
    args = () if full else ("--pretrain", "5", "--steps", "10")
    printed, errors = python("fine_tuning", "fine_tuning.py", *args)
    assert errors == ""
    assert REPORT in printed.splitlines()
    steps, tuned, scratch = columns(printed, r" +\d+ +0\.\d{3} +0\.\d{3}")
    assert steps == list(range(0, 61 if full else 11, 10))
    assert all(0 <= value <= 1 for value in tuned + scratch)
    if full:
        assert tuned[-1] > scratch[-1] + 0.02


# ---- autoencoder --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_autoencoder(full, python, tmp_path):
    args = () if full else ("--epochs", "2")
    printed, errors = python("autoencoder", "autoencoder.py", *args)
    assert errors == ""
    epochs, cross_entropy, euclidean = columns(printed, r" +\d+ +\d+\.\d{3} +\d+\.\d{3}")
    assert epochs == ([0, 20, 40, 60] if full else [0, 2])
    assert cross_entropy == sorted(cross_entropy, reverse=True)
    assert euclidean == sorted(euclidean, reverse=True)
    linear = float(re.findall(r"8 principal components: +(\S+)", printed)[0])
    assert (euclidean[-1] < linear) == full
    picture = (tmp_path / "autoencoder" / "reconstructions.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1200, 240)
