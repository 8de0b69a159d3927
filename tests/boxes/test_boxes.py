"""Geometry of boxes against single boxes worked out in plain Python."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import boxes


def drawn(count, seed=3):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 0.7, size=(count, 2))
    return np.concatenate([corners, corners + rng.uniform(0.05, 0.3, size=(count, 2))], axis=1)


def overlap(a, b, pixel=0):
    w = min(a[2], b[2]) - max(a[0], b[0]) + pixel
    h = min(a[3], b[3]) - max(a[1], b[1]) + pixel
    if w <= 0 or h <= 0:
        return 0.0
    areas = [(x[2] - x[0] + pixel) * (x[3] - x[1] + pixel) for x in (a, b)]
    return w * h / (sum(areas) - w * h)


@pytest.mark.parametrize("pixel", [0, 1])
def test_jaccard(pixel):
    a, b = drawn(7), drawn(5, seed=4)
    if pixel:
        a, b = np.round(a * 40), np.round(b * 40)
    wanted = [[overlap(x, y, pixel) for y in b] for x in a]
    assert np.count_nonzero(wanted) > 3
    assert_allclose(boxes.jaccard(a, b, pixel), wanted, rtol=1e-12)


def test_a_box_without_area_overlaps_nothing():
    found = boxes.jaccard(np.array([[0.5, 0.5, 0.5, 0.5]]), np.array([[0.5, 0.5, 0.5, 0.5]]))
    assert found.tolist() == [[0]]


def test_sizes():
    found = boxes.sizes(np.array([[1, 1, 3, 4], [3, 1, 1, 4], [2, 2, 2, 2]]), 1)
    assert found.tolist() == [12, 0, 1]


@pytest.mark.parametrize("code", [boxes.CORNER, boxes.CENTER_SIZE, boxes.CORNER_SIZE])
@pytest.mark.parametrize("variance", [None, (0.1, 0.2, 0.3, 0.4)])
def test_encoding_and_decoding(code, variance):
    box, prior = [0.2, 0.3, 0.7, 0.8], [0.1, 0.2, 0.5, 0.9]
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    if code == boxes.CENTER_SIZE:
        told = [(0.45 - 0.3) / w, 0, log(0.5 / w), log(0.5 / h)]
    else:
        unit = [w, h, w, h] if code == boxes.CORNER_SIZE else [1] * 4
        told = [(b - p) / u for b, p, u in zip(box, prior, unit, strict=True)]
    told = [t / v for t, v in zip(told, variance or [1] * 4, strict=True)]
    given = None if variance is None else np.array(variance)
    assert_allclose(
        boxes.encode(np.array(box), np.array(prior), given, code), told, rtol=1e-9, atol=1e-12
    )
    assert_allclose(boxes.decode(np.array(told), np.array(prior), given, code), box, rtol=1e-9)


def test_decoding_what_is_far_too_large():
    found = boxes.decode(np.array([0, 0, 1e4, 0.0]), np.array([0, 0, 1, 1.0]), None, 2)
    assert found.tolist() == [-np.inf, 0, np.inf, exp(0)]
    assert len(boxes.suppress(np.array([found, found]), 0.5)) == 1


def kept_by_loop(given, threshold, eta):
    kept = []
    for k, box in enumerate(given):
        if all(overlap(box, given[j]) <= threshold for j in kept):
            kept.append(k)
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept


@pytest.mark.parametrize("threshold", [0, 0.3, 0.7])
@pytest.mark.parametrize("eta", [1, 0.9])
@pytest.mark.parametrize("count", [0, 1, 40, 300])
def test_suppressing(threshold, eta, count):
    given = drawn(count)
    wanted = kept_by_loop(given, threshold, eta)
    assert_array_equal(boxes.suppress(given, threshold, eta), wanted)
    assert_array_equal(boxes.suppress(given, threshold, eta, most=3), wanted[:3])


def test_the_best_come_first_and_equal_ones_as_they_are():
    scores = np.array([0.5, 0.9, 0.5, 0.1])
    assert boxes.best_first(scores).tolist() == [1, 0, 2, 3]
    assert boxes.best_first(scores, 2).tolist() == [1, 0]
    assert boxes.best_first(scores, 0).tolist() == []


def test_bins_of_regions_round_halves_away_from_0_and_include_both_ends():
    found, valid = boxes.pooling_bins(np.array([[2, 10], [-6, 6], [9, 3]]), 0.25, 2, 6)
    assert found.tolist() == [[[1, 3], [2, 4]], [[0, 1], [0, 3]], [[2, 3], [2, 3]]]
    assert valid.tolist() == [True, True, False]
