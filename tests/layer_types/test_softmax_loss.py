"""Losses over classes against loops by definition; normalisers, ignored labels, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net, run_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TRAIN, MissingFileError, ModelError, prototxt
from pycaffe_lite.proto import caffe_pb2

BOUND = float(np.finfo(np.float32).tiny)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def divisor(mode, outer, inner, counted):
    values = {"FULL": outer * inner, "VALID": counted, "BATCH_SIZE": outer, "NONE": 1}
    return max(1, values[mode])


def locations(x, labels, axis):
    """For each location its probabilities and its label, in the labels' order."""
    p = np.moveaxis(softmax(x, axis), axis, -1).reshape(-1, x.shape[axis])
    return zip(p, labels.reshape(-1).astype(int), strict=True)


def cross_entropy(x, labels, axis=1, mode="VALID", ignored=None, weights=None):
    total, counted = 0.0, 0
    for p, label in locations(x, labels, axis):
        if label != ignored:
            weight = 1 if weights is None else weights[label]
            total -= weight * np.log(max(p[label], BOUND))
            counted += 1
    outer, inner = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1 :]))
    return total / divisor(mode, outer, inner, counted)


def infogain(x, labels, matrix, axis=1, mode="VALID", ignored=None):
    total, counted = 0.0, 0
    for p, label in locations(x, labels, axis):
        if label != ignored:
            total -= sum(h * np.log(max(q, 1e-20)) for h, q in zip(matrix[label], p, strict=True))
            counted += 1
    outer, inner = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1 :]))
    return total / divisor(mode, outer, inner, counted)


def scores(shape):
    return np.random.default_rng(5).normal(size=shape)


def labels(shape, classes, extra=None, low=0):
    drawn = np.random.default_rng(6).integers(low, classes, size=shape).astype(float)
    if extra is not None:
        drawn.reshape(-1)[::3] = extra
    return drawn


# ---- SoftmaxWithLoss ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["FULL", "VALID", "BATCH_SIZE", "NONE"])
@pytest.mark.parametrize("ignored", [None, -1, 2, 255])
def test_softmax_loss_of_maps(ops, mode, ignored):
    x, y = scores((2, 5, 4, 3)), labels((2, 1, 4, 3), 5, ignored)
    rule = "" if ignored is None else f"ignore_label: {ignored}"
    check_layer(
        ops,
        f"type: 'SoftmaxWithLoss' loss_param {{ normalization: {mode} {rule} }}",
        bottoms=[x.shape, y.shape],
        expect=lambda x, y: cross_entropy(x, y, mode=mode, ignored=ignored),
        values=[x, y],
        gradients=[0],
    )


# R-FCN's mode, which fails in its own SoftmaxWithLoss.
@pytest.mark.parametrize(("fixed", "norm"), [(12.5, 12.5), (0.25, 1)])
def test_a_norm_that_is_given(ops, fixed, norm):
    x, y = scores((6, 4)), labels((6,), 4, -1)
    check_layer(
        ops,
        "type: 'SoftmaxWithLoss' loss_param { normalization: PRE_FIXED ignore_label: -1"
        f" pre_fixed_normalizer: {fixed} }}",
        bottoms=[x.shape, y.shape],
        expect=lambda x, y: cross_entropy(x, y, mode="NONE", ignored=-1) / norm,
        values=[x, y],
        gradients=[0],
    )


@pytest.mark.parametrize(
    ("shape", "axis", "label_shape"),
    [((6, 4), 1, (6,)), ((6, 4), -1, (6, 1)), ((2, 3, 5), 2, (2, 3)), ((2, 3, 5), 2, (2, 1, 3))],
)
def test_softmax_loss_over_any_axis(ops, shape, axis, label_shape):
    x = scores(shape)
    y = labels(label_shape, shape[axis])
    check_layer(
        ops,
        f"type: 'SoftmaxWithLoss' softmax_param {{ axis: {axis} }}",
        bottoms=[x.shape, y.shape],
        expect=lambda x, y: cross_entropy(x, y, axis % x.ndim),
        values=[x, y],
        gradients=[0],
    )


