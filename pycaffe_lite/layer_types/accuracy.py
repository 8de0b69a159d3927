"""How often is the true class among the best scores, and how well is an image segmented?"""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import Blob, canonical_axis
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


class SegAccuracy(Layer):
    """PSPNet's figures of a segmentation: top (1, 1, 1, 3) with the share of right locations and
    the means over the classes of right ones over all of the class, and over all of the class or
    taken for it.

    Scores (N, K, H, W); the first of the greatest is the class taken. Labels, one a location, that
    are in `ignore_label` are left out; a class with nothing to divide by is not in the mean. With
    `reset: false` the figures are of all forwards so far. No gradient. Raises ModelError for a
    label that is no class. (`metric` changes nothing, as in the original.)
    """

    bottoms = 2

    def setup(self, bottom: Any, top: Any) -> None:
        self._counts = Blob(dtype="int32")
        self._classes = -1

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        axis = canonical_axis(1, shape)
        self.size = (shape[0], shape[axis], prod(shape[axis + 1 :]))
        if self.size[1] < 1:
            raise ModelError(f"at least 1 class is needed, got {self.size[1]}")
        check_label_count("label", bottom, self.size)
        if shape[axis] != self._classes:
            self._classes = shape[axis]
            self._counts.reshape(self._classes, self._classes)
            self._counts.data[...] = 0
        top[0].reshape(1, 1, 1, 3)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, classes = self.xp, self.size[1]
        counts = self.state(self._counts)
        if self.param.reset:
            counts[...] = 0
        index = self._labels(bottom[1].data, classes).reshape(-1)
        if index.size:
            taken = bottom[0].data.reshape(self.size).argmax(axis=1).reshape(-1)
            bins = xp.where(index < 0, classes**2, index * classes + taken)
            found = xp.zeros(classes**2 + 1, dtype="int32")  # one more for what is left out
            xp.add.at(found, bins, 1)
            counts += found[:-1].reshape(classes, classes)
        right, true, chosen = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
        top[0].data[0, 0, 0, 0] = right.sum() / xp.maximum(true.sum(), 1)
        for k, total in ((1, true), (2, true + chosen - right)):
            shares = right / xp.maximum(total, 1)
            top[0].data[0, 0, 0, k] = shares.sum() / xp.maximum((total > 0).sum(), 1)

    def _labels(self, labels: Array, classes: int) -> Array:
        """The labels as int32, -1 where they are left out."""
        ignored = list(self.param.ignore_label)
        for other in ignored[1:]:
            labels = self.xp.where(self.xp.trunc(labels) == other, ignored[0], labels)
        return class_indices(self.ops, labels, classes, ignored[0] if ignored else None)

    def allow_force_backward(self, index: int) -> bool:
        return False
