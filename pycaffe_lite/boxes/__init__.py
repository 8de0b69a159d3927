"""Where do boxes lie, how far do they overlap, which of them stay? NumPy arrays on the host.

A box is (xmin, ymin, xmax, ymax) along the last axis, in [0, 1] of the image or, where `pixel` is
1, in pixels with the last one included. Semantics of SSD's and R-CNN's forks of Caffe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Boxes = np.ndarray[Any, Any]

CORNER, CENTER_SIZE, CORNER_SIZE = 1, 2, 3
"""How a box is told relative to a prior: PriorBoxParameter.CodeType."""

_BLOCK = 256


def sizes(boxes: Boxes, pixel: float = 0) -> Boxes:
    """(..., 4) -> (...): the areas; 0 for a box that ends before it begins."""
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return np.where((width < 0) | (height < 0), 0, (width + pixel) * (height + pixel))


def jaccard(a: Boxes, b: Boxes, pixel: float = 0) -> Boxes:
    """(N, 4), (M, 4) -> (N, M): the intersection of each pair over its union.

    0 where they do not share an area. Coordinates may be infinite; then it may be NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sides = []
        for low, high in ((0, 2), (1, 3)):
            end = np.minimum(a[:, None, high], b[:, high])
            end -= np.maximum(a[:, None, low], b[:, low])
            sides.append(end + pixel)
        shared = sides[0] * sides[1]
        union = sizes(a, pixel)[:, None] + sizes(b, pixel) - shared
        apart = (sides[0] <= 0) | (sides[1] <= 0)
        return np.where(apart, 0, shared / np.where(apart, 1, union))


def encode(boxes: Boxes, priors: Boxes, variances: Boxes | None, code: int) -> Boxes:
    """(..., 4) boxes as priors of that shape tell them; `variances` None: not divided by them."""
    if code == CENTER_SIZE:
        centre, size = _centred(boxes)
        prior_centre, prior_size = _centred(priors)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = ((centre - prior_centre) / prior_size, np.log(size / prior_size))
        told = np.concatenate(parts, axis=-1)
    else:
        told = boxes - priors
        if code == CORNER_SIZE:
            told = told / _doubled_size(priors)
    return told if variances is None else told / variances


def decode(told: Boxes, priors: Boxes, variances: Boxes | None, code: int) -> Boxes:
    """The inverse of `encode`: (..., 4) -> boxes, not clipped; too large ones are infinite."""
    if variances is not None:
        told = told * variances
    if code == CENTER_SIZE:
        prior_centre, prior_size = _centred(priors)
        with np.errstate(over="ignore", invalid="ignore"):
            centre = told[..., :2] * prior_size + prior_centre
            half = np.exp(told[..., 2:]) * prior_size / 2
            return np.concatenate((centre - half, centre + half), axis=-1)
    if code == CORNER_SIZE:
        told = told * _doubled_size(priors)
    return told + priors


def _centred(boxes: Boxes) -> tuple[Boxes, Boxes]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


def _doubled_size(boxes: Boxes) -> Boxes:
    size = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate((size, size), axis=-1)


def best_first(scores: Boxes, most: int = -1) -> Boxes:
    """(N,) -> the indices of the `most` (-1: all) highest scores, equal ones as they come."""
    order = np.argsort(-scores, kind="stable")
    return order if most < 0 else order[:most]


def suppress(
    boxes: Boxes, threshold: float, eta: float = 1, pixel: float = 0, most: int = -1
) -> Boxes:
    """Non-maximum suppression: boxes (N, 4), best first -> the indices of those kept.

    One is kept where its overlap with all kept before is at most the threshold. After each, a
    threshold above 0.5 is multiplied by `eta`. It ends when `most` are kept (-1: never).
    """
    left, kept = np.arange(len(boxes)), []
    worst = np.zeros(len(boxes))  # the largest overlap with a kept box
    while len(left):
        left = left[worst[left] <= threshold]
        heads = left[:_BLOCK]
        # A block at a time: all pairs of thousands of boxes would not fit into memory.
        overlaps = jaccard(boxes[heads], boxes[left], pixel)
        found = []
        near = worst[left]
        for k in range(len(heads)):
            if near[k] <= threshold:
                found.append(k)
                np.maximum(near, overlaps[k], out=near)
                if eta < 1 and threshold > 0.5:
                    threshold *= eta
        kept.append(heads[found])
        worst[left] = near
        left = left[len(heads) :]
        if 0 <= most <= sum(map(len, kept)):
            break
    order = np.concatenate(kept) if kept else left
    return order if most < 0 else order[:most]


