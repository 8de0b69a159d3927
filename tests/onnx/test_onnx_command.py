"""The command to-onnx: what it writes, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_cases import fill

from pycaffe_lite import TEST, Net
from pycaffe_lite.__main__ import main
from pycaffe_lite.onnx.writer import Graph

Capture = pytest.CaptureFixture[str]

NET = """
name: "small"
input: "data" input_shape { dim: 2 dim: 3 dim: 6 dim: 7 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
        inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, Path]:
    """A prototxt, its weights, and where the model is to go."""
    model, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    model.write_text(NET)
    fill(Net(model, TEST)).save(weights)
    return str(model), str(weights), tmp_path / "net.onnx"


def run(path: Path, x: np.ndarray) -> Any:
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(["prob"], {"data": x})[0]


def test_the_file_computes_what_the_net_does(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    assert main(["to-onnx", model, weights, "-o", str(out)]) == 0
    net = Net(model, TEST, weights=weights)
    x = np.random.default_rng(3).normal(size=(2, 3, 6, 7)).astype("float32")
    np.testing.assert_allclose(run(out, x), net.forward(data=x)["prob"], atol=1e-6)
    assert run(out, x[:1]).shape == (1, 5)  # another batch than the prototxt's
    printed = capsys.readouterr().out
    assert "input data: N x 3 x 6 x 7" in printed
    assert "0 beyond 0.0001" in printed


def test_json_has_a_row_for_each_top(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    assert main(["to-onnx", model, weights, "-o", str(out), "--json", "--batch", "4"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["inputs"] == {"data": [4, 3, 6, 7]}
    assert said["outputs"] == ["prob"]
    assert [row["layer"] for row in said["blobs"]] == ["conv", "relu", "fc", "prob"]
    assert [row["blob"] for row in said["blobs"]] == ["conv", "conv", "fc", "prob"]
    assert said["runs"] == ["random", "zeros", "large", "negative"]
    assert said["passed"] is True
    assert said["files"] == [str(out)]


def test_a_wrong_weight_is_found_and_nothing_written(
    files: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights, out = files
    real = Graph.parameter

    def spoilt(self: Graph, key: Any, value: np.ndarray, name: str) -> str:
        if name == "fc/param0":
            value = value.copy()
            value[2, 5] += 0.01
        return real(self, key, value, name)

    monkeypatch.setattr(Graph, "parameter", spoilt)
    assert main(["to-onnx", model, weights, "-o", str(out)]) == 3
    lines = capsys.readouterr().out.splitlines()
    wrong = [line.split()[0] for line in lines if "WRONG" in line]
    assert "fc" in wrong
    assert "conv" not in wrong  # what comes before it is right
    assert not out.exists()
    assert lines[-1] == "nothing written"
    assert main(["to-onnx", model, weights, "-o", str(out), "--tolerance", "1"]) == 0
    assert main(["to-onnx", model, weights, "-o", str(out), "--no-verify"]) == 0
    assert "not verified" in capsys.readouterr().out


def test_blobs_of_which_nothing_is_known_are_named(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    Net(model, TEST).save(weights)  # its fillers: all 0
    assert main(["to-onnx", model, weights, "-o", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if "nothing is known" in line]
    assert said.startswith("3 blobs were 0 on all inputs")
    assert said.endswith(": conv, fc")


def test_weights_in_a_file_of_their_own(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    plain = out.with_name("plain.onnx")
    assert main(["to-onnx", model, weights, "-o", str(plain)]) == 0
    assert main(["to-onnx", model, weights, "-o", str(out), "--external-data"]) == 0
    x = np.ones((2, 3, 6, 7), "float32")
    np.testing.assert_array_equal(run(out, x), run(plain, x))
    assert "net.onnx.data" in capsys.readouterr().out


def test_the_end_may_be_an_earlier_blob(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    args = ["to-onnx", model, weights, "-o", str(out), "--json", "--no-verify"]
    assert main([*args, "--end", "conv", "--end", "fc"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"] == ["conv", "fc"]
    assert main([*args, "--end", "cov"]) == 1
    assert "no blob 'cov' to end the model at; did you mean 'conv'?" in capsys.readouterr().err


def test_images_of_any_size_where_the_net_allows_them(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    args = ["to-onnx", model, weights, "-o", str(out), "--sizes", "dynamic"]
    assert main(args) == 1
    error = capsys.readouterr().err
    assert "the net does not take images of any size" in error
    assert "'fc' (InnerProduct)" in error
    assert main([*args, "--end", "conv", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["inputs"] == {"data": ["N", 3, "H", "W"]}
    assert said["runs"][-2:] == ["another batch", "another size"]


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--batch", "0"], 2),
        (["--batch", "many"], 2),
        (["--sizes", "any"], 2),
        (["--unknown"], 2),
    ],
)
def test_wrong_usage(files: Any, args: list[str], status: int) -> None:
    model, weights, out = files
    with pytest.raises(SystemExit) as raised:
        main(["to-onnx", model, weights, "-o", str(out), *args])
    assert raised.value.code == status


def test_a_missing_file_is_named(files: Any, capsys: Capture) -> None:
    model, _, out = files
    assert main(["to-onnx", model, "none.caffemodel", "-o", str(out)]) == 1
    assert "none.caffemodel" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_not_there(files: Any, capsys: Capture) -> None:
    model, weights, out = files
    target = out.parent / "no" / "net.onnx"
    assert main(["to-onnx", model, weights, "-o", str(target)]) == 1
    assert str(target) in capsys.readouterr().err
