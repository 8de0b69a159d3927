"""convert-imageset, compute-image-mean, extract-features: against the packages' own calls."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite as caffe
from pycaffe_lite.__main__ import main
from pycaffe_lite.proto import caffe_pb2

RECORDED = Path(__file__).parents[3] / "shared" / "golden" / "data"
NONE = pytest.mark.skipif(find_spec("plyvel") is None, reason="no LevelDB package here")
LEVELDB = pytest.param("leveldb", marks=NONE)


def contents(path, backend="lmdb"):
    """Key and message of each record."""
    if backend == "lmdb":
        with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
            pairs = list(transaction.cursor())
    else:
        import plyvel

        db = plyvel.DB(str(path))
        pairs = list(db)
        db.close()
    return [(key, caffe_pb2.Datum.FromString(value)) for key, value in pairs]


def pixels_of(datum):
    return np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)


def planes(pixels):
    return np.atleast_3d(pixels).transpose(2, 0, 1)


def fill(path, images, labels=None):
    """An LMDB with images (C, H, W), uint8 or float."""
    with lmdb.open(str(path), map_size=1 << 22, lock=False) as env, env.begin(write=True) as txn:
        for k, image in enumerate(images):
            datum = caffe.io.array_to_datum(image, labels[k] if labels else 0)
            txn.put(b"%08d" % k, datum.SerializeToString())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Images im0.png to im3.png of 5 x 7, the last one grey, and list.txt; the working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    (tmp_path / "img" / "a b").mkdir(parents=True)
    for k, name in enumerate(["im0.png", "a b/im1.png", "im2.png", "im3.png"]):
        shape = (5, 7) if k == 3 else (5, 7, 3)
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        assert cv2.imwrite(str(tmp_path / "img" / name), pixels)
    Path("list.txt").write_text("im0.png 4\na b/im1.png 0\nim2.png -1\nim3.png 7\n")
    return tmp_path


KEYS = [b"00000000_im0.png", b"00000001_a b/im1.png", b"00000002_im2.png", b"00000003_im3.png"]
FILES = ["img/im0.png", "img/a b/im1.png", "img/im2.png", "img/im3.png"]


def left():
    """What stands in the working folder beside what was there."""
    return sorted(p.name for p in Path().iterdir() if p.name not in ("img", "list.txt"))


# ---- convert-imageset --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["lmdb", LEVELDB])
@pytest.mark.parametrize("name", ["convert-imageset", "convert_imageset"])
def test_pixels(folder, backend, name, capsys):
    assert main([name, f"-backend={backend}", "img/", "list.txt", "db"]) == 0
    assert capsys.readouterr().out == "db: 4 images\n"
    found = contents("db", backend)
    assert [key for key, _ in found] == KEYS
    assert [datum.label for _, datum in found] == [4, 0, -1, 7]
    for (_, datum), file in zip(found, FILES, strict=True):
        assert not datum.encoded
        assert_array_equal(pixels_of(datum), planes(cv2.imread(file)))
    assert left() == ["db"]


def test_gray_and_resized(folder):
    flags = ["--gray", "-resize_width", "4", "--resize_height=9"]
    assert main(["convert-imageset", *flags, "img/", "list.txt", "db"]) == 0
    for (_, datum), file in zip(contents("db"), FILES, strict=True):
        wanted = cv2.resize(cv2.imread(file, cv2.IMREAD_GRAYSCALE), (4, 9))
        assert_array_equal(pixels_of(datum), planes(wanted))


def test_files_are_stored_as_they_are(folder):
    assert main(["convert-imageset", "--encoded", "img/", "list.txt", "db"]) == 0
    found = contents("db")
    assert [datum.label for _, datum in found] == [4, 0, -1, 7]
    for (_, datum), file in zip(found[:3], FILES, strict=False):
        assert datum == caffe_pb2.Datum(
            data=Path(file).read_bytes(), label=datum.label, encoded=True
        )
    grey = found[3][1]
    assert grey.data != Path(FILES[3]).read_bytes(), "three channels were asked for"
    decoded = cv2.imdecode(np.frombuffer(grey.data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert_array_equal(decoded, cv2.imread(FILES[3]))


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (["-encoded", "-gray"], b"\x89PNG"),
        (["-encode_type", "png", "-gray"], b"\x89PNG"),
        (["-encode_type=.jpg", "-gray"], b"\xff\xd8"),
    ],
)
def test_files_written_anew(folder, flags, start):
    """Where channels or kind differ from the file's."""
    assert main(["convert-imageset", *flags, "img/", "list.txt", "db"]) == 0
    for (_, datum), file in zip(contents("db"), FILES, strict=True):
        assert datum.encoded
        assert datum.data.startswith(start)
        decoded = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert decoded.shape == (5, 7)
        if start == b"\x89PNG":
            assert_array_equal(decoded, cv2.imread(file, cv2.IMREAD_GRAYSCALE))


