"""`pycaffe-lite upgrade IN OUT`: old nets, weights and solvers in today's form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from old_nets import v0_layer

from pycaffe_lite import TEST, MissingFileError, Net
from pycaffe_lite.__main__ import main
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net, parse_text

V0 = (
    "name: 'old' input: 'x' input_dim: [2, 3, 5, 4]\n"
    + v0_layer("name: 'p' type: 'padding' pad: 2", bottom="x", top="p")
    + v0_layer(
        "name: 'c' type: 'conv' num_output: 7 kernelsize: 3 biasterm: false", bottom="p", top="c"
    )
)
V1 = """name: 'old' input: 'x' input_dim: [2, 3, 5, 4]
layers { name: 'c' type: CONVOLUTION bottom: 'x' top: 'c' blobs_lr: [1, 2] weight_decay: [1, 0]
  convolution_param { num_output: 7 kernel_size: 3 } }"""
INPUT = """layer { name: 'input' type: 'Input' top: 'x'
  input_param { shape { dim: [2, 3, 5, 4] } } }"""
V0_NOW = f"""name: 'old' {INPUT} layer {{ name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
  convolution_param {{ num_output: 7 kernel_size: 3 pad: 2 bias_term: false }} }}"""
V1_NOW = f"""name: 'old' {INPUT} layer {{ name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
  param {{ lr_mult: 1 decay_mult: 1 }} param {{ lr_mult: 2 decay_mult: 0 }}
  convolution_param {{ num_output: 7 kernel_size: 3 }} }}"""


@pytest.fixture
def upgrade(tmp_path):
    """Upgrade a text or message; the exit status and the bytes written, None for nothing."""

    def run(source, *options):
        data = source.encode() if isinstance(source, str) else source
        if not isinstance(data, bytes):
            data = source.SerializeToString()
        (tmp_path / "in").write_bytes(data)
        out = tmp_path / "out"
        status = main(["upgrade", str(tmp_path / "in"), str(out), *options])
        assert (tmp_path / "in").read_bytes() == data
        assert {p.name for p in tmp_path.iterdir()} <= {"in", "out"}, "no temporary file is left"
        return status, out.read_bytes() if out.exists() else None

    return run


@pytest.mark.parametrize(("old", "today"), [(V0, V0_NOW), (V1, V1_NOW)], ids=["V0", "V1"])
def test_a_net_as_text(upgrade, old, today, capsys):
    status, written = upgrade(old)
    assert status == 0
    assert parse_net(written.decode()) == parse_net(today)
    assert "net 'old' upgraded" in capsys.readouterr().out


@pytest.mark.parametrize(("old", "today"), [(V0, V0_NOW), (V1, V1_NOW)], ids=["V0", "V1"])
def test_a_binary_net(upgrade, old, today, capsys):
    status, written = upgrade(parse_net(old))
    assert status == 0
    assert caffe_pb2.NetParameter.FromString(written) == parse_net(today)
    assert "binary net 'old' upgraded" in capsys.readouterr().out


@pytest.mark.parametrize("binary", [False, True])
def test_a_net_of_today_is_written_again(upgrade, binary, capsys):
    spec = parse_net(V1_NOW)
    status, written = upgrade(spec if binary else V1_NOW)
    assert status == 0
    assert (
        caffe_pb2.NetParameter.FromString(written) if binary else parse_net(written.decode())
    ) == spec
    assert "today's form already" in capsys.readouterr().out


def test_weights_keep_their_values_and_legacy_shapes(upgrade, tmp_path):
    spec = parse_net(V1)
    values = np.arange(7 * 3 * 3 * 3, dtype="f4") / 8
    blobs = spec.layers[0].blobs
    blobs.add(num=7, channels=3, height=3, width=3, data=values)
    blobs.add(num=1, channels=1, height=1, width=7, data=range(7))
    status, written = upgrade(spec)
    assert status == 0
    (_, conv) = caffe_pb2.NetParameter.FromString(written).layer
    assert [(b.num, b.channels, b.height, b.width) for b in conv.blobs] == [
        (7, 3, 3, 3),
        (1, 1, 1, 7),
    ]
    assert not any(blob.HasField("shape") for blob in conv.blobs)
    (tmp_path / "net.prototxt").write_text(V1_NOW)
    net = Net(tmp_path / "net.prototxt", TEST, weights=tmp_path / "out")
    assert_array_equal(net.params["c"][0].data.ravel(), values)
    assert_array_equal(net.params["c"][1].data, np.arange(7))


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("SGD", "SGD"),
        ("NESTEROV", "Nesterov"),
        ("ADAGRAD", "AdaGrad"),
        ("RMSPROP", "RMSProp"),
        ("ADADELTA", "AdaDelta"),
        ("ADAM", "Adam"),
    ],
)
def test_a_solver(upgrade, old, today, capsys):
    status, written = upgrade(f"net: 'n.prototxt' base_lr: 0.5 solver_type: {old} # why\n")
    wanted = f"net: 'n.prototxt' base_lr: 0.5 type: '{today}'"
    assert status == 0
    assert parse_text(written.decode(), caffe_pb2.SolverParameter) == parse_text(
        wanted, caffe_pb2.SolverParameter
    )
    assert "solver upgraded" in capsys.readouterr().out


def test_a_solver_of_today_is_written_again(upgrade, capsys):
    status, written = upgrade("net: 'n.prototxt' type: 'Adam'")
    assert (status, written) == (0, b'net: "n.prototxt"\ntype: "Adam"\n')
    assert "today's form already" in capsys.readouterr().out


def test_the_nets_in_a_solver(upgrade, capsys):
    status, written = upgrade(
        f"train_net_param {{ {V1} }} test_net_param {{ {V0} }} test_net_param {{ {V1} }}"
    )
    spec = parse_text(written.decode(), caffe_pb2.SolverParameter)
    assert status == 0
    assert spec.train_net_param == parse_net(V1_NOW)
    assert list(spec.test_net_param) == [parse_net(V0_NOW), parse_net(V1_NOW)]
    assert not spec.HasField("net_param")
    assert "solver upgraded" in capsys.readouterr().out


def test_in_and_out_may_be_one_file(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(V1)
    path.chmod(0o640)
    assert main(["upgrade", str(path), str(path)]) == 0
    assert parse_net(path.read_text()) == parse_net(V1_NOW)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["net.prototxt"]


# ---- what does not work --------------------------------------------------------------------------


@pytest.mark.parametrize("paths", [[], ["a"], ["a", "b", "c"]], ids=len)
def test_wrong_usage_is_1(paths, capsys):
    assert main(["upgrade", *paths]) == 1
    printed = capsys.readouterr().err
    assert "usage: pycaffe-lite upgrade [-h] [-v] IN OUT" in printed
    assert f"got {len(paths)}" in printed


@pytest.mark.parametrize(
    "options",
    [["--force"], ["-f"], ["--help=3"], ["-v=2"], ["--weights", "w"], ["a", "-x", "b"]],
    ids=" ".join,
)
@pytest.mark.parametrize("last", [False, True])
def test_an_unknown_option_is_1(options, last, tmp_path, capsys):
    (tmp_path / "in").write_text(V1)
    paths = [str(tmp_path / "in"), str(tmp_path / "out")]
    with pytest.raises(SystemExit) as caught:
        main(["upgrade", *(paths + options if last else options + paths)])
    assert caught.value.code == 1
    printed = capsys.readouterr().err
    assert "usage: pycaffe-lite upgrade [-h] [-v] IN OUT" in printed
    assert "pycaffe-lite upgrade: error: unknown flag: " in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("name: 'n' laye { }", "in:1:11: NetParameter has no field 'laye'; did you mean 'layer'"),
        ("base_lr: 1\nsolvr_type: SGD", "in:2:1: SolverParameter has no field 'solvr_type'"),
        ("base_lr: 1 solver_type: SDG", "unknown value SDG"),
        ("layer { name: 'c'", "is not closed"),
        ("layer { name: 'c' type: 'Clip' clip_param { min: 1 } }", "clip_param.max is missing"),
        ("", "an empty file"),
        ("# nothing\n", "it sets no field of a net or solver"),
        ("<!DOCTYPE html><html></html>", "an HTML page"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0", "an HDF5 file"),
        (b"\n\x03net\xa2\x06\x7f\0\0", "NetParameter file"),
        (caffe_pb2.BlobProto(num=1, channels=3, data=[1.5]), "holds no layer"),
    ],
    ids=str,
)
def test_what_does_not_parse_is_2(upgrade, source, message, capsys):
    assert upgrade(source) == (2, None)
    printed = capsys.readouterr().err
    assert printed.startswith("pycaffe-lite: error: failed to parse ")
    assert message in printed


def test_what_has_no_meaning_today_is_1(upgrade, capsys):
    both = "layer { name: 'a' type: 'ReLU' }\nlayers { name: 'b' type: RELU }"
    assert upgrade(both) == (1, None)
    assert "in:2: both `layer` and `layers`" in capsys.readouterr().err
    assert upgrade("type: 'SGD' solver_type: ADAM") == (1, None)
    assert "both type ('SGD') and solver_type (ADAM)" in capsys.readouterr().err
    assert upgrade("input: 'x' input_dim: [2, 3]") == (1, None)
    assert "1 inputs need 4 input_dim values, got 2" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_1(tmp_path, capsys):
    assert main(["upgrade", str(tmp_path / "no"), str(tmp_path / "out")]) == 1
    assert "Could not open file" in capsys.readouterr().err
    (tmp_path / "in").write_text(V1)
    assert main(["upgrade", str(tmp_path / "in"), str(tmp_path / "no" / "out")]) == 1
    assert str(tmp_path / "no" / "out") in capsys.readouterr().err
    with pytest.raises(MissingFileError):
        main(["upgrade", "-v", str(tmp_path / "no"), str(tmp_path / "out")])


def test_verbose_shows_where_parsing_failed(upgrade):
    with pytest.raises(ValueError, match="failed to parse"):
        upgrade("laye { }", "-v")


@pytest.mark.parametrize("name", ["net_proto_text", "net_proto_binary", "solver_proto_text"])
def test_the_names_of_caffes_tools(tmp_path, name):
    (tmp_path / "in").write_text(V1)
    assert main([f"upgrade_{name}", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert parse_net((tmp_path / "out").read_text()) == parse_net(V1_NOW)
