"""How often is the true class among the best scores?"""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import canonical_axis
from ..errors import ModelError
from ..layer import Layer
from ..ops.base import Array
from .loss import check_label_count, class_indices


class Accuracy(Layer):
    """The share of locations whose true class is among the `top_k` (1) greatest scores.

    Scores (..., K, ...) with K classes on `axis` (1), one label a location; those with
    `ignore_label` are left out, and nothing left gives 0. Ties count against the true class, and
    so does NaN (which the original takes for correct). Tops: the share, a scalar, and if named the
    same for each class (K), 0 for a class without labels. No gradient. Raises ModelError for a
    label that is no class.
    """

    bottoms = 2
    tops = (1, 2)

    def setup(self, bottom: Any, top: Any) -> None:
        self.top_k = self.param.top_k
        self.ignored = self.param.ignore_label if self.param.HasField("ignore_label") else None

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(self.param.axis, shape)
        self.size = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        classes = shape[axis]
        if not 1 <= self.top_k <= classes:
            raise ModelError(
                "top_k must be less than or equal to the number of classes, and at least 1:"
                f" top_k {self.top_k}, {classes} classes"
            )
        check_label_count("label", bottom, self.size)
        top[0].reshape(())
        if len(top) > 1:
            top[1].reshape(classes)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, (outer, classes, inner) = self.xp, self.size
        x = bottom[0].data.reshape(self.size)
        index = class_indices(self.ops, bottom[1].data, classes, self.ignored)
        index = index.reshape(outer, 1, inner)
        true = xp.take_along_axis(x, xp.maximum(index, 0), axis=1)
        worse = (x < true).sum(axis=1, keepdims=True)  # not "better >= true": NaN is no merit
        counted = index >= 0
        correct = (worse >= classes - self.top_k) & counted
        top[0].data[...] = correct.sum() / xp.maximum(counted.sum(), 1)
        if len(top) > 1:
            top[1].data[...] = self._per_class(index, correct)

    def allow_force_backward(self, index: int) -> bool:
        return False

    def _per_class(self, index: Array, correct: Array) -> Array:
        """(K): correct labels of each class over all labels of it."""
        xp, classes = self.xp, self.size[1]
        bins = xp.where(index < 0, classes, index).reshape(-1)  # one more for what is left out
        total = xp.zeros(classes + 1, dtype="int32")
        hits = xp.zeros(classes + 1, dtype="int32")
        xp.add.at(total, bins, 1)
        xp.add.at(hits, bins, correct.reshape(-1).astype("int32"))
        return hits[:classes] / xp.maximum(total[:classes], 1)
