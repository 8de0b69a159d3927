"""The same numbers as Caffe: small nets recorded from the original, all blobs and gradients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pycaffe_lite

GOLDEN = Path(__file__).parent / "golden"
CASES = [path for kind in ("layers", "forks") for path in sorted((GOLDEN / kind).glob("*.npz"))]
# The images of forks/ssd_priorbox_* are zeros, as only their sizes count.
TOLERANCE = 1e-4
# The original does not add these up over two backward calls, so neither can be compared.
ONE_BACKWARD = re.compile(
    r'type: "(Scale|Parameter|HingeLoss|LSTM|RNN|MultiBoxLoss|SmoothL1Loss|BN)"'
)


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest recorded value."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    scale = max(np.abs(want).max(initial=0), 1e-6)
    return float(np.abs(got.astype("f8") - want).max(initial=0) / scale)


def recorded(case: np.lib.npyio.NpzFile, kind: str) -> list[tuple[list[str], np.ndarray]]:
    return [(key.split(":")[1:], case[key]) for key in case.files if key.startswith(kind + ":")]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded_case(path, on_ops, tmp_path):
    with np.load(path) as case:
        model = tmp_path / "net.prototxt"
        model.write_text(str(case["net"]))
        net = pycaffe_lite.Net(model, getattr(pycaffe_lite, str(case["phase"])))
        assert list(net.blobs) == [name for (name,), _ in recorded(case, "blob")]
        for (layer, k), value in recorded(case, "param"):
            net.params[layer][int(k)].data[...] = value
        for _ in range(int(case["runs"])):
            for (name,), value in recorded(case, "in"):
                net.blobs[name].data[...] = value
            out = net.forward()
        assert list(out) == net.outputs
        for (name,), value in recorded(case, "blob"):
            assert distance(net.blobs[name].data, value) <= TOLERANCE, name
        for (layer, k), value in recorded(case, "after"):
            assert distance(net.params[layer][int(k)].data, value) <= TOLERANCE, (layer, k)
        if bool(case["backward"]):
            check_backward(net, case)


def check_backward(net: pycaffe_lite.Net, case: np.lib.npyio.NpzFile) -> None:
    """Gradients of inputs are overwritten by a second backward, those of parameters doubled."""
    top_diffs = {name: value for (name,), value in recorded(case, "topdiff")}
    for times in (1,) if ONE_BACKWARD.search(str(case["net"])) else (1, 2):
        net.backward(**top_diffs)
        for (name,), value in recorded(case, "indiff"):
            assert distance(net.blobs[name].diff, value) <= TOLERANCE, name
        for (layer, k), value in recorded(case, "pdiff"):
            diff = net.params[layer][int(k)].diff
            assert distance(diff, times * value) <= TOLERANCE, (layer, k)
