"""`pycaffe-lite compare`, and the matching, aligning and measuring behind it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from small_nets import fill

from pycaffe_lite import ModelError, comparison, comparison_sides
from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import compare as command

NET = """
layer { name: 'in' type: 'Input' top: 'data' input_param { shape { dim: 1 dim: 3 dim: 5 dim: 7 } } }
layer { name: 'a' type: 'Convolution' bottom: 'data' top: 'br/1x1'
  convolution_param { num_output: 4 kernel_size: 1 } }
layer { name: 'relu' type: 'ReLU' bottom: 'br/1x1' top: 'br/1x1' }
layer { name: 'b' type: 'InnerProduct' bottom: 'br/1x1' top: 'fc' inner_product_param {
  num_output: 6 } }
layer { name: 'c' type: 'TanH' bottom: 'br/1x1' top: 't' }
"""


@pytest.fixture(autouse=True)
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    made = fill(make_net(NET))
    made.save("w.caffemodel")
    return made


def status(capsys, *args):
    """The exit status and what was printed."""
    code = main(["compare", *args])
    return code, capsys.readouterr().out


def figures(capsys, *args):
    code, out = status(capsys, *args, "--json")
    return code, json.loads(out)


A = "net.prototxt:w.caffemodel"


def by_hand(net, x):
    """br/1x1 and fc, in float64."""
    (w, b), (v, c) = ([p.data.astype("f8") for p in net.params[k]] for k in "ab")
    y = np.maximum(np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]) + b[:, None, None], 0)
    return y, y.reshape(len(x), -1) @ v.T + c


# ---- two nets -----------------------------------------------------------------------------------


def test_a_net_agrees_with_itself(capsys):
    code, out = status(capsys, A, "net.prototxt", "--weights-b", "w.caffemodel")
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == ["inputs: random, normally distributed", "all 4 blobs agree within 0.001"]
    assert [line.split()[0] for line in lines[3:]] == ["data", "br/1x1", "fc", "t"], "no Splits"


def test_the_first_divergence_is_found(capsys, net):
    net.params["b"][1].data[2] += 50
    net.save("v.caffemodel")
    code, out = status(capsys, A, "net.prototxt:v.caffemodel")
    assert code == 1
    second = "first divergence: fc, after br/1x1; 1 of 4 blobs differ by more than 0.001"
    assert out.splitlines()[1] == second
    assert [line[2:].split()[0] for line in out.splitlines() if line.startswith("!")] == ["fc"]
    code, data = figures(capsys, A, "net.prototxt:v.caffemodel")
    assert (code, data["first_divergence"], data["agree"]) == (1, "fc", False)
    row = data["blobs"][2]
    assert row["difference"]["max_abs"] == pytest.approx(50, rel=1e-5)
    assert row["difference"]["mean_abs"] == pytest.approx(50 / 6, rel=1e-5)
    assert status(capsys, A, "net.prototxt:v.caffemodel", "--tolerance=1000")[0] == 0


def test_random_inputs_are_always_the_same(capsys):
    for folder in ("one", "two"):
        assert main(["compare", A, "--save", folder]) == 0
    one, two = (np.load(f"{folder}/data.npy") for folder in ("one", "two"))
    assert np.array_equal(one, two)
    assert one.shape == (1, 3, 5, 7)
    assert 0.5 < one.std() < 1.5


# ---- inputs -------------------------------------------------------------------------------------


def test_inputs_from_a_file_reshape_the_net(capsys, net):
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 7)).astype("f4")
    np.savez("in.npz", data=x)
    code, data = figures(capsys, A, A, "--inputs", "in.npz", "--save=out")
    assert (code, data["inputs"]) == (0, "in.npz")
    y, fc = by_hand(net, x)
    np.testing.assert_allclose(np.load("out/br_1x1.npy"), y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.load("out/fc.npy"), fc, rtol=1e-5, atol=1e-4)


def test_an_input_of_another_name_and_order_of_axes(capsys, caplog):
    x = np.random.default_rng(1).normal(size=(5, 7, 3)).astype("f4")
    np.save("picture.npy", x)
    with caplog.at_level(logging.WARNING):
        assert main(["compare", A, "--inputs=picture.npy", "--save=out"]) == 0
    assert np.array_equal(np.load("out/data.npy")[0], x.transpose(2, 0, 1))
    assert "input 'data': given as `5 7 3 (105)`, transposed" in caplog.text


def test_an_image_as_input(capsys):
    cv2 = pytest.importorskip("cv2")
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    cv2.imwrite("x.png", pixels)
    assert main(["compare", A, "--inputs=x.png", "--save=out"]) == 0
    assert np.array_equal(np.load("out/data.npy")[0], pixels.transpose(2, 0, 1))
    Path("two.prototxt").write_text(NET.replace("dim: 3", "dim: 2"))
    assert main(["compare", "two.prototxt", "--inputs=x.png", "--save=out"]) == 1
    assert "data (1, 2, 5, 7)" in capsys.readouterr().err


def test_inputs_that_nobody_has(capsys):
    np.savez("b.npz", fc=np.zeros((1, 6)))
    assert main(["compare", A, "b.npz"]) == 1
    assert "no values for input data" in capsys.readouterr().err


# ---- saved blobs --------------------------------------------------------------------------------


def test_saved_blobs_are_read_again(capsys):
    assert main(["compare", A, "--save", "blobs"]) == 0
    assert sorted(p.name for p in Path("blobs").iterdir()) == [
        "br_1x1.npy", "data.npy", "fc.npy", "t.npy",
    ]  # fmt: skip
    code, out = status(capsys, A, "blobs")
    assert code == 0
    assert out.startswith("inputs: the blobs saved on the other side\nall 4 blobs agree")
    assert "B: br_1x1" in out
    assert status(capsys, "blobs", A)[0] == 0
    assert status(capsys, "blobs", "blobs")[0] == 0


def test_another_tools_files(capsys, net):
    """Numbers in front and behind, NHWC, no batch axis, float64, a blob that nobody else has."""
    x = np.random.default_rng(2).normal(size=(1, 3, 5, 7))
    net.forward(data=x)
    y = net.blobs["br/1x1"].data.astype("f8")
    Path("dump/more").mkdir(parents=True)
    np.save("dump/000_data.npy", x)
    np.save("dump/002_BR_1x1_0.npy", y.transpose(0, 2, 3, 1))
    np.save("dump/fc_output_0.npy", net.blobs["fc"].data[0])
    np.savez("dump/more/rest.npz", quantized=np.zeros(3, np.int8))
    code, data = figures(capsys, A, "dump")
    assert code == 0
    rows = {row["blob"]: row for row in data["blobs"]}
    assert {name: row["other"] for name, row in rows.items()} == {
        "data": "000_data",
        "br/1x1": "002_BR_1x1_0",
        "fc": "fc_output_0",
    }
    assert rows["br/1x1"]["note"] == "b is NHWC, transposed"
    assert rows["fc"]["note"] == "leading ones differ"
    assert (data["only_in_a"], data["only_in_b"]) == (["t"], ["quantized"])
    out = status(capsys, A, "dump")[1]
    assert "only in A: t\nonly in B: quantized" in out
    assert "B has 1 x 5 x 7 x 4; b is NHWC, transposed" in out


def test_values_before_they_are_overwritten_in_place(capsys, net):
    """Other tools save what each layer makes, a convolution before its ReLU."""
    x = np.random.default_rng(2).normal(size=(1, 3, 5, 7))
    net.forward(end="a", data=x)
    before = net.blobs["br/1x1"].data.copy()
    net.forward(data=x)
    after, fc = net.blobs["br/1x1"].data, net.blobs["fc"].data
    np.savez("dump.npz", data=x, relu=after, b=fc, **{"br/1x1": before.transpose(0, 2, 3, 1)})
    code, data = figures(capsys, A, "dump.npz")
    assert code == 0
    rows = {row["blob"]: row for row in data["blobs"]}
    assert list(rows) == ["data", "br/1x1", "br/1x1 (layer relu)", "fc (layer b)"]
    said = "b is NHWC, transposed; as it is behind layer 'a', before later ones in place"
    assert rows["br/1x1"]["note"] == said
    assert rows["br/1x1 (layer relu)"]["note"] == ""
    assert (data["only_in_a"], data["only_in_b"]) == (["t"], [])
    assert said in status(capsys, A, "dump.npz")[1]
    np.savez("dump.npz", data=x, **{"br/1x1": before + 9})
    code, data = figures(capsys, A, "dump.npz")
    assert (code, data["blobs"][1]["note"]) == (1, "")


def test_two_nets_of_which_one_is_in_place(capsys):
    plain = NET.replace("bottom: 'br/1x1' top: 'br/1x1' }", "bottom: 'br/1x1' top: 'relu' }")
    plain = plain.replace("bottom: 'br/1x1' top: 'fc'", "bottom: 'relu' top: 'fc'")
    Path("plain.prototxt").write_text(
        plain.replace("bottom: 'br/1x1' top: 't'", "bottom: 'relu' top: 't'")
    )
    for sides in ([A, "plain.prototxt:w.caffemodel"], ["plain.prototxt:w.caffemodel", A]):
        code, data = figures(capsys, *sides)
        names = [row["blob"] for row in data["blobs"]]
        if sides[0] == A:
            assert (code, names[2]) == (0, "br/1x1 (layer relu)")
            assert data["only_in_b"] == []
        else:
            assert (code, data["first_divergence"]) == (1, "br/1x1")


def test_nan_is_counted_and_never_agrees(capsys, net):
    main(["compare", A, "--save", "blobs"])
    fc = np.load("blobs/fc.npy")
    fc[0, 2] = np.nan
    np.save("blobs/fc.npy", fc)
    code, data = figures(capsys, A, "blobs")
    assert (code, data["first_divergence"]) == (1, "fc")
    assert data["blobs"][2]["difference"]["nan_b"] == 1
    out = status(capsys, A, "blobs")[1]
    assert "0/1" in next(line for line in out.splitlines() if line.startswith("!"))


def test_files_that_are_nothing(capsys):
    Path("empty").mkdir()
    Path("bad.npy").write_bytes(b"no array")
    np.savez("text.npz", a=np.array(["x"]))
    np.savez("complex.npz", a=np.zeros(2, complex))
    for path, said in [
        ("empty", "there are no arrays"),
        ("bad.npy", "cannot read bad.npy"),
        ("text.npz", "no real numbers"),
        ("complex.npz", "no real numbers"),
        ("absent.npz", "Could not open file absent.npz"),
    ]:
        assert main(["compare", path, "empty"]) == 1
        assert said in capsys.readouterr().err


def test_no_name_in_common_is_an_error(capsys):
    np.savez("a.npz", x=np.zeros(3))
    np.savez("b.npz", y=np.zeros(3))
    assert main(["compare", "a.npz", "b.npz"]) == 1
    assert "no blob is on both sides: a.npz has x; b.npz has y" in capsys.readouterr().err


def test_names_of_files_are_kept_apart(tmp_path):
    command.save({"a/b": np.zeros(2), "a_b": np.ones(3), "c": np.zeros(1)}, tmp_path / "out")
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["001_a_b.npy", "002_a_b.npy", "c.npy"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a"], "two sides are needed, A and B (or A and --save); got 1"),
        (["a", "b", "c"], "got 3"),
        (["a", "b", "--tolerance=-1"], "-tolerance must be at least 0"),
        (["a", "b", "--tolerance=nan"], "-tolerance must be at least 0"),
    ],
)
def test_wrong_usage(args, said, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["compare", *args])
    assert raised.value.code == 1
    assert said in capsys.readouterr().err


# ---- ONNX ---------------------------------------------------------------------------------------


def write_onnx(net, path, nhwc=False):
    """The net's convolution and ReLU as another tool may have made them."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    w, b = (blob.data for blob in net.params["a"])
    nodes = [
        make("Conv", ["x" if nhwc else "data", "w", "bias"], ["pre"]),
        make("Relu", ["pre"], ["br_1x1"]),
    ]
    dims = ["batch", 3, 5, 7]
    if nhwc:
        nodes.insert(0, make("Transpose", ["data"], ["x"], perm=[0, 3, 1, 2]))
        dims = ["batch", 5, 7, 3]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("data", 1, dims)],
        [value("br_1x1", 1, None)],
        [tensor(w, "w"), tensor(b, "bias")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def test_an_onnx_model(capsys, net):
    write_onnx(net, "m.onnx")
    code, data = figures(capsys, A, "m.onnx")
    assert code == 0
    assert [row["blob"] for row in data["blobs"]] == ["data", "br/1x1"]
    assert data["only_in_b"] == ["pre"]
    np.savez("in.npz", data=np.random.default_rng(1).normal(size=(2, 3, 5, 7)))
    assert status(capsys, "m.onnx", A, "--inputs=in.npz")[0] == 0
    net.params["a"][1].data[...] = 9
    write_onnx(net, "m.onnx")
    assert status(capsys, A, "m.onnx")[0] == 1


@pytest.mark.filterwarnings("default")
def test_an_onnx_model_with_channels_last(capsys, net, caplog):
    write_onnx(net, "m.onnx", nhwc=True)
    code, data = figures(capsys, A, "m.onnx")
    assert code == 0
    assert data["blobs"][0]["note"] == "b is NHWC, transposed"
    assert "input 'data'" in caplog.text


def test_what_is_no_onnx_model(capsys):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    Path("bad.onnx").write_text("no model")
    assert main(["compare", A, "bad.onnx"]) == 1
    assert "cannot read bad.onnx as an ONNX model" in capsys.readouterr().err
    assert main(["compare", A, "absent.onnx"]) == 1
    assert "absent.onnx" in capsys.readouterr().err


# ---- names --------------------------------------------------------------------------------------


def test_names_match_by_ever_looser_rules():
    a = ["conv1", "conv1_2", "inception/3x3", "prob", "245", "x1", "x2"]
    b = ["001_conv1", "conv1_2_0", "Inception_3x3:0", "prob", "prob_0", "245", "x10"]
    assert comparison.match(a, b) == {
        "conv1": "001_conv1",
        "conv1_2": "conv1_2_0",
        "inception/3x3": "Inception_3x3:0",
        "prob": "prob",
        "245": "245",
    }


def test_names_that_are_not_unique_stay_alone():
    assert comparison.match(["a/b", "a_b"], ["A.b"]) == {}
    assert comparison.match(["conv"], ["1_conv", "2_conv"]) == {}
    assert comparison.match(["conv"], ["conv", "1_conv", "2_conv"]) == {"conv": "conv"}


# ---- shapes -------------------------------------------------------------------------------------


def numbered(*shape):
    return np.arange(np.prod(shape)).reshape(shape)


@pytest.mark.parametrize(
    ("other", "note", "turn"),
    [
        ((1, 2, 3, 4), "", None),
        ((2, 3, 4), "leading ones differ", None),
        ((1, 3, 4, 2), "b is NHWC, transposed", (0, 3, 1, 2)),
        ((3, 4, 2), "b is NHWC, transposed", (2, 0, 1)),
        ((1, 2, 4, 3), "height and width swapped, transposed", (0, 1, 3, 2)),
        ((1, 4, 2, 3), "a is NHWC, b transposed", (0, 2, 3, 1)),
        ((2, 3, 1, 4), "ones differ", None),
        ((24,), "flat, taken in order", None),
        ((1, 24), "flat, taken in order", None),
    ],
)
def test_shapes_that_are_understood(other, note, turn):
    array = numbered(*other)
    aligned, said = comparison.align((1, 2, 3, 4), array)
    assert said == note
    wanted = array.transpose(turn) if turn else array
    assert np.array_equal(aligned, wanted.reshape(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("shape", "other", "note"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 5), "shapes differ"),
        ((1, 2, 3, 4), (4, 6), "shapes differ, same count"),
        ((1, 2, 2, 3), (1, 2, 3, 2), None),
        ((2, 3), (3, 2), "shapes differ, same count"),
    ],
)
def test_shapes_that_are_not(shape, other, note):
    aligned, said = comparison.align(shape, numbered(*other))
    assert aligned is None
    assert said == note if note else said.startswith("shapes differ, ambiguous: ")


