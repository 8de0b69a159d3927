"""Does a net written in Python become the prototxt that one would write by hand?"""

from __future__ import annotations

import copy

import numpy as np
import pytest

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, Layer, ModelError, Net, NetSpec, net_spec, to_proto
from pycaffe_lite import layers as L
from pycaffe_lite import params as P
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net

SHAPE = {"dim": [2, 3, 5, 7]}


def data():
    return L.Input(shape=SHAPE)


def layer_of(top):
    """The layer that a top gives, as a message."""
    return top.to_proto().layer[-1]


def keys_of(text):
    """A layer of that text, with nothing but what the text says."""
    return parse_net(f"layer {{ {text} }}").layer[0]


# ---- LeNet -------------------------------------------------------------------------------------

LENET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: [2, 1, 17, 19] } shape { dim: 2 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { kernel_size: 5 num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { kernel_size: 2 stride: 2 pool: MAX } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { kernel_size: [3, 4] num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { kernel_size: 2 stride: 2 pool: MAX } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


def lenet():
    xavier = {"type": "xavier"}
    n = NetSpec()
    n.data, n.label = L.DummyData(shape=[{"dim": [2, 1, 17, 19]}, {"dim": [2]}], ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=3, weight_filler=xavier)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=[3, 4], num_output=4, weight_filler=xavier)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=6, weight_filler=xavier)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(n.relu1, num_output=5, weight_filler=xavier)
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
    return n


def test_lenet_is_what_one_would_write():
    assert lenet().to_proto() == parse_net(LENET)


def test_lenet_runs():
    net = Net(lenet().to_proto(), TRAIN)
    assert [layer.type for layer in net.layers].count("ReLU") == 1
    assert net.blobs["ip2"].shape == (2, 5)
    assert np.isfinite(net.forward()["loss"])


def test_tops_without_names_are_numbered_by_type():
    n = lenet()
    made = n.loss.to_proto()
    assert made == to_proto(n.loss)
    assert [layer.name for layer in made.layer] == [
        "DummyData1", "Convolution1", "Pooling1", "Convolution2", "Pooling2", "InnerProduct1",
        "ReLU1", "InnerProduct2", "SoftmaxWithLoss1",
    ]  # fmt: skip
    assert list(made.layer[0].top) == ["DummyData1", "DummyData2"]
    assert list(made.layer[6].top) == list(made.layer[6].bottom) == ["InnerProduct1"]
    assert list(made.layer[8].bottom) == ["InnerProduct2", "DummyData2"]
    assert Net(made, TEST).outputs == ["SoftmaxWithLoss1"]


# ---- names and order ---------------------------------------------------------------------------


def test_a_layer_comes_after_its_bottoms_left_to_right():
    n = NetSpec()
    left, right = L.ReLU(data()), L.TanH(data())
    n.sum = L.Eltwise(left, right)
    n.right = right
    assert [layer.name for layer in n.to_proto().layer] == [
        "Input1", "ReLU1", "Input2", "right", "sum",
    ]  # fmt: skip


def test_several_tops_asked_for_share_what_they_need():
    x = data()
    made = to_proto(L.ReLU(x), L.TanH(x), x, L.Silence(x, ntop=0))
    assert [layer.name for layer in made.layer] == ["Input1", "ReLU1", "TanH1", "Silence1"]


def test_a_top_assigned_twice_has_its_last_name():
    n = NetSpec()
    n.first = data()
    n.second = n.first
    assert [layer.name for layer in n.to_proto().layer] == ["second"]


def test_items_are_attributes():
    n = NetSpec()
    n["conv1/3x3"] = data()
    n.x = n["conv1/3x3"]
    assert n["x"] is n.x
    assert list(n.tops) == ["conv1/3x3", "x"]


def test_a_name_of_ones_own_leaves_the_top_alone():
    n = NetSpec()
    n.x = L.Input(shape=SHAPE, name="other")
    (layer,) = n.to_proto().layer
    assert (layer.name, list(layer.top)) == ("other", ["x"])


def test_a_deep_net_needs_no_recursion():
    x = data()
    for _ in range(1500):
        x = L.ReLU(x)
    made = x.to_proto()
    assert len(made.layer) == 1501
    assert made.layer[1500].bottom == ["ReLU1499"]


def test_a_diamond_of_diamonds_is_walked_once():
    x = data()
    for _ in range(60):
        x = L.Eltwise(x, x)
    assert len(x.to_proto().layer) == 61


# ---- ntop, in_place ----------------------------------------------------------------------------


def test_layers_without_tops():
    n = NetSpec()
    n.data, n.data2 = L.DummyData(shape=[SHAPE, {"dim": [4]}], ntop=2)
    n.silence = L.Silence(n.data, ntop=0)
    n.other = L.Silence(n.data2, ntop=0)
    made = n.to_proto()
    assert made == parse_net("""
        layer { name: "data" type: "DummyData" top: "data" top: "data2" dummy_data_param {
          shape { dim: [2, 3, 5, 7] } shape { dim: 4 } } }
        layer { name: "silence" type: "Silence" bottom: "data" }
        layer { name: "other" type: "Silence" bottom: "data2" }""")
    assert Net(made, TEST).forward() == {}
    assert [x.name for x in n.other.to_proto().layer] == ["DummyData1", "Silence1"]


def test_in_place_takes_all_bottoms_as_tops():
    x, y = L.DummyData(shape=[SHAPE, SHAPE], ntop=2)
    top, other = L.Python(x, y, in_place=True, ntop=2)
    made = to_proto(top, L.ReLU(other))
    assert list(made.layer[1].top) == ["DummyData1", "DummyData2"]
    assert list(made.layer[2].bottom) == ["DummyData2"]
    assert layer_of(L.ReLU(x, in_place=False)).top == ["ReLU1"]


def test_in_place_needs_inputs():
    with pytest.raises(ModelError, match=r"ReLU: in_place .* 0 input\(s\) for 1 top"):
        L.ReLU(bottom="x", in_place=True)


def test_tops_named_by_keyword_beside_their_own():
    with pytest.raises(
        ModelError, match=r"Data: top=\['data', 'label'\] .* 2 top.*`n\.data, n\.label ="
    ):
        L.Data(ntop=2, top=["data", "label"])
    with pytest.raises(ModelError, match="in_place|top='y'"):
        L.ReLU(data(), in_place=True, ntop=0, top="y")


def test_a_layer_without_tops_of_its_own_may_be_given_them():
    fn = L.ReLU(bottom="x", top=["y"], ntop=0, name="r")
    assert layer_of(fn) == keys_of("name: 'r' type: 'ReLU' bottom: 'x' top: 'y'")


def test_bottoms_by_name():
    assert layer_of(L.ReLU(bottom="x")).bottom == ["x"]


# ---- where keywords go -------------------------------------------------------------------------

FIELDS = [
    (lambda x: L.PReLU(x, channel_shared=True), "prelu_param { channel_shared: true }"),
    (lambda x: L.HDF5Data(source="f", batch_size=4), "hdf5_data_param {source: 'f' batch_size: 4}"),
    (lambda x: L.LRN(x, local_size=3), "lrn_param { local_size: 3 }"),
    (lambda x: L.ELU(x, alpha=0.5), "elu_param { alpha: 0.5 }"),
    (lambda x: L.ArgMax(x, top_k=2), "argmax_param { top_k: 2 }"),
    (lambda x: L.Python(x, module="m", layer="c"), "python_param { module: 'm' layer: 'c' }"),
    (lambda x: L.Reshape(x, shape={"dim": [0, -1]}), "reshape_param { shape { dim: [0, -1] } }"),
    (lambda x: L.Permute(x, order=[0, 2, 1]), "permute_param { order: [0, 2, 1] }"),
    (lambda x: L.PriorBox(x, min_size=30.0), "prior_box_param { min_size: 30 }"),
    (lambda x: L.Interp(x, zoom_factor=2), "interp_param { zoom_factor: 2 }"),
    (
        lambda x: L.Deconvolution(x, convolution_param={"num_output": 4, "kernel_size": [3, 5]}),
        "convolution_param { num_output: 4 kernel_size: 3 kernel_size: 5 }",
    ),
    (
        lambda x: L.Convolution(x, convolution_param={"num_output": 4}, group=2),
        "convolution_param { num_output: 4 group: 2 }",
    ),
    (lambda x: L.Pooling(x, pool=P.Pooling.AVE), "pooling_param { pool: AVE }"),
    (lambda x: L.SoftmaxWithLoss(x, loss_param={"ignore_label": 3}), "loss_param{ignore_label: 3}"),
    (lambda x: L.LSTM(x, recurrent_param={"num_output": 3}), "recurrent_param { num_output: 3 }"),
    (lambda x: L.Data(transform_param={"mirror": True}), "transform_param { mirror: true }"),
    (
        lambda x: L.ReLU(x, loss_weight=2, include={"phase": 1}),
        "loss_weight: 2 include{phase:TEST}",
    ),
    (lambda x: L.ReLU(x, propagate_down=[True, False]), "propagate_down: [true, false]"),
    (
        lambda x: L.InnerProduct(
            x,
            param=[{"lr_mult": 1, "decay_mult": 3}, {"lr_mult": 2}],
            bias_filler={"type": "constant", "value": 0.25},
        ),
        "param { lr_mult: 1 decay_mult: 3 } param { lr_mult: 2 }"
        " inner_product_param { bias_filler { type: 'constant' value: 0.25 } }",
    ),
    (lambda x: L.Scale(x, param={"name": "w"}), "param { name: 'w' }"),
    (lambda x: L.Input(shape=[{"dim": [1, 3, 8, 9]}]), "input_param{shape { dim: [1, 3, 8, 9] }}"),
    (lambda x: L.Convolution(x, stride=np.int64(2)), "convolution_param { stride: 2 }"),
    (lambda x: L.ReLU(x, param=[{}]), "param { }"),
    (lambda x: L.ReLU(x, relu_param={}), ""),
    (lambda x: L.Nonesuch(x, name="n"), "name: 'n'"),
]


@pytest.mark.parametrize(("make", "text"), FIELDS, ids=[text for _, text in FIELDS])
def test_keywords_go_to_the_layers_own_message_or_to_the_layer(make, text):
    made, wanted = layer_of(make(data())), keys_of(text)
    for field in ("type", "bottom", "top", *(() if wanted.name else ("name",))):
        made.ClearField(field)
    assert made == wanted


NO_OWN_MESSAGE = [
    "AbsVal", "BNLL", "BatchReindex", "Deconvolution", "EuclideanLoss", "Filter", "Im2col", "LSTM",
    "LSTMUnit", "MultinomialLogisticLoss", "RNN", "SigmoidCrossEntropyLoss", "Silence",
    "SoftmaxWithLoss", "Split",
]  # fmt: skip


def test_which_types_have_no_message_of_their_own():
    own = {name.removesuffix("Parameter") for name in dir(caffe_pb2) if name.endswith("Parameter")}
    assert [name for name in NO_OWN_MESSAGE if name in own] == []


@pytest.mark.parametrize("name", NO_OWN_MESSAGE)
def test_types_without_a_message_take_the_layers_fields_only(name):
    make = getattr(L, name)
    assert layer_of(make(data(), loss_weight=3)).loss_weight == [3]
    with pytest.raises(AttributeError, match=name):
        make(data(), num_output=3).to_proto()


def test_params_may_be_changed_until_the_net_is_written():
    top = L.Convolution(data(), num_output=4)
    top.fn.params["num_output"] = 6
    assert layer_of(top).convolution_param.num_output == 6
    assert top.fn.params == {"num_output": 6}


def test_keywords_given_are_left_alone():
    keywords = {"ntop": 2, "shape": SHAPE}
    L.DummyData(**keywords)
    assert keywords == {"ntop": 2, "shape": SHAPE}


# ---- what is wrong -----------------------------------------------------------------------------

WRONG = [
    ({"cpm_transform_param": {}}, AttributeError, r"no parameter 'cpm_transform_param'"),
    ({"num_outputs": 3}, AttributeError, "'num_outputs'; did you mean 'num_output'"),
    (
        {"weight_filler": {"typ": "xavier"}},
        AttributeError,
        "weight_filler.typ: Filler.* 'typ'.*'type'",
    ),
    (
        {"param": [{"lr_mul": 1}]},
        AttributeError,
        r"param\[0\].lr_mul: ParamSpec has no field 'lr_mul'",
    ),
    ({"kernel_size": []}, IndexError, r"kernel_size=\[\]"),
    ({"kernel_size": (3, 5)}, TypeError, r"kernel_size=\[\(3, 5\)\]"),
    ({"kernel_size": {"h": 3}}, TypeError, "kernel_size"),
    ({"num_output": "six"}, TypeError, "num_output='six'"),
    ({"num_output": [3]}, TypeError, r"num_output=\[3\]"),
    ({"num_output": {"a": 3}}, TypeError, "num_output={'a': 3}"),
    ({"num_output": -3}, ModelError, "num_output=-3"),
    ({"weight_filler": "xavier"}, AttributeError, "weight_filler='xavier'"),
    ({"param": [{"lr_mult": 1}, 2]}, TypeError, r"param\[1\]=2"),
    ({"param": 2}, TypeError, r"param=\[2\]"),
    ({"SerializeToString": 1}, AttributeError, "SerializeToString"),
]


@pytest.mark.parametrize(("keywords", "error", "words"), WRONG, ids=[w for _, _, w in WRONG])
def test_what_does_not_fit_is_named_with_its_layer(keywords, error, words):
    n = NetSpec()
    n.conv1 = L.Convolution(data(), **keywords)
    with pytest.raises(error, match=rf"layer 'conv1' \(Convolution\).*{words}"):
        n.to_proto()


def test_errors_have_the_name_given_last_too():
    with pytest.raises(AttributeError, match=r"layer 'mine' \(ReLU\) has no parameter 'slope'"):
        L.ReLU(data(), slope=1, name="mine").to_proto()


def test_keywords_of_a_message_shared_by_types():
    with pytest.raises(AttributeError, match=r"write convolution_param=dict\(kernel_size=\.\.\.\)"):
        L.Deconvolution(data(), kernel_size=3).to_proto()


def test_keywords_that_look_like_a_message():
    with pytest.raises(AttributeError, match=r"write detection_output_param=dict\(nms_param="):
        L.DetectionOutput(data(), nms_param={"nms_threshold": 0.5}).to_proto()


@pytest.mark.parametrize("given", [(1, 2), "data", None, SHAPE])
def test_an_input_that_is_no_top(given):
    words = rf"Concat input 1 is not a Top \(type is {type(given)}\)"
    with pytest.raises(TypeError, match=words):
        L.Concat(data(), given)
    with pytest.raises(TypeError, match="ReLU input 0 is not a Top"):
        L.ReLU(L.Silence(data(), ntop=0))


def test_what_cannot_be_assigned():
    n = NetSpec()
    with pytest.raises(TypeError, match="data is not a Top .*tuple.*its 2 tops singly"):
        n.data = L.DummyData(shape=[SHAPE], ntop=2)
    with pytest.raises(TypeError, match="x is not a Top .*int"):
        n["x"] = 3


def test_a_name_that_was_not_assigned():
    n = NetSpec()
    n.conv1 = data()
    with pytest.raises(KeyError, match="no top named 'conv2'; did you mean 'conv1'"):
        _ = n.conv2
    with pytest.raises(KeyError):
        n["conv2"]
    assert not hasattr(n, "conv2")
    assert copy.copy(n).conv1 is n.conv1


# ---- L and P -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (lambda: P.Pooling.MAX, 0),
        (lambda: P.Pooling.STOCHASTIC, 2),
        (lambda: P.Eltwise.SUM, 1),
        (lambda: P.Data.LMDB, 1),
        (lambda: P.Loss.VALID, 1),
        (lambda: P.LRN.WITHIN_CHANNEL, 1),
    ],
)
def test_numbers_of_enums(value, number):
    assert value() == number


def test_unknown_enums():
    with pytest.raises(AttributeError, match="PoolParameter"):
        _ = P.Pool.MAX
    with pytest.raises(AttributeError, match="MEAN"):
        _ = P.Pooling.MEAN


def test_layers_show_the_known_types():
    assert set(dir(L)) == set(Layer.registry)
    assert L.Pooling.__name__ == "Pooling"
    assert not hasattr(L, "_repr_html_")


def test_where_the_names_are():
    assert pycaffe_lite.net_spec is net_spec
    assert net_spec.layers is L
    assert net_spec.params is P
    assert (NetSpec, to_proto) == (net_spec.NetSpec, net_spec.to_proto)
    assert pycaffe_lite.coord_map.crop
    with pytest.raises(AttributeError, match="no attribute 'layer_s'"):
        _ = pycaffe_lite.layer_s
