"""Proposals against a loop over anchors; the layer under its name in Python."""

from __future__ import annotations

import logging
import sys
import types
from math import exp, sqrt

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose

from pycaffe_lite import TRAIN, Layer, ModelError

ANCHORS, HEIGHT, WIDTH = 6, 5, 7


def drawn(count=ANCHORS):
    rng = np.random.default_rng(21)
    scores = rng.permutation(2 * count * HEIGHT * WIDTH).reshape(1, 2 * count, HEIGHT, WIDTH)
    return {
        "scores": scores.astype("f4") / scores.size,
        "deltas": (rng.normal(size=(1, 4 * count, HEIGHT, WIDTH)) * 0.3).astype("f4"),
        "info": np.array([[75, 108, 1.5]], "f4"),
    }


def text_of(values, layer, tops=2):
    inputs = " ".join(
        f"input: '{name}' input_shape {{ dim: {list(x.shape)} }}" for name, x in values.items()
    )
    ends = [f"bottom: '{name}'" for name in values] + ["top: 'rois'", "top: 'score'"][:tops]
    return f"{inputs} layer {{ name: 'rpn' {' '.join(ends)} {layer} }}"


def overlap(a, b):
    w = min(a[2], b[2]) - max(a[0], b[0]) + 1
    h = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if w <= 0 or h <= 0:
        return 0
    areas = [(x[2] - x[0] + 1) * (x[3] - x[1] + 1) for x in (a, b)]
    return w * h / (sum(areas) - w * h)


def moved(a, ratio, scale, base, shift, delta):
    """The box of one anchor, (centre, size) worked out by hand."""
    w = round(sqrt(base * base / ratio))
    w, h = w * scale, round(w * ratio) * scale
    centre = [s + (base - 1) / 2 - (side - 1) / 2 + 0.5 * side
              for s, side in zip(shift, (w, h), strict=True)]  # fmt: skip
    x, y = (c + d * side for c, d, side in zip(centre, delta, (w, h), strict=False))
    w, h = exp(delta[2]) * w, exp(delta[3]) * h
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def proposed(values, ratios, scales, base=16, stride=16, least=16, before=6000, after=300, thr=0.7):
    height, width, zoom = values["info"][0].astype(float)
    kinds = [(r, s) for r in ratios for s in scales]
    found = []
    for row, column, (a, kind) in [
        (i, j, k) for i in range(HEIGHT) for j in range(WIDTH) for k in enumerate(kinds)
    ]:
        delta = values["deltas"][0, 4 * a : 4 * a + 4, row, column].astype(float)
        box = moved(a, *kind, base, (column * stride, row * stride), delta)
        limits = (width - 1, height - 1, width - 1, height - 1)
        box = [min(max(v, 0), limit) for v, limit in zip(box, limits, strict=True)]
        if min(box[2] - box[0] + 1, box[3] - box[1] + 1) >= least * zoom:
            found.append((values["scores"][0, len(kinds) + a, row, column], box))
    found = sorted(found, key=lambda pair: -pair[0])[:before]
    kept = []
    for score, box in found:
        if all(overlap(box, other) <= thr for _, other in kept):
            kept.append((score, box))
    kept = kept[:after]
    return np.array([[0, *box] for _, box in kept]), np.array([[score] for score, _ in kept])


CASES = [
    ("ratio: [0.5, 1, 2] scale: [1, 2]", {}),
    ("ratio: [0.5, 1, 2] scale: [1, 2] min_size: 4 nms_thresh: 0.3", dict(least=4, thr=0.3)),
    (
        "ratio: [0.5, 1, 2] scale: [1, 2] pre_nms_topn: 30 post_nms_topn: 11 min_size: 1"
        " iou_threshold: 0.5 base_size: 12 feat_stride: 8",
        dict(before=30, after=11, least=1, thr=0.5, base=12, stride=8),
    ),
]


@pytest.mark.parametrize(("param", "rules"), CASES)
@pytest.mark.parametrize("tops", [1, 2])
def test_proposals(on_ops, param, rules, tops):
    values = drawn()
    layer = f"type: 'Proposal' proposal_param {{ {param} }}"
    net = make_net(text_of(values, layer, tops))
    regions, scores = proposed(values, (0.5, 1, 2), (1, 2), **rules)
    assert len(regions) > 3
    for _ in range(2):
        out = net.forward(**values)
        assert_allclose(out["rois"], regions, rtol=1e-5, atol=1e-4)
        assert tops == 1 or (out["score"] == scores).all()


def test_shapes_before_forward():
    layer = "type: 'Proposal' proposal_param { scale: [1, 2] post_nms_topn: 8 }"
    net = make_net(text_of(drawn(), layer))
    assert net.blobs["rois"].shape == (8, 5)
    assert net.blobs["score"].shape == (8,)
    net = make_net(text_of(drawn(), PYTHON.replace("PARAM", "scales: [1, 2]")))
    assert net.blobs["rois"].shape == (1, 5)


