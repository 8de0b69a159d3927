"""Exporting a net from Python: which part of it, under which names, with which sizes open."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from harness import make_net
from onnx_cases import assert_same, fill, one_layer, ops_of, run_model

import pycaffe_lite.onnx
from pycaffe_lite import TRAIN, Layer, ModelError, Net
from pycaffe_lite.onnx import convert, exported_types, exports
from pycaffe_lite.onnx.proof import Proof, Row, prove
from pycaffe_lite.onnx.saving import LARGEST

CONV = "convolution_param { num_output: 4 kernel_size: 3 }"
NET = f"""
name: "small"
layer {{ name: "in" type: "Input" top: "data" input_param {{ shape {{ dim: [2, 3, 6, 7] }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" {CONV} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }}
layer {{ name: "a" type: "TanH" bottom: "conv" top: "a" }}
layer {{ name: "b" type: "Sigmoid" bottom: "conv" top: "b" }}
layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }}
"""


def small(text: str = NET) -> Net:
    return fill(make_net(text))


# ---- names --------------------------------------------------------------------------------------


def test_the_last_value_of_an_in_place_chain_has_the_blobs_name() -> None:
    model = convert(small())
    nodes = {node.name: node for node in model.model.proto.graph.node}
    assert [list(n.output) for n in nodes.values()] == [
        ["conv/conv"],
        ["conv/relu"],
        ["conv"],
        ["a"],
        ["b"],
        ["sum"],
    ]
    assert list(nodes) == ["conv", "relu", "drop", "a", "b", "sum"]
    assert nodes["a"].input == nodes["b"].input == ["conv"]  # automatic splits make no nodes
    assert model.outputs == ["sum"]


def test_every_value_of_a_chain_is_compared() -> None:
    rows = assert_same(small()).prove().rows
    assert [(row.layer, row.blob) for row in rows][:3] == [
        ("conv", "conv"),
        ("relu", "conv"),
        ("drop", "conv"),
    ]


def test_an_input_overwritten_in_place_keeps_its_name() -> None:
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3] }"
        "layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'x' }"
    )
    model = convert(net)
    assert model.outputs == ["x/r"]
    found = run_model(model, {"x": np.float32([[1, -2, 3], [-4, 5, -6]])})
    assert found["x/r"].tolist() == [[1, 0, 3], [0, 5, 0]]


def test_blobs_named_like_values_inside_stay_apart() -> None:
    text = NET.replace('"a"', '"conv/relu"')
    assert "conv/relu_1" in [
        o for n in convert(small(text)).model.proto.graph.node for o in n.output
    ]
    assert_same(small(text))


def test_shared_parameters_are_written_once() -> None:
    fc = "param { name: 'w' } inner_product_param { num_output: 3 bias_term: false }"
    net = small(
        "input: 'x' input_shape { dim: [2, 3] }"
        f"layer {{ name: 'p' type: 'InnerProduct' bottom: 'x' top: 'y' {fc} }}"
        f"layer {{ name: 'q' type: 'InnerProduct' bottom: 'y' top: 'z' {fc} }}"
    )
    assert list(assert_same(net).model.initializers) == ["p/param0"]


# ---- sizes --------------------------------------------------------------------------------------


def test_the_batch_is_open_where_the_net_allows_it() -> None:
    model = assert_same(small())
    assert model.inputs == {"data": ["N", 3, 6, 7]}
    x = np.random.default_rng(1).normal(size=(5, 3, 6, 7)).astype("float32")
    assert run_model(model, {"data": x})["sum"].shape == (5, 4, 4, 5)
    output = model.model.proto.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in output] == ["N", 4, 4, 5]


def test_a_reshape_to_a_fixed_batch_fixes_it() -> None:
    net = one_layer("type: 'Reshape' reshape_param { shape { dim: [2, 3, 35] } }", [(2, 3, 5, 7)])
    model = assert_same(net)
    assert model.inputs == {"x0": [2, 3, 5, 7]}
    (note,) = model.notes
    assert "the batch is fixed to 2: layer 'it' (Reshape)" in note


def test_a_batch_that_is_given_is_fixed() -> None:
    net = small()
    assert assert_same(net, batch=3).inputs == {"data": [3, 3, 6, 7]}
    assert net.blobs["data"].shape == (2, 3, 6, 7)


def test_images_of_any_size() -> None:
    model = assert_same(small(), tolerance=1e-5, sizes="dynamic")
    assert model.inputs == {"data": ["N", 3, "H", "W"]}
    assert "another size" in model.prove().runs


@pytest.mark.parametrize("batch", [0, -1, "many", True, 2.5])
def test_no_such_batch(batch: Any) -> None:
    with pytest.raises(ModelError, match="batch must be"):
        convert(small(), batch=batch)


def test_no_such_sizes() -> None:
    with pytest.raises(ModelError, match="sizes must be"):
        convert(small(), sizes="any")


# ---- the part -----------------------------------------------------------------------------------

TRAINED = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
        dummy_data_param { shape { dim: [2, 3, 6, 7] } shape { dim: 2 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
        inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "hit" type: "Accuracy" bottom: "fc" bottom: "label" top: "hit" }
layer { name: "more" type: "Power" bottom: "hit" top: "more" }
layer { name: "unused" type: "TanH" bottom: "fc" top: "unused" }
layer { name: "quiet" type: "Silence" bottom: "unused" }
"""


def test_data_becomes_an_input_and_losses_are_left_off() -> None:
    net = small(TRAINED)
    model = assert_same(net)
    assert model.inputs == {"data": ["N", 3, 6, 7]}
    assert model.outputs == ["fc"]
    assert [name for name, _, _ in model.part.left_off] == ["loss", "hit", "more"]
    assert model.part.replaced == [("data", "DummyData")]
    assert any("'loss' (SoftmaxWithLoss) left off" in note for note in model.notes)


def test_the_part_that_leads_to_a_blob() -> None:
    model = assert_same(small(), end="a")
    assert ops_of(model) == ["Conv", "Relu", "Identity", "Tanh"]
    assert convert(small(), end=["a", "conv"]).outputs == ["a", "conv"]


def test_an_input_that_nothing_reads_is_left_off() -> None:
    model = assert_same(small("input: 'dim' input_shape { dim: [1, 2] }" + NET))
    assert list(model.inputs) == ["data"]
    assert model.part.left_off == [("dim", "Input", "nothing reads it")]


def test_no_such_blob() -> None:
    with pytest.raises(ModelError, match="no blob 'summ' to end the model at; did you mean 'sum'"):
        convert(small(), end="summ")


def test_nothing_to_export() -> None:
    with pytest.raises(ModelError, match="nothing to export"):
        convert(make_net("input: 'x' input_shape { dim: 2 }"))


def test_only_test_nets() -> None:
    with pytest.raises(ModelError, match="phase TEST"):
        convert(make_net(NET, TRAIN))


def test_stages_and_phases_are_chosen_already(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    text = NET.replace('name: "a"', 'name: "a" include { stage: "deploy" }')
    path.write_text(text)
    net = Net(path, pycaffe_lite.TEST, stages=["deploy"])
    assert "Tanh" in ops_of(convert(net))


def test_the_net_stays_as_it_is() -> None:
    net = small()
    x = np.random.default_rng(1).normal(size=(2, 3, 6, 7))
    before = net.forward(data=x)["sum"].copy()
    params = [b.data.copy() for blobs in net.params.values() for b in blobs]
    convert(net, batch=4, sizes="dynamic").prove()
    assert net.blobs["data"].shape == (2, 3, 6, 7)
    np.testing.assert_array_equal(net.blobs["sum"].data, before)
    for blob, value in zip(
        (b for blobs in net.params.values() for b in blobs), params, strict=True
    ):
        np.testing.assert_array_equal(blob.data, value)


# ---- what cannot be said ------------------------------------------------------------------------


class NoOnnx(Layer):
    """A user's layer."""

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data + 1


def test_a_layer_without_an_exporter_is_an_error() -> None:
    net = one_layer("type: 'NoOnnx'", [(2, 3)])
    with pytest.raises(ModelError, match=r"'it' \(NoOnnx\): cannot be said in ONNX.*--end x0"):
        convert(net)


def test_the_error_names_the_blob_that_others_read_too() -> None:
    text = NET + 'layer { name: "own" type: "NoOnnx" bottom: "conv" top: "own" }'
    with pytest.raises(ModelError, match=r"--end conv\)"):
        convert(small(text))


def test_an_exporter_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycaffe_lite.onnx import registry

    exported_types()  # all files of layers are read
    monkeypatch.setattr(registry, "_exporters", dict(registry._exporters))

    @exports("NoOnnx")
    def add_one(w: pycaffe_lite.onnx.LayerWriter) -> None:
        w.add("Add", w.bottom[0], w.constant(1.0), to=w.top[0])

    assert_same(one_layer("type: 'NoOnnx'", [(2, 3)]))


def test_most_types_have_one() -> None:
    assert len(exported_types()) > 60
    assert set(exported_types()) <= set(Layer.registry)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(RuntimeError, match=r"onnx is needed.*pycaffe-lite\[onnx\]"):
        convert(small())


# ---- the proof ----------------------------------------------------------------------------------


def test_a_wrong_weight_is_found_where_it_is() -> None:
    model = convert(small())
    weights = model.model.initializers["conv/param0"]
    model.model.initializers["conv/param0"] = weights * np.float32(1.001)
    proof = model.prove()
    assert [row.layer for row in proof.wrong] == ["conv", "relu", "drop", "a", "b", "sum"][
        : len(proof.wrong)
    ]
    assert proof.wrong[0].blob == "conv"
    assert proof.first == proof.wrong[0]
    assert proof.worst.relative > 1e-4
    assert model.prove(tolerance=0.1).wrong == []


def test_a_wrong_operator_is_found() -> None:
    model = convert(small())
    node = next(n for n in model.model.proto.graph.node if n.name == "a")
    node.op_type = "Softsign"
    proof = model.prove()
    assert [row.layer for row in proof.wrong] == ["a", "sum"]
    assert [row.own is not None and row.own > 1e-5 for row in proof.wrong] == [True, False]


def test_nan_counts_as_wrong() -> None:
    model = convert(small())
    model.model.initializers["conv/param1"] = np.full(4, np.nan, "float32")
    proof = prove(model.part, model.model, model.freedom, 1e9)
    assert proof.wrong[0].layer == "conv"
    assert not proof.worst.relative < 1e9


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nan_is_the_worst_wherever_it_stands(at: int) -> None:
    apart = [0.5, 0.25]
    apart.insert(at, float("nan"))
    rows = [Row("l", "ReLU", "x", (2, 3), d, d, "normal", 1.0) for d in apart]
    assert Proof(rows, ["normal"], 1.0, []).worst is rows[at]


def test_blobs_that_are_always_0_are_named() -> None:
    proof = convert(make_net(NET)).prove()
    assert proof.wrong == []
    assert proof.blank == ["conv", "conv", "conv", "a"]  # all weights are 0; b is 1/2


def test_what_rounding_has_grown_to_is_not_wrong() -> None:
    """Sums of 10^5, made in two orders, differ by 0.01, and so do what a softmax makes of them."""
    net = make_net(
        "input: 'x' input_shape { dim: [2, 64] }"
        "layer { name: 'fc' type: 'InnerProduct' bottom: 'x' top: 'fc'"
        " inner_product_param { num_output: 5 } }"
        "layer { name: 'prob' type: 'Softmax' bottom: 'fc' top: 'prob' }"
        "layer { name: 'best' type: 'ArgMax' bottom: 'fc' top: 'best' }"
    )
    fc = net.params["fc"][0].data
    fc[...] = 1e3 * np.random.default_rng(2).normal(size=64)  # all outputs nearly equal
    model = convert(net)
    spoilt = fc * (1 + np.random.default_rng(3).normal(0, 2.0**-22, fc.shape))
    model.model.initializers["fc/param0"] = spoilt.astype("float32")
    proof = model.prove(tolerance=1e-4)
    assert proof.worst.relative > 1e-3
    assert proof.worst.own is not None
    assert proof.worst.own < 1e-5
    assert proof.wrong == []
    assert proof.first is None
    model.model.initializers["fc/param0"] = fc * np.float32(1.001)
    proof = model.prove(tolerance=1e-4)
    assert proof.first is not None
    assert proof.first.layer == "fc"
    assert "fc" in [row.layer for row in proof.wrong]


def test_rounding_hides_no_error_in_a_channel_of_small_values() -> None:
    """Beside 10^6 in one channel a wrong factor of the others is nothing, but tanh sees it."""
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3, 5, 6] }"
        "layer { name: 's' type: 'Scale' bottom: 'x' top: 's' }"
        "layer { name: 'y' type: 'TanH' bottom: 's' top: 'y' }"
    )
    net.params["s"][0].data[...] = [1e6, 2, 1]
    model = convert(net)
    assert model.prove().wrong == []
    model.model.initializers["s/param0"] = np.float32([1e6, 3, 1]).reshape(3, 1, 1)
    proof = model.prove()
    assert proof.rows[1].own is not None
    assert proof.rows[1].own < 1e-5
    assert [row.layer for row in proof.wrong] == ["y"]


def test_layers_of_one_name_keep_their_own_parameters() -> None:
    layer = (
        "layer {{ name: 'twin' type: 'InnerProduct' bottom: '{}' top: '{}'"
        " inner_product_param {{ num_output: 4 }} }}"
    )
    net = make_net(
        "input: 'x' input_shape { dim: [3, 4] }"
        + layer.format("x", "a")
        + "layer { name: 'twin' type: 'TanH' bottom: 'a' top: 'b' }"
        + layer.format("b", "c")
    )
    fill(net)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    expected = net.forward(x=x)["c"]
    np.testing.assert_allclose(run_model(convert(net), {"x": x})["c"], expected, rtol=1e-5)


def test_a_sequences_flags_are_drawn_where_a_reshape_hands_them_on() -> None:
    net = make_net(
        "input: 'x' input_shape { dim: [5, 2, 3] } input: 'flags' input_shape { dim: 10 }"
        "layer { name: 'cont' type: 'Reshape' bottom: 'flags' top: 'cont'"
        " reshape_param { shape { dim: 5 dim: 2 } } }"
        "layer { name: 'y' type: 'LSTM' bottom: 'x' bottom: 'cont' top: 'y'"
        " recurrent_param { num_output: 4 } }"
    )
    assert_same(fill(net))


def test_a_second_bottom_without_axes() -> None:
    assert_same(one_layer("type: 'Scale' scale_param { axis: 0 }", [(2, 3, 4), ()]))


def test_infinities_of_both_are_equal() -> None:
    net = one_layer("type: 'Exp' exp_param { scale: 100 }", [(2, 3)])
    assert_same(net, tolerance=1e-4)


# ---- files --------------------------------------------------------------------------------------


def test_export(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "net.onnx"
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        proof = pycaffe_lite.onnx.export(small(TRAINED), path)
    assert proof is not None
    assert not proof.wrong
    assert "left off" in caplog.text
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", pycaffe_lite.onnx.OPSET)]
    assert model.producer_name == "pycaffe_lite"


def test_a_wrong_model_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(ModelError, match=r"blob '\w+' of layer.*nothing was written"):
        pycaffe_lite.onnx.export(small(), path, tolerance=-1)
    assert list(tmp_path.iterdir()) == []
    assert pycaffe_lite.onnx.export(small(), path, verify=False) is None
    assert path.exists()


def test_weights_beside_the_model(tmp_path: Path) -> None:
    net = one_layer("type: 'InnerProduct' inner_product_param { num_output: 50 }", [(2, 70)])
    path = tmp_path / "net.onnx"
    pycaffe_lite.onnx.export(net, path, external=True)
    beside = tmp_path / "net.onnx.data"
    assert sorted(tmp_path.iterdir()) == [path, beside]
    onnx.checker.check_model(str(path), full_check=True)
    loaded = onnx.load(path)
    values = {i.name: onnx.numpy_helper.to_array(i) for i in loaded.graph.initializer}
    np.testing.assert_array_equal(values["it/param0"], net.params["it"][0].data)


def test_models_above_two_gigabytes_have_their_weights_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LARGEST < 2**31
    monkeypatch.setattr("pycaffe_lite.onnx.saving.LARGEST", 5000)
    net = one_layer("type: 'InnerProduct' inner_product_param { num_output: 50 }", [(2, 70)])
    path = tmp_path / "net.onnx"
    assert pycaffe_lite.onnx.export(net, path) is not None  # compared by way of such files too
    assert (tmp_path / "net.onnx.data").stat().st_size == 50 * 70 * 4
