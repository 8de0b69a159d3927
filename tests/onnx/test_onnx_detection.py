"""Detections of a model: Caffe's rows, whatever is asked of suppression."""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net
from onnx_cases import assert_same, ops_of, run_model

from pycaffe_lite import ModelError, Net
from pycaffe_lite.onnx import convert

PRIORS = 10


def detector(param: str, images: int = 2, classes: int = 3, sets: int = 1) -> Net:
    """A net of loc, conf and prior as inputs, and DetectionOutput."""
    shapes = {
        "loc": (images, PRIORS * sets * 4),
        "conf": (images, PRIORS * classes),
        "prior": (1, 2, PRIORS * 4),
    }
    lines = []
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {d}" for d in shape)
        lines.append(f"input: '{name}' input_shape {{ {dims} }}")
    param = f"detection_output_param {{ num_classes: {classes} {param} }}"
    lines.append(
        "layer { name: 'detect' type: 'DetectionOutput' bottom: 'loc' bottom: 'conf'"
        f" bottom: 'prior' top: 'found' {param} }}"
    )
    return make_net("\n".join(lines))


def inputs(net: Net, seed: int) -> dict[str, np.ndarray]:
    """Boxes around the priors, probabilities, priors that overlap."""
    draw = np.random.default_rng(seed)
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    low = draw.uniform(0, 0.5, (PRIORS, 2))
    boxes = np.concatenate([low, low + draw.uniform(0.2, 0.4, (PRIORS, 2))], axis=1)
    prior = np.stack([boxes, np.tile([0.1, 0.1, 0.2, 0.2], (PRIORS, 1))]).reshape(shapes["prior"])
    given = {
        "loc": draw.normal(0, 0.5, shapes["loc"]),
        "conf": draw.uniform(0, 1, shapes["conf"]),
        "prior": prior,
    }
    return {name: value.astype("float32") for name, value in given.items()}


def both(net: Net, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The net's rows and the model's."""
    wanted = net.forward(**feeds)["found"].copy()
    return wanted, run_model(convert(net), feeds)["found"]


PARAMS = [
    "confidence_threshold: 0.3",
    "confidence_threshold: 0.3 code_type: CENTER_SIZE nms_param { nms_threshold: 0.45 top_k: 4 }",
    "confidence_threshold: 0.3 code_type: CORNER_SIZE keep_top_k: 5",
    "confidence_threshold: 0.1 code_type: CENTER_SIZE keep_top_k: 3 nms_param { top_k: 6 }",
    "code_type: CENTER_SIZE variance_encoded_in_target: true nms_param { nms_threshold: 0.6 }",
    "code_type: CENTER_SIZE background_label_id: -1 keep_top_k: 1000",
    "confidence_threshold: 0.2 code_type: CENTER_SIZE background_label_id: 1 keep_top_k: 0",
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("param", PARAMS)
def test_rows_and_their_order(param: str, sets: int, seed: int) -> None:
    net = detector(f"share_location: {'true' if sets == 1 else 'false'} {param}", sets=sets)
    wanted, found = both(net, inputs(net, seed))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_nothing_found_is_a_row_an_image() -> None:
    net = detector("confidence_threshold: 2")
    wanted, found = both(net, inputs(net, 1))
    assert found.tolist() == wanted.tolist() == [[[[0] + [-1] * 6, [1] + [-1] * 6]]]


def test_equal_scores_keep_their_order() -> None:
    net = detector("confidence_threshold: 0.1 nms_param { top_k: 5 nms_threshold: 0.9 }")
    feeds = inputs(net, 4)
    feeds["conf"][...] = 0.5
    wanted, found = both(net, feeds)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_boxes_that_end_before_they_begin_suppress_nothing() -> None:
    net = detector("confidence_threshold: 0.1 nms_param { nms_threshold: 0.1 }")
    feeds = inputs(net, 5)
    feeds["loc"][...] = np.tile([4, 4, -4, -4], PRIORS)
    wanted, found = both(net, feeds)
    assert len(wanted[0, 0]) > 2 * PRIORS
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_threshold_that_falls_is_refused() -> None:
    net = detector("nms_param { eta: 0.9 }")
    with pytest.raises(ModelError, match=r"'detect' \(DetectionOutput\).*eta: 0.9.*--raw-heads"):
        convert(net)


SSD = """
input: 'data' input_shape { dim: 1 dim: 3 dim: 8 dim: 9 }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
        convolution_param { num_output: 16 kernel_size: 2 stride: 3 } }
layer { name: 'prior' type: 'PriorBox' bottom: 'conv' bottom: 'data' top: 'prior'
        prior_box_param { min_size: 3 max_size: 5 aspect_ratio: 2 variance: 0.1 } }
layer { name: 'perm' type: 'Permute' bottom: 'conv' top: 'perm'
        permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'loc' type: 'Flatten' bottom: 'perm' top: 'loc' }
layer { name: 'conv2' type: 'Convolution' bottom: 'data' top: 'conv2'
        convolution_param { num_output: 8 kernel_size: 2 stride: 3 } }
layer { name: 'perm2' type: 'Permute' bottom: 'conv2' top: 'perm2'
        permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'shaped' type: 'Reshape' bottom: 'perm2' top: 'shaped'
        reshape_param { shape { dim: 0 dim: -1 dim: 2 } } }
layer { name: 'prob' type: 'Softmax' bottom: 'shaped' top: 'prob' softmax_param { axis: 2 } }
layer { name: 'conf' type: 'Flatten' bottom: 'prob' top: 'conf' }
layer { name: 'detect' type: 'DetectionOutput' bottom: 'loc' bottom: 'conf' bottom: 'prior'
        top: 'found' detection_output_param { num_classes: 2 code_type: CENTER_SIZE
        confidence_threshold: 0.01 keep_top_k: 20 nms_param { top_k: 40 } } }
"""


def ssd() -> Net:
    net = make_net(SSD)
    draw = np.random.default_rng(6)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = draw.normal(0, 0.3, blob.shape)
    return net


def test_a_whole_detector() -> None:
    model = assert_same(ssd(), tolerance=1e-5)
    assert model.inputs == {"data": ["N", 3, 8, 9]}
    assert "NonMaxSuppression" in ops_of(model)


def test_raw_heads_are_results() -> None:
    model = assert_same(ssd(), raw_heads=True)
    assert model.outputs == ["prior", "loc", "conf"]
    assert "NonMaxSuppression" not in ops_of(model)
    assert any("'detect' (DetectionOutput) left off" in note for note in model.notes)


def test_priors_are_made_for_one_size() -> None:
    with pytest.raises(ModelError, match=r"'prior' \(PriorBox\).*depend on the image's size"):
        convert(ssd(), sizes="dynamic")