@pytest.mark.parametrize("tops", [2, 3])
def test_further_tops_are_probabilities_and_the_loss_of_each_location(ops, tops):
    x, y = scores((2, 5, 4, 3)), labels((2, 4, 3), 5, -1)

    def expect(x, y):
        alone = np.zeros(y.size)
        for i, (p, label) in enumerate(locations(x, y, 1)):
            alone[i] = -np.log(p[label]) if label >= 0 else 0
        return (cross_entropy(x, y, ignored=-1), softmax(x, 1), alone.reshape(y.shape))[:tops]

    check_layer(
        ops,
        "type: 'SoftmaxWithLoss' loss_param { ignore_label: -1 }"
        + " loss_weight: 1"
        + " loss_weight: 0" * (tops - 1),
        bottoms=[x.shape, y.shape],
        expect=expect,
        tops=tops,
        values=[x, y],
        gradients=[0],
    )


def test_two_tops_need_no_loss_weight(on_ops):
    """The original fails at setup with two tops, with and without weights."""
    net = make_net(net_text((6, 4), (6,), "type: 'SoftmaxWithLoss' top: 'p'"))
    assert net.blob_loss_weights["loss"] == 1
    assert net.blob_loss_weights["p"] == 0
    out = net.forward(x=scores((6, 4)), y=labels((6,), 4))
    assert_allclose(out["p"].sum(axis=1), 1, rtol=1e-5)


def test_class_weights_of_segnet(ops):
    x, y = scores((2, 4, 3, 5)), labels((2, 3, 5), 4, 3)
    weights = [0.5, 2, 1.25, 0.1]
    check_layer(
        ops,
        "type: 'SoftmaxWithLoss' loss_param { weight_by_label_freqs: true ignore_label: 3"
        " class_weighting: [0.5, 2, 1.25, 0.1] }",
        bottoms=[x.shape, y.shape],
        expect=lambda x, y: cross_entropy(x, y, ignored=3, weights=weights),
        values=[x, y],
        gradients=[0],
    )


def net_text(x, y, layer, more=""):
    dims = [" ".join(f"dim: {d}" for d in shape) for shape in (x, y)]
    return (
        "force_backward: true"
        f" layer {{ name: 'x' type: 'Input' top: 'x' input_param {{ shape {{ {dims[0]} }} }} }}"
        f" layer {{ name: 'y' type: 'Input' top: 'y' input_param {{ shape {{ {dims[1]} }} }} }}"
        f" layer {{ name: 'loss' bottom: 'x' bottom: 'y' top: 'loss' {layer} }} {more}"
    )


# https://github.com/BVLC/caffe/pull/3296, 4986 and 1654
@pytest.mark.parametrize(
    ("param", "divisor"),
    [
        ("", 1),
        ("normalization: VALID", 1),
        ("normalization: FULL", 2),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
        ("normalize: true", 1),
        ("normalize: false", 2),
        ("normalize: false normalization: VALID", 1),
        ("normalize: true normalization: FULL", 2),
    ],
)
def test_normalisation_with_one_of_two_labels_ignored(on_ops, param, divisor):
    """The old flag counts only where the new one is not given."""
    net = make_net(
        net_text(
            (2, 2, 1, 1),
            (2, 1, 1, 1),
            f"type: 'SoftmaxWithLoss' loss_param {{ ignore_label: -1 {param} }}",
        )
    )
    x, y = np.array([[1.0, 2], [3, 5]]).reshape(2, 2, 1, 1), np.array([-1, 0]).reshape(2, 1, 1, 1)
    loss = net.forward(x=x, y=y)["loss"]
    assert_allclose(loss, np.log(1 + np.exp(2)) / divisor, rtol=1e-6)
    grad = net.backward()["x"]
    p = 1 / (1 + np.exp(2))
    assert_allclose(grad.reshape(2, 2), np.array([[0, 0], [p - 1, 1 - p]]) / divisor, rtol=1e-5)


