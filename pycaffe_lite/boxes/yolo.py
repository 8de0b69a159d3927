"""What does a map of YOLO v2 or v3 say? Boxes, classes and scores, in NumPy arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Maps = np.ndarray[Any, Any]


def detections(
    maps: Maps,
    anchors: Sequence[tuple[float, float]],
    scale: float,
    threshold: float,
    exclusive: bool = False,
) -> Maps:
    """(A, 5 + K, H, W) of one image, A anchors (width, height) in pixels, `scale` pixels a cell.

    -> (R, 6) float64, a row for each cell and anchor whose score is above the threshold: the class
    (0 to K - 1), the score, and the box (xmin, ymin, xmax, ymax) in the image's size. Of the 5 + K
    channels 4 tell the box: the logits of its centre within the cell, the logarithms of its size in
    anchors; then the logit of there being an object, and one for each class. The score is the
    product of the latter's and the best class's sigmoid; its softmax where classes are `exclusive`.
    """
    told = maps.astype(np.float64)
    height, width = told.shape[2:]
    best = told[:, 5:].argmax(axis=1)
    certain = np.take_along_axis(told[:, 5:], best[:, None], axis=1)[:, 0]
    if exclusive:
        of_class = 1 / np.exp(told[:, 5:] - certain[:, None]).sum(axis=1)
    else:
        of_class = _sigmoid(certain)
    score = _sigmoid(told[:, 4]) * of_class
    a, row, column = np.nonzero(score > threshold)
    of_box = told[a, :4, row, column]
    centre = (_sigmoid(of_box[:, :2]) + np.stack([column, row], axis=1)) / [width, height]
    with np.errstate(over="ignore"):
        half = (
            np.exp(of_box[:, 2:]) * np.array(anchors)[a] / (2.0 * scale * np.array([width, height]))
        )
    at = (a, row, column)
    return np.column_stack([best[at], score[at], centre - half, centre + half])


def _sigmoid(x: Maps) -> Maps:
    return 0.5 * np.tanh(0.5 * x) + 0.5
