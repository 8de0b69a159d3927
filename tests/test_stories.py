"""The examples that tell a story with a published model: they find what is there.

The models are no part of the project. They are looked for in the folder that the environment's
PYCAFFE_LITE_MODELS names, or in `shared/models` beside the checkout; without them, tests skip.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pycaffe_lite import TEST, Net

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
MODELS = Path(os.environ.get("PYCAFFE_LITE_MODELS") or ROOT.parent / "shared" / "models")


def story(name):
    """The script of examples/NAME as a module."""
    if name not in ("cifar10", "volumes"):
        pytest.importorskip("cv2")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at_hand(*names):
    """The path of a file of the models' folder."""
    path = MODELS.joinpath(*names)
    if not path.exists():
        pytest.skip(f"{'/'.join(names)} is not part of the project")
    return str(path)


def files(name):
    return at_hand(name, "deploy.prototxt"), at_hand(name, "weights.caffemodel")


def net_of(name):
    model, weights = files(name)
    return Net(model, TEST, weights=weights)


def recorded(name):
    with np.load(at_hand(name, "io.npz")) as arrays:
        return dict(arrays)


def run(module, *args):
    """What `python script.py ARGS` does."""
    before, sys.argv = sys.argv, [module.__name__, *args]
    try:
        module.main()
    finally:
        sys.argv = before


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- face_detection, mtcnn ----------------------------------------------------------------------

MTCNN = ("mtcnn_det1", "mtcnn_det2", "mtcnn_det3")
PHOTOS = [("faces3.jpg", 3), ("faces5.jpg", 5)]


@pytest.mark.parametrize(("photo", "count"), PHOTOS)
def test_faces_are_found_and_drawn(photo, count, capsys):
    script = story("face_detection")
    model, weights = files("res10_ssd")
    path = at_hand("photos", photo)
    run(script, "--model", model, "--weights", weights, path, "-o", "out.png")
    assert f"{count} faces, drawn into out.png" in capsys.readouterr().out
    before, after = script.cv2.imread(path), script.cv2.imread("out.png")
    assert before.shape == after.shape
    changed = (before != after).any(axis=2).mean()
    assert 0.001 < changed < 0.1, "lines only"


