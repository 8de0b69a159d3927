"""The schema: is the compiled one fresh and complete, and do its messages live on their own?"""

import copy
import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

import pycaffe_lite
from pycaffe_lite.proto import caffe_pb2

ROOT = Path(__file__).resolve().parents[1]
COMPILED = Path(pycaffe_lite.__file__).parent / "proto"
FORKS = ROOT.parent / "shared" / "spec" / "schema_forks.tsv"
LABELS = {1: "optional", 2: "required", 3: "repeated"}
# Where forks disagree with each other, or with the table: the label that reads all their texts.
MERGED = {
    ("TransformationParameter", "resize_param"): "repeated",
    ("TransformationParameter", "noise_param"): "repeated",
    ("ResizeParameter", "interp_mode"): "repeated",
    ("SaltPepperParameter", "type"): "optional",
}


def compiled_file(name="caffe.proto"):
    files = descriptor_pb2.FileDescriptorSet.FromString((COMPILED / "schema.binpb").read_bytes())
    return next(file for file in files.file if file.name == name)


def type_name(field):
    kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{kind} {field.type_name.removeprefix('.caffe.')}".strip()


def compiled_fields():
    return {
        (message.name, field.name): field
        for message in compiled_file().message_type
        for field in message.field
    }


def compiled_enums():
    file = compiled_file()
    enums = {enum.name: enum for enum in file.enum_type}
    for message in file.message_type:
        enums.update({f"{message.name}.{enum.name}": enum for enum in message.enum_type})
    return {name: {v.name: v.number for v in enum.value} for name, enum in enums.items()}


