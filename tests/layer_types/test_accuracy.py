"""Accuracy against a loop by definition; ties, ignored labels, classes, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError


def accuracy(x, labels, axis=1, top_k=1, ignored=None):
    """The share of hits, and that of each class."""
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    hits, seen = np.zeros(x.shape[axis]), np.zeros(x.shape[axis])
    for row, label in zip(rows, labels.reshape(-1).astype(int), strict=True):
        if label != ignored:
            rivals = [v for k, v in enumerate(row) if k != label and v >= row[label]]
            hits[label] += len(rivals) < top_k
            seen[label] += 1
    return hits.sum() / max(seen.sum(), 1), hits / np.maximum(seen, 1)


def scores(shape):
    return np.random.default_rng(5).normal(size=shape)


def labels(shape, classes):
    return np.random.default_rng(6).integers(0, classes, size=shape).astype(float)


def accuracy_net(shape, label, param="", tops="top: 'acc'"):
    dims = [" ".join(f"dim: {d}" for d in s) for s in (shape, label)]
    return (
        f"input: 'x' input_shape {{ {dims[0]} }} input: 'y' input_shape {{ {dims[1]} }}"
        " force_backward: true"
        f" layer {{ name: 'it' type: 'Accuracy' bottom: 'x' bottom: 'y' {tops}"
        f" accuracy_param {{ {param} }} }}"
    )


@pytest.mark.parametrize(
    ("shape", "label", "axis", "top_k", "ignored"),
    [
        ((100, 10), (100,), 1, 1, None),
        ((100, 10), (100,), 1, 3, None),
        ((100, 10), (100, 1), -1, 1, 7),
        ((2, 10, 4, 5), (2, 4, 5), 1, 2, None),
        ((2, 3, 7), (2, 3), 2, 1, None),
        ((6, 4), (6,), 1, 4, None),
    ],
)
@pytest.mark.parametrize("tops", [1, 2])
def test_accuracy(ops, shape, label, axis, top_k, ignored, tops):
    rule = "" if ignored is None else f"ignore_label: {ignored}"
    x, y = scores(shape), labels(label, shape[axis])
    check_layer(
        ops,
        f"type: 'Accuracy' accuracy_param {{ axis: {axis} top_k: {top_k} {rule} }}",
        bottoms=[shape, label],
        expect=lambda x, y: accuracy(x, y, axis % len(shape), top_k, ignored)[:tops],
        tops=tops,
        values=[x, y],
        gradients=[],
    )


def test_a_label_outside_may_be_the_ignored_one(on_ops):
    """Three of a hundred have no label: the divisor is 97."""
    x, y = scores((100, 10)), labels((100,), 10)
    y[[2, 5, 32]] = -1
    net = run_net(accuracy_net(x.shape, y.shape, "ignore_label: -1"), x=x, y=y)
    hits = np.argmax(x, axis=1) == y
    assert_allclose(net.blobs["acc"].data, hits.sum() / 97, rtol=1e-6)
    assert net.blobs["acc"].shape == ()
    assert (net.blobs["acc"].num, net.blobs["acc"].width) == (1, 1)


# https://github.com/BVLC/caffe/issues/5949
def test_ties_count_against_the_true_class(on_ops):
    net = make_net(accuracy_net((1, 2), (1,)))
    assert net.forward(x=[[0, 0]], y=[0])["acc"] == 0
    assert net.forward(x=[[1, 0]], y=[0])["acc"] == 1


def test_only_ignored_labels_give_0(on_ops):
    text = accuracy_net((3, 2), (3,), "ignore_label: 255", "top: 'acc' top: 'each'")
    out = make_net(text).forward(x=scores((3, 2)), y=[255, 255, 255])
    assert out["acc"] == 0
    assert_array_equal(out["each"], [0, 0])


def test_a_class_without_labels_gets_0(on_ops):
    text = accuracy_net((3, 4), (3,), "", "top: 'acc' top: 'each'")
    out = make_net(text).forward(x=np.eye(3, 4), y=[0, 1, 1])
    assert_allclose(out["acc"], 2 / 3, rtol=1e-6)
    assert_allclose(out["each"], [1, 0.5, 0, 0])


def test_a_net_that_gives_nan_is_not_accurate(on_ops):
    net = make_net(accuracy_net((2, 3), (2,)))
    nan = float("nan")
    assert net.forward(x=[[nan, nan, nan], [nan, 5, 1]], y=[2, 1])["acc"] == 0


def test_forced_backward_asks_for_no_gradient(on_ops):
    net = make_net(accuracy_net((2, 3), (2,)))
    net.forward(x=np.eye(2, 3), y=[0, 1])
    net.blobs["x"].diff[...] = 5
    net.backward()
    assert (net.blobs["x"].diff == 5).all()


@pytest.mark.parametrize("shape", [(0, 4), (2, 3, 0)])
def test_nothing_to_judge_gives_0(on_ops, shape):
    net = make_net(
        accuracy_net(shape, (shape[0], *shape[2:]), "ignore_label: 1", "top: 'acc' top: 'each'")
    )
    out = net.forward()
    assert out["acc"] == 0
    assert_array_equal(out["each"], np.zeros(shape[1]))
    net.backward()


REFUSED = {
    "top_k: 5": "top_k must be less than or equal to the number of classes, .* top_k 5, 4 classes",
    "top_k: 0": "top_k must be less than .* at least 1: top_k 0, 4 classes",
    "axis: 0": r"e.g., if label axis == 1 .*: 4 vs. 6",
    "axis: -3": r"axis -3 out of range for 2-D blob with shape `6 4 \(24\)`",
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_refused(param):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Accuracy\): .*{REFUSED[param]}"):
        make_net(accuracy_net((6, 4), (6,), param))


def test_loss_and_accuracy_share_scores_and_labels(on_ops):
    """The usual training net: the accuracy does not disturb the gradient."""
    text = """
        input: 'x' input_shape { dim: [6, 4] } input: 'y' input_shape { dim: 6 }
        force_backward: true
        layer { name: 'same' type: 'Accuracy' bottom: 'x' bottom: 'y' top: 'acc' }
        layer { name: 'same' type: 'SoftmaxWithLoss' bottom: 'x' bottom: 'y' top: 'loss' }
    """
    x, y = scores((6, 4)), labels((6,), 4)
    net = run_net(text, x=x, y=y)
    assert_allclose(net.blobs["acc"].data, accuracy(x, y)[0], rtol=1e-6)
    e = np.exp(x)
    p = e / e.sum(axis=1, keepdims=True)
    assert_allclose(net.backward()["x"], (p - np.eye(4)[y.astype(int)]) / 6, rtol=1e-5, atol=1e-6)


# ---- SegAccuracy -------------------------------------------------------------------------------


def figures(x, y, ignored=(), before=0):
    """(1, 1, 1, 3) by definition."""
    classes = x.shape[1]
    table = np.zeros((classes, classes)) + before
    for true, taken in zip(y.astype(int).ravel(), x.argmax(axis=1).ravel(), strict=True):
        if true not in ignored:
            table[true, taken] += 1
    recalls, overlaps = [], []
    for k in range(classes):
        right, of_class, taken = table[k, k], table[k].sum(), table[:, k].sum()
        recalls += [right / of_class] if of_class else []
        union = of_class + taken - right
        overlaps += [right / union] if union else []
    share = np.trace(table) / max(table.sum(), 1)
    means = [sum(found) / max(len(found), 1) for found in (recalls, overlaps)]
    return np.array([share, *means]).reshape(1, 1, 1, 3)


@pytest.mark.parametrize("ignored", [(), (255,), (255, 0), (-1, 2)])
def test_seg_accuracy(ops, ignored):
    x, y = scores((2, 4, 5, 6)), labels((2, 1, 5, 6), 3)
    y[0, 0, 1, :3] = ignored[0] if ignored else 0
    rules = " ".join(f"ignore_label: {label}" for label in ignored)
    check_layer(
        ops,
        f"type: 'SegAccuracy' seg_accuracy_param {{ {rules} }}",
        [x.shape, y.shape],
        lambda x, y: figures(x, y, ignored),
        values=[x, y],
        gradients=[],
    )


def seg_net(param, shape, label):
    dims = [" ".join(f"dim: {d}" for d in s) for s in (shape, label)]
    return make_net(
        f"input: 'x' input_shape {{ {dims[0]} }} input: 'y' input_shape {{ {dims[1]} }} layer {{"
        f" name: 'it' type: 'SegAccuracy' bottom: 'x' bottom: 'y' top: 'out'"
        f" seg_accuracy_param {{ {param} }} }}"
    )


def test_seg_accuracy_of_all_forwards(on_ops):
    net = seg_net("reset: false", (2, 4, 5, 6), (2, 1, 5, 6))
    x, y = scores((2, 4, 5, 6)), labels((2, 1, 5, 6), 4)
    for times in (1, 2):
        out = net.forward(x=x * (-1) ** times, y=y)["out"]
    both = figures(np.concatenate([x, -x]), np.concatenate([y, y]))
    assert_allclose(out, both, rtol=1e-6)


@pytest.mark.parametrize("param", ["", "ignore_label: 255 ignore_label: 254"])
def test_a_label_that_is_no_class_of_seg_accuracy(on_ops, param):
    net = seg_net(param, (2, 4, 5, 6), (2, 1, 5, 6))
    y = labels((2, 1, 5, 6), 4)
    y[1, 0, 2, 3] = 7
    with pytest.raises(ModelError, match=r"'it' \(SegAccuracy\): label 7 .* none of 4 classes"):
        net.forward(x=scores((2, 4, 5, 6)), y=y)


def test_labels_of_seg_accuracy_are_counted():
    with pytest.raises(ModelError, match=r"\(SegAccuracy\): number of labels .*60 vs. 50"):
        seg_net("", (2, 4, 5, 6), (2, 1, 5, 5))


def test_seg_accuracy_of_nothing(on_ops):
    for shape, label in (((0, 4, 5, 6), (0, 5, 6)), ((2, 4, 5, 6), (2, 5, 6))):
        net = seg_net("ignore_label: 0", shape, label)
        assert_array_equal(net.forward()["out"], np.zeros((1, 1, 1, 3)))
