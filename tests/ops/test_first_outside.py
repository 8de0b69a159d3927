"""Which label or index is out of range? Asked on every backend, against a loop."""

from __future__ import annotations

import numpy as np
import pytest

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "also", "expect"),
    [
        ([[0, 4, 3], [2, 1, 0]], None, None),
        ([[0, 5, 3], [-1, 1, 0]], None, 5),
        ([[0, 4, 3], [-1, 1, 7]], None, -1),
        ([[0, 4, 3], [-1, 1, 7]], -1, 7),
        ([[0, 255, 3], [255, 1, 0]], 255, None),
        ([[0, 2, 3], [-1, 1, 0]], 2, -1),  # what may be besides may be inside as well
        ([4.9, -0.9], None, None),  # fractions are cut off, as by C's (int)
        ([4.9, -1.9], -1, None),
        ([1, float("inf")], None, float("inf")),
        (3, None, None),
        (7, None, 7),
        ([], None, None),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_first_value_outside(ops, values, also, expect, dtype):
    array = ops.from_host(np.array(values, dtype))
    assert ops.first_outside(array, 0, 5, also) == expect


def test_nan_is_outside(ops):
    array = ops.from_host(np.array([1, NAN, 9], np.float32))
    assert np.isnan(ops.first_outside(array, 0, 5, 9))


def test_integers_are_looked_at_too(ops):
    array = ops.from_host(np.array([[1, 2, 3]], np.int32))
    assert ops.first_outside(array, 0, 4) is None
    assert ops.first_outside(array, 0, 3) == 3


def test_a_device_counts_one_wait(ops):
    counters = getattr(ops, "counters", None)
    array = ops.from_host(np.arange(6, dtype=np.float32))
    if counters is not None:
        counters.reset()
        ops.first_outside(array, 0, 6)
        ops.first_outside(array, 0, 3)
        assert (counters.waits, counters.syncs, counters.downloads) == (2, 0, 0)
