"""caffe.draw: which boxes and arrows a net becomes, what stands in them, and files of them."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from small_nets import CHAIN

import pycaffe_lite as caffe
from pycaffe_lite import ModelError, draw
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net, parse_text, read_net

SHARED = Path(__file__).parents[2] / "shared" / "models"
MODELS = [*sorted((SHARED / "nets").glob("*.prototxt"))[::45], SHARED / "bench/squeezenet.prototxt"]

PHASES = """
layer { name: 'data' type: 'Data' top: 'x' include { phase: TRAIN } data_param { batch_size: 64 } }
layer { name: 'data' type: 'Data' top: 'x' include { phase: TEST } data_param { batch_size: 10 } }
layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'x' exclude { phase: TEST } }
layer { name: 'staged' type: 'TanH' bottom: 'x' top: 'y' include { stage: 'late' } }
"""


def layer(text: str):
    return parse_text(text, caffe_pb2.LayerParameter)


def drawn(net, **options):
    """DOT text as {node: its attributes}, [(from, to, label)]."""
    options = {"rankdir": "LR", "ext": "raw"} | options
    lines = draw.draw_net(net, **options).decode().splitlines()
    found = [re.fullmatch(r'"(.*?)"(?: -> "(.*?)")? +\[(.*)\];', line) for line in lines[2:-1]]
    nodes, edges = {}, []
    for source, target, text in (match.groups() for match in found):
        pairs = re.findall(r'(\w+)=(?:"(.*?)(?<!\\)"|(\w+))', text)
        attributes = {name: quoted or plain for name, quoted, plain in pairs}
        if target is None:
            nodes[source] = attributes
        else:
            edges.append((source, target, attributes.get("label", "")))
    return nodes, edges


# ---- the graph ---------------------------------------------------------------------------------


def test_boxes_and_arrows():
    nodes, edges = drawn(parse_net(CHAIN))
    layers = {name: a["label"] for name, a in nodes.items() if a["shape"] == "box"}
    assert layers == {
        "input_Input": r"input\n(Input)",
        "a_InnerProduct": r"a\n(InnerProduct)",
        "relu_ReLU": r"relu\n(ReLU)",
        "b_InnerProduct": r"b\n(InnerProduct)",
    }
    blobs = {name: a["label"] for name, a in nodes.items() if a["shape"] == "octagon"}
    assert blobs == {"x_blob": "x", "y_blob": "y", "z_blob": "z"}
    assert edges == [
        ("input_Input", "x_blob", ""),
        ("x_blob", "a_InnerProduct", ""),
        ("a_InnerProduct", "y_blob", "4"),
        ("y_blob", "relu_ReLU", ""),
        ("relu_ReLU", "y_blob", ""),
        ("y_blob", "b_InnerProduct", ""),
        ("b_InnerProduct", "z_blob", "5"),
    ]
    colors = {name: a["fillcolor"] for name, a in nodes.items()}
    assert colors["a_InnerProduct"] == "#CC33FF"
    assert colors["relu_ReLU"] == "#90EE90"
    assert colors["input_Input"] == "#6495ED"
    assert colors["y_blob"] == "#E0E0E0"


def test_the_graph_of_pydot():
    net = parse_net("name: 'a b'\n" + CHAIN)
    graph = draw.get_pydot_graph(net, "TB", label_edges=False)
    assert (graph.get_name(), graph.get_rankdir()) == ('"a b"', "TB")
    assert {edge.get_label() for edge in graph.get_edges()} == {'""'}
    labels = {node.get_label() for node in graph.get_nodes()}
    assert '"relu (ReLU)"' in labels
    assert draw.get_pydot_graph(parse_net(CHAIN), "TB").get_name() == '"Net"'


def test_nets_of_older_forms():
    """https://github.com/BVLC/caffe/issues/1709"""
    inner = "convolution_param { num_output: 7 kernel_size: 3 } blobs_lr: 2 blobs_lr: 5"
    net = parse_net(f"layers {{ name: 'c' type: CONVOLUTION bottom: 'x' top: 'y' {inner} }}")
    before = parse_net(str(net))
    nodes, edges = drawn(net, display_lrm=True)
    label = r"c\n(Convolution)\nkernel size: 3\nstride: 1\npad: 0\nlr mult: 2"
    assert nodes["c_Convolution"]["label"] == label
    assert ("c_Convolution", "y_blob", "7") in edges
    assert net == before