@pytest.mark.parametrize("label", [(2, 1, 4, 5), (2, 4, 5), (2, 20)])
def test_labels_have_any_shape_of_the_right_count(on_ops, label):
    """https://github.com/BVLC/caffe/issues/6014"""
    net = make_net(net_text((2, 3, 4, 5), label, "type: 'SoftmaxWithLoss'"))
    net.forward(x=np.zeros((2, 3, 4, 5)), y=labels(label, 3))
    assert_allclose(net.blobs["loss"].data, np.log(3), rtol=1e-6)


@pytest.mark.parametrize("type_name", ["SoftmaxWithLoss", "InfogainLoss", "Accuracy"])
def test_another_number_of_labels_is_refused_at_length(type_name, tmp_path):
    """https://github.com/BVLC/caffe/issues/2063 and 3551"""
    write_matrix(tmp_path / "h", np.eye(3))
    source = f"infogain_loss_param {{ source: '{tmp_path / 'h'}' }}"
    text = net_text((2, 3, 4, 5), (2, 4), f"type: '{type_name}' {source}")
    match = (
        r"'loss'.*number of labels must match number of predictions; e.g., if .* axis == 1 and"
        r" prediction shape is \(N, C, H, W\).*: 40 vs. 8"
    )
    with pytest.raises(ModelError, match=match):
        make_net(text)


def test_ignoring_each_label_in_turn_leaves_out_each_once(on_ops):
    x, y = scores((10, 5, 2, 3)), labels((10, 1, 2, 3), 5)
    losses = [
        float(
            run_net(
                net_text(
                    x.shape,
                    y.shape,
                    f"type: 'SoftmaxWithLoss' loss_param {{ normalize: false {rule} }}",
                ),
                x=x,
                y=y,
            )
            .blobs["loss"]
            .data
        )
        for rule in ["", *(f"ignore_label: {k}" for k in range(5))]
    ]
    assert_allclose(sum(losses[1:]), 4 * losses[0], rtol=1e-5)


def test_all_labels_ignored_is_loss_0(on_ops):
    text = net_text((2, 3), (2,), "type: 'SoftmaxWithLoss' loss_param { ignore_label: 255 }")
    net = make_net(text)
    assert net.forward(x=scores((2, 3)), y=[255, 255])["loss"] == 0
    assert_array_equal(net.backward()["x"], 0)


def test_what_an_ignored_location_holds_does_not_matter(on_ops):
    """Not even infinity: its gradient is 0 and the loss is that of the others."""
    text = net_text((2, 3), (2,), "type: 'SoftmaxWithLoss' loss_param { ignore_label: 255 }")
    net = make_net(text)
    x = scores((2, 3))
    x[1] = [np.inf, 1, 2]
    with np.errstate(invalid="ignore"):
        loss = net.forward(x=x, y=[1, 255])["loss"]
    assert_allclose(loss, -np.log(softmax(x[:1], 1)[0, 1]), rtol=1e-6)
    grad = net.backward()["x"]
    assert np.isfinite(grad).all()
    assert_array_equal(grad[1], 0)


def test_a_hopeless_score_costs_87_and_no_more(on_ops):
    net = make_net(net_text((1, 2), (1,), "type: 'SoftmaxWithLoss'"))
    assert_allclose(net.forward(x=[[0, 1e4]], y=[0])["loss"], -np.log(BOUND), rtol=1e-6)
    assert_array_equal(net.backward()["x"], [[-1, 1]])


def test_fractions_of_labels_are_cut_off(on_ops):
    net = make_net(net_text((2, 3), (2,), "type: 'SoftmaxWithLoss'"))
    x = scores((2, 3))
    losses = [float(net.forward(x=x, y=y)["loss"]) for y in ([2.9, 0.5], [2, 0])]
    assert losses[0] == losses[1]


