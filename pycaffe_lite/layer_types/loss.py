"""What do losses have in common, and which ones compare inputs without a softmax?"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from ..blob import Blob, canonical_axis
from ..errors import ModelError
from ..layer import Arity, Layer
from ..ops.base import Array, Ops
from ..proto import caffe_pb2


def class_indices(ops: Ops, labels: Array, classes: int, ignored: int | None = None) -> Array:
    """Labels as int32, fractions cut off; -1 where a label is `ignored`.

    Raises ModelError for a label that is neither a class nor `ignored`.
    """
    wrong = ops.first_outside(labels, 0, classes, ignored)
    if wrong is not None:
        besides = "" if ignored is None else f", nor ignore_label {ignored}"
        raise ModelError(
            f"label {wrong:g} is out of range: it is none of {classes} classes"
            f" (0 to {classes - 1}){besides}"
        )
    index = labels.astype("int32")
    if ignored is not None:
        ops.xp.copyto(index, -1, where=index == ignored)
    return index


class _Loss(Layer):
    """Predictions and labels -> a scalar; its weight, 1 by default, arrives as the top's diff."""

    bottoms: ClassVar[Arity] = 2
    loss = True

    def reshape(self, bottom: Any, top: Any) -> None:
        _check_equal(
            "data and label should have the same first dimension",
            *(b.shape[canonical_axis(0, b.shape)] for b in bottom[:2]),
        )
        top[0].reshape(())

    def allow_force_backward(self, index: int) -> bool:
        return index != 1

    def check_asked(self, propagate_down: Any) -> bool:
        """True where the predictions want a gradient; ModelError where anything else does."""
        if any(propagate_down[1:]):
            what = "label" if propagate_down[1] else "infogain"
            raise ModelError(f"{self.type} layer cannot backpropagate to {what} inputs")
        return bool(propagate_down[0])


class _NormalizedLoss(_Loss):
    """A loss over locations, those with `ignore_label` left out, divided as `loss_param` says.

    FULL: by all locations; VALID: by those not left out; BATCH_SIZE: by the axes in front; NONE:
    by 1; PRE_FIXED, R-FCN's: by `pre_fixed_normalizer`; never by less than 1.
    """

    default_normalization = "VALID"

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.spec.loss_param
        self.ignored = param.ignore_label if param.HasField("ignore_label") else None
        self.normalization = self.default_normalization
        if param.HasField("normalization"):
            modes = caffe_pb2.LossParameter.NormalizationMode
            self.normalization = modes.Name(param.normalization)
        elif param.HasField("normalize"):
            self.normalization = "VALID" if param.normalize else "BATCH_SIZE"

    def divisor(self, outer: int, inner: int, valid: Array | None) -> Any:
        """What the sum over (outer, inner) locations is divided by; a 0-d array where counted."""
        if self.normalization == "VALID" and valid is not None:
            return self.xp.maximum(valid.sum(), 1)
        if self.normalization == "BATCH_SIZE":
            return max(outer, 1)
        if self.normalization == "PRE_FIXED":
            return max(self.spec.loss_param.pre_fixed_normalizer, 1)
        return 1 if self.normalization == "NONE" else max(outer * inner, 1)

    def share(self, weight: Array, divisor: Any) -> Array:
        """weight / divisor, in the weight's precision whatever the divisor's."""
        return (weight / divisor).astype(weight.dtype)


class EuclideanLoss(_Loss):
    """L = sum((a - b)^2) / 2N, N the first dimension; da = (a - b) / N = -db, times the weight.

    Shapes may differ behind the first axis where their counts do not; any number of axes. An empty
    batch has loss 0.
    """

    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        a, b = (prod(x.shape[1:]) for x in bottom)
        _check_equal("inputs must have the same dimension", a, b)

    def forward(self, bottom: Any, top: Any) -> None:
        a = bottom[0].data
        gap = a - bottom[1].data.reshape(a.shape)
        gap *= gap
        top[0].data[...] = gap.sum() / (2 * max(len(a), 1))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        a = bottom[0].data
        b = bottom[1].data.reshape(a.shape)
        scale = top[0].diff / max(len(a), 1)
        for k, sign in ((0, 1), (1, -1)):
            if propagate_down[k]:
                dx = bottom[k].diff.reshape(a.shape)
                self.xp.subtract(a, b, out=dx)
                dx *= sign * scale

    def allow_force_backward(self, index: int) -> bool:
        return True


