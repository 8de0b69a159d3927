"""Do older forms of nets become today's? The second generation, BatchNorm, and the whole way.

tests/test_upgrade_v0.py has the first generation, tests/test_upgrade_files.py nets and weights.
"""

from __future__ import annotations

import logging

import pytest
from harness import make_net
from old_nets import layer, upgraded, v0_layer

from pycaffe_lite import ModelError, graph
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net
from pycaffe_lite.upgrade import current, needs_upgrade, v0, v1


def error_of(text):
    with pytest.raises(ModelError) as caught:
        graph.upgrade(parse_net(text))
    return caught.value


# ---- the second generation ---------------------------------------------------------------------

V1_TYPES = """
    ABSVAL AbsVal, ACCURACY Accuracy, ARGMAX ArgMax, BNLL BNLL, CONCAT Concat,
    CONTRASTIVE_LOSS ContrastiveLoss, CONVOLUTION Convolution, DECONVOLUTION Deconvolution,
    DATA Data, DROPOUT Dropout, DUMMY_DATA DummyData, EUCLIDEAN_LOSS EuclideanLoss,
    ELTWISE Eltwise, EXP Exp, FLATTEN Flatten, HDF5_DATA HDF5Data, HDF5_OUTPUT HDF5Output,
    HINGE_LOSS HingeLoss, IM2COL Im2col, IMAGE_DATA ImageData, INFOGAIN_LOSS InfogainLoss,
    INNER_PRODUCT InnerProduct, LRN LRN, MEMORY_DATA MemoryData,
    MULTINOMIAL_LOGISTIC_LOSS MultinomialLogisticLoss, MVN MVN, POOLING Pooling, POWER Power,
    RELU ReLU, SIGMOID Sigmoid, SIGMOID_CROSS_ENTROPY_LOSS SigmoidCrossEntropyLoss,
    SILENCE Silence, SOFTMAX Softmax, SOFTMAX_LOSS SoftmaxWithLoss, SPLIT Split, SLICE Slice,
    TANH TanH, WINDOW_DATA WindowData, THRESHOLD Threshold,
    CROP Crop, PARSE_OUTPUT ParseOutput, PARSE_EVALUATE ParseEvaluate"""
V1_NAMES = dict(pair.split() for pair in V1_TYPES.split(","))


def test_every_type_of_the_second_generation_is_in_these_tests():
    assert set(caffe_pb2.V1LayerParameter.LayerType.keys()) == {*V1_NAMES, "NONE"}


@pytest.mark.parametrize("word", V1_NAMES)
def test_the_name_of_a_type(word):
    new = upgraded(f"layers {{ name: 'it' type: {word} }}")
    assert list(new.layer) == [layer(f"name: 'it' type: '{V1_NAMES[word]}'")]


@pytest.mark.parametrize("text", ["type: NONE", ""])
def test_a_layer_without_a_type(text):
    assert upgraded(f"layers {{ name: 'it' {text} }}").layer[0].type == ""
    with pytest.raises(ModelError, match="layer 'it'.*unknown layer type"):
        make_net(f"layers {{ name: 'it' {text} }}")


V1_CONV = """
layers {
  name: "c" type: CONVOLUTION bottom: "x" top: "c"
  include { phase: TRAIN min_level: 1 } exclude { stage: "s" }
  param: "weights" param: "bias" blob_share_mode: PERMISSIVE
  blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0 loss_weight: 0.5
  blobs { num: 1 channels: 1 height: 1 width: 2 data: [3, 4] }
  convolution_param { num_output: 12 kernel_size: 11 pad: 2 weight_filler { std: 0.01 } }
  relu_param { }
}
"""
V1_CONV_TODAY = """
layer {
  name: "c" type: "Convolution" bottom: "x" top: "c"
  include { phase: TRAIN min_level: 1 } exclude { stage: "s" }
  param { name: "weights" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 1 }
  param { name: "bias" lr_mult: 2 decay_mult: 0 }
  loss_weight: 0.5
  blobs { num: 1 channels: 1 height: 1 width: 2 data: [3, 4] }
  convolution_param { num_output: 12 kernel_size: 11 pad: 2 weight_filler { std: 0.01 } }
  relu_param { }
}
"""


