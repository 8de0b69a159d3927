"""Prototxt: what is read, what is refused, and what the errors say."""

from pathlib import Path

import pytest

from pycaffe_lite import prototxt
from pycaffe_lite.errors import MissingFileError, ModelError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import layer_lines, parse_net, parse_text, read_net, read_text, to_text

NETS = Path(__file__).resolve().parents[3] / "shared" / "models"
CONV = 'layer { name: "c" type: "Convolution" convolution_param { %s } }'


def conv(text):
    return parse_net(CONV % text).layer[0].convolution_param


def message_of(call, *arguments):
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    return str(caught.value)


# --- what is read


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("kernel_size: 3", [3]),
        ("kernel_size: [3, 5]", [3, 5]),
        ("kernel_size: []", []),
        ("kernel_size: 3 kernel_size: 5", [3, 5]),
        ("kernel_size: 3; kernel_size: 5,", [3, 5]),
        ("kernel_size: 3, kernel_size: 5;", [3, 5]),
        ("kernel_size: 0x1F kernel_size: 017", [31, 15]),
        ("# kernel_size: 9\nkernel_size:#x\n3 # {\n", [3]),
        ("kernel_size:\t3\n\n\tkernel_size\n:\n5", [3, 5]),
    ],
)
def test_integers_and_lists(text, kernel):
    assert list(conv(text).kernel_size) == kernel


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".5f", 0.5),
        ("1e-1", float.fromhex("0x1.99999ap-4")),
        ("-2", -2),
        ("1.", 1),
        ("2f", 2),
        ("inf", float("inf")),
        ("-inf", -float("inf")),
        ("-1.5E2", -150),
    ],
)
def test_floats(text, value):
    assert parse_net(f"layer {{ loss_weight: {text} }}").layer[0].loss_weight[0] == value


@pytest.mark.parametrize("text", ["true", "True", "t", "1"])
def test_true(text):
    assert parse_net(f"force_backward: {text}").force_backward is True


@pytest.mark.parametrize("text", ["false", "False", "f", "0"])
def test_false(text):
    net = parse_net(f"force_backward: {text}")
    assert net.force_backward is False
    assert net.HasField("force_backward")


@pytest.mark.parametrize("text", ["AVE", "1"])
def test_enum_by_name_and_number(text):
    net = parse_net(f"layer {{ pooling_param {{ pool: {text} }} }}")
    assert net.layer[0].pooling_param.pool == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("'a'", "a"),
        ('"a"', "a"),
        ("'a\"b'", 'a"b'),
        ('"a\'b"', "a'b"),
        ("'a' \"b\"\n'c'", "abc"),
        (r'"\101\x42\x4\n\t\\\"\'"', "AB\x04\n\t\\\"'"),
        ('"#no comment"', "#no comment"),
        ('"{ } ; layer {"', "{ } ; layer {"),
        ('"caf\u00e9 \u4e2d"', "caf\u00e9 \u4e2d"),
        ('""', ""),
    ],
)
def test_strings(text, name):
    assert parse_net(f"name: {text}").name == name


# https://github.com/lutzroeder/netron/issues/276
@pytest.mark.parametrize(
    "text",
    [
        'layer { name: "a" param { lr_mult: 2 } }',
        'layer: { name: "a" param: { lr_mult: 2 } }',
        'layer < name: "a" param: < lr_mult: 2 > >',
        'layer: [ { name: "a" param: [ { lr_mult: 2 } ] } ]',
        'layer{name:"a"param{lr_mult:2}}',
        "layer { name: 'a'; param { lr_mult: 2 }; };",
        "layer { name: 'a', param { lr_mult: 2 }, },",
    ],
)
def test_spellings_of_a_message(text):
    net = parse_net(text)
    assert [(layer.name, layer.param[0].lr_mult) for layer in net.layer] == [("a", 2)]


# https://github.com/lutzroeder/netron/issues/276
def test_liberties_of_real_files_in_one_layer():
    net = parse_net(
        "layer: { # a comment, then single quotes, a colon before the brace, a list\n"
        " type: 'Convolution' convolution_param: { kernel_size: [3,5]; num_output: 2 } }"
    )
    param = net.layer[0].convolution_param
    assert (list(param.kernel_size), param.num_output) == ([3, 5], 2)