def test_loss_weight_0_gives_no_gradient(on_ops):
    """https://github.com/BVLC/caffe/issues/2895"""
    text = """
        input: 'x' input_shape { dim: [6, 5] } input: 'y' input_shape { dim: 6 }
        force_backward: true
        layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
                inner_product_param { num_output: 4 weight_filler { type: 'xavier' } } }
        layer { name: 'a' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'y' top: 'a' }
        layer { name: 'b' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'y' top: 'b' WEIGHT }
    """
    grads, values = [], {"x": scores((6, 5)), "y": labels((6,), 4)}
    weight = scores((4, 5))
    for given in ("loss_weight: 0", "loss_weight: 1", None):
        net = make_net(text.replace("WEIGHT", given or "loss_weight: 0"), TRAIN)
        net.params["ip"][0].data[...] = weight
        for _ in range(2):
            loss = net._forward(0, len(net.layers) - 1)
            net.forward(**values)
            net.clear_param_diffs()
            net.backward()
        grads.append(net.params["ip"][0].diff.copy())
        assert np.isfinite(loss)
    assert_allclose(grads[1], 2 * grads[0], rtol=1e-5, atol=1e-7)
    assert_array_equal(grads[2], grads[0])
    assert np.abs(grads[0]).max() > 0.01


def test_loss_and_gradient_scale_with_the_weight(on_ops):
    x, y = scores((6, 4)), labels((6,), 4)
    grads, losses = {}, {}
    for weight in (1, 2, -2.5, 3.7):
        net = make_net(net_text(x.shape, y.shape, f"type: 'SoftmaxWithLoss' loss_weight: {weight}"))
        net.forward(x=x, y=y)
        losses[weight] = net._forward(0, len(net.layers) - 1)
        grads[weight] = net.backward()["x"].copy()
    for weight in grads:
        assert_allclose(losses[weight], weight * losses[1], rtol=1e-5)
        assert_allclose(grads[weight], weight * grads[1], rtol=1e-5, atol=1e-7)


BAD_LABELS = [(3, None, "label 3 is out of range: it is none of 3 classes"),
              (-1, None, "label -1 is out of range: it is none of 3 classes"),
              (255, 7, "label 255 is .* none of 3 classes .*, nor ignore_label 7"),
              (float("nan"), -1, "label nan is out of range")]  # fmt: skip


@pytest.mark.parametrize("type_name", ["SoftmaxWithLoss", "InfogainLoss", "Accuracy"])
@pytest.mark.parametrize(("label", "ignored", "match"), BAD_LABELS)
def test_a_label_that_is_no_class_is_an_error(on_ops, type_name, label, ignored, match, tmp_path):
    """On every backend: never a wrong number, never a crash."""
    write_matrix(tmp_path / "h", np.eye(3))
    field = "accuracy_param" if type_name == "Accuracy" else "loss_param"
    rule = "" if ignored is None else f"{field} {{ ignore_label: {ignored} }}"
    source = f"infogain_loss_param {{ source: '{tmp_path / 'h'}' }}"
    net = make_net(net_text((2, 3), (2,), f"type: '{type_name}' {rule} {source}"))
    with pytest.raises(ModelError, match=rf"layer 'loss' \({type_name}\): {match}"):
        net.forward(x=np.zeros((2, 3)), y=[0, label])


@pytest.mark.parametrize("shape", [(0, 4), (3, 4, 0), (0, 4, 2)])
@pytest.mark.parametrize("rule", ["", "loss_param { ignore_label: 1 }"])
def test_nothing_to_learn_from_is_loss_0(on_ops, shape, rule):
    label = (shape[0], *shape[2:])
    net = make_net(net_text(shape, label, f"type: 'SoftmaxWithLoss' top: 'p' {rule}"))
    out = net.forward()
    assert out["loss"] == 0
    assert out["p"].shape == shape
    net.backward()
    assert net.blobs["x"].diff.shape == shape


def test_labels_get_no_gradient_and_must_not_ask_for_one(on_ops):
    text = """
        input: 'x' input_shape { dim: [6, 5] } input: 'y' input_shape { dim: [6, 3] }
        layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'
                inner_product_param { num_output: 4 } }
        layer { name: 'b' type: 'InnerProduct' bottom: 'y' top: 'b'
                inner_product_param { num_output: 1 } }
        layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'b' top: 'loss' MORE }
    """
    net = make_net(text.replace("MORE", ""), TRAIN)
    net.forward()
    match = r"layer 'loss' \(SoftmaxWithLoss\): .*cannot backpropagate to label inputs"
    with pytest.raises(ModelError, match=match):
        net.backward()
    net = make_net(text.replace("MORE", "propagate_down: true propagate_down: false"), TRAIN)
    net.forward()
    net.backward()


