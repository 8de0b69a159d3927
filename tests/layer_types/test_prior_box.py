"""PriorBox against a loop over cells and boxes; sizes given in all ways; what is refused."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose

from pycaffe_lite import ModelError

CASES = {
    "min_size: 9": dict(sizes=[(9, 9)]),
    "min_size: 9.7 max_size: 16.5": dict(sizes=[(9, 9), (12, 12)]),
    "min_size: 9 aspect_ratio: [2, 1, 2, 0.5, 3] flip: false": dict(
        sizes=[(9, 9), *((9 * sqrt(r), 9 / sqrt(r)) for r in (2, 0.5, 3))]
    ),
    "min_size: 9 aspect_ratio: [2, 0.5] offset: 0.25 clip: true": dict(
        sizes=[(9, 9), *((9 * sqrt(r), 9 / sqrt(r)) for r in (2, 0.5))], offset=0.25, clip=True
    ),
    # https://github.com/Tencent/ncnn/issues/239
    "min_size: [4, 9] max_size: [9, 16] aspect_ratio: 4 flip: false step_h: 3 step_w: 5": dict(
        sizes=[(4, 4), (6, 6), (8, 2), (9, 9), (12, 12), (18, 4.5)], step=(3, 5)
    ),
    "min_size: 9 img_h: 40 img_w: 50 step: 7 variance: [0.1, 0.2, 0.3, 0.4]": dict(
        sizes=[(9, 9)], image=(40, 50), step=(7, 7), variance=[0.1, 0.2, 0.3, 0.4]
    ),
    "min_size: 9 img_size: 30": dict(sizes=[(9, 9)], image=(30, 30)),
}


def priors(cells, image, sizes, offset=0.5, step=None, clip=False, variance=(0.1,) * 4):
    (height, width), (image_height, image_width) = cells, image
    step = step or (image_height / height, image_width / width)
    boxes = []
    for row in range(height):
        for column in range(width):
            y, x = (row + offset) * step[0], (column + offset) * step[1]
            for w, h in sizes:
                corners = [(x - w / 2) / image_width, (y - h / 2) / image_height,
                           (x + w / 2) / image_width, (y + h / 2) / image_height]  # fmt: skip
                boxes += [min(max(v, 0), 1) for v in corners] if clip else corners
    return np.array([[boxes, list(variance) * (len(boxes) // 4)]])


@pytest.mark.parametrize("param", CASES)
def test_prior_box(ops, param):
    def expect(cells, image):
        rules = {"image": image.shape[2:], **CASES[param]}
        return priors(cells.shape[2:], **rules)

    check_layer(
        ops,
        f"type: 'PriorBox' prior_box_param {{ {param} }}",
        bottoms=[(1, 2, 3, 4), (1, 3, 24, 36)],
        expect=expect,
        gradients=[],
    )


def net_of(param, shape=(1, 2, 3, 4)):
    dims = " ".join(f"dim: {d}" for d in shape)
    return make_net(
        f"input: 'x' input_shape {{ {dims} }} input: 'image' input_shape {{ dim: [1, 3, 24, 36] }}"
        " layer { name: 'prior' type: 'PriorBox' bottom: 'x' bottom: 'image' top: 'y'"
        f" prior_box_param {{ {param} }} }}"
    )


def test_another_size_of_the_map_makes_other_boxes(on_ops):
    net = net_of("min_size: 6")
    for height, width in ((3, 4), (2, 5), (3, 4), (4, 3)):
        net.blobs["x"].reshape(1, 2, height, width)
        wanted = priors((height, width), (24, 36), [(6, 6)])
        assert_allclose(net.forward()["y"], wanted, rtol=1e-5, atol=1e-6)


def test_an_empty_map_has_no_boxes(on_ops):
    assert net_of("min_size: 6", (1, 2, 0, 4)).forward()["y"].shape == (1, 2, 0)


def test_what_comes_before_gets_no_gradient(on_ops):
    net = make_net(
        "force_backward: true input: 'x' input_shape { dim: [1, 2, 3, 4] }"
        " layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'r' } layer { name: 'prior'"
        " type: 'PriorBox' bottom: 'r' bottom: 'r' top: 'y' prior_box_param { min_size: 1 } }"
    )
    net.forward(x=np.ones((1, 2, 3, 4)))
    assert (net.backward(y=np.ones((1, 2, 48)))["x"] == 0).all()


REFUSED = {
    "": "must provide min_size",
    "min_size: -3": "min_size must be positive, got -3",
    "min_size: [3, 4] max_size: 5": "one max_size for each min_size, or none: 1 for 2",
    "min_size: 3 max_size: 2": "max_size must be greater than min_size, got 2 for 3",
    "min_size: 3 variance: [1, 2]": "exactly 4 variance, got 2",
    "min_size: 3 variance: -1": "variance must be positive, got -1",
    "min_size: 3 aspect_ratio: 0": "aspect_ratio must be positive, got 0",
    "min_size: 3 img_size: 3 img_h: 3": "either img_size or img_h/img_w should be specified",
    "min_size: 3 step: 3 step_h: 3": "either step or step_h/step_w should be specified",
    "min_size: 3 step_h: 3": r"step or step_h and step_w must be positive, got \(3.0, 0.0\)",
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_refused(param):
    with pytest.raises(ModelError, match=rf"layer 'prior' \(PriorBox\): .*{REFUSED[param]}"):
        net_of(param)
    with pytest.raises(ModelError, match=r"'prior'.*must have 4 axes .*, got `2 3 \(6\)`"):
        net_of("min_size: 3", (2, 3))


def test_sizes_beyond_all_images_make_boxes_all_the_same():
    boxes = net_of("min_size: 1e38 max_size: 3e38").forward()["y"]
    assert (np.abs(boxes[0, 0]) > 1e30).all()


@pytest.mark.parametrize("size", ["nan", "inf"])
def test_sizes_that_are_no_numbers_are_refused(size):
    with pytest.raises(ModelError, match=r"layer 'prior' \(PriorBox\): cannot convert float"):
        net_of(f"min_size: {size}")
