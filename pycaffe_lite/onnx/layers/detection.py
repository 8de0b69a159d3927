"""Boxes: those that a net starts from, and those that it finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import boxes
from ..registry import exports
from ..writer import LayerWriter

_NOTHING = float(np.finfo("float32").min)
"""A score that no detection has."""


@exports("PriorBox")
def prior_box(w: LayerWriter) -> None:
    """A constant: only sizes count."""
    if any(w.is_image_free(k) for k in range(2)):
        w.refuse("its boxes depend on the image's size", "fix the sizes")
    w.add("Identity", w.constant(w.made_of_shapes()), to=w.top[0])


@exports("DetectionOutput")
def detection_output(w: LayerWriter) -> None:
    """Decoding, then NonMaxSuppression of each class, its rows in Caffe's order and form."""
    param, heads = w.param, "--raw-heads makes its bottoms the results"
    if param.nms_param.eta < 1:
        w.refuse(f"a threshold that falls (eta: {param.nms_param.eta:g})", heads)
    layer: Any = w.layer
    labels = [k for k in range(layer.classes) if k != param.background_label_id]
    if not labels:
        w.refuse("there is no class but the background", heads)
    decoded = _decoded(w, layer.priors, layer.box_sets)
    scores = _scores(w, layer.classes, labels)
    candidates = _best(w, scores, layer.most, layer.priors)
    if param.share_location:
        decoded = w.add("Squeeze", decoded, w.integers(2))
        found = _suppressed(w, decoded, candidates)
    else:
        decoded = w.add("Gather", decoded, w.integers(*labels), axis=2)
        decoded = w.add("Transpose", decoded, perm=[0, 2, 1, 3])
        found = _suppressed_apart(w, decoded, candidates, layer.priors, len(labels))
    if param.keep_top_k >= 0:
        found = _best_of_images(w, found, candidates, layer.priors * len(labels))
    _rows(w, found, decoded, candidates, labels)


def _decoded(w: LayerWriter, priors: int, sets: int) -> str:
    """(N, P, L, 4): xmin, ymin, xmax, ymax, as boxes.decode says."""
    told = w.add("Reshape", w.bottom[0], w.integers(0, priors, sets, 4))
    both = w.add("Reshape", w.bottom[2], w.integers(2, priors, 1, 4))
    prior, variance = w.add_many("Split", [both, w.integers(1, 1)], [None, None], axis=0)
    if not w.param.variance_encoded_in_target:
        told = w.add("Mul", told, variance)
    if w.param.code_type == boxes.CORNER:
        return w.add("Add", told, prior)
    low, high = _halves(w, prior)
    size = w.add("Sub", high, low)
    if w.param.code_type == boxes.CORNER_SIZE:
        twice = w.add("Concat", size, size, axis=-1)
        return w.add("Add", w.add("Mul", told, twice), prior)
    half = w.constant(0.5)
    centre = w.add("Mul", w.add("Add", low, high), half)
    at, log_size = _halves(w, told)
    at = w.add("Add", w.add("Mul", at, size), centre)
    reach = w.add("Mul", w.add("Mul", w.add("Exp", log_size), size), half)
    return w.add("Concat", w.add("Sub", at, reach), w.add("Add", at, reach), axis=-1)


def _halves(w: LayerWriter, x: str) -> list[str]:
    """(..., 4) -> the first two of the last axis, and the others."""
    return w.add_many("Split", [x, w.integers(2, 2)], [None, None], axis=-1)


def _scores(w: LayerWriter, classes: int, labels: list[int]) -> str:
    """(N, C, P) of the classes but the background."""
    table = w.add("Reshape", w.bottom[1], w.integers(0, -1, classes))
    by_class = w.add("Transpose", table, perm=[0, 2, 1])
    if len(labels) == classes:
        return by_class
    return w.add("Gather", by_class, w.integers(*labels), axis=1)


def _best(w: LayerWriter, scores: str, most: int, priors: int) -> str:
    """The same, where each class has more than `most` scores the others no score at all."""
    if not 0 <= most < priors:
        return scores
    values, index = w.add_many("TopK", [scores, w.integers(most)], [None, None], axis=2)
    nothing = w.fill(w.add("Shape", scores), _NOTHING)
    return w.add("ScatterElements", nothing, index, values, axis=2)