def test_changed_labels_do_not_reach_backward_unchecked(on_ops):
    net = make_net(net_text((2, 3), (2,), "type: 'SoftmaxWithLoss'"))
    net.forward(x=np.zeros((2, 3)), y=[0, 2])
    net.blobs["y"].data[...] = 99
    grad = net.backward()["x"]
    assert_allclose(grad, (1 / 3 - np.eye(3)[[0, 2]]) / 2, rtol=1e-5)


REFUSED = {
    "type: 'SoftmaxWithLoss' softmax_param { axis: 2 }": "axis 2 out of range for 2-D blob",
    "type: 'SoftmaxWithLoss' loss_weight: 1 loss_weight: 2": "loss_weight must be unspecified or",
    "type: 'SoftmaxWithLoss' loss_param { weight_by_label_freqs: true class_weighting: [1, 2] }":
        "class_weighting must be given once per class: 2 values for 4 classes",
    "type: 'InfogainLoss'": "infogain matrix source must be specified",
    "type: 'InfogainLoss' loss_param { normalize: true }": "normalize is deprecated",
}  # fmt: skip


@pytest.mark.parametrize("layer", REFUSED)
def test_what_is_refused(layer):
    with pytest.raises(ModelError, match=rf"layer 'loss' \(\w+\): .*{REFUSED[layer]}"):
        make_net(net_text((6, 4), (6,), layer))


@pytest.mark.parametrize("type_name", ["SoftmaxWithLoss", "MultinomialLogisticLoss"])
def test_first_dimensions_must_agree(type_name):
    match = r"'loss'.*data and label should have the same first dimension \(6 vs. 5\)"
    with pytest.raises(ModelError, match=match):
        make_net(net_text((6, 4), (5,), f"type: '{type_name}'"))


# ---- InfogainLoss ------------------------------------------------------------------------------


def write_matrix(path, values, shape=None):
    blob = caffe_pb2.BlobProto(data=np.asarray(values).reshape(-1))
    blob.shape.dim.extend(shape or np.shape(values))
    prototxt.write_binary(path, blob)


MATRIX = np.random.default_rng(8).uniform(0.2, 1.5, size=(5, 5))