def test_empty_messages_and_files():
    assert parse_net("") == parse_net(" \n# nothing\n") == caffe_pb2.NetParameter()
    assert parse_net("layer {} layer: {}").layer[1].HasField("relu_param") is False
    assert parse_net("layer { relu_param {} }").layer[0].HasField("relu_param")


# https://github.com/shicai/MobileNet-Caffe/issues/48
# https://github.com/BVLC/caffe/issues/6184
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_byte_order_mark(tmp_path, end, mark, last):
    lines = [b'name: "n"  # c', b"layer {", b'\tname: "a"', b"}"]
    path = tmp_path / "net.prototxt"
    path.write_bytes(mark + end.join(lines) + (end if last else b""))
    net = read_net(path)
    assert (net.name, net.layer[0].name) == ("n", "a")
    path.write_bytes(mark + end.join([*lines, b"  nmae: 1"]) + (end if last else b""))
    assert f"{path}:5:3: " in message_of(read_net, path)
    path.write_bytes(mark + b"nmae: 1" + end)
    assert f"{path}:1:1: " in message_of(read_net, path)


def test_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'# caf\xe9 \xff\xfe\nname: "n" # \xe9')
    assert read_net(path).name == "n"
    path.write_bytes(b'# caf\xe9\nlayer { name: "caf\xe9" }')
    message = message_of(read_net, path)
    assert f"{path}:2:15: " in message
    assert "not UTF-8" in message
    message.encode()
    path.write_bytes(b"layer { pooling_param { pool: M\xe9X } }")
    assert f"{path}:1:32: layer without a name: this is not UTF-8" in message_of(read_net, path)
    path.write_bytes(b'name: "\xe4\xb8\xad" nmae: 1 # caf\xe9')
    message = message_of(read_net, path)
    assert f"{path}:1:11: " in message
    message.encode()


@pytest.mark.parametrize("text", ["name: '\ud800'", "name: \ud800", "n\udfffme: 'a'", "\ud800"])
def test_surrogates_that_stand_for_no_byte(text):
    message = message_of(parse_net, text)
    assert "not UTF-8" in message
    message.encode()