def test_layers_of_one_name_stay_apart():
    nodes, edges = drawn(parse_net(PHASES))
    assert "data_Data" in nodes
    assert "data_Data_2" in nodes
    assert ("data_Data", "x_blob", "Batch 64") in edges
    assert ("data_Data_2", "x_blob", "Batch 10") in edges


def test_only_one_phase():
    """https://github.com/BVLC/caffe/issues/4365"""
    layers = {
        phase: [n for n in drawn(parse_net(PHASES), phase=phase)[0] if not n.endswith("_blob")]
        for phase in (None, caffe.TRAIN, caffe.TEST)
    }
    assert layers[caffe.TRAIN] == ["data_Data", "drop_Dropout"]
    assert layers[caffe.TEST] == ["data_Data"]
    assert len(layers[None]) == 4
    assert ("data_Data", "x_blob", "Batch 10") in drawn(parse_net(PHASES), phase=caffe.TEST)[1]


@pytest.mark.parametrize("name", ["a:0", "a/b", "a|{b}<c>", "graph", "ö", "a, b; c", "1.5", "-1"])
def test_names_of_all_kinds(name):
    nodes, edges = drawn(parse_net(f"layer {{ name: '{name}' type: 'ReLU' top: '{name}' }}"))
    assert nodes[f"{name}_ReLU"]["label"] == rf"{name}\n(ReLU)"
    assert nodes[f"{name}_blob"]["label"] == name
    assert edges == [(f"{name}_ReLU", f"{name}_blob", "")]


def test_quotes_in_names():
    text = draw.draw_net(parse_net(r"""name: 'a "b" \\c' """), "LR", "raw").decode()
    assert text.splitlines()[0] == r'digraph "a \"b\" \\c" {'


def test_directions():
    with pytest.raises(ModelError, match="rankdir must be LR, RL, TB or BT, not 'XX'"):
        draw.get_pydot_graph(parse_net(CHAIN), "XX")


@pytest.mark.skipif(not SHARED.exists(), reason="no collection of nets here")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_real_nets(path):
    net = read_net(path)
    nodes, edges = drawn(net, display_lrm=True)
    layers = len(net.layer) + len(net.layers) + bool(net.input)
    assert sum(a["shape"] == "box" for a in nodes.values()) == layers
    assert len(edges) >= layers - 1
    assert {name for a, b, _ in edges for name in (a, b)} == set(nodes)


# ---- labels ------------------------------------------------------------------------------------


# https://github.com/BVLC/caffe/issues/3201: kernel_size, stride and pad are lists
@pytest.mark.parametrize(
    ("param", "kernel", "stride", "pad"),
    [
        ("", 0, 1, 0),
        ("kernel_size: 3 stride: 2 pad: 1", 3, 2, 1),
        ("kernel_size: [3, 5] stride: [2, 2] pad: [0, 1]", "3x5", 2, "0x1"),
        ("kernel_size: [3, 5, 7]", "3x5x7", 1, 0),
        ("kernel_h: 3 kernel_w: 5 stride_h: 2 stride_w: 1 pad_h: 4 pad_w: 4", "3x5", "2x1", 4),
        ("kernel_size: 3 pad_w: 2", 3, 1, "0x2"),
    ],
)
def test_windows_of_convolutions(param, kernel, stride, pad):
    for kind in ("Convolution", "Deconvolution"):
        message = layer(f"name: 'c' type: '{kind}' convolution_param {{ {param} }}")
        words = f"c ({kind}) kernel size: {kernel} stride: {stride} pad: {pad}"
        assert draw.get_layer_label(message, "TB") == f'"{words}"'
        assert draw.get_layer_label(message, "BT") == f'"{words}"'
        lines = rf"c\n({kind})\nkernel size: {kernel}\nstride: {stride}\npad: {pad}"
        assert draw.get_layer_label(message, "LR") == f'"{lines}"'


@pytest.mark.parametrize(
    ("param", "words"),
    [
        ("kernel_size: 3", "(MAX Pooling) kernel size: 3 stride: 1 pad: 0"),
        (
            "pool: AVE kernel_h: 3 kernel_w: 5 stride: 2 pad: 1",
            "(AVE Pooling) kernel size: 3x5 stride: 2 pad: 1",
        ),
        (
            "pool: STOCHASTIC kernel_size: 2 stride_h: 1 stride_w: 4",
            "(STOCHASTIC Pooling) kernel size: 2 stride: 1x4 pad: 0",
        ),
        ("pool: AVE global_pooling: true", "(AVE Pooling) kernel size: all"),
    ],
)
def test_windows_of_pooling(param, words):
    message = layer(f"name: 'p' type: 'Pooling' pooling_param {{ {param} }}")
    assert draw.get_layer_label(message, "TB") == f'"p {words}"'