def test_default_anchors_are_nine(on_ops):
    values = drawn(9)
    values["info"][0] = 300, 400, 1
    net = make_net(text_of(values, "type: 'Proposal'"))
    regions, _ = proposed(values, (0.5, 1, 2), (8, 16, 32))
    assert_allclose(net.forward(**values)["rois"], regions, rtol=1e-4, atol=1e-3)


PYTHON = """type: 'Python' python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer'
    param_str: "PARAM" }"""


# https://github.com/rbgirshick/py-faster-rcnn/issues/219
@pytest.mark.parametrize(
    "param",
    [
        "'feat_stride': 8\\n'scales': [1, 2]",
        "{'feat_stride': 8, 'scales': (1, 2)}",
        "feat_stride: 8\\nscales: [1, 2]",
    ],
)
def test_the_layer_of_faster_rcnn_under_its_python_name(on_ops, caplog, param):
    values = drawn()
    with caplog.at_level(logging.INFO, logger="pycaffe_lite"):
        net = make_net(text_of(values, PYTHON.replace("PARAM", param)))
    assert "ProposalLayer is built in, as 'rpn.proposal_layer' cannot be imported" in caplog.text
    regions, _ = proposed(values, (0.5, 1, 2), (1, 2), stride=8)
    assert_allclose(net.forward(**values)["rois"], regions, rtol=1e-5, atol=1e-4)


def test_a_module_that_is_there_is_used(monkeypatch):
    class ProposalLayer(Layer):
        bottoms, tops = 3, 2

        def reshape(self, bottom, top):
            for y in top:
                y.reshape(3, 2)

    module = types.ModuleType("rpn.proposal_layer")
    module.ProposalLayer = ProposalLayer
    monkeypatch.setitem(sys.modules, "rpn", types.ModuleType("rpn"))
    monkeypatch.setitem(sys.modules, "rpn.proposal_layer", module)
    net = make_net(text_of(drawn(), PYTHON.replace("PARAM", "")))
    assert net.blobs["rois"].shape == (3, 2)


@pytest.mark.parametrize(("phase", "most"), [("TEST", 300), ("TRAIN", 2000)])
def test_more_regions_in_training(phase, most):
    rng = np.random.default_rng(2)
    values = {
        "scores": rng.uniform(size=(1, 18, 30, 40)),
        "deltas": np.zeros((1, 36, 30, 40)),
        "info": np.array([[480, 640, 1]]),
    }
    layer = "type: 'ProposalLayer' python_param { param_str: 'scales: [2, 4, 6]' }"
    net = make_net(text_of(values, layer), TRAIN if phase == "TRAIN" else 1)
    found = net.forward(**values)["rois"]
    assert len(found) == most if phase == "TEST" else 300 < len(found) <= most


def test_no_region_is_large_enough(on_ops):
    values = drawn()
    param = "scale: [1, 2] min_size: 500"
    net = make_net(text_of(values, f"type: 'Proposal' proposal_param {{ {param} }}"))
    out = net.forward(**values)
    assert out["rois"].shape == (0, 5)
    assert out["score"].shape == (0, 1)


def test_regions_are_constants(on_ops):
    values = drawn()
    inputs, layer = text_of(values, "type: 'Proposal' proposal_param { scale: [1, 2] }").split(
        " layer", 1
    )
    layer = layer.replace("'scores'", "'relu'")
    net = make_net(
        f"force_backward: true {inputs} layer {{ name: 'r' type: 'ReLU' bottom: 'scores'"
        f" top: 'relu' }} layer {layer}"
    )
    net.forward(**values)
    assert (net.backward()["scores"] == 0).all()


REFUSED = {
    "scale: 1": r"scores must be \(1, 6, H, W\) for 3 anchors, got `1 12 5 7 \(420\)`",
    "feat_stride: 0": "feat_stride must be positive, got 0",
    "post_nms_topn: 0": "post_nms_topn must be positive, got 0",
    "ratio: -1": "ratios and scales must be positive",
    "max_rois: 3": "proposal_param: max_rois is of another layer",
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_refused(param):
    with pytest.raises(ModelError, match=rf"'rpn' \(Proposal\): .*{REFUSED[param]}"):
        make_net(text_of(drawn(), f"type: 'Proposal' proposal_param {{ {param} }}"))


def test_shapes_that_are_refused():
    layer = "type: 'Proposal' proposal_param { scale: [1, 2] }"
    values = {name: np.concatenate([x] * 2) for name, x in drawn().items()}
    with pytest.raises(ModelError, match="'rpn'.*only single item batches .*, got 2 items"):
        make_net(text_of(values, layer))
    values = {**drawn(), "deltas": np.zeros((1, 24, 5, 6))}
    with pytest.raises(ModelError, match=r"'rpn'.*of one size: \(5, 7\) vs. \(5, 6\)"):
        make_net(text_of(values, layer))
    with pytest.raises(ModelError, match="'rpn'.*param_str .*values must be numbers or lists"):
        make_net(text_of(drawn(), PYTHON.replace("PARAM", "scales: many")))