@pytest.mark.parametrize("mode", ["FULL", "VALID", "BATCH_SIZE"])
@pytest.mark.parametrize("tops", [1, 2])
def test_infogain_with_a_third_bottom(ops, mode, tops):
    x, y = scores((4, 2, 5, 3)), labels((4, 2, 1, 3), 5, -1)
    matrix = MATRIX.reshape(1, 1, 5, 5)

    def expect(x, y, matrix):
        loss = infogain(x, y, matrix.reshape(5, 5), 2, mode, -1)
        return (loss, softmax(x, 2))[:tops]

    check_layer(
        ops,
        "type: 'InfogainLoss' infogain_loss_param { axis: 2 }"
        f" loss_param {{ normalization: {mode} ignore_label: -1 }}",
        bottoms=[x.shape, y.shape, matrix.shape],
        expect=expect,
        tops=tops,
        values=[x, y, matrix],
        gradients=[0],
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_infogain_with_a_file(ops, tmp_path, legacy):
    path = tmp_path / "infogain.binaryproto"
    blob = caffe_pb2.BlobProto(data=MATRIX.reshape(-1))
    if legacy:
        blob.num, blob.channels, blob.height, blob.width = 1, 1, 5, 5
    else:
        blob.shape.dim.extend((5, 5))
    prototxt.write_binary(path, blob)
    x, y = scores((6, 5)), labels((6,), 5)
    matrix = MATRIX.astype(np.float32).astype(float)
    check_layer(
        ops,
        f"type: 'InfogainLoss' infogain_loss_param {{ source: '{path}' }}",
        bottoms=[x.shape, y.shape],
        expect=lambda x, y: infogain(x, y, matrix),
        values=[x, y],
        gradients=[0],
    )


def test_infogain_of_the_identity_is_the_softmax_loss(on_ops, tmp_path):
    write_matrix(tmp_path / "h", np.eye(4))
    x, y = scores((6, 4)), labels((6,), 4)
    results = []
    for layer in (
        "type: 'SoftmaxWithLoss'",
        f"type: 'InfogainLoss' infogain_loss_param {{ source: '{tmp_path / 'h'}' }}",
    ):
        net = run_net(net_text(x.shape, y.shape, layer), x=x, y=y)
        results.append((net.blobs["loss"].data.copy(), net.backward()["x"].copy()))
    assert_allclose(results[1][0], results[0][0], rtol=1e-6)
    assert_allclose(results[1][1], results[0][1], rtol=1e-5, atol=1e-7)


def test_a_matrix_that_is_not_there_names_the_layer(tmp_path):
    layer = f"type: 'InfogainLoss' infogain_loss_param {{ source: '{tmp_path / 'none'}' }}"
    with pytest.raises(MissingFileError, match=r"layer 'loss' \(InfogainLoss\): .*none"):
        make_net(net_text((6, 4), (6,), layer))


def test_a_matrix_of_another_size_is_refused(tmp_path):
    write_matrix(tmp_path / "h", np.ones((3, 3)))
    layer = f"type: 'InfogainLoss' infogain_loss_param {{ source: '{tmp_path / 'h'}' }}"
    with pytest.raises(ModelError, match="'loss'.*matrix must be 4 x 4.*16 vs. 9 values"):
        make_net(net_text((6, 4), (6,), layer))


def test_what_is_no_matrix_is_refused(tmp_path):
    (tmp_path / "h").write_text("<html>")
    layer = f"type: 'InfogainLoss' infogain_loss_param {{ source: '{tmp_path / 'h'}' }}"
    with pytest.raises(ModelError, match="'loss'.*failed to parse BlobProto file .*HTML"):
        make_net(net_text((6, 4), (6,), layer))


# ---- MultinomialLogisticLoss -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "label"), [((5, 4), (5,)), ((3, 2, 4, 1), (3, 1, 1, 1)), ((2,), (2, 1))]
)
def test_multinomial_loss(ops, shape, label):
    x = np.random.default_rng(5).uniform(0.1, 1, size=shape)
    classes = int(np.prod(shape[1:]))
    y = labels(label, classes)

    def expect(x, y):
        flat = x.reshape(len(x), -1)
        picked = [flat[i, int(k)] for i, k in enumerate(y.reshape(-1))]
        return -np.log(picked).sum() / len(x)

    check_layer(
        ops,
        "type: 'MultinomialLogisticLoss'",
        bottoms=[shape, label],
        expect=expect,
        values=[x, y],
        gradients=[0],
    )


def test_probability_0_is_taken_for_1e_20(on_ops):
    net = make_net(net_text((1, 2), (1,), "type: 'MultinomialLogisticLoss'"))
    assert_allclose(net.forward(x=[[0, 1]], y=[0])["loss"], -np.log(1e-20), rtol=1e-6)
    assert_allclose(net.backward()["x"], [[-1e20, 0]], rtol=1e-6)


@pytest.mark.parametrize("type_name", ["MultinomialLogisticLoss", "HingeLoss"])
def test_one_label_a_row(on_ops, type_name):
    match = rf"'loss' \({type_name}\): number of labels must match .* \(6 vs. 30\)"
    with pytest.raises(ModelError, match=match):
        make_net(net_text((6, 4), (6, 5), f"type: '{type_name}'"))
    net = make_net(net_text((6, 4), (6, 1), f"type: '{type_name}'"))
    with pytest.raises(
        ModelError, match="'loss'.*label 4 is out of range: it is none of 4 classes"
    ):
        net.forward(x=np.ones((6, 4)), y=np.full((6, 1), 4))
    net = make_net(net_text((0, 4), (0,), f"type: '{type_name}'"))
    assert net.forward()["loss"] == 0
    net.backward()
