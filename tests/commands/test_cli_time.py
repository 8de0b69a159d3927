"""`pycaffe-lite time`, and the measuring behind it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from caffe_logs import FOLDER, masked, messages, recorded, write_data
from fake_device import FakeOps
from harness import make_net
from small_nets import CHAIN

import pycaffe_lite
from pycaffe_lite import ModelError, device, timing
from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import time as command

NET = """name: 'mixed'
layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 2 dim: 3 dim: 9 dim: 7 } } }
layer { name: 't' type: 'Input' top: 't' input_param { shape { dim: 2 } } include { phase: TRAIN } }
layer { name: 'conv' type: 'Convolution' bottom: 'x' top: 'c'
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'c' top: 'c' }
layer { name: 'best' type: 'ArgMax' bottom: 'x' top: 'best' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'c' top: 'ip'
  inner_product_param { num_output: 5 } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 't' top: 'loss'
  include { phase: TRAIN } }
layer { name: 'prob' type: 'Softmax' bottom: 'ip' top: 'prob' include { phase: TEST } }
"""


def leave(*args):
    """The exit status where the process ends, or where the command does."""
    try:
        return main(args)
    except SystemExit as error:
        return error.code


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    (tmp_path / "net.prototxt").write_text(NET)


def test_lines_are_those_of_caffe(tmp_path, capsys):
    write_data(tmp_path)
    shutil.copy(FOLDER / "tiny.prototxt", "tiny.prototxt")
    assert main(["time", "-model", "tiny.prototxt", "-iterations", "3"]) == 0
    found = messages(capsys.readouterr().err)
    assert list(map(masked, found)) == list(map(masked, recorded("time.log")))


def table_of(out):
    """The table's lines by the name that begins each; the cells after it."""
    lines = out.splitlines()
    assert len(set(map(len, lines))) == 1, "columns are aligned"
    return {line.split()[0]: line.split()[1:] for line in lines}


@pytest.mark.parametrize("args", [["-phase", "TRAIN"], ["--phase=TRAIN"], []])
def test_table_in_phase_train(args, capsys):
    assert main(["time", "-model=net.prototxt", "-iterations=2", *args]) == 0
    rows = table_of(capsys.readouterr().out)
    names = ["layer", "x", "x_x_0_split", "t", "conv", "relu", "best", "ip", "loss", "all"]
    assert list(rows) == names
    assert {name for name in names if "-" in rows[name]} == {"x", "x_x_0_split", "t", "best"}
    assert rows["conv"][0] == "Convolution"
    assert float(rows["conv"][1]) > 0
    assert float(rows["conv"][2]) > 0
    assert rows["conv"][-2] == f"{4 * (2 * 4 * 7 * 5) / 1e6:.3f}"
    assert rows["ip"][-1] == f"{4 * (4 * 7 * 5 * 5 + 5) / 1e6:.3f}"


def test_phase_test_without_loss_has_no_backward(capsys):
    assert main(["time", "-model=net.prototxt", "-iterations=2", "-phase=TEST"]) == 0
    said = capsys.readouterr()
    rows = table_of(said.out)
    assert "prob" in rows
    assert "loss" not in rows
    assert {row[2] for name, row in rows.items() if name not in ("layer", "all")} == {"-"}
    found = messages(said.err)
    (why,) = [line for line in found if line.startswith("No Backward")]
    assert "force_backward: true" in why
    assert "Average Backward pass: 0 ms." in found
    assert "      prob\tbackward: 0 ms." in found


def test_json_has_every_figure(tmp_path, capsys):
    assert main(["time", "-model=net.prototxt", "-iterations=3", "--json", "all.json"]) == 0
    data = json.loads((tmp_path / "all.json").read_text())
    assert (data["format"], data["net"], data["model"]) == (1, "mixed", "net.prototxt")
    assert (data["phase"], data["iterations"]) == ("TRAIN", 3)
    assert data["device"]["kind"] == "cpu"
    assert data["device"]["backend"] == device.current().name
    assert data["machine"]["versions"]["pycaffe-lite"] == pycaffe_lite.__version__
    assert len(data["iteration_ms"]) == 3
    layers = {layer["layer"]: layer for layer in data["layers"]}
    conv = layers["conv"]
    assert set(conv) == {
        "layer", "type", "forward_ms", "backward_ms", "multiply_adds", "bytes", "gflops", "gbs",
        "bottom_bytes", "blob_bytes", "parameter_bytes",
    }  # fmt: skip
    assert conv["multiply_adds"] == 2 * 4 * 7 * 5 * 27
    assert conv["blob_bytes"] == 4 * (2 * 4 * 7 * 5)
    assert conv["parameter_bytes"] == 4 * (4 * 27 + 4)
    assert conv["bytes"] == 4 * (2 * 3 * 9 * 7) + conv["blob_bytes"] + conv["parameter_bytes"]
    assert conv["gflops"] == pytest.approx(2e-6 * conv["multiply_adds"] / conv["forward_ms"])
    assert conv["gbs"] == pytest.approx(1e-6 * conv["bytes"] / conv["forward_ms"])
    assert conv["backward_ms"] > 0
    assert layers["best"]["backward_ms"] is None
    assert [f.name for f in tmp_path.glob("*.json")] == ["all.json"]