@dataclass(frozen=True)
class PriorRules:
    """The boxes of one cell, in pixels, and how cells lie: PriorBox's parameters."""

    sizes: Sequence[tuple[float, float]]
    """(width, height) of each box of a cell, in order."""
    offset: float
    step: tuple[float, float]
    """(vertical, horizontal) distance of cells in pixels."""
    image: tuple[float, float]
    """(height, width)."""
    clip: bool


def prior_sizes(
    smallest: Sequence[float], largest: Sequence[float], ratios: Sequence[float]
) -> list[tuple[float, float]]:
    """For each smallest size: a square, one of sqrt(smallest * largest), one box a ratio but 1.

    Sizes are cut to whole numbers, as the original does. `largest` has as many or none.
    """
    found = []
    for k, size in enumerate(map(int, smallest)):
        found.append((float(size), float(size)))
        if largest:
            side = float(np.sqrt(float(size * int(largest[k]))))
            found.append((side, side))
        for ratio in ratios:
            if abs(ratio - 1) >= 1e-6:
                root = float(np.sqrt(ratio))
                found.append((size * root, size / root))
    return found


def prior_boxes(height: int, width: int, rules: PriorRules) -> Boxes:
    """(height * width * P, 4) boxes in [0, 1] of the image, cell by cell in rows."""
    y = (np.arange(height) + rules.offset) * rules.step[0]
    x = (np.arange(width) + rules.offset) * rules.step[1]
    centre = np.empty((height, width, 1, 2))
    centre[..., 0, 0], centre[..., 0, 1] = x, y[:, None]
    half = np.asarray(rules.sizes, "f8") / 2
    boxes = np.concatenate((centre - half, centre + half), axis=-1)
    boxes /= [rules.image[1], rules.image[0]] * 2
    return (np.clip(boxes, 0, 1) if rules.clip else boxes).reshape(-1, 4)


def pooling_bins(ends: Boxes, scale: float, bins: int, limit: int) -> tuple[Boxes, Boxes]:
    """One axis of regions, (R, 2) first and last pixel -> their bins, and which are well formed.

    The bins are (R, bins, 2) whole begins and ends in [0, limit], in single precision as in Fast
    R-CNN, so that edges on whole numbers fall as there. Not well formed: the last pixel before the
    first.
    """
    scaled = np.asarray(ends, "f4") * np.float32(scale)
    rounded = np.floor(np.abs(scaled) + np.float32(0.5)) * np.sign(scaled)
    start, end = rounded[:, :1], rounded[:, 1:]
    side = np.maximum(end - start + 1, 1) / np.float32(bins)
    k = np.arange(bins, dtype="f4")
    edges = np.stack((np.floor(k * side), np.ceil((k + 1) * side)), axis=2)
    return np.clip(edges + start[:, :, None], 0, limit).astype(int), (end >= start)[:, 0]


def anchors(base: float, ratios: Sequence[float], scales: Sequence[float]) -> Boxes:
    """(len(ratios) * len(scales), 4) boxes around the square of side `base` at the origin.

    For each ratio of height to width the square's area gives a width and a height, rounded (halves
    to even, as Faster R-CNN does), which are then scaled. Pixels, the last included.
    """
    widths = np.round(np.sqrt(base * base / np.asarray(ratios, "f8")))
    heights = np.round(widths * ratios)
    size = np.stack((widths, heights), axis=1)[:, None] * np.asarray(scales, "f8")[:, None]
    half = (size.reshape(-1, 2) - 1) / 2
    centre = (base - 1) / 2
    return np.concatenate((centre - half, centre + half), axis=1)


def regress(priors: Boxes, told: Boxes) -> Boxes:
    """Boxes in pixels, the last included, moved and scaled as (..., 4) deltas tell (R-CNN)."""
    size = priors[..., 2:] - priors[..., :2] + 1
    with np.errstate(over="ignore", invalid="ignore"):
        centre = told[..., :2] * size + priors[..., :2] + 0.5 * size
        half = 0.5 * np.exp(told[..., 2:]) * size
        return np.concatenate((centre - half, centre + half), axis=-1)