def golden():
    """Rows of the two recorded tables, fields then enum values, of the original's schema."""
    text = (Path(__file__).parent / "golden" / "schema.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    split = rows.index(["enum", "value_name", "number"])
    return [row + [""] * (7 - len(row)) for row in rows[1:split]], rows[split + 1 :]


def run(code):
    """The output of a fresh interpreter, warnings being errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_compiled_schema_is_fresh():
    digest = hashlib.sha256()
    for path in sorted((ROOT / "proto").glob("*.proto")):
        digest.update(path.name.encode() + b"\n")
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    recorded = (COMPILED / "schema.sha256").read_text(encoding="ascii").strip()
    assert recorded == digest.hexdigest(), "run `python proto/compile.py`"


def test_every_field_of_the_original():
    fields, wrong = compiled_fields(), []
    rows, _ = golden()
    assert len(rows) > 400
    for message, name, number, label, kind, default, flags in rows:
        field = fields.get((message, name))
        if field is None:
            wrong.append(f"{message}.{name} is missing")
            continue
        got = (field.number, LABELS[field.label], type_name(field), field.options.packed)
        if got != (int(number), label, kind, flags == "packed"):
            wrong.append(f"{message}.{name} is {got}")
        same = default.strip('"') == field.default_value
        if not same and float(default) != float(field.default_value):
            wrong.append(f"{message}.{name} has default {field.default_value!r}, not {default!r}")
    assert not wrong


def test_every_enum_value_of_the_original():
    enums = compiled_enums()
    _, rows = golden()
    assert len(rows) > 100
    assert not [row for row in rows if enums.get(row[0], {}).get(row[1]) != int(row[2])]


@pytest.mark.skipif(
    not FORKS.exists(), reason="the table of fork fields is not part of the project"
)
def test_every_name_of_the_forks():
    fields, enums, wrong = compiled_fields(), compiled_enums(), []
    for line in FORKS.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("#"):
            break
        if not line:
            continue
        _, owner, name, _, label, *rest = line.split("\t")
        kind = rest[0] if rest else ""
        if label == "enum value":
            known = name in enums[owner]
        else:
            field = fields.get((owner, name))
            known = field is not None and type_name(field) == kind
            if known and "DIFFERS" not in "".join(rest):
                known = LABELS[field.label] == MERGED.get((owner, name), label)
        if not known:
            wrong.append(line)
    assert not wrong


def test_names_of_a_generated_module():
    assert (caffe_pb2.TRAIN, caffe_pb2.TEST) == (0, 1)
    assert caffe_pb2.Phase.Value("TRAIN") == caffe_pb2.TRAIN
    assert caffe_pb2.Phase.Value("TEST") == caffe_pb2.TEST
    assert caffe_pb2.Phase.Name(1) == "TEST"
    assert caffe_pb2.DESCRIPTOR.name == "caffe.proto"
    pooling = caffe_pb2.PoolingParameter
    assert (pooling.MAX, pooling.AVE, pooling.PoolMethod.Value("STOCHASTIC")) == (0, 1, 2)
    assert caffe_pb2.NetParameter.LAYER_FIELD_NUMBER == 100
    assert caffe_pb2.V1LayerParameter.CONVOLUTION == 4
    assert isinstance(caffe_pb2.NetParameter().layer.add(), caffe_pb2.LayerParameter)
    assert {m.name for m in compiled_file().message_type} < set(dir(caffe_pb2))
    assert "Any" not in dir(caffe_pb2)


def test_unknown_name():
    with pytest.raises(AttributeError, match=r"caffe_pb2' has no attribute 'Netparameter'"):
        _ = caffe_pb2.Netparameter


def test_star_import():
    names = {}
    exec("from pycaffe_lite.proto.caffe_pb2 import *", names)
    assert names["BlobProto"] is caffe_pb2.BlobProto
    assert names["TEST"] == 1
    assert "lookup" not in names


def test_pickle_and_deepcopy():
    net = caffe_pb2.NetParameter(name="n")
    layer = net.layer.add(name="a", type="Clip")
    layer.clip_param.min = -1
    for message in (net, layer, layer.clip_param):
        assert copy.deepcopy(message) == message
        again = pickle.loads(pickle.dumps(message))
        assert again == message
        assert type(again) is type(message)
    assert pickle.loads(pickle.dumps(caffe_pb2.NetParameter)) is caffe_pb2.NetParameter


def test_wire_format():
    """Bytes written by hand: tag = number * 8 + wire type."""
    blob = b"\x2a\x08" + np.array([1.5, -2], "<f4").tobytes() + b"\x3a\x04\x0a\x02\x01\x02"
    layer = b"\x0a\x01a" + b"\x12\x04ReLU" + b"\x3a" + bytes([len(blob)]) + blob
    data = b"\x0a\x01n" + b"\xa2\x06" + bytes([len(layer)]) + layer
    net = caffe_pb2.NetParameter.FromString(data)
    assert (net.name, net.layer[0].name, net.layer[0].type) == ("n", "a", "ReLU")
    assert list(net.layer[0].blobs[0].data) == [1.5, -2]
    assert list(net.layer[0].blobs[0].shape.dim) == [1, 2]
    # Fields are written in the order of their numbers; here they were.
    assert net.SerializeToString() == data


FOREIGN = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
def foreign():
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe")
    file.message_type.add(name="NetParameter").field.add(name="name", number=7, type=9, label=1)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))
    assert made(name="x").SerializeToString() == b":\\x01x"
"""


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_second_caffe_proto_in_the_process(first):
    ours = (
        "from pycaffe_lite.proto import caffe_pb2\n"
        "assert caffe_pb2.NetParameter(name='x').SerializeToString() == b'\\n\\x01x'\n"
    )
    order = ["foreign()\n", ours] if first == "theirs" else [ours, "foreign()\n"]
    run(FOREIGN + "".join(order) + ours)


def test_importing_loads_no_protobuf():
    loaded = run(
        "import sys\n"
        "from pycaffe_lite.proto import caffe_pb2\n"
        "import pycaffe_lite.prototxt\n"
        "phases = caffe_pb2.TRAIN, caffe_pb2.TEST\n"
        "print(*sys.modules)"
    )
    heavy = {"google.protobuf.descriptor_pool", "google.protobuf.text_format"}
    heavy |= {"google.protobuf.descriptor_pb2", "grpc_tools", "cupy", "h5py"}
    assert not heavy & set(loaded)


def test_threads_get_the_same_classes():
    code = (
        "import threading\n"
        "from pycaffe_lite.proto import caffe_pb2\n"
        "start, got = threading.Barrier(8), []\n"
        "def ask():\n"
        "    start.wait()\n"
        "    got.append(caffe_pb2.NetParameter)\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "print(len(got), len(set(got)))"
    )
    assert run(code) == ["8", "1"]