def test_on_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(command._caffe, "gpu_ids", lambda args: [0])
    monkeypatch.setattr(command._caffe, "gpu_name", lambda number: "Pretended")
    monkeypatch.setattr(device, "set_mode_gpu", lambda: None)
    with device.pretend(FakeOps()):
        args = ["-gpu", "0", "-iterations=2", "-json=a.json"]
        assert main(["time", "-model=net.prototxt", *args]) == 0
    data = json.loads((tmp_path / "a.json").read_text())
    assert (data["device"]["kind"], data["device"]["backend"]) == ("gpu", FakeOps.name)
    assert data["device"]["threads"] is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "a model definition to time is needed: -model FILE"),
        (["-model=net.prototxt", "-phase=train"], "unknown phase: 'train' must be TRAIN or TEST"),
        (["-model=net.prototxt", "-iterations", "-1"], "-iterations must be at least 1, got -1"),
        (["-model=net.prototxt", "-iteration=5"], "unknown flag: -iteration=5; did you mean"),
        (["net.prototxt"], "only flags are taken, not 'net.prototxt'"),
    ],
)
def test_wrong_usage_is_status_1(args, said, capsys):
    assert leave("time", *args) == 1
    err = capsys.readouterr().err
    assert "usage: pycaffe-lite time" in err
    assert said in err


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise AssertionError("measured before it found the fault")

    monkeypatch.setattr(timing, "measure", refuse)
    (tmp_path / "folder").mkdir()
    for path, said in [
        ("absent/a.json", "there is no folder absent"),
        ("folder", "it is a folder"),
    ]:
        assert main(["time", "-model=net.prototxt", f"-json={path}"]) == 1
        assert said in capsys.readouterr().err


# ---- measuring ----------------------------------------------------------------------------------


def test_measure_times_each_layer_and_leaves_the_net_as_it_was(on_ops):
    net = make_net("force_backward: true " + CHAIN)
    calls = []
    net.after_forward(calls.append)
    told = []
    found = timing.measure(net, 3, lambda k, ms: told.append((k, ms)))
    assert [layer.name for layer in found.layers] == ["input", "a", "relu", "b"]
    assert [len(layer.forward) for layer in found.layers] == [3] * 4
    assert [len(layer.backward) for layer in found.layers] == [3] * 4
    assert all(ms > 0 for layer in found.layers for ms in layer.forward)
    assert told == list(enumerate(found.iterations, 1))
    parts = np.sum([layer.forward + layer.backward for layer in found.layers])
    assert parts <= found.total_ms
    assert 3 * (found.forward_ms + found.backward_ms) == pytest.approx(parts)
    assert calls == [0, 1, 2, 3] * 3
    net.forward()
    assert [len(layer.forward) for layer in found.layers] == [3] * 4


def test_hooks_are_gone_after_an_error(monkeypatch):
    net = make_net(CHAIN)

    def fail(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(net.layers[2], "forward", fail)
    with pytest.raises(ModelError, match=r"layer 'relu' \(ReLU\): ZeroDivisionError"):
        timing.measure(net, 1)
    assert not any(net._hooks.values())


def test_a_median_and_no_speed_without_time():
    from pycaffe_lite.work import Work

    layer = timing.LayerTime("a", "ReLU", Work(10, 20, 30, 40), [4.0, 1.0, 2.0], [3.0, 9.0])
    assert (layer.forward_ms, layer.backward_ms) == (2.0, 6.0)
    assert (layer.gflops, layer.gbs) == (10 / 1e6, 45 / 1e6)
    still = timing.LayerTime("a", "ReLU", Work(10, 20, 30, 40), [0.0])
    assert (still.gflops, still.gbs, still.backward_ms) == (None, None, None)