def test_paths(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text("name: 'n'")
    assert read_net(str(path)).name == read_net(path).name == "n"


def test_other_messages(tmp_path):
    path = tmp_path / "solver.prototxt"
    path.write_text("net: 'n' base_lr: 0.5 net_param { layer { name: 'x' } }")
    solver = read_text(path, caffe_pb2.SolverParameter)
    assert type(solver) is caffe_pb2.SolverParameter
    assert (solver.net, solver.base_lr) == ("n", 0.5)
    message = message_of(
        parse_text, "net_param { layer { name: 'x' nme: 1 } }", caffe_pb2.SolverParameter
    )
    assert "failed to parse SolverParameter file <string>:1:31: layer 'x': " in message


@pytest.mark.parametrize(
    "text",
    [
        "layer { pooling_param { ceil_mode: false } }",
        "layer { type: 'Permute' permute_param { order: 0 order: 2 } }",
        "layer { norm_param { across_spatial: false scale_filler { value: 20 } eps: 1e-9 } }",
        "layer { prior_box_param { min_size: 3 min_size: 4 step_h: 8 } }",
        "layer { detection_output_param { code_type: CENTER_SIZE nms_param { top_k: 4 } } }",
        "layer { bn_param { scale_filler { value: 1 } shift_filler { } bn_mode: INFERENCE } }",
        "layer { bn_param { slope_filler { value: 1 } bias_filler { } frozen: true } }",
        "layer { upsample_param { scale: 2 pad_out_h: true } }",
        "layer { interp_param { zoom_factor: 8 pad_beg: -1 } }",
        "layer { roi_pooling_param { pooled_w: 7 } smooth_l1_loss_param { sigma: 3 } }",
        "layer { psroi_pooling_param { spatial_scale: .0625 output_dim: 8 group_size: 7 } }",
        "layer { dropout_param { scale_train: false sample_weights_test: true } }",
        "layer { loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 2 } }",
        "layer { transform_param { resize_param { interp_mode: AREA interp_mode: CUBIC } } }",
        "layer { relu6_param { negative_slope: 0.1 } shuffle_channel_param { group: 3 } }",
        "layer { proposal_param { feat_stride: 16 ratio: 1 scale: 8 } }",
        "layer { crop_center_param { crop_size: 0 crop_size: 2 } }",
        "layers { type: CROP }",
    ],
)
def test_fields_of_forks(text):
    net = parse_net(text)
    assert parse_net(to_text(net)) == net


# --- what is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: 'a'\nname: 'b'", ":2:7: field 'name' is given twice"),
        ("layer { relu_param {} relu_param {} }", "field 'relu_param' is given twice"),
        ("force_backward: yes", ":1:17: field 'force_backward': expected true or false, found yes"),
        ("force_backward: 2", "expected true or false, found 2"),
        ("force_backward:", "expected true or false, found the end"),
        (CONV % "num_output: -1", "field 'num_output': Value out of range: -1"),
        (CONV % "num_output: 2.0", "field 'num_output': Couldn't parse integer: 2.0"),
        (CONV % "num_output: 1_000", "1_000 is not a number"),
        (CONV % "num_output: +1", "+1 is not a number"),
        (CONV % "num_output: 0b1", "0b1 is not a number"),
        (CONV % "num_output: 08", "Couldn't parse integer: 08"),
        ("input_dim: 2147483648", "Value out of range: 2147483648"),
        ("state { phase: TESTING }", "unknown value TESTING; did you mean TEST?"),
        (
            "layer { pooling_param { pool: max } }",
            "field 'pool': unknown value max; did you mean MAX",
        ),
        ("layer { pooling_param { pool: 'MAX' } }", "unknown value 'MAX'; did you mean MAX?"),
        ("layer { pooling_param { pool: 7 } }", "unknown value 7; known: MAX, AVE, STOCHASTIC"),
        ("1: 'a'", ":1:1: expected a field's name, found 1"),
        (
            "layer { loss_weight: 1, 2 }",
            ":1:25: layer without a name: expected a field's name, found 2",
        ),
        ("layer { clip_param { min: 0 } }", "required field layer[0].clip_param.max is missing"),
        ("name: 'a' ;;", ":1:12: "),
        ("; name: 'a'", ":1:1: "),
        ("name: a", ":1:7: field 'name': Expected string"),
        ("name 'a'", ':1:6: Expected ":"'),
        ("name: 'a' // b", "Comments start with #"),
        ("layer 3", ':1:7: Expected "{"'),
        ("layer { name: 'a'\n\n", "layer 'a': the text ends, but layer { of line 1 is not closed"),
        ("layer { name: 'a' param {", "the text ends, but param { of line 1 is not closed"),
        ("layer { name: 'a' >", "layer 'a'"),
        ("layer { name: 'a' }\n}", ":2:1: this closing brace closes nothing"),
        (
            "layer { name: 'a'\nlayer { name: 'b' } }",
            ":2:1: layer 'a': LayerParameter has no field",
        ),
        ("name: 'a\n'", ":1:7: the string has no closing ' on its line"),
        ("[a.b]: 3", "does not have extensions"),
        ("name: 'a' \u00a7", ":1:11: "),
        ("name: 'a' \u4e2d: 1", ":1:11: expected a field's name, found \u4e2d"),
        ("\0", "failed to parse"),
    ],
)
def test_refused(text, words):
    message = message_of(parse_net, text, "n.prototxt")
    assert message.startswith("failed to parse NetParameter file n.prototxt")
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("convolution_parm { }", "no field 'convolution_parm'; did you mean 'convolution_param'?"),
        ("kernel_size: 3", "it belongs in convolution_param, pooling_param"),
        ("xyzzy_qq { }", "neither in Caffe nor in the forks known here"),
    ],
)
def test_unknown_fields(text, words):
    """The layer is known though its name comes after the field."""
    message = message_of(parse_net, f"layer {{\n  {text}\n  type: 'T' name: 'c' 'd'\n}}", "f")
    where, source, mark = message.splitlines()
    assert where.startswith("failed to parse NetParameter file f:2:3: layer 'cd' (type T): ")
    assert words in where
    assert source.strip() == text
    assert source.index(text) == mark.index("^")


