"""Matching and mining on tables small enough to work out by eye."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite.boxes.matching import IGNORED, Matches, MiningRules, match, mine

TABLE = np.array([[0.9, 0.8], [0.6, 0.2], [0.0, 0.55], [1e-7, 0.0]])
NONE_LEFT_OUT = np.zeros(4, bool)


@pytest.mark.parametrize(
    ("threshold", "wanted"),
    [(None, [0, -1, 1, -1]), (0.6, [0, 0, 1, -1]), (0.7, [0, -1, 1, -1]), (0, [0, 0, 1, -1])],
)
def test_each_object_takes_a_prior_then_priors_take_objects(threshold, wanted):
    found, near = match(TABLE, threshold, NONE_LEFT_OUT)
    assert found.tolist() == wanted
    assert near.tolist() == [0.9, 0.6, 0.55, 0]


def test_a_prior_that_is_left_out():
    found, near = match(TABLE, 0.1, np.array([True, False, False, False]))
    assert found.tolist() == [IGNORED, 0, 1, -1]
    assert near.tolist() == [0, 0.6, 0.55, 0]


def test_a_prior_matched_to_its_second_best_object_has_that_overlap():
    found, near = match(np.array([[0.9, 0.8], [0.85, 0]]), None, np.zeros(2, bool))
    assert found.tolist() == [0, -1]
    assert near.tolist() == [0.9, 0.85]
    found, near = match(np.array([[0.7, 0.8], [0.9, 0]]), None, np.zeros(2, bool))
    assert found.tolist() == [1, 0]
    found, near = match(np.array([[0.8, 0.7], [0.9, 0], [0, 0.1]]), None, np.zeros(3, bool))
    assert found.tolist() == [1, 0, -1]
    assert near.tolist() == [0.7, 0.9, 0.1]


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_nothing_to_match(shape):
    found, near = match(np.zeros(shape), 0.5, np.zeros(shape[0], bool))
    assert found.tolist() == [-1] * shape[0]
    assert near.tolist() == [0] * shape[0]


LOSSES = np.array([0.1, 0.9, 0.5, 0.7, 0.5])


def mined(**rules):
    given = dict(hard=False, neg_pos_ratio=2, neg_overlap=0.5, sample_size=3, nms_threshold=0,
                 nms_top_k=-1)  # fmt: skip
    found = np.array([0, -1, -1, IGNORED, -1])
    matches = Matches(np.zeros((1, 8)), {0: found}, {0: np.array([0.9, 0.5, 0.2, 0, 0.1])})
    places = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [4, 4, 5, 5], [2, 2, 3, 2]])
    mine(matches, LOSSES, {0: places}, MiningRules(**{**given, **rules}))
    return matches.negatives, found.tolist()


def test_the_hardest_negatives_far_from_objects():
    assert mined() == ([2, 4], [0, -1, -1, IGNORED, -1])
    assert mined(neg_pos_ratio=1.9)[0] == [2]
    assert mined(neg_overlap=0.6)[0] == [1, 2]


def test_the_hardest_of_all():
    assert mined(hard=True) == ([1, 2], [-1, -1, -1, IGNORED, -1])
    assert mined(hard=True, sample_size=5) == ([1, 2, 4], [0, -1, -1, IGNORED, -1])


def test_suppression_takes_those_that_lie_on_harder_ones_and_boxes_without_area():
    hard = dict(hard=True, sample_size=5, nms_threshold=0.5)
    assert mined(**hard) == ([1, 2], [-1, -1, -1, IGNORED, -1])
    assert mined(**hard, nms_top_k=1)[0] == [1]