def test_square_pictures_with_channels_last():
    array = numbered(1, 5, 5, 3)
    aligned, _ = comparison.align((1, 3, 5, 5), array)
    assert np.array_equal(aligned, array.transpose(0, 3, 1, 2))
    aligned, said = comparison.align((1, 7, 1, 1), numbered(1, 1, 1, 7))
    assert (aligned.shape, said) == ((1, 7, 1, 1), "ones differ")


# ---- values -------------------------------------------------------------------------------------


def test_measures():
    found = comparison.measure(np.float32([3, 4, 0]), np.float32([3, 4, 1]))
    assert (found.max_abs, found.relative, found.mean_abs) == (1, 0.25, 1 / 3)
    assert found.cosine == pytest.approx(25 / (5 * 26**0.5))
    assert found.within(0.25)
    assert not found.within(0.24)


def test_measures_of_what_is_not_finite():
    nan, inf = np.nan, np.inf
    a = np.float32([nan, inf, nan, 1, -inf, 2])
    b = np.float32([nan, inf, 7, nan, inf, 2])
    found = comparison.measure(a, b)
    assert (found.nan_a, found.nan_b, found.unlike) == (2, 2, 3)
    assert (found.max_abs, found.relative, found.cosine) == (0, 0, 1)
    assert not found.within(1)
    assert comparison.measure(a[:2], b[:2]).within(0)


def test_measures_of_nothing_and_of_zeros():
    zeros = np.zeros(3, np.float32)
    assert comparison.measure(zeros[:0], zeros[:0]).within(0)
    assert comparison.measure(zeros, zeros).cosine == 1
    found = comparison.measure(zeros, zeros + 1)
    assert np.isinf(found.relative)
    assert np.isnan(found.cosine)
    rows = comparison.compare({"a": zeros}, {"a": zeros + 1}, 0.5)
    assert rows.as_dict()["blobs"][0]["difference"]["relative"] is None


def test_two_arrays_of_one_name(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2))
    np.savez(tmp_path / "b.npz", a=np.zeros(2))
    with pytest.raises(ModelError, match="two arrays have the name 'a'"):
        comparison_sides.load_arrays(tmp_path)