def test_types_of_the_generations():
    message = message_of(parse_net, 'layers { name: "d" type: "Input" }')
    assert "<string>:1:26: layer 'd' (type Input): " in message
    assert "in layers {} type is an enum such as CONVOLUTION" in message
    assert 'in layer {} it is a string such as "Input"' in message
    message = message_of(parse_net, 'layer { name: "d" type: CONVOLUTION }')
    assert "a string in layer {}: 'Convolution'" in message
    message = message_of(parse_net, 'layers { name: "d" type: UNPOOLING }')
    assert "layer 'd' (type UNPOOLING): field 'type': unknown value UNPOOLING" in message
    message = message_of(parse_net, 'layers { layer { name: "z" type: "conv" } nme: 1 }')
    assert "layer 'z' (type conv): V1LayerParameter has no field 'nme'" in message


# https://github.com/BVLC/caffe/issues/6594
@pytest.mark.parametrize(
    ("text", "column"),
    [
        (r"C:\Users\x", 9),
        (r"a\data", 8),
        (r"C:\data", 9),
        (r"\xg", 7),
        (r"\400", 7),
        (r"\8", 7),
        (r"\u12", 7),
        (r"\U00110000", 7),
    ],
)
def test_backslashes(text, column):
    message = message_of(parse_net, f'\nname:"{text}"')
    assert f":2:{column}: " in message
    assert "write paths with '/'" in message


def test_backslash_before_the_closing_quote():
    message = message_of(parse_net, 'layer { name: "a" top: "C:\\"\n}')
    assert ":1:24: layer 'a': the string has no closing" in message
    assert "write paths with '/'" in message


def test_missing_required_field_names_its_layer():
    text = "layers {}\nlayer { name: 'a' }\n\nlayer {\n clip_param { max: 1 } name: 'c' }"
    message = message_of(parse_net, text)
    assert "<string>:4:1: layer 'c': required field layer[1].clip_param.min is missing" in message


def test_column_with_tabs_and_long_lines():
    message = message_of(parse_net, "\t\tnmae: 1")
    assert ":1:3: " in message
    _, source, mark = message.splitlines()
    assert source.index("nmae") == mark.index("^")
    assert mark.startswith("    \t\t")
    message = message_of(parse_net, "name: 'a' " + " " * 5000 + "nmae: 1")
    assert ":1:5011: " in message
    _, source, mark = message.splitlines()
    assert source.index("nmae") == mark.index("^")
    assert len(source) < 200


# --- files


def test_missing_file(tmp_path):
    path = tmp_path / "no.prototxt"
    with pytest.raises(MissingFileError, match="Could not open file") as caught:
        read_net(path)
    assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_net(str(path))
    with pytest.raises(RuntimeError):
        prototxt.read_binary(path, caffe_pb2.BlobProto)


def test_folder_is_no_file(tmp_path):
    message = message_of(read_net, tmp_path)
    assert f"Could not open file {tmp_path}: " in message
    assert "nul" in message_of(read_net, "a\0b")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html>\n<html>", "HTML page"),
        (b"<html><body>404</body></html>", "HTML page"),
        (b"\x89HDF\r\n\x1a\n\0\0", "HDF5"),
        (b"PK\x03\x04\0\0", "zip"),
        (b"\x1f\x8b\x08\0", "gzip"),
        ("name: 'a'".encode("utf-16"), "UTF-16"),
        (b"\x0a\x03net\xa2\x06\x10\x0a\x01a\x12\x04ReLU\x1a\x01a\x22\x01b", "caffemodel"),
        (b"\x0a\x03net" + bytes(100), "caffemodel"),
    ],
)
def test_content_of_another_kind(tmp_path, content, words):
    path = tmp_path / "net.prototxt"
    path.write_bytes(content)
    message = message_of(read_net, path)
    assert message.startswith(f"failed to parse NetParameter file {path}: it looks like ")
    assert words in message