def overlap(a, b):
    """The intersection over the union of two boxes."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    both = np.clip(high - low, 0, None).prod()
    areas = [(box[2:] - box[:2]).prod() for box in (a, b)]
    return both / (sum(areas) - both)


@pytest.mark.slow
@pytest.mark.parametrize(("photo", "count"), PHOTOS)
def test_two_detectors_agree(photo, count):
    """Each face of the SSD's is one of MTCNN's, with its landmarks in their places."""
    ssd, mtcnn = story("face_detection"), story("mtcnn")
    image = ssd.cv2.imread(at_hand("photos", photo))
    boxes, _ = ssd.detect(net_of("res10_ssd"), image)
    others, scores, points = mtcnn.detect([net_of(name) for name in MTCNN], image, min_size=60)
    assert len(boxes) == count
    assert (scores >= 0.7).all()
    for box in boxes:
        same = [overlap(box, other) for other in others]
        best = int(np.argmax(same))
        assert same[best] > 0.6
        left_eye, right_eye, nose, left_mouth, right_mouth = points[best]
        assert left_eye[0] < right_eye[0]
        assert left_mouth[0] < right_mouth[0]
        assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1])
        x0, y0, x1, y1 = others[best]
        assert ((points[best] > [x0, y0]) & (points[best] < [x1, y1])).all()


def test_mtcnn_draws(capsys):
    script = story("mtcnn")
    models, weights = zip(*map(files, MTCNN), strict=True)
    photo = at_hand("photos", "faces3.jpg")
    options = ["--model", *models, "--weights", *weights, "--min-size", "80"]
    run(script, *options, photo, "-o", "out.png")
    assert "3 faces, drawn into out.png" in capsys.readouterr().out
    assert script.cv2.imread("out.png").shape == script.cv2.imread(photo).shape


def test_mtcnn_finds_nothing_where_nothing_is():
    script = story("mtcnn")
    nets = [net_of(name) for name in MTCNN]
    boxes, scores, points = script.detect(nets, np.full((90, 70, 3), 127, np.uint8))
    assert (boxes.shape, scores.shape, points.shape) == ((0, 4), (0,), (0, 5, 2))


def test_mtcnn_suppresses_boxes():
    suppress = story("mtcnn").suppress
    boxes = np.float64([[0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [2, 2, 5, 5]])
    scores = np.array([0.8, 0.9, 0.7, 0.6])
    assert suppress(boxes, scores, 0.5).tolist() == [1, 2, 3]
    assert suppress(boxes, scores, 0.5, smaller=True).tolist() == [1, 2]
    assert suppress(boxes, scores, 0.9).tolist() == [1, 0, 2, 3]


def test_mtcnn_cuts_boxes_that_reach_outside():
    cut = story("mtcnn").cut
    image = np.full((6, 7, 3), 9, np.uint8)
    part = cut(image, np.array([-2, -4, 4, 2]), 6)
    assert (part[4:, 2:] == 9).all()
    assert part.sum() == 9 * 3 * 2 * 4
    assert not cut(image, np.array([-9, -9, -3, -3]), 6).any()


# ---- super_resolution ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_picture_is_enlarged(capsys):
    script = story("super_resolution")
    model, weights = files("wechat_sr")
    photo = at_hand("photos", "qr.png")
    run(script, "--model", model, "--weights", weights, photo, "-o", "out.png")
    assert "384 x 384 enlarged to 767 x 767: out.png" in capsys.readouterr().out
    before = script.cv2.imread(photo, 0).astype(float)
    after = script.cv2.imread("out.png", 0).astype(float)
    assert np.abs(after[::2, ::2] - before).mean() < 10, "the same picture"


def test_the_enlarged_picture_is_the_recorded_one():
    script, known = story("super_resolution"), recorded("wechat_sr")
    image = (known["in:data"][0, 0] * 255).round().astype(np.uint8)
    wanted = np.clip(known["out:fc"][0, 0] * 255, 0, 255)
    large = script.enlarge(net_of("wechat_sr"), image)
    assert np.abs(large - wanted).max() <= 0.51


# ---- cifar10 ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_accuracy_of_cifar10(capsys):
    task = "task_cifar10_quick"
    options = ["--model", at_hand(task, "deploy.prototxt")]
    options += ["--weights", at_hand("cifar10_quick_v1", "weights.caffemodel")]
    options += ["--mean", at_hand(task, "mean.binaryproto"), at_hand(task, "images.npz")]
    run(story("cifar10"), *options)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "accuracy 0.7450 of 2000 images, loss 0.7504"


def test_cifar10s_own_files_are_read(tmp_path):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (5, 3, 32, 32), np.uint8), np.uint8([3, 8, 0, 9, 1])
    content = b"".join(
        bytes([k]) + image.tobytes() for k, image in zip(labels, images, strict=True)
    )
    (tmp_path / "test_batch.bin").write_bytes(content)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    for name in ("test_batch.bin", "images.npz"):
        found, classes = story("cifar10").load(str(tmp_path / name))
        assert np.array_equal(found, images)
        assert np.array_equal(classes, labels)


# ---- features -----------------------------------------------------------------------------------


def test_features_are_the_recorded_values():
    script, known = story("features"), recorded("cifar10_quick_v1")
    net = net_of("cifar10_quick_v1")
    net.blobs["data"].reshape(5, 3, 32, 32)
    found = script.features(net, known["in:data"], "conv1", "ip1")
    wanted = known["mid:ip1"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def test_features_of_points_in_a_photo(capsys):
    script = story("features")
    model, weights = files("mtcnn_det3")
    options = ["--model", model, "--weights", weights, "--start", "conv1", "--blob", "conv5"]
    points = ["--points", "120,80", "0,0", "300,410"]
    run(script, *options, at_hand("photos", "faces3.jpg"), *points, "-o", "out.npy")
    assert "features (3, 256) of 3 patches: out.npy" in capsys.readouterr().out
    rows = np.load("out.npy")
    assert len(np.unique(rows, axis=0)) == 3


def test_patches_are_about_their_points():
    crop = story("features").crop
    image = np.arange(9 * 11 * 3, dtype=np.uint8).reshape(9, 11, 3)
    assert np.array_equal(crop(image, 4, 6, (4, 5)), image[2:6, 4:9])
    corner = crop(image, 0, 0, (4, 5))
    assert np.array_equal(corner[2:, 2:], image[:2, :3])
    assert crop(image, 8, 10, (4, 5)).shape == (4, 5, 3)


# ---- pose ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pose_maps(capsys):
    """100 MB of random weights."""
    model = at_hand("bench", "openpose_body25.prototxt")
    run(story("pose"), "--model", model, "--height", "32")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["image", "1", "3", "32", "32"]
    assert lines[3].split() == ["net_output", "1", "78", "4", "4"]
    assert lines[4].startswith("forward: ")


def test_pose_points():
    script = story("pose")
    found = np.zeros((78, 4, 5), np.float32)
    found[3, 1, 2] = 0.75
    points = script.points(found, (32, 40))
    assert points.shape == (25, 3)
    assert points[3].tolist() == [20, 12, 0.75]
    assert script.resized(np.zeros((100, 61, 3), np.uint8), 64).shape == (64, 40, 3)


# ---- volumes ------------------------------------------------------------------------------------


def test_a_net_of_volumes(capsys):
    script = story("volumes")
    run(script)
    out = capsys.readouterr().out
    assert "pool1        1 4 10 12 14\n" in out
    assert out.splitlines()[-1].startswith("prob = ")


def test_volumes_by_hand():
    script = story("volumes")
    net = Net(str(script.MODEL), TEST)
    grid = script.random_atoms(net.blobs["data"].shape, count=30)
    script.run(net, grid)
    blobs = {name: blob.data for name, blob in net.blobs.items()}
    pooled = grid.reshape(1, 4, 10, 2, 12, 2, 14, 2).max(axis=(3, 5, 7))
    assert np.array_equal(blobs["pool1"], pooled)
    w, b = (blob.data for blob in net.params["conv1"])
    at = (blobs["pool1"][0, :, 0:3, 1:4, 2:5] * w[5]).sum(dtype=float) + b[5]
    assert blobs["conv1"][0, 5, 1, 2, 3] == pytest.approx(max(at, 0), rel=1e-4, abs=1e-6)
    corner = blobs["conv1"][0, :, :2, 2:4, :2].mean(axis=(1, 2, 3), dtype=float)
    np.testing.assert_allclose(blobs["pool2"][0, :, 0, 1, 0], corner, rtol=1e-5, atol=1e-7)


def test_gnina_has_its_recorded_output():
    known = recorded("gnina_refmodel3")
    out = story("volumes").run(net_of("gnina_refmodel3"), known["in:data"])
    np.testing.assert_allclose(out["output"], known["out:output"], atol=1e-5)


# ---- all ----------------------------------------------------------------------------------------

WITH_AN_IMAGE = {
    "face_detection": ["--model=m", "--weights=w"],
    "super_resolution": ["--model=m", "--weights=w"],
    "mtcnn": ["--model", *"abc", "--weights", *"abc"],
    "features": ["--model=m", "--weights=w", "--start=a", "--blob=b", "--points=1,2"],
    "pose": ["--model=m"],
}


@pytest.mark.parametrize("name", WITH_AN_IMAGE)
@pytest.mark.filterwarnings("ignore")
def test_an_image_that_is_not_there(name):
    with pytest.raises(SystemExit, match=r"could not read absent\.png"):
        run(story(name), *WITH_AN_IMAGE[name], "-o", "out.png", "absent.png")


@pytest.mark.parametrize("name", [*WITH_AN_IMAGE, "cifar10", "volumes"])
def test_the_readme_names_the_script(name):
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    assert f"python {name}.py" in text
