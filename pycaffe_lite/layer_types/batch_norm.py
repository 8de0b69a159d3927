"""Normalisation to mean 0 and variance 1: over a batch, or within each image."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..proto import caffe_pb2
from .activation import _is_in_place


class BatchNorm(Layer):
    """y = (x - mean) / sqrt(variance + eps), each channel (axis 1) by its own moments.

    Those of the batch, or stored ones with `use_global_stats` (default: in phase TEST). Parameters:
    sums of means (C) and of variances (C), and the factor (1) that both are divided by; where that
    is 0, so are the moments. With the batch's moments each forward first multiplies all three by
    `moving_average_fraction` and then adds: the mean, the variance times m / (m - 1) where m > 1
    values a channel are seen, and 1. They do not learn. Scale and shift are a Scale layer's. eps is
    1e-5, the fraction 0.999. May run in place. ModelError for 1 axis, for another number of
    channels, and for lr_mult != 0.
    """

    in_place = True
    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, bottom[0].shape
        for k, spec in enumerate(self.spec.param):
            if spec.HasField("lr_mult") and spec.lr_mult != 0:
                raise ModelError(
                    "cannot configure batch normalization statistics as layer parameters: param"
                    f" {k} has lr_mult {spec.lr_mult:g}, which must be 0"
                )
        self._check_axes(shape)
        given = param.HasField("use_global_stats")
        self.is_global = param.use_global_stats if given else self.phase == self.TEST
        if param.update_global_stats and self.is_global:
            raise ModelError("update_global_stats with stored moments is not available")
        self.fraction, self.eps = param.moving_average_fraction, param.eps
        self.channels = shape[1]
        zero = caffe_pb2.FillerParameter(type="constant")
        for count in (self.channels, self.channels, 1):
            self.add_param((count,), zero, learns=False)
        self._inverse = Blob((self.channels,))  # 1 / sqrt(variance + eps)
        if self.is_global:
            self.writes_params = self.keeps_top = False  # type: ignore[misc]

    def _check_axes(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self._check_axes(shape)
        if shape[1] != self.channels:
            raise ModelError(
                f"the statistics are those of {self.channels} channels; the bottom has {shape[1]}"
            )
        top[0].reshape(shape)
        self.axes = (0, *range(2, len(shape)))
        self.wide = (self.channels, *[1] * (len(shape) - 2))

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if not bottom[0].count:
            return
        mean = self._stored(0) if self.is_global else x.mean(axis=self.axes)
        self.xp.subtract(x, mean.reshape(self.wide), out=y)
        variance = self._stored(1) if self.is_global else (y * y).mean(axis=self.axes)
        if not self.is_global:
            self._update(mean, variance, bottom[0].count // self.channels)
        inverse = self.state(self._inverse)
        self.xp.divide(1, self.xp.sqrt(variance + self.eps), out=inverse)
        y *= inverse.reshape(self.wide)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0] or not bottom[0].count:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.is_global:
            dx[...] = dy
        else:
            _centred_gradient(self.xp, top[0].data, dy, self.axes, dx)
        dx *= self.state(self._inverse).reshape(self.wide)

    def _stored(self, index: int) -> Any:
        """The stored mean (0) or variance (1) of each channel."""
        factor = self.params[2].data
        is_unset = factor == 0
        return self.params[index].data * self.xp.where(
            is_unset, 0, 1 / self.xp.where(is_unset, 1, factor)
        )

    def _update(self, mean: Any, variance: Any, seen: int) -> None:
        """Take the batch's moments, of `seen` values a channel, into the moving sums."""
        correction = seen / (seen - 1) if seen > 1 else 1
        for param, value in zip(self.params, (mean, variance * correction, 1), strict=True):
            total = param.data
            total *= self.fraction
            total += value


class MVN(Layer):
    """y = (x - mean) / (deviation + eps) within each channel of each image.

    With `across_channels` within each image; without `normalize_variance` y = x - mean. eps (1e-9)
    is added outside the root, so that equal values become 0; dx takes y for normalised by the
    deviation alone, as in Caffe, which is exact for a small eps. A bottom with fewer than 4 axes
    gives a top with 1s behind them, as in Caffe. May run in place, where shapes stay.
    """

    in_place = True
    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.eps, self.has_variance = param.eps, param.normalize_variance
        self._deviation = Blob()

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        batch = shape[: 1 if self.param.across_channels else 2]
        self.groups = (prod(batch), prod(shape[len(batch) :]))
        if not _is_in_place(bottom, top):
            top[0].reshape(*shape, *[1] * (4 - len(shape)))
        self._deviation.reshape(self.groups[0], 1)

    def forward(self, bottom: Any, top: Any) -> None:
        if not bottom[0].count:
            return
        x, y = bottom[0].data.reshape(self.groups), top[0].data.reshape(self.groups)
        # By differences to the first value, which are 0 exactly where all values are equal.
        self.xp.subtract(x, x[:, :1].copy(), out=y)
        y -= y.mean(axis=1, keepdims=True)
        if self.has_variance:
            deviation = self.state(self._deviation)
            self.xp.sqrt((y * y).mean(axis=1, keepdims=True), out=deviation)
            y /= deviation + self.eps

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0] or not bottom[0].count:
            return
        xp, dy, dx = self.xp, top[0].diff.reshape(self.groups), bottom[0].diff.reshape(self.groups)
        if not self.has_variance:
            xp.subtract(dy, dy.mean(axis=1, keepdims=True), out=dx)
            return
        _centred_gradient(xp, top[0].data.reshape(self.groups), dy, (1,), dx)
        dx /= self.state(self._deviation) + self.eps


def _centred_gradient(xp: Any, y: Any, dy: Any, axes: tuple[int, ...], out: Any) -> Any:
    """dy - mean(dy) - y mean(dy y), means over `axes` -> out; out may be dy."""
    along = (dy * y).mean(axis=axes, keepdims=True)
    xp.subtract(dy, dy.mean(axis=axes, keepdims=True), out=out)
    out -= along * y
    return out
