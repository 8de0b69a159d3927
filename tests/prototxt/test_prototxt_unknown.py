"""Fields and layer types that are known nowhere here, and templates that were not filled in."""

from __future__ import annotations

import logging

import pytest
from harness import make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import TEST, ModelError, Net
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net, parse_text, read_net

CONV = "layer { name: 'c' type: 'Convolution'\n convolution_param { num_output: 3 %s\n pad: 1 } }"
KNOWN = parse_net(CONV % "")


def error_of(text, **options):
    with pytest.raises(ModelError) as caught:
        parse_net(text, "f", **options)
    return str(caught.value).split("\n")[0]


@pytest.fixture
def warnings(caplog):
    """The texts of what is logged as a warning."""
    caplog.set_level(logging.WARNING, "pycaffe_lite")
    return lambda: [record.getMessage() for record in caplog.records]


# ---- reading on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "foo: 1",
        "foo: -inf;",
        "foo: 1e-3,",
        "foo: WORD",
        "foo: 'a' \"b\"\n'c' # d",
        "foo: [1, 2.5, -inf]",
        "foo: [] ;",
        "foo: ['a' 'b', 'c']",
        "foo { }",
        "foo { bar: 1 }",
        "foo: { bar: 1; baz: 'x', }",
        "foo < bar: 1 >",
        "foo: < bar { baz < > } >,",
        "foo: [{ bar: 1 }, < baz: [] >]",
        "foo {\n foo {\n num_output: 4\n }\n num_output: [5]\n}",
        "[a.b.c]: 1",
        "[a.b/c.d] { e: 1 }",
        "foo { [a.b]: 1 }",
        "foo { layer { name: 'x' } }",
    ],
)
def test_a_field_of_any_shape_is_left_out(text, warnings):
    assert parse_net(CONV % text, "f", "warn") == KNOWN
    name = "foo" if text.startswith("foo") else text.split("]")[0] + "]"
    assert warnings() == [
        f"f:2: layer 'c' (type Convolution): ConvolutionParameter has no field '{name}':"
        " it is left out"
    ]
    assert "f:2:36: " in error_of(CONV % text) or text.startswith("[")


def test_every_one_is_logged_with_its_place(warnings):
    text = """foo: 1 foo: 2
layer: [ { name: 'a' bar { baz: 1 } include { phase: TEST what: 3 } }, # 'b' follows
  < top: 't' bar: [
    1 ] name: 'b' type: 'ReLU' > ]
layers { region_param { } name: 'v' type: RELU }
last: 'x'"""
    wanted = "layer { name: 'a' include { phase: TEST } } layer { top: 't' name: 'b' type: 'ReLU' }"
    assert parse_net(text, "f", "warn") == parse_net(f"{wanted} layers {{ name: 'v' type: RELU }}")
    assert [line.removesuffix(": it is left out") for line in warnings()] == [
        "f:1: NetParameter has no field 'foo'",
        "f:1: NetParameter has no field 'foo'",
        "f:2: layer 'a': LayerParameter has no field 'bar'",
        "f:2: layer 'a': NetStateRule has no field 'what'",
        "f:3: layer 'b' (type ReLU): LayerParameter has no field 'bar'",
        "f:5: layer 'v' (type RELU): V1LayerParameter has no field 'region_param', which is of the"
        " fork YOLO v2 (hustzxd/z1, gklz1982/caffe-yolov2)",
        "f:6: NetParameter has no field 'last'",
    ]


def test_a_solver(warnings):
    text = "net: 'n' rampup_steps: 3\nnet_param { layer { name: 'a' foo { } } }"
    kind = caffe_pb2.SolverParameter
    got = parse_text(text, kind, "s", "warn")
    assert got == parse_text("net: 'n' net_param { layer { name: 'a' } }", kind)
    assert [line.split(": ")[0] for line in warnings()] == ["s:1", "s:2"]
    assert "SolverParameter has no field 'rampup_steps'" in warnings()[0]


