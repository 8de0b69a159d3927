"""How does a net run on more samples than its batch? Arrays cut into pieces, results joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .errors import ModelError


class Parts:
    """The results of one batch after the other, copied."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}

    def add(self, results: dict[str, np.ndarray]) -> None:
        """Keep a copy of each; a scalar counts as one sample."""
        for name, value in results.items():
            copy = value.copy() if value.ndim else value.reshape(1).copy()
            self._parts.setdefault(name, []).append(copy)

    def joined(self, count: int) -> dict[str, np.ndarray]:
        """All parts of each name in a row, cut to `count` samples."""
        return {name: np.concatenate(parts)[:count] for name, parts in self._parts.items()}


def pieces(arrays: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Cut arrays of one length into pieces of `size` samples, the last one padded with zeros.

    At least one piece, so that no samples still give results, of no samples.
    """
    count = length(arrays)
    if size < 1:
        raise ModelError(f"the net's batch size is {size}: {count} samples cannot be cut into such")
    for start in range(0, max(count, 1), size):
        piece = {k: np.asarray(v[start : start + size]) for k, v in arrays.items()}
        short = size - len(next(iter(piece.values())))
        yield {
            k: np.concatenate([v, np.zeros((short, *v.shape[1:]), v.dtype)]) if short else v
            for k, v in piece.items()
        }


def length(arrays: dict[str, Any]) -> int:
    """The common length of the arrays' first axes; ModelError where there is none."""
    for name, value in arrays.items():
        if np.ndim(value) == 0:
            raise ModelError(f"input {name!r} is a scalar; its first axis should count samples")
    lengths = {name: len(value) for name, value in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ModelError(f"the inputs must have one common length, got {lengths}")
    return next(iter(lengths.values()), 0)


def check_names(arrays: dict[str, Any], expected: list[str], diff: bool) -> None:
    """ModelError unless exactly the expected inputs (with `diff` outputs) are given."""
    if set(arrays) != set(expected):
        what = "Top diff arguments do not match net outputs"
        what = what if diff else "Input blob arguments do not match net inputs"
        raise ModelError(f"{what}. Given: {sorted(arrays)}; the net has: {sorted(expected)}")