def test_binary_files(tmp_path):
    path = tmp_path / "mean.binaryproto"
    blob = caffe_pb2.BlobProto(data=[1, 2], channels=2)
    prototxt.write_binary(path, blob)
    assert path.read_bytes() == blob.SerializeToString()
    assert prototxt.read_binary(path, caffe_pb2.BlobProto) == blob
    path.write_bytes(blob.SerializeToString()[:-1])
    message = message_of(prototxt.read_binary, path, caffe_pb2.BlobProto)
    assert message == f"failed to parse BlobProto file {path}: it is damaged or cut short"
    path.write_text('name: "net"\nlayer { }\n')
    message = message_of(prototxt.read_binary, path, caffe_pb2.NetParameter)
    assert message == f"failed to parse NetParameter file {path}: it looks like text (a prototxt?)"


# --- writing


def test_text_round_trip(tmp_path):
    net = caffe_pb2.NetParameter(name="caf\u00e9 \"q\" 'r' \\ \n\t", input_dim=[1, -1])
    layer = net.layer.add(name="a", type="Pooling", loss_weight=[0.1, 1e-30, float("inf")])
    layer.pooling_param.pool = caffe_pb2.PoolingParameter.AVE
    layer.blobs.add(data=[1 / 3, -0.0], raw_data=b"\x00\xff")
    net.layers.add(type=caffe_pb2.V1LayerParameter.RELU)
    text = to_text(net)
    assert "loss_weight: 0.1\n" in text
    assert "caf\u00e9" in text
    assert parse_net(text) == net
    prototxt.write_text(tmp_path / "net.prototxt", net)
    assert read_net(tmp_path / "net.prototxt") == net


# --- where layers are


def test_layer_lines():
    text = (
        "name: 'layer {'\r\n# layer { name: 'no' }\r\n"
        "layer { name: 'data' include { phase: TRAIN } }\r\n"
        'layer\r\n{\r\n param { name: "w" } top: "x"\r\n name: "da" "ta" }\r\n'
        "layers: { layer { name: 'v0' } } layer: [ { name: 'l1' },\r\n { name: 'l2' } ]\r\n"
        "layer < name: 'a\\x62' > layer { type: 'T' }\r\nstate { stage: 'name' }\r\n"
        "layer { name: 'open'"
    )
    assert layer_lines(text) == {
        "data": [3, 4],
        "v0": [8],
        "l1": [8],
        "l2": [9],
        "ab": [10],
        "": [10],
        "open": [12],
    }
    assert layer_lines("\ufefflayer { name: 'a' }\rlayer { name: 'b' }") == {"a": [1], "b": [2]}
    assert layer_lines("") == {}
    assert layer_lines("} layer { name: 'a\\q' }\n } layer { name: 'b") == {"a\\q": [1], "": [2]}


# --- large and hostile texts


@pytest.mark.slow
def test_large_text():
    layer = 'layer {\n  name: "l%d"\n  type: "ReLU"\n  bottom: "a"\n  top: "a"\n}\n'
    text = "".join(layer % i for i in range(3400))  # 20,400 lines
    assert len(parse_net(text).layer) == 3400
    assert layer_lines(text)["l3399"] == [3399 * 6 + 1]
    assert ":20401:1: " in message_of(parse_net, text + "nmae: 1")


@pytest.mark.parametrize(
    "text",
    [
        "layer {" * 100_000,
        "{" * 200_000,
        "layer { foo: [" + "[" * 200_000,
        "name: " + "'a' " * 100_000 + "nmae: 1",
        "name: '" + "\\n" * 100_000,
        "\n" * 200_000 + "}",
        "#" * 200_000 + "\n}",
    ],
    ids=["layers", "braces", "lists", "strings", "open string", "lines", "comment"],
)
def test_hostile_text_is_an_error(text):
    """At once: what took the square of the length would not end here."""
    assert message_of(parse_net, text).startswith("failed to parse NetParameter file <string>:")


@pytest.mark.slow
@pytest.mark.skipif(not NETS.exists(), reason="public prototxts are not part of the project")
def test_public_nets():
    unread = []
    for path in sorted(NETS.rglob("*.prototxt")):
        try:
            net = read_net(path)
        except ModelError as error:
            unread.append(str(error))
            continue
        names = [layer.name or layer.layer.name for layer in net.layers]
        names += [layer.name for layer in net.layer]
        lines = layer_lines(path.read_bytes().decode("utf-8", "replace"))
        assert {name: names.count(name) for name in names} == {k: len(v) for k, v in lines.items()}
    assert [text for text in unread if "molgrid_data_param" not in text] == []