def test_nothing_unknown_is_nothing_said(warnings):
    assert parse_net(CONV % "", unknown_fields="warn") == KNOWN
    assert parse_net("", unknown_fields="warn") == caffe_pb2.NetParameter()
    assert warnings() == []


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("foo: 1 num_output: -1", "2:55", "Value out of range: -1"),
        ("foo: 1 group: -1", "2:50", "Value out of range: -1"),
        ("foo: [1,\n2] group: 2.5", "3:11", "Couldn't parse integer: 2.5"),
        ("foo: 1 engine: XX", "2:51", "unknown value XX; known: DEFAULT"),
        ("foo: 1 5: 2", "2:43", "expected a field's name, found 5"),
        ("foo: 1 ;;", "2:44", "unknown field 'foo': expected one separator"),
        (r"foo: '\q'", "2:42", "no escape sequence"),
        ("foo: 1_0", "2:41", "1_0 is not a number"),
        ("foo", "3:2", "unknown field 'foo': expected : or {, found pad"),
        ("foo: [1 2]", "2:44", "unknown field 'foo': expected , or ], found 2"),
        ("foo: [1,]", "2:44", "unknown field 'foo': expected a value, found ]"),
        ("foo: [[1]]", "2:42", "unknown field 'foo': expected a value, found ["),
        ("foo { bar }", "2:46", "unknown field 'foo': expected : or {, found }"),
        ("foo { >", "2:42", "unknown field 'foo': expected a field's name or }, found >"),
        ("foo: ${A}", "2:41", "${A} looks like a placeholder"),
        ("foo { ", "3:11", "layer { of line 1 is not closed"),
        ("weight_filler { foo: 1 >", "2:59", ""),
        ("weight_filler: [{ foo: 1 } { }]", "2:51", ""),
    ],
)
def test_all_else_is_still_checked(text, place, words):
    message = error_of(CONV % text, unknown_fields="warn")
    assert f" f:{place}: layer 'c' (type Convolution): " in message
    assert words in message


def test_required_fields_are_still_needed():
    text = "layer { name: 'a' foo { } }\n\nlayer { bar: 1 name: 'b' clip_param { min: 0 } }"
    message = error_of(text, unknown_fields="warn")
    assert "f:3:1: layer 'b': required field layer[1].clip_param.max is missing" in message


def test_no_layer_is_lost_where_a_brace_is_missing():
    text = "layer { name: 'a' type: 'ReLU'\nlayer { name: 'b' type: 'ReLU' } }"
    message = error_of(text, unknown_fields="warn")
    assert "f:2:1: " in message
    assert "a brace before it is not closed" in message


def test_deep_texts_do_no_harm(warnings):
    deep = 10_000
    text = "foo " + "{ a " * deep + "{ }" + " }" * deep
    assert parse_net(text, "f", "warn") == caffe_pb2.NetParameter()
    assert len(warnings()) == 1
    many = "foo: 1 " * 5_000
    assert parse_net(f"{many} name: 'n'", "f", "warn").name == "n"
    assert "unknown field 'foo'" in error_of("foo: [" + "[" * deep, unknown_fields="warn")


NET = """input: 'x' input_shape { dim: [2, 3] }
layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' quantize { bits: 8 } }
"""


def test_a_net_reads_on_if_told(model, warnings):
    path = model(NET)
    with pytest.raises(ModelError, match=rf"{path}:2:53: layer 'r' .*no field 'quantize'"):
        Net(path, TEST)
    assert warnings() == []
    net = Net(path, TEST, unknown_fields="warn")
    assert warnings() == [
        f"{path}:2: layer 'r' (type ReLU): LayerParameter has no field 'quantize': it is left out"
    ]
    net.blobs["x"].data[...] = [[-1, 2, -3], [4, -5, 6]]
    assert_array_equal(net.forward()["y"], [[0, 2, 0], [4, 0, 6]])
    assert read_net(path, "warn").layer[0].name == "r"


@pytest.mark.parametrize("choice", ["Warn", "ignore", "", None, True])
def test_there_are_two_ways(choice, model):
    for call in (
        lambda: Net(model(NET), TEST, unknown_fields=choice),
        lambda: Net(caffe_pb2.NetParameter(), TEST, unknown_fields=choice),
        lambda: parse_net("", unknown_fields=choice),
    ):
        with pytest.raises(ModelError, match=f"must be 'error' or 'warn', not {choice!r}"):
            call()


# ---- forks ---------------------------------------------------------------------------------------


# https://github.com/bear63/sceneReco/issues/33, https://github.com/hustzxd/z1/issues/10
# https://github.com/pulkitag/ief/issues/6, https://github.com/happynear/FaceVerification/issues/32
# https://github.com/jasonlovescoding/YOLOv3-caffe/issues/4
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("transpose_param { dim: 1 }", "LayerParameter has no field 'transpose_param', .*CTPN"),
        ("region_param { classes: 20 }", "LayerParameter has no field 'region_param', .*YOLO v2"),
        ("pooling_param { round_below: true }", "PoolingParameter .*'round_below', .*pulkitag/ief"),
        ("inner_product_param { weight_filler { alpha: 1 } }", "'alpha', .*happynear"),
        ("convolution_param { hole_h: 1 }", "'hole_h', .*DeepLab; in Caffe it is `dilation`"),
    ],
)
def test_the_fork_of_a_field_is_named(text, words):
    for kind in ("layer", "layers"):
        with pytest.raises(ModelError, match=words.replace("LayerP", "(V1)?LayerP")) as caught:
            parse_net(f"{kind} {{ {text} name: 'it' }}", "f")
        message = str(caught.value)
        assert "failed to parse NetParameter file f:1:" in message
        assert "layer 'it'" in message
        assert 'unknown_fields="warn") reads on without it' in message


