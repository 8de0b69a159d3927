"""DetectionOutput and DetectionEvaluate against loops over single boxes."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from harness import make_net, run_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import MissingFileError, ModelError

PRIORS, IMAGES, CLASSES = 11, 2, 4


def overlap(a, b, pixel=0):
    w = min(a[2], b[2]) - max(a[0], b[0]) + pixel
    h = min(a[3], b[3]) - max(a[1], b[1]) + pixel
    if w <= 0 or h <= 0:
        return 0.0
    areas = [(x[2] - x[0] + pixel) * (x[3] - x[1] + pixel) for x in (a, b)]
    return w * h / (sum(areas) - w * h)


def drawn(sets=1):
    """loc, conf and prior of a net with that many sets of boxes."""
    rng = np.random.default_rng(9)
    corner = rng.uniform(0, 0.5, size=(PRIORS, 2))
    prior = np.concatenate([corner, corner + rng.uniform(0.2, 0.4, size=(PRIORS, 2))], axis=1)
    variance = np.tile([0.1, 0.1, 0.2, 0.2], PRIORS)
    return {
        "loc": rng.normal(size=(IMAGES, PRIORS * sets * 4)).astype("f4"),
        "conf": rng.dirichlet([1] * CLASSES, (IMAGES, PRIORS)).reshape(IMAGES, -1).astype("f4"),
        "prior": np.stack([prior.reshape(-1), variance])[None].astype("f4"),
    }


def net_of(values, param):
    inputs = " ".join(
        f"input: '{name}' input_shape {{ dim: {list(x.shape)} }}" for name, x in values.items()
    )
    bottoms = " ".join(f"bottom: '{name}'" for name in values)
    return make_net(
        f"{inputs} layer {{ name: 'found' type: 'DetectionOutput' {bottoms} top: 'y'"
        f" detection_output_param {{ {param} }} }}"
    )


def detect(values, background=0, threshold=0.0, nms=0.3, top_k=None, keep=None, eta=1.0):
    """Rows of CORNER boxes with variances, by the definition."""
    prior, variance = values["prior"].astype(float).reshape(2, PRIORS, 4)
    conf = values["conf"].astype(float).reshape(IMAGES, PRIORS, CLASSES)
    loc = values["loc"].astype(float).reshape(IMAGES, PRIORS, -1, 4)
    rows = []
    for image in range(IMAGES):
        ours = []
        for label in range(CLASSES):
            if label == background:
                continue
            told = loc[image, :, label if loc.shape[2] > 1 else 0]
            scored = [(conf[image, p, label], p) for p in range(PRIORS)]
            scored = sorted([s for s in scored if s[0] > threshold], key=lambda s: -s[0])[:top_k]
            kept, bound = [], nms
            for score, p in scored:
                box = prior[p] + variance[p] * told[p]
                if all(overlap(box, other) <= bound for _, other in kept):
                    kept.append((score, box))
                    bound *= eta if bound > 0.5 else 1
            ours += [[image, label, score, *box] for score, box in kept]
        best = sorted((row[2] for row in ours), reverse=True)[:keep]
        rows += [row for row in ours if row[2] in best]
    return np.array(rows)[None, None]


CASES = [
    ("confidence_threshold: 0.1", dict(threshold=0.1)),
    ("", {}),
    ("nms_param { nms_threshold: 0.6 top_k: 5 } keep_top_k: 9", dict(nms=0.6, top_k=5, keep=9)),
    ("nms_param { nms_threshold: 0.9 eta: 0.8 }", dict(nms=0.9, eta=0.8)),
    ("background_label_id: 3 keep_top_k: 4", dict(background=3, keep=4)),
    ("share_location: false", {}),
    ("share_location: false background_label_id: -1", dict(background=-1)),
    ("background_label_id: -1", dict(background=-1)),
]


@pytest.mark.parametrize(("param", "rules"), CASES)
def test_detections(on_ops, param, rules):
    values = drawn(CLASSES if "share_location" in param else 1)
    net = net_of(values, f"num_classes: {CLASSES} {param}")
    wanted = detect(values, **rules)
    for _ in range(2):
        assert_allclose(net.forward(**values)["y"], wanted, rtol=1e-5, atol=1e-6)


def test_a_score_equal_to_the_threshold_does_not_count(on_ops):
    values = drawn()
    scores = values["conf"].reshape(IMAGES, PRIORS, CLASSES)
    scores[...] = 0
    scores[0, 4, 1], scores[1, 7, 2] = 0.5, 0.50001
    rows = net_of(values, f"num_classes: {CLASSES} confidence_threshold: 0.5").forward(**values)
    assert_array_equal(rows["y"][0, 0, :, :2], [[1, 2]])


# https://github.com/chenzhi1992/TensorRT-SSD/issues/6
def test_as_many_rows_as_there_are_detections(on_ops):
    values = drawn()
    net = net_of(values, f"num_classes: {CLASSES} confidence_threshold: 0.5 keep_top_k: 200")
    assert net.blobs["y"].shape == (1, 1, 1, 7)
    counts = []
    for scale in (1, 0.8, 0, 1):
        found = net.forward(**{**values, "conf": values["conf"] * np.float32(scale)})["y"]
        counts.append(found.shape[2] if found[0, 0, 0, 1] >= 0 else 0)
    assert counts[0] == counts[3] > counts[1] > counts[2] == 0


def test_no_detection_is_a_row_of_minus_1_an_image(on_ops):
    values = drawn()
    net = net_of(values, f"num_classes: {CLASSES} confidence_threshold: 2")
    rows = net.forward(**values)["y"]
    assert_array_equal(rows, [[[[0, *[-1] * 6], [1, *[-1] * 6]]]])


def test_no_images_no_rows(on_ops):
    values = {**drawn(), "loc": np.zeros((0, PRIORS * 4)), "conf": np.zeros((0, PRIORS * CLASSES))}
    assert net_of(values, f"num_classes: {CLASSES}").forward()["y"].shape == (1, 1, 0, 7)


def test_what_is_not_done_here_is_logged(caplog):
    param = "save_output_param { output_directory: 'there' } visualize: true"
    with caplog.at_level(logging.WARNING, logger="pycaffe_lite"):
        net_of(drawn(), f"num_classes: {CLASSES} {param}")
    lines = [r.getMessage() for r in caplog.records]
    assert [line for line in lines if "'found'" in line and "save_output_param" in line]
    assert [line for line in lines if "'found'" in line and "visualize" in line]


REFUSED = {
    "": "must specify num_classes",
    "num_classes: 0": "num_classes should not be less than 1, got 0",
    "num_classes: 4 nms_param { nms_threshold: -1 }": "nms_threshold must be non negative, got -1",
    "num_classes: 4 nms_param { eta: 2 }": r"eta must be in \(0, 1\], got 2",
    "num_classes: 5": "confidence predictions: 11 priors need 55 values an image, got 44",
    "num_classes: 4 share_location: false": "location predictions: 11 .* need 176 .* got 44",
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_refused(param):
    with pytest.raises(ModelError, match=rf"'found' \(DetectionOutput\): .*{REFUSED[param]}"):
        net_of(drawn(), param)


def test_shapes_that_do_not_fit():
    values = drawn()
    with pytest.raises(ModelError, match=r"'found'.*priors must be \(1, 2, 4 P\), got `44 2 1"):
        net_of({**values, "prior": np.zeros((44, 2, 1))}, "num_classes: 4")
    with pytest.raises(ModelError, match=r"'found'.*as many images: \(2,\) vs. \(1,\)"):
        net_of({**values, "conf": np.zeros((1, 88))}, "num_classes: 4")


def test_detections_have_no_gradient():
    net = make_net(
        "input: 'x' input_shape { dim: [2, 44] } input: 'prior' input_shape { dim: [1, 2, 44] }"
        " layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'h'"
        " inner_product_param { num_output: 44 } } layer { name: 'found' type: 'DetectionOutput'"
        " bottom: 'h' bottom: 'h' bottom: 'prior' top: 'y' detection_output_param"
        " { num_classes: 4 } } layer { name: 'sum' type: 'Reduction' bottom: 'y' top: 'sum'"
        " loss_weight: 1 }"
    )
    net.forward()
    with pytest.raises(ModelError, match="'found'.*detections have no gradient"):
        net.backward()


# ---- DetectionEvaluate -------------------------------------------------------------------------

TRUTH = np.array([[[
    [0, 1, 0, 0.1, 0.1, 0.5, 0.5, 0],
    [0, 1, 1, 0.6, 0.6, 0.9, 0.9, 1],
    [0, 2, 0, 0.1, 0.1, 0.5, 0.5, 0],
    [2, 1, 0, 0.2, 0.2, 0.4, 0.4, 0],
    [-1, 1, 0, 0.2, 0.2, 0.4, 0.4, 0],
]]])  # fmt: skip
FOUND = np.array([[[
    [0, 1, 0.6, 0.11, 0.1, 0.5, 0.5],
    [0, 1, 0.8, 0.1, 0.1, 0.5, 0.52],
    [0, 1, 0.7, 0.6, 0.6, 0.88, 0.9],
    [1, 2, 0.5, 0.1, 0.1, 0.5, 0.5],
    [0, 2, 0.9, 0.5, 0.5, 0.9, 0.9],
    [2, 1, 0.3, 0.2, 0.2, 0.4, 0.45],
    [3, -1, -1, -1, -1, -1, -1],
]]])  # fmt: skip


def evaluated(param):
    text = (
        "input: 'det' input_shape { dim: [1, 1, 7, 7] } input: 'gt' input_shape"
        " { dim: [1, 1, 5, 8] } layer { name: 'judge' type: 'DetectionEvaluate' bottom: 'det'"
        f" bottom: 'gt' top: 'y' detection_evaluate_param {{ num_classes: 3 {param} }} }}"
    )
    return run_net(text, det=FOUND, gt=TRUTH).blobs["y"].data[0, 0]


@pytest.mark.parametrize("difficult", [True, False])
def test_evaluation(on_ops, difficult):
    rows = evaluated(f"evaluate_difficult_gt: {str(difficult).lower()}")
    wanted = [
        [-1, 1, 3 if difficult else 2, -1, -1],
        [-1, 2, 1, -1, -1],
        [0, 1, 0.8, 1, 0],
        [0, 1, 0.7, int(difficult), 0],
        [0, 1, 0.6, 0, 1],
        [0, 2, 0.9, 0, 1],
        [1, 2, 0.5, 0, 1],
        [2, 1, 0.3, 1, 0],
    ]
    assert_allclose(rows, wanted, rtol=1e-6)


def test_evaluation_asks_for_more_overlap(on_ops):
    assert evaluated("overlap_threshold: 0.9")[-1].tolist()[3:] == [0, 1]


@pytest.mark.parametrize(("threshold", "hit"), [(0.5, 1), (0.51, 0)])
def test_an_overlap_of_the_threshold_is_enough(on_ops, threshold, hit):
    text = (
        "input: 'det' input_shape { dim: [1, 1, 1, 7] } input: 'gt' input_shape"
        " { dim: [1, 1, 1, 8] } layer { name: 'judge' type: 'DetectionEvaluate' bottom: 'det'"
        " bottom: 'gt' top: 'y' detection_evaluate_param"
        f" {{ num_classes: 2 overlap_threshold: {threshold} }} }}"
    )
    half = [[[[0, 1, 0.9, 0, 0, 0.5, 0.25]]]]
    whole = [[[[0, 1, 0, 0, 0, 0.5, 0.5, 0]]]]
    rows = run_net(text, det=np.array(half), gt=np.array(whole)).blobs["y"].data[0, 0]
    assert rows[-1].tolist()[3:] == [hit, 1 - hit]


@pytest.mark.parametrize(("side", "hits"), [(10, 1), (1000, 0)])
def test_evaluation_in_pixels_of_small_images(on_ops, tmp_path, side, hits):
    """The last pixel counts, so that boxes in small images overlap more."""
    path = tmp_path / "sizes"
    path.write_text(f"a {side} {side}\nb 5 6\nc {side} {side}\n")
    rows = evaluated(f"name_size_file: '{path}' overlap_threshold: 0.84")
    assert rows[-1, 3] == hits


def test_what_evaluation_refuses(tmp_path):
    with pytest.raises(MissingFileError, match="'judge'.*failed to open name_size_file: .*none"):
        evaluated(f"name_size_file: '{tmp_path / 'none'}'")
    (tmp_path / "sizes").write_text("a 3\n")
    with pytest.raises(ModelError, match="'judge'.*lines must be `name height width`"):
        evaluated(f"name_size_file: '{tmp_path / 'sizes'}'")
    with pytest.raises(ModelError, match="'judge'.*overlap_threshold must be positive, got 0"):
        evaluated("overlap_threshold: 0")
    with pytest.raises(ModelError, match="'judge'.*found background label 2"):
        evaluated("background_label_id: 2")
    with pytest.raises(ModelError, match="'judge'.*resize_param is not available"):
        evaluated("resize_param { width: 3 }")


def test_nothing_to_evaluate(on_ops):
    text = (
        "input: 'det' input_shape { dim: [1, 1, 0, 7] } input: 'gt' input_shape"
        " { dim: [1, 1, 0, 8] } layer { name: 'judge' type: 'DetectionEvaluate' bottom: 'det'"
        " bottom: 'gt' top: 'y' detection_evaluate_param { num_classes: 3 } }"
    )
    assert run_net(text).blobs["y"].data[0, 0].tolist() == [[-1, 1, 0, -1, -1], [-1, 2, 0, -1, -1]]
