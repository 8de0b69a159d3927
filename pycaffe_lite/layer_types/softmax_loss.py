"""Losses of one class out of several: minus the logarithm of its probability."""

from __future__ import annotations

from math import prod
from typing import Any

from .. import prototxt
from ..blob import Blob, canonical_axis
from ..errors import ModelError
from ..ops.base import Array
from ..proto import caffe_pb2
from ..weights.stored_blob import from_message
from .loss import (
    _Loss,
    _NormalizedLoss,
    check_label_count,
    check_one_label_each,
    class_indices,
    rows,
)

SMALLEST = 2.0**-126
"""The least normal float32, Caffe's bound under the logarithm of SoftmaxWithLoss."""
TINY = 1e-20
"""The same for MultinomialLogisticLoss and InfogainLoss."""


class _SoftmaxLoss(_NormalizedLoss):
    """A softmax over one axis and a loss of its probabilities, one label a location.

    A subclass gives the locations' losses and the gradient of the scores. Tops: the loss, the
    probabilities, each location's loss (in the labels' shape). Gradients of all three count.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self._probs, self._index = Blob(), Blob(dtype="int32")

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        self.axis = canonical_axis(self.param.axis, shape)
        self.size = (prod(shape[: self.axis]), shape[self.axis], prod(shape[self.axis + 1 :]))
        check_label_count("softmax", bottom, self.size)
        self._probs.reshape(shape)
        self._index.reshape(self.size[0], 1, self.size[2])
        for y, like in zip(top[1:], bottom, strict=False):
            y.reshape(like.shape)

    def forward(self, bottom: Any, top: Any) -> None:
        x, labels = bottom[0].data, bottom[1].data
        probs, index = self.state(self._probs), self.state(self._index)
        found = class_indices(self.ops, labels, self.size[1], self.ignored)
        index[...] = found.reshape(index.shape)
        if x.size:
            self.ops.softmax(x, self.axis, probs)
        losses = self._losses(probs.reshape(self.size), index, bottom)
        if self.ignored is not None:
            self.xp.copyto(losses, 0, where=index < 0)
        top[0].data[...] = losses.sum() / self._divisor(index)
        for y, value in zip(top[1:], (probs, losses), strict=False):
            y.data[...] = value.reshape(y.shape)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        probs, index = self.state(self._probs), self.state(self._index)
        dx, scale = bottom[0].diff, self.share(top[0].diff, self._divisor(index))
        if len(top) > 2:
            scale = scale + top[2].diff.reshape(index.shape)
        scores = dx.reshape(self.size)
        self._gradient(probs.reshape(self.size), index, scale, bottom, scores)
        if self.ignored is not None:
            self.xp.copyto(scores, 0, where=index < 0)
        if len(top) > 1:
            more = self.xp.empty_like(probs)
            dx += self.ops.softmax_backward(probs, top[1].diff, self.axis, more)

    def _losses(self, probs: Array, index: Array, bottom: Any) -> Array:
        """(outer, K, inner) probabilities, (outer, 1, inner) labels -> losses shaped as labels."""
        raise NotImplementedError

    def _gradient(self, probs: Array, index: Array, scale: Any, bottom: Any, out: Array) -> None:
        """Each location's gradient by its scores, times `scale` -> out (outer, K, inner)."""
        raise NotImplementedError

    def _divisor(self, index: Array) -> Any:
        valid = None if self.ignored is None else index >= 0
        return self.divisor(self.size[0], self.size[2], valid)


class SoftmaxWithLoss(_SoftmaxLoss):
    """L = sum(-log(max(p, 2^-126))) / norm, p the label's softmax over `axis` (1).

    Scores (..., K, ...) and one label a location, in any shape of that count and first dimension.
    dx = (p - onehot) / norm, times the weight, 0 at loss_param's `ignore_label`. norm: VALID unless
    `normalization` (or old `normalize`) says otherwise. Further tops: the probabilities (two tops
    always fail in the original) and, as in R-FCN, each location's loss. SegNet's
    `weight_by_label_freqs` multiplies each location's loss by `class_weighting[label]`, not norm.
    Raises ModelError for a label that is no class and for another number of labels.
    """

    param_field = "softmax_param"
    tops = (1, 3)

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param = self.spec.loss_param
        self._weights: Blob | None = None
        if param.weight_by_label_freqs:
            self._weights = Blob((len(param.class_weighting),))
            self._weights.data[...] = param.class_weighting

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        if self._weights is not None and self._weights.count != self.size[1]:
            raise ModelError(
                "class_weighting must be given once per class:"
                f" {self._weights.count} values for {self.size[1]} classes"
            )

    def _losses(self, probs: Array, index: Array, bottom: Any) -> Array:
        xp = self.xp
        p = xp.take_along_axis(probs, xp.maximum(index, 0), axis=1)
        losses = -xp.log(xp.maximum(p, SMALLEST))
        return losses if self._weights is None else losses * self._weight_of(index)

    def _gradient(self, probs: Array, index: Array, scale: Any, bottom: Any, out: Array) -> None:
        xp, (outer, _, inner) = self.xp, self.size
        if self._weights is not None:
            scale = scale * self._weight_of(index)
        xp.multiply(probs, scale, out=out)
        at = (xp.arange(outer).reshape(-1, 1), xp.maximum(index[:, 0], 0), xp.arange(inner))
        out[at] -= xp.broadcast_to(scale, index.shape)[:, 0]

    def _weight_of(self, index: Array) -> Array:
        assert self._weights is not None
        return self.xp.take(self.state(self._weights), self.xp.maximum(index, 0))


