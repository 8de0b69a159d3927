"""Layers that hand values on, some under another shape, and compute nothing."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from ..blob import canonical_axis, describe
from ..errors import ModelError
from ..layer import Layer

Shape = tuple[int, ...]


class Split(Layer):
    """Each top is the bottom, in the bottom's own storage; dx is the sum of the tops' gradients.

    Nets insert it by themselves after a blob with several consumers. A top that a later layer
    overwrites in place is a copy, so that the others keep their values (in Caffe they change).
    """

    tops = (1, None)
    copied: frozenset[int] = frozenset()
    """The tops that are copies: the net says which."""
    _owned: frozenset[int] = frozenset()

    def reshape(self, bottom: Any, top: Any) -> None:
        for k, y in enumerate(top):
            y.reshape(bottom[0].shape)
            if k not in self.copied:
                y.share_data(bottom[0])
            elif k not in self._owned:
                y.own_data()
        self._owned = self.copied

    def forward(self, bottom: Any, top: Any) -> None:
        for k in self.copied:
            top[k].data[...] = bottom[0].data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dx = bottom[0].diff
        dx[...] = top[0].diff
        for y in top[1:]:
            dx += y.diff


class _Reshaped(Layer):
    """The top is the bottom under another shape, in the bottom's own storage; dx = dy.

    Gradients are copied (Caffe shares their storage too), so that one not asked for stays as it is.
    """

    def new_shape(self, shape: Shape) -> Shape:
        raise NotImplementedError

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(self.new_shape(bottom[0].shape))
        top[0].share_data(bottom[0])

    def forward(self, bottom: Any, top: Any) -> None:
        """Nothing: the top shares the bottom's values."""

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.reshape(bottom[0].shape)


class Flatten(_Reshaped):
    """The axes from `axis` (1) to `end_axis` (-1), both included, become one.

    The top shares the bottom's values. Not in place.
    """

    def new_shape(self, shape: Shape) -> Shape:
        """`shape` with those axes made one."""
        start = canonical_axis(self.param.axis, shape)
        end = canonical_axis(self.param.end_axis, shape)
        if end < start:
            raise ModelError(f"end_axis {end} must not come before axis {start}")
        return (*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :])


class Reshape(_Reshaped):
    """`num_axes` (-1: all) axes from `axis` (0) on are replaced by the dimensions `shape { dim }`.

    A dim of 0 copies the bottom's, counted from `axis`; one of -1 is what remains. A negative
    `axis` counts the gaps between axes from the end: axis -1 with num_axes 0 appends axes. The top
    shares the bottom's values. Not in place. Raises ModelError where the counts differ. In an empty
    batch -1 is inferred from the dims that are not copied (Caffe divides by zero).
    """

    def setup(self, bottom: Any, top: Any) -> None:
        self.dims = tuple(self.param.shape.dim)
        if self.dims.count(-1) > 1:
            raise ModelError(
                f"new shape contains multiple -1 dims ({self.dims.count(-1)}); at most a single"
                " (1) value of -1 may be specified"
            )
        if min(self.dims, default=0) < -1:
            raise ModelError(f"new shape has dim {min(self.dims)}; none may be less than -1")
        if self.param.num_axes < -1:
            raise ModelError(f"num_axes must be >= 0, or -1 for all, got {self.param.num_axes}")

    def new_shape(self, shape: Shape) -> Shape:
        """`shape` with the axes of the range replaced."""
        start, end = self._range(shape)
        dims = [self._copied(shape, start + i) if d == 0 else d for i, d in enumerate(self.dims)]
        if -1 in dims:
            at = dims.index(-1)
            dims[at] = _remaining(shape[start:end], dims[:at] + dims[at + 1 :])
        new = (*shape[:start], *dims, *shape[end:])
        if prod(new) != prod(shape):
            raise ModelError(
                f"output count must match input count ({prod(new)} vs. {prod(shape)}):"
                f" `{describe(new)}` from `{describe(shape)}`"
            )
        return new

    def _range(self, shape: Shape) -> tuple[int, int]:
        axis, count, axes = self.param.axis, self.param.num_axes, len(shape)
        start = axis if axis >= 0 else axes + axis + 1
        if not 0 <= start <= axes:
            raise ModelError(
                f"axis {axis} out of range for {axes}-D blob with shape `{describe(shape)}`"
            )
        end = axes if count == -1 else start + count
        if end > axes:
            raise ModelError(
                f"num_axes {count} from axis {start} on reaches beyond the {axes} axes of"
                f" `{describe(shape)}`"
            )
        return start, end

    def _copied(self, shape: Shape, axis: int) -> int:
        if axis >= len(shape):
            raise ModelError(
                "new shape contains a 0, but there was no corresponding bottom axis to copy:"
                f" axis {axis} of {len(shape)} axes"
            )
        return shape[axis]


def _remaining(old: Shape, known: list[int]) -> int:
    """The dimension that makes the product of `known` and itself the product of `old`.

    Common dimensions cancel first, so that an empty axis that is kept does no harm.
    """
    common = Counter(old) & Counter(known)
    count = prod((Counter(old) - common).elements())
    explicit = prod((Counter(known) - common).elements())
    if explicit == 0 or count % explicit:
        raise ModelError(
            f"bottom count ({prod(old)}) must be divisible by the product of the specified"
            f" dimensions ({prod(known)})"
        )
    return count // explicit


class Unsqueeze(_Reshaped):
    """The bottom with an axis of size 1 put in at `dim` (0), from the end where negative."""

    def new_shape(self, shape: Shape) -> Shape:
        """`shape` with a 1 at that axis."""
        axis = canonical_axis(self.param.dim, (*shape, 1))
        return (*shape[:axis], 1, *shape[axis:])
