"""MultiBoxLoss against loops over priors and objects; gradients by differences; what is refused."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import TRAIN, ModelError

IMAGES, PRIORS, CLASSES = 3, 12, 4
OBJECTS = np.array([[[
    [0, 1, 0, 0.1, 0.1, 0.4, 0.5, 0],
    [0, 3, 1, 0.5, 0.2, 0.9, 0.6, 1],
    [2, 2, 0, 0.3, 0.5, 0.7, 0.9, 0],
    [2, 1, 0, 0.31, 0.48, 0.72, 0.93, 0],
    [-1, 2, 0, 0.1, 0.1, 0.9, 0.9, 0],
]]])  # fmt: skip
VARIANCE = (0.1, 0.1, 0.2, 0.2)


def drawn(sets=1, seed=5):
    rng = np.random.default_rng(seed)
    wanted = OBJECTS[0, 0, [0, 1, 2, 2, 3, 0], 3:7]
    near = np.concatenate([wanted, wanted]) + rng.normal(size=(PRIORS, 4)) * 0.05
    near[-1] = [-0.05, 0.2, 0.3, 0.6]
    near[6:9] += 0.2
    prior = np.stack([near.reshape(-1), np.tile(VARIANCE, PRIORS)])[None]
    return [
        rng.normal(size=(IMAGES, PRIORS * sets * 4)),
        rng.normal(size=(IMAGES, PRIORS * CLASSES)) * 2,
        prior,
        OBJECTS.astype(float),
    ]


# ---- by the definition -------------------------------------------------------------------------


def overlap(a, b):
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    return w * h / (sum(areas) - w * h)


def matched(candidates, things, threshold, cross):
    """Prior -> index of its object, and the overlaps."""
    table = {
        (p, g): overlap(box, thing[3:7])
        for p, box in enumerate(candidates)
        for g, thing in enumerate(things)
        if not cross or all(0 <= v <= 1 for v in box)
    }
    near = [max([v for (q, _), v in table.items() if q == p], default=0)
            for p in range(len(candidates))]  # fmt: skip
    found = {}
    left = dict(table)
    while left:
        (p, g), best = max(left.items(), key=lambda item: item[1])
        if best <= 1e-6:
            break
        found[p], near[p] = g, best
        left = {(q, h): v for (q, h), v in left.items() if q != p and h != g}
    for p in range(len(candidates)):
        ours = [(v, -g) for (q, g), v in table.items() if q == p]
        if p not in found and ours and threshold is not None and max(ours)[0] >= threshold:
            found[p] = -max(ours)[1]
    return found, near


def encoded(box, prior, code):
    size = [prior[2] - prior[0], prior[3] - prior[1]] * 2
    if code == "CENTER_SIZE":
        centre = [(b[k] + b[k + 2]) / 2 for b in (box, prior) for k in (0, 1)]
        sides = [box[2] - box[0], box[3] - box[1]]
        return [(centre[0] - centre[2]) / size[0], (centre[1] - centre[3]) / size[1],
                log(sides[0] / size[0]), log(sides[1] / size[1])]  # fmt: skip
    return [(b - p) / (s if code == "CORNER_SIZE" else 1)
            for b, p, s in zip(box, prior, size, strict=True)]  # fmt: skip


def class_loss(scores, label, kind):
    if kind == "LOGISTIC":
        signs = [-1 if c == label else 1 for c in range(len(scores))]
        return sum(log(1 + exp(s * x)) for s, x in zip(signs, scores, strict=True))
    return log(sum(exp(x) for x in scores)) - scores[label]


def box_loss(given, wanted, kind):
    gaps = [abs(g - w) for g, w in zip(given, wanted, strict=True)]
    return sum(d * d / 2 if kind == "L2" or d < 1 else d - 0.5 for d in gaps)


def expected(loc, conf, prior, objects, code="CORNER", threshold=0.5, mining="MAX_NEGATIVE",
             conf_kind="SOFTMAX", loc_kind="SMOOTH_L1", ratio=3, neg_overlap=0.5, size=64,
             norm="VALID", loc_weight=1, difficult=True, cross=False, inside=False,
             background=0):  # fmt: skip
    boxes, variance = prior.reshape(2, PRIORS, 4)
    conf, sets = conf.reshape(IMAGES, PRIORS, CLASSES), loc.shape[1] // PRIORS // 4
    loc = loc.reshape(IMAGES, PRIORS, sets, 4)
    box_total, class_total, count = 0.0, 0.0, 0
    for n in range(IMAGES):
        things = [t for t in objects[0, 0] if t[0] == n and (difficult or not t[7])]
        found, near = matched(boxes, things, threshold, cross)
        labels = [int(things[found[p]][1]) if p in found else background for p in range(PRIORS)]
        hard = [class_loss(conf[n, p], labels[p], conf_kind) for p in range(PRIORS)]
        each = {}
        for p, g in found.items():
            told = loc[n, p, labels[p] if sets > 1 else 0]
            wanted = np.array(encoded(things[g][3:7], boxes[p], code)) / variance[p]
            if inside:
                told = [t if 0 <= b <= 1 else w
                        for t, b, w in zip(told, boxes[p], wanted, strict=True)]  # fmt: skip
            each[p] = box_loss(told, wanted, loc_kind)
        if mining == "NONE":
            kept, negative = found, [p for p in range(PRIORS) if p not in found]
        elif not things:
            kept, negative = {}, []
        elif mining == "MAX_NEGATIVE":
            kept = found
            ours = [p for p in range(PRIORS) if p not in found and near[p] < neg_overlap
                    and not (cross and (min(boxes[p]) < 0 or max(boxes[p]) > 1))]  # fmt: skip
            negative = sorted(ours, key=lambda p: -hard[p])[: int(len(found) * ratio)]
        else:
            ours = sorted(range(PRIORS), key=lambda p: -hard[p] - each.get(p, 0))[:size]
            kept = {p: g for p, g in found.items() if p in ours}
            negative = [p for p in ours if p not in found]
        box_total += sum(each[p] for p in kept)
        class_total += sum(hard[p] for p in [*kept, *negative])
        count += len(kept)
    divisor = {"VALID": count, "FULL": IMAGES * PRIORS, "BATCH_SIZE": IMAGES, "NONE": 1}[norm]
    return (loc_weight * box_total + class_total) / max(divisor, 1)


CASES = {
    "": {},
    "code_type: CENTER_SIZE match_type: BIPARTITE neg_pos_ratio: 1":
        dict(code="CENTER_SIZE", threshold=None, ratio=1),
    "code_type: CORNER_SIZE overlap_threshold: 0.25 neg_overlap: 0.2 loc_weight: 2.5":
        dict(code="CORNER_SIZE", threshold=0.25, neg_overlap=0.2, loc_weight=2.5),
    "mining_type: NONE loc_loss_type: L2": dict(mining="NONE", loc_kind="L2"),
    "do_neg_mining: false share_location: false": dict(mining="NONE"),
    "mining_type: HARD_EXAMPLE sample_size: 7": dict(mining="HARD_EXAMPLE", size=7),
    "conf_loss_type: LOGISTIC neg_pos_ratio: 0.7": dict(conf_kind="LOGISTIC", ratio=0.7),
    "conf_loss_type: LOGISTIC mining_type: NONE": dict(conf_kind="LOGISTIC", mining="NONE"),
    "use_difficult_gt: false do_neg_mining: true": dict(difficult=False),
    "ignore_cross_boundary_bbox: true": dict(cross=True),
    "bp_inside: true overlap_threshold: 0.1": dict(inside=True, threshold=0.1),
    "encode_variance_in_target: true": {},
}  # fmt: skip


def told(param):
    """Inputs for these parameters: without variances in loc, loc is divided by them."""
    values = drawn(CLASSES if "share_location: false" in param else 1)
    if "encode_variance" in param:
        values[0] = values[0] * np.tile(VARIANCE, PRIORS)
    return values


@pytest.mark.parametrize("param", CASES)
def test_multibox_loss(ops, param):
    def expect(loc, *others):
        if "encode_variance" in param:
            loc = loc / np.tile(VARIANCE, PRIORS)
        return expected(loc, *others, **CASES[param])

    values = told(param)
    check_layer(
        ops,
        f"type: 'MultiBoxLoss' multibox_loss_param {{ num_classes: {CLASSES} {param} }}",
        bottoms=[x.shape for x in values],
        expect=expect,
        values=values,
        gradients=[0, 1],
    )


@pytest.mark.parametrize("norm", ["VALID", "FULL", "BATCH_SIZE", "NONE"])
def test_norms(ops, norm):
    values = drawn()
    check_layer(
        ops,
        f"type: 'MultiBoxLoss' multibox_loss_param {{ num_classes: {CLASSES} }}"
        f" loss_param {{ normalization: {norm} }}",
        bottoms=[x.shape for x in values],
        expect=lambda *x: expected(*x, norm=norm),
        values=values,
        gradients=[0, 1],
    )


# ---- what has no loop here ---------------------------------------------------------------------


def net_of(values, param, more="", phase=TRAIN):
    inputs = "".join(
        f" input: 'x{k}' input_shape {{ dim: {list(x.shape)} }}" for k, x in enumerate(values)
    )
    bottoms = "".join(f" bottom: 'x{k}'" for k in range(len(values)))
    return make_net(
        f"force_backward: true {inputs} layer {{ name: 'mbox' type: 'MultiBoxLoss' {bottoms}"
        f" top: 'loss' {more} multibox_loss_param {{ {param} }} }}",
        phase,
    )


def loss_of(values, param, more=""):
    net = net_of(values, param, more)
    net.forward(**{f"x{k}": x for k, x in enumerate(values)})
    return net


def test_one_class_for_all_objects(on_ops):
    """Labels then count as 1, with mining too (fatal in the original)."""
    values = drawn()
    values[1] = values[1][:, : PRIORS * 2]
    plain = [x.copy() for x in values]
    plain[3][..., 1] = 1
    found = [
        loss_of(v, f"num_classes: 2 {more}").blobs["loss"].data
        for v, more in ((values, "map_object_to_agnostic: true"), (plain, ""))
    ]
    assert found[0] == found[1] > 0


def test_matching_with_what_the_net_predicts(on_ops):
    """Told boxes that lie on the objects match them, wherever priors are."""
    values = drawn()
    values[2][0, 0] = np.tile([0, 0, 0.05, 0.05], PRIORS)
    values[0][:] = 0
    for n, p, g in ((0, 3, 0), (0, 8, 1), (2, 5, 2), (2, 6, 3)):
        box = (OBJECTS[0, 0, g, 3:7] - values[2][0, 0, :4]) / VARIANCE
        values[0][n, 4 * p : 4 * p + 4] = box
    net = loss_of(values, "num_classes: 4 use_prior_for_matching: false mining_type: NONE")
    picked = net.backward()
    assert_allclose(picked["x0"], 0, atol=1e-5)
    negative = picked["x1"].reshape(IMAGES, PRIORS, CLASSES)[:, :, 0] < 0
    wanted = np.ones((IMAGES, PRIORS), bool)
    wanted[[0, 0, 2, 2], [3, 8, 5, 6]] = False
    assert (negative == wanted).all()


@pytest.mark.parametrize("by_prior", ["true", "false"])
def test_suppression_before_hard_examples(on_ops, by_prior):
    """Of boxes that all lie upon each other one is left."""
    values = drawn()
    values[0][:] = 0
    values[2][0, 0] = np.tile([0.1, 0.1, 0.4, 0.5], PRIORS)
    param = f"mining_type: HARD_EXAMPLE nms_param {{}} use_prior_for_nms: {by_prior}"
    picked = loss_of(values, f"num_classes: 4 {param}").backward()["x1"]
    rows = (picked.reshape(IMAGES, PRIORS, CLASSES) != 0).any(axis=2).sum(axis=1)
    assert rows.tolist() == [1, 0, 1]


def test_a_loss_that_is_not_propagated_does_not_count(on_ops):
    values = drawn()
    every = loss_of(values, "num_classes: 4").blobs["loss"].data
    asked = ["true true false false", "true false false false", "false true false false"]
    some = []
    for flags in asked:
        more = " ".join(f"propagate_down: {flag}" for flag in flags.split())
        some.append(loss_of(values, "num_classes: 4", more).blobs["loss"].data)
    assert some[0] == every
    assert_allclose(some[1] + some[2], every, rtol=1e-6)
    assert min(some) > 0


@pytest.mark.parametrize("param", ["", "mining_type: NONE", "mining_type: HARD_EXAMPLE"])
def test_nothing_to_find(on_ops, param):
    values = [*drawn()[:3], np.full((1, 1, 1, 8), -1.0)]
    net = loss_of(values, f"num_classes: 4 {param}")
    loss = expected(*values, mining="NONE") if "NONE" in param else 0
    assert_allclose(net.blobs["loss"].data, loss, rtol=1e-5)
    assert (net.backward()["x0"] == 0).all()
    for empty in ([x[:0] for x in values[:2]] + values[2:], [*values[:3], np.zeros((1, 1, 0, 8))]):
        net = loss_of(empty, f"num_classes: 4 {param}")
        assert np.isfinite(net.backward()["x1"]).all()


def test_scores_too_far_apart_for_exp(on_ops):
    values = drawn()
    values[1] *= 1e4
    for kind in ("SOFTMAX", "LOGISTIC"):
        net = loss_of(values, f"num_classes: 4 conf_loss_type: {kind}")
        assert np.isfinite(net.blobs["loss"].data)
        assert np.isfinite(net.backward()["x1"]).all()


REFUSED = {
    "": "must specify num_classes",
    "num_classes: 4 background_label_id: 4": r"should be within \[0, 4\), got 4",
    "num_classes: 4 map_object_to_agnostic: true": "needs num_classes 2, got 4",
    "num_classes: 2 map_object_to_agnostic: true background_label_id: 1":
        "needs background_label_id 0, .*, got 1",
    "num_classes: 4 do_neg_mining: false mining_type: HARD_EXAMPLE":
        "do_neg_mining False contradicts mining_type HARD_EXAMPLE",
    "num_classes: 4 mining_type: HARD_EXAMPLE sample_size: 0": "sample_size must be > 0, got 0",
    "num_classes: 5": "confidence predictions: 12 priors need 60 values an image, got 48",
    "num_classes: 4 share_location: false": "location predictions: 12 .* need 192 .* got 48",
}  # fmt: skip


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_refused(param):
    with pytest.raises(ModelError, match=rf"'mbox' \(MultiBoxLoss\): .*{REFUSED[param]}"):
        net_of(drawn(), param)


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        (1, 4, r"label 4 of an object is out of range \(0 to 3\)"),
        (1, -2, "label -2 of an object is out of range"),
        (0, 3, r"image 3 of an object is out of range \(0 to 2\)"),
        (0, np.nan, "image nan of an object"),
        (1, 0, "found background label 0 in the dataset"),
    ],
)
def test_objects_that_are_refused(on_ops, column, value, match):
    values = drawn()
    values[3][0, 0, 1, column] = value
    with pytest.raises(ModelError, match=rf"'mbox' \(MultiBoxLoss\): {match}"):
        loss_of(values, "num_classes: 4")


def test_shapes_of_objects_that_are_refused():
    with pytest.raises(ModelError, match=r"'mbox'.*must be \(1, 1, G, 8\), got `1 1 5 7 \(35\)`"):
        net_of([*drawn()[:3], np.zeros((1, 1, 5, 7))], "num_classes: 4")
