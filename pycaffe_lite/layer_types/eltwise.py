"""Several blobs of one shape, combined element by element."""

from __future__ import annotations

from typing import Any

from ..blob import describe
from ..errors import ModelError
from ..layer import Layer


class Eltwise(Layer):
    """y = PROD, SUM (the default, each bottom times its `coeff`, 1) or MAX of the bottoms.

    MAX: the gradient goes to the largest; of equal ones to bottom 1 before bottom 0, and to these
    two before any later one. PROD: dx_i = dy * the other bottoms' product, whatever
    `stable_prod_grad` says: Caffe's other way, dy * y / x_i, is the same but NaN where x_i is 0.
    """

    bottoms = (2, None)

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.op = param.EltwiseOp.Name(param.operation)
        self.coeffs = list(param.coeff)
        if self.coeffs and self.op == "PROD":
            raise ModelError(
                f"coefficients are for summation only: {len(self.coeffs)} with operation PROD"
            )
        if len(self.coeffs) not in (0, len(bottom)):
            raise ModelError(
                f"there must be one coefficient per bottom blob: {len(self.coeffs)} vs."
                f" {len(bottom)}"
            )
        self.keeps_bottom = self.op != "SUM"  # type: ignore[misc]  # the others read no values

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        for k, x in enumerate(bottom):
            if x.shape != shape:
                raise ModelError(
                    f"all inputs must have the same shape: `{describe(shape)}` of bottom 0 vs."
                    f" `{describe(x.shape)}` of bottom {k}"
                )
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        xs, y = [x.data for x in bottom], top[0].data
        if self.op == "SUM":
            self._sum(xs, y)
            return
        if self.op == "MAX":
            self._maximum(xs, y)
            return
        self.xp.multiply(xs[0], xs[1], out=y)
        for x in xs[2:]:
            y *= x

    def _maximum(self, xs: list[Any], y: Any) -> None:
        """Not xp.maximum: against NaN Caffe's comparisons have another winner."""
        y[...] = xs[1]
        self.xp.copyto(y, xs[0], where=xs[0] > xs[1])
        for x in xs[2:]:
            self.xp.copyto(y, x, where=x > y)

    def _sum(self, xs: list[Any], y: Any) -> None:
        if not self.coeffs:
            self.xp.add(xs[0], xs[1], out=y)
            for x in xs[2:]:
                y += x
            return
        self.xp.multiply(xs[0], self.coeffs[0], out=y)
        for x, coeff in zip(xs[1:], self.coeffs[1:], strict=True):
            y += x if coeff == 1 else coeff * x

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        dy, xs = top[0].diff, [x.data for x in bottom] if self.op != "SUM" else []
        winner = self._winner(xs) if self.op == "MAX" and any(propagate_down) else None
        for k, (x, wanted) in enumerate(zip(bottom, propagate_down, strict=True)):
            if not wanted:
                continue
            dx = x.diff
            if self.op == "MAX":
                dx[...] = self.xp.where(winner == k, dy, 0)
            elif self.op == "PROD":
                dx[...] = dy
                for other in (*xs[:k], *xs[k + 1 :]):
                    dx *= other
            else:
                self.xp.multiply(dy, self.coeffs[k] if self.coeffs else 1, out=dx)

    def _winner(self, xs: list[Any]) -> Any:
        """Which bottom has the largest value, an index an element."""
        winner = self.xp.where(xs[0] > xs[1], 0, 1)
        best = self.xp.where(winner, xs[1], xs[0]) if len(xs) > 2 else None
        for k, x in enumerate(xs[2:], 2):
            winner = self.xp.where(x > best, k, winner)
            best = self.xp.where(x > best, x, best)
        return winner
