"""Layers that join and cut blobs along one axis."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod
from typing import Any

from ..blob import canonical_axis, describe
from ..errors import ModelError
from ..layer import Layer

Shape = tuple[int, ...]


class Concat(Layer):
    """The bottoms one behind another along `axis` (1; `concat_dim` in old files).

    The other dimensions must be equal. A single bottom shares its values with the top.
    """

    bottoms = (1, None)

    def reshape(self, bottom: Any, top: Any) -> None:
        first = bottom[0].shape
        self.axis = _axis(self.param, "concat_dim", first)
        for k, x in enumerate(bottom):
            _check_joins(self.axis, first, x.shape, k)
        sizes = [x.shape[self.axis] for x in bottom]
        top[0].reshape(*first[: self.axis], sum(sizes), *first[self.axis + 1 :])
        self.parts = _parts(self.axis, sizes)
        if len(bottom) == 1:
            top[0].share_data(bottom[0])

    def forward(self, bottom: Any, top: Any) -> None:
        if len(bottom) == 1:
            return  # the top has the bottom's values already
        y = top[0].data
        for x, part in zip(bottom, self.parts, strict=True):
            y[part] = x.data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        dy = top[0].diff
        for x, part, wanted in zip(bottom, self.parts, propagate_down, strict=True):
            if wanted:
                x.diff[...] = dy[part]


class Slice(Layer):
    """The bottom cut along `axis` (1; `slice_dim` in old files), a top each piece.

    `slice_point` has the tops - 1 positions where to cut, increasing; without any the pieces are of
    one size. A single top shares the bottom's values.
    """

    tops = (1, None)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self.axis = _axis(self.param, "slice_dim", shape)
        sizes = _sizes(shape[self.axis], list(self.param.slice_point), len(top))
        for y, size in zip(top, sizes, strict=True):
            y.reshape(*shape[: self.axis], size, *shape[self.axis + 1 :])
        self.parts = _parts(self.axis, sizes)
        if len(top) == 1:
            top[0].share_data(bottom[0])

    def forward(self, bottom: Any, top: Any) -> None:
        if len(top) == 1:
            return  # the top has the bottom's values already
        x = bottom[0].data
        for y, part in zip(top, self.parts, strict=True):
            y.data[...] = x[part]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            for y, part in zip(top, self.parts, strict=True):
                dx[part] = y.diff


class Tile(Layer):
    """The bottom `tiles` times, one behind another along `axis` (1); dx is the tiles' sum."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.tiles = self.param.tiles
        if self.tiles < 1:
            raise ModelError(f"number of tiles must be positive, got {self.tiles}")

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(self.param.axis, shape)
        top[0].reshape(*shape[:axis], shape[axis] * self.tiles, *shape[axis + 1 :])
        self.outer, self.inner = prod(shape[:axis]), prod(shape[axis:])

    def forward(self, bottom: Any, top: Any) -> None:
        x = bottom[0].data.reshape(self.outer, 1, self.inner)
        self._tiles(top[0].data)[...] = x

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff.reshape(self.outer, self.inner)
            self.xp.sum(self._tiles(top[0].diff), axis=1, out=dx)

    def _tiles(self, array: Any) -> Any:
        return array.reshape(self.outer, self.tiles, self.inner)


def _axis(param: Any, old: str, shape: Shape) -> int:
    """The axis that the file names, by `axis` or by the field of before 2014."""
    if param.HasField("axis") and param.HasField(old):
        raise ModelError(
            f"either axis or {old} should be specified; not both:"
            f" {param.axis} and {getattr(param, old)}"
        )
    return canonical_axis(getattr(param, old) if param.HasField(old) else param.axis, shape)


def _check_joins(axis: int, first: Shape, shape: Shape, k: int) -> None:
    if len(shape) != len(first):
        raise ModelError(
            f"all inputs must have the same #axes: {len(first)} of bottom 0 vs. {len(shape)} of"
            f" bottom {k}"
        )
    if any(a != b for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis):
        raise ModelError(
            f"all inputs must have the same shape, except at concat_axis ({axis}):"
            f" `{describe(first)}` of bottom 0 vs. `{describe(shape)}` of bottom {k}"
        )


def _sizes(size: int, points: list[int], count: int) -> list[int]:
    """How much of an axis of that size each of `count` pieces gets."""
    if not points:
        if size % count:
            raise ModelError(
                f"number of top blobs ({count}) should evenly divide input slice axis ({size})"
            )
        return [size // count] * count
    if len(points) != count - 1:
        raise ModelError(
            f"{len(points)} slice_point values for {count} tops; there must be {count - 1}"
        )
    cuts = [0, *points, size]
    if any(a >= b for a, b in pairwise(cuts[:-1])) or points[-1] > size:
        raise ModelError(
            f"slice_point values must increase strictly and lie within the slice axis ({size}),"
            f" got {points}"
        )
    return [b - a for a, b in pairwise(cuts)]


def _parts(axis: int, sizes: Iterable[int]) -> list[tuple[slice, ...]]:
    """The index of each piece in an array cut along `axis` into pieces of those sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append((slice(None),) * axis + (slice(start, start + size),))
        start += size
    return parts