@pytest.mark.parametrize(
    ("text", "factor", "words"),
    [
        ("type: 'InnerProduct' param { lr_mult: 0.25 } param { lr_mult: 2 }", 0.25, "0.25"),
        ("type: 'InnerProduct' param { decay_mult: 3 }", 1, "1"),
        ("type: 'InnerProduct'", 1, "1"),
        ("type: 'Scale' param { lr_mult: 4 }", 1, None),
    ],
)
def test_learning_rates(text, factor, words):
    message = layer("name: 'a' " + text)
    assert draw.get_layer_lr_mult(message) == factor
    more = f" lr mult: {words}" if words else ""
    assert draw.get_layer_label(message, "TB", display_lrm=True) == f'"a ({message.type}){more}"'
    assert "lr mult" not in draw.get_layer_label(message, "TB")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("type: 'Data' data_param { batch_size: 12 }", "Batch 12"),
        ("type: 'Convolution' convolution_param { num_output: 13 }", "13"),
        ("type: 'Deconvolution' convolution_param { num_output: 14 }", "14"),
        ("type: 'InnerProduct' inner_product_param { num_output: 15 }", "15"),
        ("type: 'ReLU'", ""),
    ],
)
def test_labels_of_edges(text, label):
    assert draw.get_edge_label(layer(text)) == f'"{label}"'


def test_colors_and_kinds():
    colors = {kind: draw.choose_color_by_layertype(kind) for kind in ("Pooling", "Convolution")}
    assert colors == {"Pooling": "#FF9900", "Convolution": "#FF5050"}
    assert draw.choose_color_by_layertype("Deconvolution") == "#FF5050"
    assert draw.choose_color_by_layertype("LRN") == "#6495ED"
    assert draw.get_pooling_types_dict() == {0: "MAX", 1: "AVE", 2: "STOCHASTIC"}


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script into the place of Graphviz's dot; without one there is none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(script: str) -> None:
        path = folder / "dot"
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)

    return put


@pytest.mark.usefixtures("program")
def test_without_graphviz(tmp_path):
    net = parse_net(CHAIN)
    with pytest.raises(RuntimeError, match=r"'png' needs Graphviz's program dot: apt install gra"):
        draw.draw_net_to_file(net, tmp_path / "net.png")
    assert not (tmp_path / "net.png").exists()
    raw = draw.draw_net(net, "LR", "raw")
    assert raw.startswith(b"digraph")
    assert draw.draw_net(net, "LR", "dot") == draw.draw_net(net, "LR", "gv") == raw
    draw.draw_net_to_file(net, str(tmp_path / "net.dot"))
    assert (tmp_path / "net.dot").read_bytes() == raw


def test_what_graphviz_is_given(tmp_path, program):
    program('echo "$@"; cat')
    net = parse_net(PHASES)
    draw.draw_net_to_file(net, tmp_path / "net.v2.SVG", "BT", caffe.TEST, True)
    raw = draw.draw_net(net, "BT", "raw", caffe.TEST, True)
    assert (tmp_path / "net.v2.SVG").read_bytes() == b"-Tsvg\n" + raw


def test_what_graphviz_refuses(tmp_path, program):
    program("echo 'Format: xyz not recognized' >&2; exit 1")
    with pytest.raises(RuntimeError, match="not draw to 'xyz': Format: xyz not recognized"):
        draw.draw_net_to_file(parse_net(CHAIN), tmp_path / "net.xyz")
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz")
def test_a_picture(tmp_path):
    draw.draw_net_to_file(parse_net(CHAIN), tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_without_an_ending(tmp_path):
    with pytest.raises(ModelError, match="net does not end in a format"):
        draw.draw_net_to_file(parse_net(CHAIN), tmp_path / "net")


def test_without_pydot(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(RuntimeError, match=r"pip install 'pycaffe-lite\[draw\]'"):
        draw.draw_net(parse_net(CHAIN), "LR", "raw")