class InfogainLoss(_SoftmaxLoss):
    """L = -sum(H[label, k] log(max(p_k, 1e-20))) / norm, p the softmax over `axis` (1).

    H (K, K) is a third bottom, or else the BlobProto in the binary file `source`. With the identity
    for H this is SoftmaxWithLoss, whose docstring tells the rest;
    dx_k = (p_k sum_j H[label, j] - H[label, k]) / norm. Old `normalize` is an error, a file that is
    not there MissingFileError.
    """

    bottoms = (2, 3)
    tops = (1, 2)
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        if self.spec.loss_param.HasField("normalize"):
            raise ModelError("normalize is deprecated and not read here; use normalization")
        super().setup(bottom, top)
        self._matrix: Blob | None = None
        if len(bottom) == 2:
            values = self._read(self.param.source)
            self._matrix = Blob(values.shape)
            self._matrix.data[...] = values

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        matrix, classes = bottom[2] if self._matrix is None else self._matrix, self.size[1]
        if matrix.count != classes * classes:
            raise ModelError(
                f"the infogain matrix must be {classes} x {classes}, as there are {classes}"
                f" classes: {classes * classes} vs. {matrix.count} values"
            )

    def allow_force_backward(self, index: int) -> bool:
        return index == 0

    def _losses(self, probs: Array, index: Array, bottom: Any) -> Array:
        gain = self._gains(index, bottom)
        gain *= self.xp.log(self.xp.maximum(probs, TINY))
        return -gain.sum(axis=1, keepdims=True)

    def _gradient(self, probs: Array, index: Array, scale: Any, bottom: Any, out: Array) -> None:
        gain = self._gains(index, bottom)
        self.xp.multiply(probs, gain.sum(axis=1, keepdims=True), out=out)
        out -= gain
        out *= scale

    def _gains(self, index: Array, bottom: Any) -> Array:
        """A copy of each label's row of H: (outer, K, inner)."""
        matrix = bottom[2].data if self._matrix is None else self.state(self._matrix)
        matrix = matrix.reshape(self.size[1], self.size[1])
        return self.xp.take(matrix.T, self.xp.maximum(index[:, 0], 0), axis=1).swapaxes(0, 1)

    def _read(self, source: str) -> Any:
        if not source:
            raise ModelError("infogain matrix source must be specified, or given as third bottom")
        return from_message(prototxt.read_binary(source, caffe_pb2.BlobProto)).array()


class MultinomialLogisticLoss(_Loss):
    """L = -sum(log(max(p, 1e-20))) / N, p the label's of N rows of probabilities.

    x: (N, ...), flattened to rows; one label a row. dx = -1 / (max(p, 1e-20) N) at the label,
    times the weight, 0 elsewhere. Raises ModelError for another number of labels and for a label
    that is no index into a row.
    """

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self._index = Blob(dtype="int32")

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        check_one_label_each(bottom)
        self._index.reshape(bottom[0].shape[0])

    def forward(self, bottom: Any, top: Any) -> None:
        x, index = rows(bottom[0].data), self.state(self._index)
        index[...] = class_indices(self.ops, bottom[1].data.reshape(len(x)), x.shape[1])
        p = x[self.xp.arange(len(x)), index]
        total = self.xp.log(self.xp.maximum(p, TINY)).sum()
        top[0].data[...] = -total / max(len(x), 1)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        x, dx = rows(bottom[0].data), rows(bottom[0].diff)
        at = (self.xp.arange(len(x)), self.state(self._index))
        dx[...] = 0
        dx[at] = -top[0].diff / max(len(x), 1) / self.xp.maximum(x[at], TINY)