class HingeLoss(_Loss):
    """L = sum(h) / N (`norm: L1`) or sum(h^2) / N (L2), h = max(0, 1 + s x), s = -1 at the label.

    x: (N, ...), flattened to N rows of scores, s = 1 elsewhere; one label a row. dx = s [h > 0] / N
    or 2 s h / N, times the weight. Raises ModelError for another number of labels and for a label
    that is no score's index.
    """

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.squared = self.param.norm == self.param.L2
        self._index = Blob(dtype="int32")

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        check_one_label_each(bottom)
        self._index.reshape(bottom[0].shape[0])

    def forward(self, bottom: Any, top: Any) -> None:
        x = rows(bottom[0].data)
        index = self.state(self._index)
        index[...] = class_indices(self.ops, bottom[1].data.reshape(len(x)), x.shape[1])
        h = self._hinge(x, index, self.xp.empty_like(x))
        if self.squared:
            h *= h
        top[0].data[...] = h.sum() / max(len(x), 1)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        xp, x, dx = self.xp, rows(bottom[0].data), rows(bottom[0].diff)
        index = self.state(self._index)
        self._hinge(x, index, dx)
        if not self.squared:
            xp.sign(dx, out=dx)
        dx *= top[0].diff * (2 if self.squared else 1) / max(len(x), 1)
        at = (xp.arange(len(x)), index)
        dx[at] = -dx[at]

    def _hinge(self, x: Array, index: Array, out: Array) -> Array:
        """max(0, 1 + s x) -> out."""
        at = (self.xp.arange(len(x)), index)
        self.xp.add(x, 1, out=out)
        out[at] = 1 - x[at]
        return self.xp.maximum(out, 0, out=out)


class ContrastiveLoss(_Loss):
    """L = sum(e) / 2N: e = d^2 where y is not 0, max(margin - d, 0)^2 where it is; d = |a - b|.

    a, b: (N, C) or (N, C, 1, 1); y: one value a pair, its fraction cut off. With `legacy_version`
    e = max(margin - d^2, 0) for y = 0. da = -db: (a - b) / N, or for y = 0 and e > 0
    -(a - b) (margin - d) / (d + 1e-4) / N, legacy -(a - b) / N; times the weight.
    """

    bottoms = 3
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.margin, self.legacy = self.param.margin, self.param.legacy_version

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        a, b, y = (x.shape for x in bottom)
        for shape in (a, b):
            if len(shape) < 2 or prod(shape[2:]) != 1:
                raise ModelError(f"inputs to compare must be (N, C) or (N, C, 1, 1), got {shape}")
        _check_equal("inputs must have the same dimension", a[1], b[1])
        _check_equal("each pair needs one label: pairs and labels", a[0], prod(y))

    def forward(self, bottom: Any, top: Any) -> None:
        _, square, similar = self._pairs(bottom)
        e = self.xp.where(similar, square, self._short(square) ** (1 if self.legacy else 2))
        top[0].data[...] = e.sum() / (2 * max(len(e), 1))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[2]:
            raise ModelError(f"{self.type} layer cannot backpropagate to label inputs")
        gap, square, similar = self._pairs(bottom)
        short = self._short(square)
        # 1e-4 is Caffe's, against d = 0
        away = self.xp.sign(short) if self.legacy else short / (self.xp.sqrt(square) + 1e-4)
        scale = top[0].diff / max(len(gap), 1)
        gap *= self.xp.where(similar, scale, -scale * away).reshape(-1, 1)
        for k, sign in ((0, 1), (1, -1)):
            if propagate_down[k]:
                self.xp.multiply(gap, sign, out=rows(bottom[k].diff))

    def allow_force_backward(self, index: int) -> bool:
        return index != 2

    def _pairs(self, bottom: Any) -> tuple[Array, Array, Array]:
        """a - b (N, C), its squared length (N), and whether the pair is similar (N)."""
        a, b, y = (x.data for x in bottom)
        gap = rows(a) - rows(b)
        return gap, (gap * gap).sum(axis=1), self.xp.trunc(y).reshape(len(a)) != 0

    def _short(self, square: Array) -> Array:
        """By how much each pair is nearer than the margin."""
        distance = square if self.legacy else self.xp.sqrt(square)
        return self.xp.maximum(self.margin - distance, 0)


def rows(array: Array) -> Array:
    """The array as (N, D): all axes behind the first in one."""
    return array.reshape(array.shape[0], prod(array.shape[1:]))


def check_one_label_each(bottom: Any) -> None:
    """ModelError unless bottom[1] has one label for each item of bottom[0]."""
    _check_equal(
        "number of labels must match number of items: items and labels",
        bottom[0].shape[0],
        prod(bottom[1].shape),
    )


def check_label_count(axis: str, bottom: Any, size: tuple[int, int, int]) -> None:
    """ModelError unless bottom[1] has one label for each (outer, inner) location of bottom[0]."""
    outer, classes, inner = size
    if prod(bottom[1].shape) != outer * inner:
        raise ModelError(
            "number of labels must match number of predictions; e.g., if"
            f" {axis} axis == 1 and prediction shape is (N, C, H, W), label count (number of"
            " labels) must be N*H*W, with integer values in {0, 1, ..., C-1}. Predictions"
            f" {bottom[0].shape} with {classes} classes vs. labels {bottom[1].shape}:"
            f" {outer * inner} vs. {prod(bottom[1].shape)}"
        )


def _check_equal(what: str, first: int, second: int) -> None:
    if first != second:
        raise ModelError(f"{what} ({first} vs. {second})")