def test_a_layer_of_the_second_generation():
    assert upgraded(V1_CONV) == parse_net(V1_CONV_TODAY)


@pytest.mark.parametrize(
    ("old", "today"),
    [
        (
            "param: 'w' blobs_lr: 1 blobs_lr: 2",
            "param { name: 'w' lr_mult: 1 } param { lr_mult: 2 }",
        ),
        (
            "weight_decay: [3, 4, 5] param: 'w'",
            "param { name: 'w' decay_mult: 3 } param { decay_mult: 4 } param { decay_mult: 5 }",
        ),
        (
            "blob_share_mode: [STRICT, PERMISSIVE] blobs_lr: 0",
            "param { share_mode: STRICT lr_mult: 0 } param { share_mode: PERMISSIVE }",
        ),
    ],
)
def test_the_longest_list_says_how_many_params_there_are(old, today):
    new = upgraded(f"layers {{ name: 'it' type: INNER_PRODUCT {old} }}")
    assert list(new.layer) == [layer(f"name: 'it' type: 'InnerProduct' {today}")]


def test_every_field_of_the_second_generation_has_a_place():
    """Those not treated one by one go into today's field of the same name and type."""
    by_hand = {"type", "param", "blob_share_mode", "blobs_lr", "weight_decay", "layer"}
    today = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    for field in caffe_pb2.V1LayerParameter.DESCRIPTOR.fields:
        if field.name not in by_hand:
            assert today[field.name].message_type is field.message_type, field.name


def test_older_parameters_of_all_layers_are_kept():
    """One of every message that a layer can have, each set but empty."""
    fields = caffe_pb2.V1LayerParameter.DESCRIPTOR.fields
    names = [field.name for field in fields if field.name.endswith("_param")]
    assert len(names) > 25
    given = " ".join(f"{name} {{ }}" for name in names)
    new = upgraded(f"layers {{ name: 'it' type: RELU {given} }}")
    assert list(new.layer) == [layer(f"name: 'it' type: 'ReLU' {given}")]


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("DATA", "data_param"),
        ("IMAGE_DATA", "image_data_param"),
        ("WINDOW_DATA", "window_data_param"),
    ],
)
def test_transformations_leave_the_data_parameters(word, field):
    moved = "scale: 0.5 mean_file: 'm' crop_size: 7 mirror: true"
    new = upgraded(
        f"layers {{ type: {word} {field} {{ source: 's' batch_size: 5 {moved} }} }}"
        f"layers {{ type: {word} {field} {{ mirror: false }} transform_param {{ crop_size: 9 }} }}"
        f"layers {{ type: {word} {field} {{ source: 's' }} }}"
        f"layers {{ type: {word} }}"
    )
    kind = f"type: '{V1_NAMES[word]}'"
    wanted = [
        f"{field} {{ source: 's' batch_size: 5 }} transform_param {{ {moved} }}",
        f"{field} {{ }} transform_param {{ crop_size: 9 mirror: false }}",
        f"{field} {{ source: 's' }}",
        "",
    ]
    assert list(new.layer) == [layer(f"{kind} {text}") for text in wanted]


def test_transformations_stay_in_layers_that_are_not_of_the_fields_type():
    text = "layers { type: RELU data_param { scale: 0.5 } }"
    assert upgraded(text).layer[0] == layer("type: 'ReLU' data_param { scale: 0.5 }")


def test_liberties_of_real_files():
    """https://github.com/lutzroeder/netron/issues/276"""
    text = """layers: { name: 'it'; type: 18, bottom: ['b'] top: "t" # a comment
        relu_param < negative_slope: .1f > };"""
    wanted = "name: 'it' type: 'ReLU' bottom: 'b' top: 't' relu_param { negative_slope: 0.1 }"
    assert list(upgraded(text).layer) == [layer(wanted)]


# ---- both forms in one file --------------------------------------------------------------------

BOTH = """layer { name: 'new' type: 'ReLU' }
layers { name: 'old' type: RELU }
layers { name: 'older' type: RELU }
"""


