"""Layers that pick items of a batch, and one that ignores them."""

from __future__ import annotations

from typing import Any

from ..blob import describe
from ..errors import ModelError
from ..layer import Layer
from ..ops.base import Ops

_HOST = Ops()


class Filter(Layer):
    """Of each bottom but the last the items whose selector, the last bottom, is not 0, in order.

    The selector has one value an item. How many items there are is known in forward only: until
    then the tops have the whole batch; afterwards there may be none. The selector's values are read
    on the host, a small download where a device has computed them. It has no gradient: to ask for
    one is an error.
    """

    bottoms = (2, None)
    tops = (1, None)

    def setup(self, bottom: Any, top: Any) -> None:
        if len(top) != len(bottom) - 1:
            raise ModelError(
                f"{len(bottom) - 1} bottoms and a selector need as many tops, got {len(top)}"
            )
        self.items = -1
        self.kept: Any = None  # indices on the host; None where all are kept

    def reshape(self, bottom: Any, top: Any) -> None:
        selector = bottom[-1].shape
        if selector[:1] != (bottom[-1].count,):
            raise ModelError(
                f"the selector must have one value an item, all axes but the first must be 1:"
                f" `{describe(selector)}`"
            )
        for k, x in enumerate(bottom):
            if x.shape[:1] != selector[:1]:
                raise ModelError(
                    f"each bottom should have the same 0th dimension as the selector: bottom {k} is"
                    f" `{describe(x.shape)}`, the selector `{describe(selector)}`"
                )
        if selector[0] != self.items:
            self.items, self.kept = selector[0], None
        self._shape_tops(bottom, top)

    def _shape_tops(self, bottom: Any, top: Any) -> None:
        count = self.items if self.kept is None else len(self.kept)
        for x, y in zip(bottom, top, strict=False):
            y.reshape(count, *x.shape[1:])

    def _index(self) -> Any:
        return slice(None) if self.kept is None else self.ops.from_host(self.kept)

    def forward(self, bottom: Any, top: Any) -> None:
        selector = host_values(bottom[-1]).reshape(self.items)
        self.kept = selector.nonzero()[0]
        self._shape_tops(bottom, top)
        index = self._index()
        for x, y in zip(bottom, top, strict=False):
            y.data[...] = x.data[index]

    def allow_force_backward(self, index: int) -> bool:
        return index < len(self.spec.bottom) - 1

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[-1]:
            raise ModelError("the selector has no gradient; set propagate_down: false for it")
        index = self._index()
        for x, y, wanted in zip(bottom, top, propagate_down, strict=False):
            if wanted:
                dx = x.diff
                dx[...] = 0
                dx[index] = y.diff


class BatchReindex(Layer):
    """y[i] = x[index[i]]: items of bottom[0] in the order of bottom[1], a list with one axis.

    An item may come several times, its gradients add up, or not at all. Indices must lie in
    0 <= index < N. They have no gradient: to ask for one is an error.
    """

    bottoms = 2
    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, index = bottom[0].shape, bottom[1].shape
        if len(index) != 1:
            raise ModelError(f"the list of indices must have 1 axis, got {len(index)}")
        if not shape:
            raise ModelError("the blob to take items of has 0 axes; it must have 1 or more")
        top[0].reshape(*index, *shape[1:])

    def forward(self, bottom: Any, top: Any) -> None:
        x = bottom[0].data
        top[0].data[...] = x[index_values(self.ops, bottom[1].data, x.shape[0])]

    def allow_force_backward(self, index: int) -> bool:
        return index == 0

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[1]:
            raise ModelError("the indices have no gradient; set propagate_down: false for them")
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            self.xp.add.at(dx, bottom[1].data.astype("int64"), top[0].diff)


class Silence(Layer):
    """Nothing: its bottoms are no outputs of the net any more. Their gradients are 0."""

    bottoms = (1, None)
    tops = 0

    def forward(self, bottom: Any, top: Any) -> None:
        """Nothing."""

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for x, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                x.diff[...] = 0


def host_values(bottom: Any) -> Any:
    """A bottom's values on the host, read only: a copy only where a device has computed them."""
    return bottom.blob.array(_HOST, write=False)


def index_values(ops: Ops, values: Any, limit: int) -> Any:
    """Values as integers, rounded to zero. ModelError for one not in 0 <= index < limit."""
    wrong = ops.first_outside(values, 0, limit)
    if wrong is not None:
        raise ModelError(f"index {wrong:g} out of range: 0 <= index < {limit} must hold")
    return values.astype("int64")
