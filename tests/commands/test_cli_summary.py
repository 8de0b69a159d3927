"""`pycaffe-lite summary`, and the figures behind it."""

from __future__ import annotations

import json

import pytest
from harness import make_net
from small_nets import ip

from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import _table
from pycaffe_lite.net_summary import summarize

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
layer { name: 'low' type: 'ReLU' bottom: 'ip' top: 'low' include { min_level: 1 stage: 'deep' } }
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)


def printed(capsys, *args):
    assert main(["summary", "net.prototxt", *args]) == 0
    return capsys.readouterr().out


def test_table(capsys):
    lines = printed(capsys).splitlines()
    assert lines[0] == "net 'mixed', phase TEST"
    cells = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert list(cells)[:-2] == ["x", "conv", "relu", "best", "ip"], "no Split of the net's own"
    shape = ["2", "x", "4", "x", "7", "x", "5"]
    adds = 2 * 4 * 7 * 5 * 27
    assert cells["conv"] == [
        "Convolution", *shape, "112", "448", "B", f"{adds / 1e3:.2f}", "k", "1.09", "KiB",
    ]  # fmt: skip
    assert cells["relu"] == ["ReLU", *shape, "-", "-", "280", "-"], "in place it keeps nothing"
    assert cells["x"][-3:] == ["-", "1.48", "KiB"], "a source computes nothing"
    assert lines[-1].split()[:4] == ["total", "817", "3.19", "KiB"]


def test_json_is_exact(capsys):
    data = json.loads(printed(capsys, "--json"))
    assert (data["format"], data["model"], data["name"]) == (1, "net.prototxt", "mixed")
    assert (data["phase"], data["inputs"], data["outputs"]) == ("TEST", ["x"], ["best", "ip"])
    layers = {layer["name"]: layer for layer in data["layers"]}
    assert layers["conv"] == {
        "name": "conv",
        "type": "Convolution",
        "tops": [["c", [2, 4, 7, 5]]],
        "parameter_shapes": [[4, 3, 3, 3], [4]],
        "parameters": 4 * 27 + 4,
        "parameter_bytes": 4 * (4 * 27 + 4),
        "multiply_adds": 2 * 4 * 7 * 5 * 27,
        "activation_bytes": 4 * (2 * 4 * 7 * 5),
        "weights": "",
    }
    assert data["total"]["parameters"] == 112 + 5 * 141
    activations = 2 * 3 * 9 * 7 + 2 * 4 * 7 * 5 + 2 * 5
    activations += layers["best"]["activation_bytes"] // 4
    assert data["total"]["activation_bytes"] == 4 * activations
    assert data["weights_file"] is None


def test_phase_level_and_stage(capsys):
    for args in (["-phase", "TRAIN"], ["--phase=TRAIN"]):
        assert "SoftmaxWithLoss" in printed(capsys, *args)
    assert "low" in printed(capsys, "-level", "1", "-stage=deep,other")
    assert "low" not in printed(capsys, "-level", "1")


def test_weights_say_what_was_loaded_for_each_layer(capsys):
    other = NET.replace("name: 'ip'", "name: 'fc'")
    make_net(other).save("w.caffemodel")
    out = printed(capsys, "--weights", "w.caffemodel")
    status = {line.split()[0]: line.split()[-1] for line in out.splitlines()[1:7]}
    assert status["layer"] == "weights"
    assert (status["conv"], status["ip"], status["relu"]) == ("loaded", "left", "-")
    assert out.splitlines()[-1] == (
        "weights w.caffemodel: 1 layers loaded; left at their fillers, not in the file: ip;"
        " ignored, not in the net: fc"
    )
    data = json.loads(printed(capsys, "--weights=w.caffemodel", "--json"))
    assert data["ignored"] == ["fc"]
    assert [layer["weights"] for layer in data["layers"]] == ["", "loaded", "", "", "left"]


def test_shared_parameters_count_once():
    both = [ip(name, "x", f"y{name}", 4, "param { name: 'w' }") for name in "ab"]
    found = summarize(make_net("input: 'x' input_shape { dim: [2, 3] }\n" + "".join(both)))
    assert [layer.parameters for layer in found.layers] == [0, 3 * 4 + 4, 4]
    assert found.parameters == 3 * 4 + 4 + 4
    assert found.parameter_bytes == 4 * found.parameters


def test_a_split_of_the_users_own_is_shown():
    text = "input: 'x' input_shape { dim: [2, 3] }\n"
    text += "layer { name: 'mine' type: 'Split' bottom: 'x' top: 'a' top: 'b' }"
    found = summarize(make_net(text))
    assert [layer.name for layer in found.layers] == ["input", "mine"]
    assert found.layers[1].tops == (("a", (2, 3)), ("b", (2, 3)))
    assert found.activation_bytes == 4 * 6, "its tops share the bottom's memory"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "one file is needed, a net's prototxt; got 0"),
        (["a", "b"], "got 2"),
        (["net.prototxt", "-phase=train"], "unknown phase: 'train' must be TRAIN or TEST"),
        (["net.prototxt", "--weight=w"], "did you mean 'weights'?"),
    ],
)
def test_wrong_usage_is_status_1(args, said, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["summary", *args])
    assert raised.value.code == 1
    err = capsys.readouterr().err
    assert "usage: pycaffe-lite summary FILE" in err
    assert said in err


def test_files_that_are_not_there_or_do_not_fit(capsys):
    assert main(["summary", "absent.prototxt"]) == 1
    assert "absent.prototxt" in capsys.readouterr().err
    assert main(["summary", "net.prototxt", "--weights=absent"]) == 1
    assert "absent" in capsys.readouterr().err
    make_net(NET.replace("num_output: 4", "num_output: 6")).save("w.caffemodel")
    assert main(["summary", "net.prototxt", "--weights=w.caffemodel"]) == 1
    said = capsys.readouterr()
    assert "shape mismatch" in said.err
    assert said.out == ""


def test_nothing_is_allocated_for_blobs(monkeypatch):
    net = make_net(NET)
    summarize(net)
    assert not any(blob.storages[0]._copies for blob in net.blobs.values())


def test_units():
    numbers = [0, 999, 1000, 1240, 61_100_000, 999_600]
    assert [_table.count(n) for n in numbers] == [
        "0",
        "999",
        "1.00 k",
        "1.24 k",
        "61.1 M",
        "1.00 M",
    ]
    assert [_table.size(n) for n in (7, 1023, 1024, 233 * 2**20)] == [
        "7 B",
        "1023 B",
        "1.00 KiB",
        "233 MiB",
    ]
    assert _table.shape(()) == "scalar"