def test_both_layer_and_layers():
    """https://github.com/BVLC/caffe/issues/3381"""
    error = error_of(BOTH)
    assert "both `layer` and `layers` are there: 1 `layer`" in str(error)
    assert "2 `layers` (the first is 'old')" in str(error)
    assert '`layer { type: "Convolution" param { lr_mult: 1 } }`' in str(error)
    assert error.layer == "old"


def test_both_layer_and_layers_of_the_first_generation():
    error = error_of("layer { name: 'new' }" + v0_layer("name: 'oldest' type: 'relu'"))
    assert "1 `layers` (the first is 'oldest')" in str(error)
    assert error.layer == "oldest"


# ---- what nets say beside their layers ---------------------------------------------------------

REST = "name: 'n' force_backward: true debug_info: true state { level: 3 stage: 's' } "


@pytest.mark.parametrize(
    "text",
    [
        "layers { name: 'r' type: RELU bottom: 'x' top: 'y' }",
        v0_layer("name: 'r' type: 'relu'", bottom="x", top="y"),
    ],
    ids=["V1", "V0"],
)
@pytest.mark.parametrize("shape", ["input_shape { dim: [2, 3, 5] }", "input_dim: [2, 3, 5, 7]"])
def test_everything_else_of_the_net_stays(text, shape):
    dims = "dim: [2, 3, 5, 7]" if "input_dim" in shape else "dim: [2, 3, 5]"
    first = f"layer {{ name: 'input' type: 'Input' top: 'x' input_param {{ shape {{ {dims} }} }} }}"
    second = "layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }"
    assert upgraded(REST + "input: 'x' " + shape + text) == parse_net(REST + first + second)


def test_each_pass_does_one_thing():
    spec = parse_net("input: 'x' input_dim: [2, 3, 5, 7]" + v0_layer("name: 'r' type: 'relu'"))
    second = v0.to_v1(spec)
    assert list(second.input) == ["x"]
    assert list(second.input_dim) == [2, 3, 5, 7]
    assert second.layers[0].type == caffe_pb2.V1LayerParameter.RELU
    third = v1.to_current(second)
    assert list(third.input) == ["x"]
    assert third.layer[0].type == "ReLU"
    assert current.inputs_to_layer(third) == graph.upgrade(spec)


@pytest.mark.parametrize(
    "text",
    [
        "",
        REST,
        "layer { name: 'r' type: 'ReLU' }",
        "layer { type: 'BatchNorm' param { lr_mult: 1 } }",
    ],
)
def test_todays_form_is_given_back_as_it_is(text, caplog):
    spec = parse_net(text)
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        assert graph.upgrade(spec) is spec
    assert not needs_upgrade(spec)
    assert not caplog.records


def test_upgrading_is_logged_once(caplog):
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        graph.upgrade(parse_net("name: 'old' input: 'x'" + v0_layer("type: 'relu'")))
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "'old'" in record.getMessage()
    assert "V0 layers, V1 layers, input fields" in record.getMessage()


# ---- BatchNorm ---------------------------------------------------------------------------------


def norm(*params, kind="BatchNorm"):
    return f"layer {{ name: 'bn' type: '{kind}' {' '.join(f'param {{ {p} }}' for p in params)} }}"


@pytest.mark.parametrize("param", ["", "lr_mult: 1", "lr_mult: 0", "lr_mult: 0 decay_mult: 2"])
def test_statistics_of_batch_norm_do_not_learn(param):
    new = upgraded(norm("name: 'mean' lr_mult: 0 decay_mult: 0", param, param))
    still = "lr_mult: 0 decay_mult: 0"
    assert new == parse_net(norm(f"name: 'mean' {still}", still, still))


@pytest.mark.parametrize(
    "text",
    [
        norm(),
        norm("lr_mult: 1", "lr_mult: 1"),
        norm("lr_mult: 1", "", "", ""),
        norm("lr_mult: 1", "", "", kind="Scale"),
        norm(*["lr_mult: 0 decay_mult: 0"] * 3),
    ],
)
def test_other_batch_norms_stay(text):
    assert upgraded(text) == parse_net(text)
