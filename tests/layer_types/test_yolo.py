"""Reorg against Darknet's loop, detections of YOLO v3 against a loop over cells."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


def reorg(x, stride, reverse):
    """Value by value, in the order of positions as Darknet counts them."""
    n, channels, height, width = x.shape
    part = channels // stride**2
    flat, out = x.reshape(n, -1), np.zeros((n, x[0].size))
    for k, j, i in np.ndindex(channels, height, width):
        row, column = divmod(k // part, stride)
        near = (k * height + j) * width + i
        far = (k % part * height * stride + j * stride + row) * width * stride
        far += i * stride + column
        one, other = (far, near) if reverse else (near, far)
        out[:, one] = flat[:, other]
    if reverse:
        return out.reshape(n, part, height * stride, width * stride)
    return out.reshape(n, channels * stride**2, height // stride, width // stride)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("stride", "shape"), [(2, (2, 8, 6, 4)), (3, (2, 9, 3, 6))])
def test_reorg(ops, stride, shape, reverse):
    check_layer(
        ops,
        f"type: 'Reorg' reorg_param {{ stride: {stride} reverse: {str(reverse).lower()} }}",
        [shape],
        lambda x: reorg(x, stride, reverse),
    )


def net_of(layer, *shapes):
    inputs = "".join(
        f"layer {{ name: 'x{k}' type: 'Input' top: 'x{k}' input_param {{ shape {{"
        f" dim: {list(shape)} }} }} }} "
        for k, shape in enumerate(shapes)
    )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'it' {layer} {bottoms} top: 'y' }}"
    )


def test_reorg_of_an_empty_batch(on_ops):
    net = net_of("type: 'Reorg'", (0, 8, 6, 4))
    assert net.forward()["y"].shape == (0, 32, 3, 2)
    assert net.backward()["x0"].shape == (0, 8, 6, 4)


# ---- Yolov3DetectionOutput ---------------------------------------------------------------------

ANCHORS = [(10, 14), (23, 27), (37, 58), (81, 82)]
SHAPES = [(2, 16, 3, 5), (2, 16, 6, 10)]


def detector(threshold=0.3, nms=0.45, shapes=SHAPES, **other):
    fields = {
        "num_classes": 3,
        "num_box": 2,
        "confidence_threshold": threshold,
        "nms_threshold": nms,
        "mask_group_num": 2,
        "biases": [float(side) for anchor in ANCHORS for side in anchor],
        "mask": [2, 3, 0, 1],
        "anchors_scale": [32, 16],
    } | other
    param = " ".join(f"{name}: {value}" for name, value in fields.items())
    layer = f"type: 'Yolov3DetectionOutput' yolov3_detection_output_param {{ {param} }}"
    return net_of(layer, *shapes)


def overlap(a, b):
    sides = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1)]
    shared = sides[0] * sides[1] if min(sides) > 0 else 0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(areas) - shared)


def kept_of(rows, nms):
    """The best first, without those that overlap a better one by `nms` or more."""
    kept = []
    for row in sorted(rows, key=lambda row: -row[2]):
        if all(overlap(row[3:], other[3:]) < nms for other in kept):
            kept.append(row)
    return kept


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rows_of(maps, image, threshold, nms):
    """Every cell of every map, one at a time."""
    found = []
    for k, (told, scale) in enumerate(zip(maps, (32, 16), strict=True)):
        height, width = told.shape[2:]
        for box, i, j in np.ndindex(2, height, width):
            v = told[image].reshape(2, 8, height, width)[box, :, i, j]
            label = int(v[5:].argmax())
            score = sigmoid(v[4]) * sigmoid(v[5 + label])
            if score > threshold:
                anchor = ANCHORS[(2, 3, 0, 1)[2 * k + box]]
                x, y = (j + sigmoid(v[0])) / width, (i + sigmoid(v[1])) / height
                w = np.exp(v[2]) * anchor[0] / (scale * width) / 2
                h = np.exp(v[3]) * anchor[1] / (scale * height) / 2
                found.append([image, label + 1, score, x - w, y - h, x + w, y + h])
    return kept_of(found, nms)


@pytest.mark.parametrize(("threshold", "nms"), [(0.3, 0.45), (0.5, 0.1), (0.01, 1)])
def test_detections(on_ops, threshold, nms):
    rng = np.random.default_rng(3)
    maps = [rng.normal(size=shape).astype("f4").astype(float) for shape in SHAPES]
    y = detector(threshold, nms).forward(x0=maps[0], x1=maps[1])["y"]
    want = [row for image in (0, 1) for row in rows_of(maps, image, threshold, nms)]
    assert y.shape == (1, 1, len(want), 7)
    assert_allclose(y[0, 0], want, rtol=1e-5, atol=1e-6)


def test_without_detections_there_is_a_row_for_each_image(on_ops):
    y = detector(0.9).forward()["y"]
    assert_array_equal(y[0, 0], [[0, -1, -1, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1, -1]])


def test_no_images_no_rows(on_ops):
    net = detector(shapes=[(0, *shape[1:]) for shape in SHAPES])
    assert net.forward()["y"].shape == (1, 1, 0, 7)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"gaussian_box": "true"}, "gaussian_box: true is not available"),
        ({"num_classes": 0}, "not be less than 1, got 0"),
        ({"mask_group_num": 3}, "bottoms, 2, got 3 and 2"),
        ({"anchors_scale": [32]}, "bottoms, 2, got 2 and 1"),
        ({"mask": [0, 1, 2]}, "each bottom, 4, got 3"),
        ({"mask": [0, 1, 2, 4]}, "mask names anchor 4; biases has 4 pairs"),
        ({"num_classes": 4}, r"= 18 channels .*, got `2 16 3 5 \(480\)`"),
        ({"shapes": [SHAPES[0], (3, 16, 6, 10)]}, r"the same num, got `3 16 6 10"),
    ],
)
def test_errors_name_the_layer_and_both_numbers(fields, text):
    with pytest.raises(ModelError, match=rf"'it' \(Yolov3DetectionOutput\): .*{text}"):
        detector(**fields)


# ---- YoloDetectionOutput -----------------------------------------------------------------------

REGION = (2, 16, 3, 5)
CELLS = [(0.5, 1.25), (2.5, 0.75)]


def region(threshold=0.2, nms=0.45, shape=REGION, **other):
    fields = {
        "num_classes": 3,
        "num_box": 2,
        "confidence_threshold": threshold,
        "nms_threshold": nms,
        "biases": [side for anchor in CELLS for side in anchor],
    } | other
    param = " ".join(f"{name}: {value}" for name, value in fields.items())
    return net_of(f"type: 'YoloDetectionOutput' yolo_detection_output_param {{ {param} }}", shape)


def region_rows(told, image, threshold, nms):
    found = []
    for box, i, j in np.ndindex(2, 3, 5):
        v = told[image].reshape(2, 8, 3, 5)[box, :, i, j]
        label = int(v[5:].argmax())
        score = sigmoid(v[4]) * np.exp(v[5 + label]) / np.exp(v[5:]).sum()
        if score >= threshold:
            x, y = (j + sigmoid(v[0])) / 5, (i + sigmoid(v[1])) / 3
            w, h = np.exp(v[2]) * CELLS[box][0] / 5 / 2, np.exp(v[3]) * CELLS[box][1] / 3 / 2
            found.append([image, label + 1, score, x - w, y - h, x + w, y + h])
    return kept_of(found, nms)


@pytest.mark.parametrize(("threshold", "nms"), [(0.2, 0.45), (0.35, 0.1), (0.01, 1)])
def test_detections_of_a_region_map(on_ops, threshold, nms):
    told = np.random.default_rng(4).normal(size=REGION).astype("f4").astype(float)
    y = region(threshold, nms).forward(x0=told)["y"]
    want = [row for image in (0, 1) for row in region_rows(told, image, threshold, nms)]
    assert len(want) > 1
    assert y.shape == (1, 1, len(want), 7)
    assert_allclose(y[0, 0], want, rtol=1e-5, atol=1e-6)


def test_a_region_map_without_detections(on_ops):
    y = region(0.99).forward()["y"]
    assert_array_equal(y[0, 0], [[0, -1, -1, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1, -1]])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_classes": 0}, "less than 1, got 0 and 2"),
        ({"coords": 5}, "coords must be 4, got 5"),
        ({"biases": [1, 2, 3]}, "2 num_box = 4 entries, got 3"),
        ({"num_classes": 4}, r"= 18 channels, got `2 16 3 5 \(480\)`"),
    ],
)
def test_errors_of_a_region_map(fields, text):
    with pytest.raises(ModelError, match=rf"'it' \(YoloDetectionOutput\): .*{text}"):
        region(**fields)


@pytest.mark.parametrize(
    ("param", "shape", "text"),
    [
        ("", (2, 6, 4, 8), r"multiple of stride\^2: 6 vs. 4"),
        ("", (2, 8, 4, 7), "multiples of stride 2, got 4 and 7"),
        ("reorg_param { stride: 0 }", (2, 8, 4, 7), "must be > 0, got 0"),
        ("", (2, 8, 4), "4 axes, got 3"),
    ],
)
def test_reorg_names_the_layer_and_both_numbers(param, shape, text):
    with pytest.raises(ModelError, match=rf"'it' \(Reorg\): .*{text}"):
        net_of(f"type: 'Reorg' {param}", shape)