def _suppressed(w: LayerWriter, decoded: str, scores: str) -> str:
    """(K, 3): image, class, prior, in Caffe's order: of a class the best first."""
    param = w.param
    threshold = param.confidence_threshold if param.HasField("confidence_threshold") else _NOTHING
    # A box that ends before it begins overlaps none, in Caffe; NonMaxSuppression would turn it.
    low, high = _halves(w, decoded)
    upright = w.add("Concat", low, w.add("Max", low, high), axis=-1)
    return w.add(
        "NonMaxSuppression",
        upright,
        scores,
        w.integers(2**31 - 1),
        w.constant([param.nms_param.nms_threshold]),
        w.constant([threshold]),
    )


def _suppressed_apart(w: LayerWriter, decoded: str, scores: str, priors: int, classes: int) -> str:
    """The same where each class has boxes of its own, (N, C, P, 4): each counts as an image."""
    flat = w.add("Reshape", decoded, w.integers(-1, priors, 4))
    found = _suppressed(w, flat, w.add("Reshape", scores, w.integers(-1, 1, priors)))
    both, _, prior = w.add_many("Split", [found, w.integers(1, 1, 1)], [None] * 3, axis=1)
    count = w.integers(classes)
    return w.add("Concat", w.add("Div", both, count), w.add("Mod", both, count), prior, axis=1)


def _best_of_images(w: LayerWriter, found: str, scores: str, size: int) -> str:
    """Of each image's rows the keep_top_k with the highest scores, in the order they are in."""
    shape = w.add("Shape", scores)
    values = w.add("GatherND", scores, found)
    kept = w.add("ScatterND", w.fill(shape, _NOTHING), found, values)
    flat = w.add("Reshape", kept, w.integers(0, -1))
    count = w.integers(min(int(w.param.keep_top_k), size))
    _, best = w.add_many("TopK", [flat, count], [None, None], axis=1)
    ones = w.fill(w.add("Shape", best), 1.0)
    none = w.fill(w.add("Shape", flat), 0.0)
    marked = w.add("ScatterElements", none, best, ones, axis=1)
    stays = w.add("GatherND", w.add("Reshape", marked, shape), found)
    index = w.add("Reshape", w.add("NonZero", stays), w.integers(-1))
    return w.add("Gather", found, index, axis=0)


def _rows(w: LayerWriter, found: str, decoded: str, scores: str, labels: list[int]) -> None:
    """(1, 1, K, 7); without any (1, 1, N, 7), each image's number and -1s behind it."""
    column = w.integers(-1, 1)
    image, label, prior = w.add_many("Split", [found, w.integers(1, 1, 1)], [None] * 3, axis=1)
    names = w.constant(labels)
    where = w.add("Concat", image, prior, axis=1) if w.param.share_location else found
    parts = [
        w.cast(image, "FLOAT"),
        w.add("Gather", names, label, axis=0),
        w.add("Reshape", w.add("GatherND", scores, found), column),
        w.add("GatherND", decoded, where),
    ]
    rows = w.add("Concat", *parts, axis=1)
    # As many rows of the other kind as there are images, or none where something was found.
    images = w.add("Slice", w.add("Shape", w.bottom[0]), w.integers(0), w.integers(1))
    one = w.integers(1)
    count = w.add("Slice", w.add("Shape", found), w.integers(0), one)
    is_empty = w.cast(w.add("Equal", count, w.integers(0)), "INT64")
    needed = w.add("Mul", images, is_empty)
    scalar = w.add("Squeeze", needed, w.integers(0))
    zero, step = w.constant(0, "int64"), w.constant(1, "int64")
    number = w.cast(w.add("Range", zero, scalar, step), "FLOAT")
    number = w.add("Reshape", number, column)
    minus = w.fill(w.add("Concat", needed, w.integers(6), axis=0), -1.0)
    empty = w.add("Concat", number, minus, axis=1)
    every = w.add("Concat", rows, empty, axis=0)
    w.add("Unsqueeze", every, w.integers(0, 1), to=w.top[0])