def test_jpg_is_jpeg(folder):
    cv2.imwrite("img/x.jpg", np.full((5, 7, 3), 99, np.uint8))
    Path("img/y.JPEG").write_bytes(Path("img/x.jpg").read_bytes())
    Path("list.txt").write_text("x.jpg 1\ny.JPEG 2\n")
    assert main(["convert-imageset", "-encode_type=jpeg", "img/", "list.txt", "db"]) == 0
    assert {datum.data for _, datum in contents("db")} == {Path("img/x.jpg").read_bytes()}


def test_shuffled(folder, monkeypatch):
    monkeypatch.setattr("random.shuffle", lambda items: items.reverse())
    assert main(["convert-imageset", "-shuffle", "img/", "list.txt", "db"]) == 0
    found = contents("db")
    assert [key[9:] for key, _ in found] == [key[9:] for key in KEYS[::-1]]
    assert [key[:9] for key, _ in found] == [key[:9] for key in KEYS], "numbers are the places"
    assert [datum.label for _, datum in found] == [7, -1, 0, 4]


def test_what_cannot_be_read_is_skipped(folder, capsys, caplog):
    Path("img/im0.png").unlink()
    Path("img/im2.png").write_bytes(b"no image")
    assert main(["convert-imageset", "img/", "list.txt", "db"]) == 0
    assert [key for key, _ in contents("db")] == [KEYS[1], KEYS[3]], "keys keep their numbers"
    assert capsys.readouterr().out == "db: 2 images; 2 could not be read and were skipped\n"
    assert [record.getMessage().partition(": no")[0] for record in caplog.records] == [
        "skipped: could not load img/im0.png",
        "skipped: could not load img/im2.png",
    ]


