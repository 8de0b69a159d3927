"""Euclidean, hinge and contrastive losses against loops by definition, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TRAIN, ModelError


def loss_net(layer, *shapes):
    inputs = [
        f"input: 'x{k}' input_shape {{ {' '.join(f'dim: {d}' for d in shape)} }}"
        for k, shape in enumerate(shapes)
    ]
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return (
        f"{' '.join(inputs)} force_backward: true"
        f" layer {{ name: 'loss' {bottoms} top: 'loss' {layer} }}"
    )


def normal(*shapes, scale=1.0):
    rng = np.random.default_rng(5)
    return [scale * rng.normal(size=shape) for shape in shapes]


# ---- EuclideanLoss -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"), [((10, 5, 1, 1), (10, 5, 1, 1)), ((4, 3, 2), (4, 6)), ((7,), (7, 1))]
)
def test_euclidean_loss(ops, a, b):
    def expect(a, b):
        gaps = zip(a.reshape(-1), b.reshape(-1), strict=True)
        return sum((p - q) ** 2 for p, q in gaps) / (2 * len(a))

    check_layer(ops, "type: 'EuclideanLoss'", bottoms=[a, b], expect=expect)


def test_euclidean_loss_takes_any_number_of_axes(on_ops):
    shape = (3, 1, 2, 4, 5)
    a, b = normal(shape, shape)
    net = run_net(loss_net("type: 'EuclideanLoss'", shape, shape), x0=a, x1=b)
    assert_allclose(net.blobs["loss"].data, ((a - b) ** 2).sum() / 6, rtol=1e-5)
    net.backward()
    assert_allclose(net.blobs["x0"].diff, (a - b) / 3, rtol=1e-5, atol=1e-6)
    assert_array_equal(net.blobs["x1"].diff, -net.blobs["x0"].diff)


@pytest.mark.parametrize("weight", [2, 0, 1, -1, -2.5, 3.7])
def test_loss_and_gradients_scale_with_the_weight(on_ops, weight):
    a, b = normal((10, 5), (10, 5))
    net = run_net(
        loss_net(f"type: 'EuclideanLoss' loss_weight: {weight}", a.shape, b.shape), x0=a, x1=b
    )
    assert_allclose(net.blobs["loss"].data, ((a - b) ** 2).sum() / 20, rtol=1e-5)
    loss = net._forward(0, len(net.layers) - 1)
    assert_allclose(loss, weight * ((a - b) ** 2).sum() / 20, rtol=1e-5)
    assert_allclose(net.backward()["x0"], weight * (a - b) / 10, rtol=1e-5, atol=1e-6)


def test_a_weight_set_by_hand_is_the_one_that_counts(on_ops):
    a, b = normal((10, 5), (10, 5))
    net = run_net(loss_net("type: 'EuclideanLoss'", a.shape, b.shape), x0=a, x1=b)
    net.blobs["loss"].diff[...] = 4
    assert_allclose(net.backward()["x0"], 4 * (a - b) / 10, rtol=1e-5, atol=1e-6)


# ---- HingeLoss ---------------------------------------------------------------------------------


def hinge(x, y, norm):
    total = 0.0
    for row, label in zip(x.reshape(len(x), -1), y.reshape(-1).astype(int), strict=True):
        for k, value in enumerate(row):
            h = max(0, 1 - value if k == label else 1 + value)
            total += h if norm == "L1" else h * h
    return total / len(x)


@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize(("shape", "label"), [((10, 5, 1, 1), (10,)), ((4, 3, 2), (4, 1, 1))])
def test_hinge_loss(ops, norm, shape, label):
    (x,) = normal(shape, scale=3)
    x[np.abs(np.abs(x) - 1) < 0.05] += 0.2  # away from the kinks
    y = np.random.default_rng(6).integers(0, np.prod(shape[1:]), size=label).astype(float)
    check_layer(
        ops,
        f"type: 'HingeLoss' hinge_loss_param {{ norm: {norm} }}",
        bottoms=[shape, label],
        expect=lambda x, y: hinge(x, y, norm),
        values=[x, y],
        gradients=[0],
    )


@pytest.mark.parametrize(("norm", "loss", "grad"), [("L1", 6, [-1, 1, 0, 1]),
                                                    ("L2", 14, [-2, 6, 0, 4])])  # fmt: skip
def test_hinge_at_the_kink_has_no_gradient(on_ops, norm, loss, grad):
    text = loss_net(f"type: 'HingeLoss' hinge_loss_param {{ norm: {norm} }}", (1, 4), (1,))
    net = run_net(text, x0=[[0, 2, -1, 1]], x1=[0])
    assert_allclose(net.blobs["loss"].data, loss)
    assert_array_equal(net.backward()["x0"], [grad])


# ---- ContrastiveLoss ---------------------------------------------------------------------------


def contrastive(a, b, y, margin, legacy):
    total = 0.0
    for p, q, similar in zip(a, b, y.reshape(-1), strict=True):
        square = ((p - q) ** 2).sum()
        if int(similar):
            total += square
        elif legacy:
            total += max(margin - square, 0)
        else:
            total += max(margin - np.sqrt(square), 0) ** 2
    return total / (2 * len(a))


def pairs(n, scale=1.0):
    a, b = normal((n, 2), (n, 2), scale=scale)
    y = np.random.default_rng(6).integers(0, 2, size=n).astype(float)
    return a, b, y


@pytest.mark.parametrize("margin", [100, 250])
@pytest.mark.parametrize("legacy", [False, True])
def test_contrastive_loss(ops, margin, legacy):
    """Distances of about 100: there the 1e-4 in the gradient's divisor does not show."""
    a, b, y = pairs(11, scale=100)
    a[:4], b[:4] = a[:4] / 30, b[:4] / 30 + 2  # for the legacy version some that are near
    y[0] = y[1] = 0
    near = np.sqrt(((a - b) ** 2).sum(axis=1))
    if not legacy:
        a[near < 30] += 80
    assert np.min(np.abs((near**2 if legacy else near) - margin)) > 0.1
    check_layer(
        ops,
        "type: 'ContrastiveLoss' contrastive_loss_param"
        f" {{ margin: {margin} legacy_version: {str(legacy).lower()} }}",
        bottoms=[a.shape, b.shape, y.shape],
        expect=lambda a, b, y: contrastive(a, b, y, margin, legacy),
        values=[a, b, y],
        gradients=[0, 1],
        rtol=1e-4,
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_contrastive_loss_of_many_pairs(on_ops, legacy):
    a, b, y = pairs(512)
    param = f"contrastive_loss_param {{ legacy_version: {str(legacy).lower()} }}"
    text = loss_net(f"type: 'ContrastiveLoss' {param}", a.shape, (512, 2, 1, 1), (512, 1, 1, 1))
    net = run_net(text, x0=a, x1=b.reshape(512, 2, 1, 1), x2=y.reshape(512, 1, 1, 1))
    assert_allclose(net.blobs["loss"].data, contrastive(a, b, y, 1, legacy), rtol=1e-5)


def test_contrastive_gradient_has_1e_4_in_its_divisor(on_ops):
    """Pairs at distances 0, small, medium and beyond the margin, none similar."""
    d = np.array([0, 1e-4, 0.5, 2])
    text = loss_net("type: 'ContrastiveLoss'", (4, 2), (4, 2), (4,))
    b = np.ones((4, 2))
    net = run_net(text, x0=b + np.outer(d, [1, 0]), x1=b, x2=np.zeros(4))
    net.backward()
    gap = net.blobs["x0"].data[:, 0].astype(float) - 1
    expect = -np.maximum(1 - gap, 0) / (gap + 1e-4) * gap / 4
    assert_allclose(net.blobs["x0"].diff[:, 0], expect, rtol=1e-4, atol=1e-7)
    assert_array_equal(net.blobs["x0"].diff[:, 1], 0)
    assert_array_equal(net.blobs["x1"].diff, -net.blobs["x0"].diff)


def test_fractions_of_pair_labels_are_cut_off(on_ops):
    text = loss_net("type: 'ContrastiveLoss'", (3, 2), (3, 2), (3,))
    a, b, _ = pairs(3)
    net = make_net(text)
    losses = [float(net.forward(x0=a, x1=b, x2=y)["loss"]) for y in ([0.9, 1.5, -2], [0, 1, 1])]
    assert losses[0] == losses[1]


# ---- all ---------------------------------------------------------------------------------------

EMPTY = {
    "type: 'EuclideanLoss'": [(0, 4), (0, 4)],
    "type: 'EuclideanLoss' ": [(3, 0), (3, 0)],
    "type: 'HingeLoss'": [(0, 4), (0,)],
    "type: 'HingeLoss' hinge_loss_param { norm: L2 }": [(0, 4, 2), (0, 1)],
    "type: 'ContrastiveLoss'": [(0, 4), (0, 4), (0,)],
    "type: 'ContrastiveLoss' contrastive_loss_param { legacy_version: true }":
        [(0, 4), (0, 4), (0, 1, 1, 1)],
}  # fmt: skip


@pytest.mark.parametrize("layer", EMPTY)
def test_an_empty_batch_has_loss_0(on_ops, layer):
    net = make_net(loss_net(layer, *EMPTY[layer]))
    assert net.forward()["loss"] == 0
    assert net.backward()["x0"].shape == EMPTY[layer][0]


REFUSED = [
    ("EuclideanLoss", [(6, 4), (5, 4)],
     r"data and label should have the same first dimension \(6 vs. 5\)"),
    ("EuclideanLoss", [(6, 4), (6, 3)], r"inputs must have the same dimension \(4 vs. 3\)"),
    ("EuclideanLoss", [(), (6, 3)], "axis 0 out of range for 0-D blob"),
    ("HingeLoss", [(6, 4), (5,)],
     r"data and label should have the same first dimension \(6 vs. 5\)"),
    ("HingeLoss", [(6, 4), (6, 4)],
     r"number of labels must match number of items: items and labels \(6 vs. 24\)"),
    ("ContrastiveLoss", [(6, 4), (6, 3), (6,)],
     r"inputs must have the same dimension \(4 vs. 3\)"),
    ("ContrastiveLoss", [(6, 4), (6, 4), (5,)], r"each pair needs one label: .* \(6 vs. 5\)"),
    ("ContrastiveLoss", [(6, 4, 2, 1), (6, 4, 2, 1), (6,)],
     r"must be \(N, C\) or \(N, C, 1, 1\), got \(6, 4, 2, 1\)"),
    ("ContrastiveLoss", [(6, 4), (6, 4)], r"takes 3 bottom blob\(s\), got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("type_name", "shapes", "match"), REFUSED)
def test_what_is_refused(type_name, shapes, match):
    with pytest.raises(ModelError, match=rf"layer 'loss' \({type_name}\): .*{match}"):
        make_net(loss_net(f"type: '{type_name}'", *shapes))


@pytest.mark.parametrize(
    ("type_name", "shapes", "forced"),
    [
        ("EuclideanLoss", [(6, 4), (6, 4)], [True, True]),
        ("HingeLoss", [(6, 4), (6,)], [True, False]),
        ("ContrastiveLoss", [(6, 4), (6, 4), (6,)], [True, True, False]),
    ],
)
def test_who_gets_a_gradient_under_force_backward(on_ops, type_name, shapes, forced):
    net = run_net(loss_net(f"type: '{type_name}'", *shapes))
    for name in net.inputs:
        net.blobs[name].diff[...] = 5
    net.backward()
    changed = [bool((net.blobs[f"x{k}"].diff != 5).all()) for k in range(len(shapes))]
    assert changed == forced


def test_pair_labels_that_learn_are_an_error_at_backward(on_ops):
    text = """
        input: 'x' input_shape { dim: [6, 5] }
        layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'
                inner_product_param { num_output: 4 } }
        layer { name: 'b' type: 'InnerProduct' bottom: 'x' top: 'b'
                inner_product_param { num_output: 4 } }
        layer { name: 'y' type: 'InnerProduct' bottom: 'x' top: 'y'
                inner_product_param { num_output: 1 } }
        layer { name: 'loss' type: 'ContrastiveLoss' bottom: 'a' bottom: 'b' bottom: 'y'
                top: 'loss' }
    """
    net = make_net(text, TRAIN)
    net.forward()
    with pytest.raises(ModelError, match="'loss'.*cannot backpropagate to label inputs"):
        net.backward()


def test_a_loss_top_need_not_be_named(on_ops):
    a, b = normal((6, 4), (6, 4))
    net = make_net(loss_net("type: 'EuclideanLoss'", a.shape, b.shape).replace("top: 'loss'", ""))
    assert net.forward(x0=a, x1=b) == {}
    assert_allclose(net._forward(0, 1), ((a - b) ** 2).sum() / 12, rtol=1e-5)
    assert_allclose(net.backward()["x0"], (a - b) / 6, rtol=1e-5, atol=1e-6)


TWIN = """
    layer { name: 'NAME' type: 'InnerProduct' bottom: 'x' top: 'NAME' SHARE
            inner_product_param { num_output: 4 weight_filler { type: 'xavier' } } }
"""
TWINS = f"""
    input: 'x' input_shape {{ dim: [6, 5] }} force_backward: true
    {TWIN.replace("NAME", "a")} {TWIN.replace("NAME", "b")}
    layer {{ name: 'loss' type: 'EuclideanLoss' bottom: 'a' bottom: 'b' top: 'loss' }}
"""


def test_twins_pull_in_opposite_directions(on_ops):
    (x,) = normal((6, 5))
    net = run_net(TWINS.replace("SHARE", ""), TRAIN, x=x)
    net.backward()
    first, second = (net.params[name][0].diff for name in "ab")
    assert np.abs(first).max() > 0.01
    assert_allclose(first, -second, rtol=1e-6)


def test_twins_of_one_weight_do_not_differ(on_ops):
    (x,) = normal((6, 5))
    net = run_net(TWINS.replace("SHARE", "param { name: 'w' }"), TRAIN, x=x)
    net.backward()
    assert net.blobs["loss"].data == 0
    assert_array_equal(net.params["a"][0].diff, 0)
