"""BoxAnnotatorOHEM against a loop over images."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net

from pycaffe_lite import ModelError


def chosen(regions, losses, labels, weights, count, ignored):
    new_labels, new_weights = np.full(labels.shape, ignored, float), np.zeros(weights.shape)
    for image in set(regions[:, 0].reshape(-1)):
        places = [
            (-losses[(r, 0, *at)], r, at)
            for r in range(len(losses))
            for at in np.ndindex(*losses.shape[2:])
            if regions[(r, 0, *at)] == image
        ]
        for _, r, at in sorted(places)[:count]:
            new_labels[(r, 0, *at)] = labels[(r, 0, *at)]
            new_weights[(r, slice(None), *at)] = weights[(r, slice(None), *at)]
    return new_labels, new_weights


@pytest.mark.parametrize(("count", "ignored"), [(2, -1), (3, 255), (100, -1)])
@pytest.mark.parametrize("places", [(), (1, 1), (2, 3)])
def test_the_hardest_regions_of_each_image(ops, count, ignored, places):
    rng = np.random.default_rng(4)
    regions = np.broadcast_to(rng.integers(0, 2, (9, 1, *[1] * len(places))), (9, 5, *places))
    losses = rng.integers(0, 5, (9, 1, *places)) / 4
    values = [
        regions.astype(float), losses, rng.integers(0, 4, losses.shape).astype(float),
        rng.uniform(size=(9, 4, *places)),
    ]  # fmt: skip
    check_layer(
        ops,
        "type: 'BoxAnnotatorOHEM' box_annotator_ohem_param"
        f" {{ roi_per_img: {count} ignore_label: {ignored} }}",
        bottoms=[x.shape for x in values],
        expect=lambda *x: chosen(*x, count, ignored),
        tops=2,
        values=values,
        gradients=[],
    )


def net_of(shapes, param="roi_per_img: 2"):
    inputs = "".join(
        f" input: 'x{k}' input_shape {{ dim: {list(s)} }}" for k, s in enumerate(shapes)
    )
    bottoms = "".join(f" bottom: 'x{k}'" for k in range(len(shapes)))
    return make_net(
        f"{inputs} layer {{ name: 'ohem' type: 'BoxAnnotatorOHEM' {bottoms} top: 'labels'"
        f" top: 'weights' box_annotator_ohem_param {{ {param} }} }}"
    )


SHAPES = [(3, 5), (3, 1), (3,), (3, 4)]


def test_no_regions(on_ops):
    out = net_of([(0, 5), (0, 1), (0,), (0, 4)]).forward()
    assert out["labels"].shape == (0,)
    assert out["weights"].shape == (0, 4)


def test_what_is_refused():
    start = r"'ohem' \(BoxAnnotatorOHEM\): "
    with pytest.raises(ModelError, match=start + "roi_per_img must be > 0, got 0"):
        net_of(SHAPES, "roi_per_img: 0")
    with pytest.raises(ModelError, match=start + r"losses must be 1 .* 3 x 1 .*, got `2 1 \(2\)`"):
        net_of([SHAPES[0], (2, 1), *SHAPES[2:]])
    with pytest.raises(ModelError, match=start + r"weights must be \(R, C, ...\), got `3 \(3\)`"):
        net_of([*SHAPES[:3], (3,)])


def test_the_choice_has_no_gradient():
    net = make_net(
        "input: 'r' input_shape { dim: [3, 5] } layer { name: 'ip' type: 'InnerProduct'"
        " bottom: 'r' top: 'h' inner_product_param { num_output: 1 } } layer { name: 'ohem'"
        " type: 'BoxAnnotatorOHEM' bottom: 'r' bottom: 'h' bottom: 'h' bottom: 'r' top: 'a'"
        " top: 'b' box_annotator_ohem_param { roi_per_img: 1 } } layer { name: 'sum'"
        " type: 'Reduction' bottom: 'b' top: 'sum' loss_weight: 1 }"
    )
    net.forward()
    with pytest.raises(ModelError, match="'ohem'.*the choice has no gradient"):
        net.backward()