def test_more_images_than_are_held_at_once(folder, monkeypatch):
    monkeypatch.setattr("pycaffe_lite.commands.convert_imageset._AT_ONCE", 3)
    monkeypatch.setattr("pycaffe_lite.commands.convert_imageset._COMMIT_EVERY", 4)
    Path("list.txt").write_text("".join(f"im{k % 3 and 2}.png {k}\n" for k in range(11)))
    assert main(["convert-imageset", "img/", "list.txt", "db"]) == 0
    assert [datum.label for _, datum in contents("db")] == list(range(11))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["img", "list.txt", "db"], "none of 4 images could be read; .* give img/"),
        (["none/", "list.txt", "db"], "none of 4 images could be read$"),
        (["img/", "none.txt", "db"], "failed to open source file: none.txt"),
        (["-resize_width", "5", "img/", "list.txt", "db"], "both or neither: got 0 and 5"),
        (["-resize_width=-5", "-resize_height=2", "img/", "list.txt", "db"], "must be positive"),
        (["-backend=lmbd", "img/", "list.txt", "db"], "unknown backend: lmbd"),
        (["-encode_type=xyz", "img/", "list.txt", "db"], "cannot encode .* 'xyz'"),
        (["-check_size", "img/", "sizes.txt", "db"], r"small.png is \(3, 2, 4\).*\(3, 5, 7\)"),
        (["-encoded", "img/", "bare.txt", "db"], "failed to guess the encoding of 'bare'"),
        (["img/", "list.txt", "none/db"], "cannot create database none/db: there is no"),
    ],
)
def test_errors_leave_no_database(folder, args, message, capsys):
    cv2.imwrite("img/small.png", np.zeros((2, 4, 3), np.uint8))
    Path("sizes.txt").write_text("im0.png 1\nim3.png 1\nsmall.png 1\n")
    Path("bare.txt").write_text("bare 1\n")
    assert main(["convert-imageset", *args]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("pycaffe-lite: error: ")
    assert re.search(message, line), line
    assert left() == ["bare.txt", "sizes.txt"]


def test_a_database_that_is_there_is_kept(folder, capsys):
    assert main(["convert-imageset", "img/", "list.txt", "db"]) == 0
    before = Path("db/data.mdb").read_bytes()
    assert main(["convert-imageset", "-gray", "img/", "list.txt", "db"]) == 1
    assert "cannot create database db: it exists already" in capsys.readouterr().err
    assert Path("db/data.mdb").read_bytes() == before


def test_an_interruption_leaves_no_database(folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pycaffe_lite.commands.convert_imageset._record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main(["convert-imageset", "img/", "list.txt", "db"])
    assert left() == []


def test_images_without_opencv(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert main(["convert-imageset", "img/", "list.txt", "db"]) == 1
    assert "pip install 'pycaffe-lite[image]'" in capsys.readouterr().err


# ---- compute-image-mean ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", ["compute-image-mean", "compute_image_mean"])
def test_mean(tmp_path, dtype, name, capsys):
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, (7, 3, 2, 5)).astype(dtype)
    fill(tmp_path / "db", images)
    assert main([name, str(tmp_path / "db"), str(tmp_path / "mean")]) == 0
    blob = caffe_pb2.BlobProto.FromString((tmp_path / "mean").read_bytes())
    wanted = images.astype(np.float64).mean(0)
    assert (blob.num, blob.channels, blob.height, blob.width) == (1, 3, 2, 5)
    assert_array_equal(np.array(blob.data, np.float32).reshape(3, 2, 5), wanted.astype(np.float32))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"mean_value channel [{c}]" for c in range(3)
    ]
    assert_allclose([float(x.split(": ")[1]) for x in lines], wanted.mean((1, 2)), rtol=1e-5)


def test_mean_of_encoded_images_without_a_file(folder, capsys):
    flags = ["-encoded", "-gray"]
    assert main(["convert-imageset", *flags, "img/", "list.txt", "db"]) == 0
    assert main(["compute-image-mean", "-backend=lmdb", "db"]) == 0
    wanted = np.mean([cv2.imread(file, cv2.IMREAD_GRAYSCALE) for file in FILES])
    assert capsys.readouterr().out.splitlines()[-1] == f"mean_value channel [0]: {wanted:.6g}"
    assert left() == ["db"]


def test_mean_of_images_that_have_none(tmp_path, capsys):
    fill(tmp_path / "sizes", [np.zeros((3, 2, 5), np.uint8), np.zeros((3, 5, 2), np.uint8)])
    fill(tmp_path / "empty", [])
    fill(tmp_path / "broken", [np.zeros((3, 2, 5), np.uint8)])
    with lmdb.open(str(tmp_path / "broken"), lock=False) as env, env.begin(write=True) as txn:
        txn.put(b"k", b"half of a rec")
    for name, message in (
        ("sizes", "sizes has shape (3, 5, 2) (channels, height, width), those before it (3, 2, 5)"),
        ("empty", "empty holds no records"),
        ("broken", "failed to parse record b'k' of"),
        ("none", "failed to open database"),
    ):
        assert main(["compute-image-mean", str(tmp_path / name), str(tmp_path / "out")]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


# ---- extract-features --------------------------------------------------------------------------

NET = """
layer { name: 'd' type: 'Data' top: 'x' top: 'y' data_param { source: 'in' batch_size: 2
  backend: LMDB } }
layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c/1'
  convolution_param { num_output: 7 kernel_size: 2 weight_filler { type: 'xavier' } } }
layer { name: 'f' type: 'InnerProduct' bottom: 'c/1' top: 'file'
  inner_product_param { num_output: 6 weight_filler { type: 'xavier' } } }
layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'file' bottom: 'y' top: 'loss' }
"""


@pytest.fixture
def features(tmp_path, monkeypatch):
    """A net over five images, its weights, and what it computes in two batches of two."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(6).integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)
    fill("in", images, [4, 0, 1, 5, 2])
    Path("net.prototxt").write_text(NET)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save("net.caffemodel")
    weight, bias = (net.params["c"][k].data.astype(np.float64) for k in (0, 1))
    conv = np.zeros((4, 7, 3, 5))
    for n, o, i, j in np.ndindex(conv.shape):
        conv[n, o, i, j] = (images[n, :, i : i + 2, j : j + 2] * weight[o]).sum() + bias[o]
    product = conv.reshape(4, -1) @ net.params["f"][0].data.astype(np.float64).T
    return {"c/1": conv, "file": product}


def extract(blobs, datasets, batches, kind, *more):
    args = ["net.caffemodel", "net.prototxt", blobs, datasets, str(batches), kind, *more]
    return main(["extract-features", *args])


def floats_of(datum):
    return np.array(datum.float_data).reshape(datum.channels, datum.height, datum.width)


@pytest.mark.parametrize("backend", ["lmdb", LEVELDB])
def test_features_into_databases(features, backend, capsys):
    assert extract("c/1,file", "one,two", 2, backend, "CPU") == 0
    out = "one: 4 features of c/1\ntwo: 4 features of file\n"
    assert capsys.readouterr().out == out
    for name, wanted in (("one", features["c/1"]), ("two", features["file"][:, :, None, None])):
        found = contents(name, backend)
        assert [key for key, _ in found] == [b"%010d" % k for k in range(4)]
        values = np.array([floats_of(datum) for _, datum in found])
        assert_allclose(values, wanted, rtol=1e-4, atol=1e-3)
        assert not any(datum.HasField("label") for _, datum in found)


def test_features_into_files(features):
    assert extract("c/1,file", "one.npz,two.npz", 2, "npz") == 0
    assert extract("c/1,file,loss", "one.h5,two.h5,three.h5", 2, "H5") == 0
    for name, file in (("c/1", "one"), ("file", "two")):
        with np.load(f"{file}.npz") as stored:
            assert stored.files == [name]
            values = stored[name]
        assert values.dtype == np.float32
        assert_allclose(values, features[name], rtol=1e-4, atol=1e-3)
        with h5py.File(f"{file}.h5") as stored:
            assert_array_equal(stored[name], values)
    with h5py.File("three.h5") as stored:
        assert stored["loss"].shape == (2,)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("c/1,file", "one", 2, "lmdb"), "must equal that of dataset names: 2 vs. 1"),
        (("c/1,file", "one,one", 2, "lmdb"), "two datasets have one name: one,one"),
        (("files", "one", 2, "lmdb"), "unknown blob: 'files'; did you mean 'file'?"),
        (("file", "one", 2, "mdb"), "unknown DB_TYPE: mdb (known: lmdb, leveldb, npz, h5)"),
        (("file", "one", 0, "lmdb"), "NUM_BATCHES must be positive, got 0"),
        (("file", "one", 2, "lmdb", "TPU"), "the mode is CPU or GPU, got TPU"),
        (("file", "in", 2, "lmdb"), "cannot create database in: it exists already"),
        (("file,c/1", "one,none/two", 2, "lmdb"), "cannot create database none/two"),
    ],
)
def test_features_that_cannot_be(features, args, message, capsys):
    assert extract(*args) == 1
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in Path().iterdir()) == ["in", "net.caffemodel", "net.prototxt"]


@pytest.mark.parametrize("kind", ["lmdb", LEVELDB, "npz", "h5"])
def test_an_error_leaves_no_dataset(features, kind, monkeypatch, capsys):
    """The third image has another size than the rest."""
    shutil.rmtree("in")
    fill("in", [np.zeros((3, 4, 5 + (k == 2)), np.uint8) for k in range(4)], [0, 1, 2, 3])
    assert extract("file,c/1", "one,two", 2, kind) == 1
    assert capsys.readouterr().err.startswith("pycaffe-lite: error: ")
    assert sorted(p.name for p in Path().iterdir()) == ["in", "net.caffemodel", "net.prototxt"]


def test_usage_is_status_1(capsys):
    for command in ("convert-imageset", "compute-image-mean", "extract-features"):
        with pytest.raises(SystemExit) as raised:
            main([command])
        assert raised.value.code == 1
        assert capsys.readouterr().err.startswith(f"usage: pycaffe-lite {command} ")


# ---- databases of the original -----------------------------------------------------------------


def recorded(name):
    if not RECORDED.exists():
        pytest.skip("recorded databases are not here")
    return RECORDED / name


@pytest.mark.parametrize(
    ("case", "flags"),
    [
        ("data_lmdb_plain", []),
        ("data_lmdb_gray", ["-gray"]),
        ("data_lmdb_encoded", ["-encoded"]),
        pytest.param("data_leveldb", ["-backend=leveldb"], marks=LEVELDB.marks),
    ],
)
def test_databases_are_the_original_s(tmp_path, case, flags):
    source = recorded(case)
    backend = "leveldb" if "leveldb" in case else "lmdb"
    shutil.copytree(source / f"db_{backend}", tmp_path / "old")
    for path in [tmp_path / "old", *(tmp_path / "old").iterdir()]:
        path.chmod(0o755)
    args = [f"{source}/img/", str(source / "list.txt"), str(tmp_path / "new")]
    assert main(["convert_imageset", *flags, *args]) == 0
    old, new = (contents(tmp_path / name, backend) for name in ("old", "new"))
    assert [(k, d.SerializeToString()) for k, d in old] == [
        (k, d.SerializeToString()) for k, d in new
    ]


def test_the_mean_is_the_original_s(tmp_path):
    source = recorded("data_mean_file")
    assert main(["compute_image_mean", str(source / "db_lmdb"), str(tmp_path / "mean")]) == 0
    assert (tmp_path / "mean").read_bytes() == (source / "mean.binaryproto").read_bytes()
