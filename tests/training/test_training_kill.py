"""Trainings that are killed: what follows is the training that was not, bit for bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_solvers import write_problem

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

NET = """
layer { name: 'd' type: 'HDF5Data' top: 'x' top: 'y'
  hdf5_data_param { source: 'list.txt' batch_size: 3 shuffle: true } }
layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'x' }
layer { name: 'ip1' type: 'InnerProduct' bottom: 'x' top: 'h' inner_product_param { num_output: %d
  weight_filler { type: 'xavier' } } }
layer { name: 'drop2' type: 'Dropout' bottom: 'h' top: 'h' }
layer { name: 'ip2' type: 'InnerProduct' bottom: 'h' top: 'z' inner_product_param { num_output: 1
  weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'z' bottom: 'y' top: 'loss' }
"""
SOLVER = """
net: 'net.prototxt' type: 'Adam' base_lr: 0.01 momentum: 0.9 lr_policy: 'step' gamma: 0.5
stepsize: 4 random_seed: 5 snapshot_prefix: 's' snapshot_format: %s snapshot: %d max_iter: %d
display: 1 test_iter: 2 test_interval: 5
"""


def killed(folder: Path, form: str, kills: int, when: str, every=3, stop=13, size=7):
    """(kills, resumed trainings, trainings that ended) of kill_loop.py."""
    write_problem(folder)
    (folder / "net.prototxt").write_text(NET % size)
    (folder / "solver.prototxt").write_text(SOLVER % (form, every, stop))
    end = ".h5" if form == "HDF5" else ""
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "kill_loop.py", folder, end, str(kills), when],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(number) for number in re.findall(r"\d+", done.stdout.splitlines()[-1])]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_killed_at_random_moments(form, tmp_path):
    kills, resumed, ended = killed(tmp_path, form, 13, "anytime")
    assert kills == 13
    assert resumed >= 1
    assert ended >= 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_killed_while_a_snapshot_is_written(form, tmp_path):
    """Of 0.8 MB for parameters and history, at random moments after its file has come up."""
    kills, resumed, ended = killed(tmp_path, form, 13, "snapshot", every=1, stop=40, size=2000)
    assert kills == 13
    assert resumed >= 1
    assert ended >= 1
