"""Scripts written for pycaffe, in tests/scripts, run unedited by `pycaffe-lite run`.

Their results are held against plain NumPy in float64.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import lmdb
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite.proto import caffe_pb2

SCRIPTS = Path(__file__).with_name("scripts")
PLACE = str(Path(pycaffe_lite.__file__).parents[1])


def run(folder: Path, script: str, *args: str, modules: tuple[str, ...] = ()) -> list[str]:
    """The lines that the script printed, run in `folder`, where `modules` lie beside it."""
    for name in (script, *modules):
        shutil.copy(SCRIPTS / name, folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pycaffe_lite", "run", script, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": PLACE},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write_weights(path: Path, params: dict[str, list[np.ndarray]]) -> None:
    net = caffe_pb2.NetParameter()
    for name, arrays in params.items():
        layer = net.layer.add(name=name)
        for array in arrays:
            shape = caffe_pb2.BlobShape(dim=array.shape)
            layer.blobs.add(shape=shape, data=array.ravel().tolist())
    path.write_bytes(net.SerializeToString())


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)


def conv(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of one image (C, H, W), stride 1, no padding, in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(1, 2))
    return np.einsum("chwyx,ocyx->ohw", windows, w) + b[:, None, None]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def test_lenet_from_an_lmdb(tmp_path: Path, rng: np.random.Generator) -> None:
    """Three kinds of digits: bright above, in the middle, below."""
    labels = rng.integers(0, 3, 24)
    images = rng.integers(0, 60, (24, 1, 18, 16), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 6 * label : 6 * label + 6] += 180
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    (line,) = run(tmp_path, "lenet_lmdb.py", "20", "40")
    assert line == "['loss'] [(6, 1, 18, 16), (6,)]"
    first = np.load(tmp_path / "first_batch.npy")
    assert_allclose(first, images[:6].astype(np.float64) / 255, rtol=1e-6)
    assert_array_equal(np.load(tmp_path / "first_labels.npy"), labels[:6])
    losses = np.load(tmp_path / "losses.npy")
    assert abs(losses[0] - np.log(3)) < 1
    assert losses[-5:].mean() < 0.3 * losses[:5].mean()
    assert (tmp_path / "lenet_iter_40.caffemodel").stat().st_size > 1000
    with lmdb.open(str(tmp_path / "digits_lmdb"), readonly=True) as env:
        assert env.stat()["entries"] == 20


def test_nets_by_functions(tmp_path: Path) -> None:
    shapes, last = run(tmp_path, "netspec.py")
    expected = [
        ("data", (1, 3, 21, 18)),
        ("data_data_0_split_0", (1, 3, 21, 18)),
        ("data_data_0_split_1", (1, 3, 21, 18)),
        ("conv1_1", (1, 4, 29, 26)),
        ("pool1", (1, 4, 15, 13)),
        ("score", (1, 5, 15, 13)),
        ("upscore", (1, 5, 32, 28)),
        ("out", (1, 5, 21, 18)),
    ]
    assert [pair for pair in eval(shapes) if pair[0] != "relu1_1"] == expected
    assert last == "Crop (1, 5, 21, 18)"


DEPLOY = """
name: "small"
input: "data" input_dim: 10 input_dim: 3 input_dim: 9 input_dim: 8
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_h: 5 kernel_w: 3 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc" type: "InnerProduct" bottom: "conv1" top: "fc"
  inner_product_param { num_output: 6 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def test_classification(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    w1, b1, w2, b2 = draw(rng, 4, 3, 5, 3), draw(rng, 4), draw(rng, 6, 120), draw(rng, 6)
    w1 *= np.float32(0.01)
    write_weights(tmp_path / "weights.caffemodel", {"conv1": [w1, b1], "fc": [w2, b2]})
    mean = rng.uniform(90, 130, (3, 10, 11)).astype(np.float32)
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=10, width=11, data=mean.ravel().tolist())
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    image = rng.integers(0, 256, (9, 8, 3), dtype=np.uint8)  # blue, green, red
    assert cv2.imwrite(str(tmp_path / "cat.png"), image)
    (tmp_path / "words.txt").write_text("".join(f"n{k:04} thing {k}\n" for k in range(6)))

    lines = run(tmp_path, "classification.py")
    x = image.transpose(2, 0, 1) - mean.astype(np.float64).mean(axis=(1, 2))[:, None, None]
    assert_allclose(np.load(tmp_path / "transformed.npy"), x, rtol=1e-4, atol=1e-4)
    prob = softmax(w2 @ np.maximum(conv(x, w1, b1), 0).ravel() + b2)
    assert_allclose(np.load(tmp_path / "prob.npy"), np.tile(prob, (5, 1)), rtol=1e-4, atol=1e-6)
    best = prob.argsort()[::-1][:2]
    assert lines[:2] == [f"n{k:04} thing {k}" for k in best]
    assert lines[2:] == [
        "data\t(5, 3, 9, 8)",
        "conv1\t(5, 4, 5, 6)",
        "fc\t(5, 6)",
        "prob\t(5, 6)",
        "conv1\t(4, 3, 5, 3) (4,)",
        "fc\t(6, 120) (6,)",
    ]
    for name in ("crops.npy", "centre.npy"):
        got = np.load(tmp_path / name)
        assert got.shape == (1, 6)
        assert_allclose(got.sum(), 1, rtol=1e-5)


SURGERY = """
input: "data" input_shape {{ dim: 1 dim: 3 dim: {h} dim: {w} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param {{ num_output: 4 kernel_size: 3 }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }}
layer {{ name: "fc6{end}" type: "{type}" bottom: "conv1" top: "fc6" {six} }}
layer {{ name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }}
layer {{ name: "fc7{end}" type: "{type}" bottom: "fc6" top: "fc7" {seven} }}
layer {{ name: "prob" type: "Softmax" bottom: "fc7" top: "prob" }}
"""


def test_net_surgery(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "net.prototxt").write_text(
        SURGERY.format(
            h=6,
            w=7,
            end="",
            type="InnerProduct",
            six="inner_product_param { num_output: 8 }",
            seven="inner_product_param { num_output: 5 }",
        )
    )
    (tmp_path / "conv.prototxt").write_text(
        SURGERY.format(
            h=9,
            w=11,
            end="-conv",
            type="Convolution",
            six="convolution_param { num_output: 8 kernel_h: 4 kernel_w: 5 }",
            seven="convolution_param { num_output: 5 kernel_size: 1 }",
        )
    )
    w1, b1 = draw(rng, 4, 3, 3, 3), draw(rng, 4)
    w6, b6, w7, b7 = draw(rng, 8, 80), draw(rng, 8), draw(rng, 5, 8), draw(rng, 5)
    write_weights(
        tmp_path / "weights.caffemodel", {"conv1": [w1, b1], "fc6": [w6, b6], "fc7": [w7, b7]}
    )
    image = draw(rng, 3, 9, 11)
    np.save(tmp_path / "image.npy", image)
    lines = run(tmp_path, "surgery.py")
    assert lines == [
        "fc6 weights are (8, 80) dimensional",
        "fc7 weights are (5, 8) dimensional",
    ]
    expected = np.empty((1, 5, 4, 5))
    for y in range(4):
        for x in range(5):
            window = image[:, y : y + 6, x : x + 7].astype(np.float64)
            six = np.maximum(w6 @ np.maximum(conv(window, w1, b1), 0).ravel() + b6, 0)
            expected[0, :, y, x] = softmax(w7 @ six + b7)
    assert_allclose(np.load(tmp_path / "map.npy"), expected, rtol=1e-4)


def test_a_loss_in_python(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "net.prototxt").write_text(
        'input: "data" input_shape { dim: 4 dim: 3 }'
        ' input: "target" input_shape { dim: 4 dim: 2 }'
        ' layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"'
        " inner_product_param { num_output: 2 } }"
        ' layer { name: "loss" type: "Python" bottom: "fc" bottom: "target" top: "loss"'
        ' python_param { module: "pyloss" layer: "EuclideanLossLayer" } loss_weight: 1 }'
    )
    data, target = draw(rng, 4, 3), draw(rng, 4, 2)
    np.save(tmp_path / "data.npy", data)
    np.save(tmp_path / "target.npy", target)
    (line,) = run(tmp_path, "python_loss.py", modules=("pyloss.py",))
    x, w, b = data.astype(np.float64), np.zeros((2, 3)), np.zeros(2)
    for _ in range(40):
        fc = x @ w.T + b
        diff = (fc - target) / 4
        w, b = w - 0.2 * diff.T @ x, b - 0.2 * diff.sum(axis=0)
    assert_allclose(np.load(tmp_path / "fc.npy"), fc, rtol=1e-4, atol=1e-6)
    assert_allclose(np.load(tmp_path / "diff.npy"), diff, rtol=1e-3, atol=1e-6)
    assert float(line) == pytest.approx(((fc - target) ** 2).sum() / 8, rel=1e-4)


FEATURES = """
name: "features"
input: "data" input_shape { dim: 2 dim: 3 dim: 7 dim: 6 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 5 kernel_size: 3 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc7" type: "InnerProduct" bottom: "conv1" top: "fc7"
  inner_product_param { num_output: 8 } }
layer { name: "score" type: "InnerProduct" bottom: "fc7" top: "score"
  inner_product_param { num_output: 4 } }
"""


def test_features_of_patches(tmp_path: Path, rng: np.random.Generator) -> None:
    """As CoralNet's pyspacer takes them: https://github.com/coralnet/pyspacer"""
    (tmp_path / "deploy.prototxt").write_text(FEATURES)
    w1, b1, w7, b7 = draw(rng, 5, 3, 3, 3), draw(rng, 5), draw(rng, 8, 100), draw(rng, 8)
    write_weights(
        tmp_path / "weights.caffemodel",
        {"conv1": [w1, b1], "fc7": [w7, b7], "score": [draw(rng, 4, 8), draw(rng, 4)]},
    )
    patches = rng.integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
    np.save(tmp_path / "patches.npy", patches)
    assert run(tmp_path, "features.py") == []
    expected = []
    for patch in patches:
        x = patch.transpose(2, 0, 1)[::-1] - np.array([104.0, 117, 123])[:, None, None]
        expected.append(w7 @ np.maximum(conv(x, w1, b1), 0).ravel() + b7)
    assert_allclose(np.load(tmp_path / "features.npy"), expected, rtol=1e-4, atol=1e-3)