# https://github.com/xiamenwcy/ScleraSegNet/issues/3 and, with other fields,
# https://github.com/sfzhang15/FaceBoxes/issues/30, https://github.com/sfzhang15/SFD/issues/71
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("BN", "bn_param { bn_mode: INFERENCE }"),
        ("Permute", "permute_param { order: [0, 2, 3, 1] }"),
        ("Normalize", "norm_param { across_spatial: false }"),
        ("Interp", "interp_param { zoom_factor: 8 }"),
        ("ROIPooling", "roi_pooling_param { pooled_w: 7 }"),
    ],
)
def test_known_fields_of_forks_parse(kind, field):
    text = f"layer {{ name: 'it' type: '{kind}' {field} }}"
    assert parse_net(text).layer[0].HasField(field.split(" ")[0])


# https://github.com/yun-liu/RCF/issues/36, https://github.com/yun-liu/RCF/issues/109
# https://github.com/BVLC/caffe/issues/6731
@pytest.mark.parametrize(
    ("kind", "fork"),
    [
        ("ImageLabelmapData", "RCF"),
        ("AutoCrop", "RCF"),
        ("Warping", "Ravi-Garg/Unsupervised_Depth_Estimation"),
        ("MultiStageMeanfield", "CRF-RNN"),
        ("DenseCRF", "PSPNet"),
        ("SoftmaxWithLossOHEM", "R-FCN"),
    ],
)
def test_the_fork_of_a_layer_type_is_named(kind, fork):
    text = f"input: 'x' input_shape {{ dim: 2 }} layer {{ name: 'it' type: '{kind}' bottom: 'x' }}"
    message = rf"layer 'it'.*unknown layer type: {kind}, which is of the fork {fork}.*known types: "
    with pytest.raises(ModelError, match=message):
        make_net(text)


# https://github.com/jimeiyang/objectContourDetector/issues/8
# https://github.com/TheLegendAli/DeepLab-Context/issues/34
@pytest.mark.parametrize(
    ("value", "fork"),
    [
        ("UNPOOLING", "objectContourDetector"),
        ("IMAGE_SEG_DATA", "DeepLab"),
        ("MULTI_STAGE_MEANFIELD", "CRF-RNN"),
    ],
)
def test_the_fork_of_a_type_of_the_second_generation(value, fork):
    for choice in ("error", "warn"):
        message = error_of(f"layers {{ name: 'it' type: {value} }}", unknown_fields=choice)
        assert f"layer 'it' (type {value}): field 'type': unknown value {value}" in message
        assert fork in message


# ---- templates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        *("${NUM}", "$NUM", "$(NUM)", "${{ num }}", "{{ classes }}", "{{classes}}", "%(batch)d"),
        *("%d", "<BATCH>", "@NUM@", "<% num %>", "NUM_CLASSES", "__NUM__", "{num}", "{% num %}"),
    ],
)
@pytest.mark.parametrize("field", ["num_output", "bias_term"])
def test_a_placeholder_that_was_not_filled_in(found, field):
    text = "layer { name: 'c'\n convolution_param { " + f"{field}: {found} }} }}"
    message = error_of(text)
    assert f"f:2:{24 + len(field)}: layer 'c': field '{field}': " in message
    assert f"; {found} looks like a placeholder of a template" in message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("layer { data_param { source: PATH_TO_LMDB } }", "PATH_TO_LMDB"),
        ("layer { type: ${TYPE} }", "${TYPE}"),
        ("{% for i in range(3) %}\nlayer { }", "{% for i in range(3) %}"),
        ("layer { {{ body }} }", "{{ body }}"),
        ("$HEAD\nlayer { }", "$HEAD"),
        ("layer { loss_weight: [1, ${W}] }", "${W}"),
        ("layer { loss_weight: {{w}} }", "{{w}}"),
        ("layer { relu_param {{ p }} }", "{{ p }}"),
        ("layer { relu_param: ${P} }", "${P}"),
    ],
)
def test_placeholders_elsewhere(text, found):
    assert f"; {found} looks like a placeholder of a template" in error_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "force_backward: YES",
        "force_backward: yes",
        "input_dim: 2.5",
        "name: conv1",
        "layer { type: CONVOLUTION }",
        "layer { pooling_param { pool: MEAN } }",
        "name: 'a' %",
    ],
)
def test_what_is_no_placeholder(text):
    assert "placeholder" not in error_of(text)
