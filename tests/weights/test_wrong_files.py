"""What is said of a file that is something else than the prototxt or the weights it is given for?

Public reports of such files:
https://github.com/szagoruyko/loadcaffe/issues/78, https://github.com/ox-vgg/vgg_face2/issues/13,
https://github.com/zhaoweicai/mscnn/issues/56, https://github.com/opencv/opencv/issues/13961,
https://github.com/spmallick/learnopencv/issues/950
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pycaffe_lite import TEST, MissingFileError, ModelError, Net, WeightsError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net

MODEL = """name: 'n' input: 'x' input_shape { dim: [2, 3] }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'y'
  inner_product_param { num_output: 4 } }"""


def weights() -> bytes:
    """A .caffemodel of MODEL, made without the package's writer."""
    spec = caffe_pb2.NetParameter(name="n")
    layer = spec.layer.add(name="ip", type="InnerProduct")
    layer.blobs.add(shape={"dim": [4, 3]}, data=range(12))
    layer.blobs.add(shape={"dim": [4]}, data=range(4))
    return spec.SerializeToString()


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("n.caffemodel", content)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("n.caffemodel")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def saved_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(6.0))
    return file.getvalue()


OTHERS = {
    "html": (b"<!DOCTYPE html>\n<html><title>Sign in</title></html>", "HTML page: the download"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9", "Git LFS pointer"),
    "xml": (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "XML page"),
    "json": (b'{"message": "Not Found"}', "JSON"),
    "404": (b"404: Not Found", "error page: the download failed"),
    "zip": (zipped(weights()), "a zip archive"),
    "gzip": (gzip.compress(weights()), "a gzip archive"),
    "tar": (tarred(weights()), "a tar archive"),
    "npy": (saved_array(), "an array that NumPy saved"),
    "bzip2": (b"BZh91AY&SY\x08", "a bzip2 archive"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive"),
    "pdf": (b"%PDF-1.4\n%\xe2", "a PDF document"),
    "png": (b"\x89PNG\r\n\x1a\n\0", "an image"),
    "utf16": (MODEL.encode("utf-16"), "UTF-16 text"),
}


@pytest.fixture
def file(tmp_path):
    """Writes bytes to a file and gives its path."""

    def write(content, name="given"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("what", OTHERS)
def test_a_prototxt_that_is_something_else(what, file):
    content, words = OTHERS[what]
    path = file(content)
    for choice in ("error", "warn"):
        with pytest.raises(ModelError, match=f"NetParameter file {path}: .*{words}"):
            Net(path, TEST, unknown_fields=choice)


@pytest.mark.parametrize("what", ["html", "lfs", "xml", "zip", "gzip", "json", "bzip2", "pdf"])
def test_weights_that_are_something_else(what, file):
    content, words = OTHERS[what]
    net = Net(parse_net(MODEL), TEST)
    before = net.params["ip"][0].data.copy()
    path = file(content)
    with pytest.raises(WeightsError, match=f"NetParameter file {path}: .*{words}"):
        net.copy_from(path)
    with pytest.raises(WeightsError, match=f"NetParameter file {path}: .*{words}"):
        Net(file(MODEL.encode(), "n.prototxt"), TEST, weights=path)
    assert_array_equal(net.params["ip"][0].data, before)


def test_the_two_files_the_other_way_round(file):
    model, caffemodel = file(MODEL.encode(), "n.prototxt"), file(weights(), "n.caffemodel")
    with pytest.raises(ModelError, match=rf"{caffemodel}: it looks like binary data \(a caffemod"):
        Net(caffemodel, TEST, weights=model)
    with pytest.raises(ModelError, match=rf"{caffemodel}: it looks like binary data \(a caffemod"):
        Net(str(caffemodel), str(model), TEST)
    with pytest.raises(WeightsError, match=rf"{model}: it looks like text \(a prototxt\?\)"):
        Net(model, TEST).copy_from(model)
    with pytest.raises(WeightsError, match=rf"{model}: it looks like text \(a prototxt\?\)"):
        Net(model, TEST, weights=model)
    assert_array_equal(
        Net(model, TEST, weights=caffemodel).params["ip"][0].data, np.arange(12).reshape(4, 3)
    )


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf\n"], ids=repr)
def test_empty_files(content, file):
    path = file(content)
    with pytest.raises(ModelError, match=f"NetParameter file {path}: it looks like an empty file"):
        Net(path, TEST)
    if not content:
        with pytest.raises(WeightsError, match=f"NetParameter file {path}: .*empty"):
            Net(parse_net(MODEL), TEST).copy_from(path)


@pytest.mark.parametrize("missing", [1, 9, 40, 100])
def test_weights_cut_short(missing, file):
    path = file(weights()[:-missing])
    net = Net(parse_net(MODEL), TEST)
    with pytest.raises(WeightsError, match=f"file {path}: it is damaged or cut short"):
        net.copy_from(path)
    with pytest.raises(ModelError, match=f"file {path}: it looks like binary data"):
        Net(path, TEST)
    assert not net.params["ip"][0].data.any()


def test_a_prototxt_cut_short(file):
    path = file(MODEL[:-4].encode())
    with pytest.raises(ModelError, match=rf"{path}:3:\d+: layer 'ip' .*of line 3 is not closed"):
        Net(path, TEST)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(MissingFileError, match="Could not open file .*none"):
        Net(tmp_path / "none", TEST)
    with pytest.raises(MissingFileError, match="Could not open file .*none"):
        Net(parse_net(MODEL), TEST).copy_from(tmp_path / "none")
    with pytest.raises(ModelError, match=f"Could not open file {tmp_path}: "):
        Net(tmp_path, TEST)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_prototxt_comes_through_a_pipe_and_weights_do_not(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(MODEL,))
    writer.start()
    net = Net(path, TEST)
    writer.join()
    assert net.params["ip"][0].data.shape == (4, 3)
    with pytest.raises(WeightsError, match="a pipe, no file"):
        net.copy_from(path)


@pytest.mark.parametrize("prefix", ["x", "snap"])  # "x_iter_20.caffemodel" is whole records, too
def test_a_solver_state_or_a_mean_file_as_weights(prefix, tmp_path):
    net = Net(parse_net(MODEL), TEST)
    state = caffe_pb2.SolverState(iter=20, learned_net=f"{prefix}_iter_20.caffemodel")
    mean = caffe_pb2.BlobProto(num=1, channels=3, height=5, width=7, data=[0.5] * 105)
    for message in (state, mean):
        (tmp_path / "x").write_bytes(message.SerializeToString())
        with pytest.raises(WeightsError, match=r"parse NetParameter file .*a \.solverstate or a m"):
            net.copy_from(tmp_path / "x")
