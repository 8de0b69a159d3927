"""Layers that boil axes down: to a sum or mean, or to where the largest values are."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import canonical_axis
from ..errors import ModelError
from ..layer import Layer


class Reduction(Layer):
    """y = coeff * (SUM of x, ASUM |x|, SUMSQ x^2, or MEAN) over all axes from `axis` (0) on.

    The top has the axes before. The derivative of |x| at 0 is 0; the MEAN of nothing is 0.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.op = param.ReductionOp.Name(param.operation)
        self.keeps_bottom = self.op in ("ASUM", "SUMSQ")  # type: ignore[misc]  # not for others

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(self.param.axis, shape)
        top[0].reshape(shape[:axis])
        self.rows, self.size = prod(shape[:axis]), prod(shape[axis:])
        self.coeff = self.param.coeff
        if self.op == "MEAN":
            self.coeff /= max(self.size, 1)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = self._rows(bottom[0].data), top[0].data.reshape(self.rows)
        if self.op == "ASUM":
            x = self.xp.abs(x)
        elif self.op == "SUMSQ":
            x = x * x
        self.xp.sum(x, axis=1, out=y)
        y *= self.coeff

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dx = self._rows(bottom[0].diff)
        dy = self.coeff * top[0].diff.reshape(self.rows, 1)
        if self.op == "ASUM":
            self.xp.multiply(self.xp.sign(self._rows(bottom[0].data)), dy, out=dx)
        elif self.op == "SUMSQ":
            self.xp.multiply(self._rows(bottom[0].data), 2 * dy, out=dx)
        else:
            dx[...] = dy

    def _rows(self, array: Any) -> Any:
        return array.reshape(self.rows, self.size)


class ArgMax(Layer):
    """The indices of the `top_k` (1) largest values, as floats; of equal values the later first.

    Without `axis` an item's values count as one list: the top is (N, 1, top_k), or (N, 2, top_k)
    with `out_max_val`, indices and then the values themselves, and has as many axes as the bottom,
    of 1, where that has more. With `axis` the top is the bottom with top_k on that axis: the
    indices, or with `out_max_val` only the values. There is no gradient: backward is an error.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        self.top_k = self.param.top_k
        if self.top_k < 1:
            raise ModelError(f"top_k must not be less than 1, got {self.top_k}")

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self.by_axis = self.param.HasField("axis")
        if self.by_axis:
            self.axis = canonical_axis(self.param.axis, shape)
            size = shape[self.axis]
            new = (*shape[: self.axis], self.top_k, *shape[self.axis + 1 :])
        else:
            canonical_axis(0, shape)
            self.axis, size = 1, prod(shape[1:])
            rows = 2 if self.param.out_max_val else 1
            new = (shape[0], rows, self.top_k, *(1,) * (len(shape) - 3))
        if self.top_k > size:
            raise ModelError(
                f"top_k must be less than or equal to the number of classes: {self.top_k} vs."
                f" {size}"
            )
        top[0].reshape(new)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if self.by_axis:
            index = self._largest(x)
            y[...] = self._values(x, index) if self.param.out_max_val else index
            return
        x = x.reshape(x.shape[0], prod(x.shape[1:]))
        y = y.reshape(y.shape[:3])
        index = self._largest(x)
        y[:, 0] = index
        if self.param.out_max_val:
            y[:, 1] = self._values(x, index)

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            raise ModelError("ArgMax has no gradient; set propagate_down: false")

    def _largest(self, x: Any) -> Any:
        """Indices along the axis of the top_k largest values, in that order."""
        size = x.shape[self.axis]
        if self.top_k == 1:
            first = self.xp.argmax(self.xp.flip(x, self.axis), axis=self.axis)
            return size - 1 - self.xp.expand_dims(first, self.axis)
        order = self.xp.argsort(x, axis=self.axis, kind="stable")
        last_first = slice(None, -self.top_k - 1, -1)
        return order[(slice(None),) * self.axis + (last_first,)]

    def _values(self, x: Any, index: Any) -> Any:
        return self.xp.take_along_axis(x, index, axis=self.axis)
