"""Activations: elementwise functions of one blob, and dropout."""

from __future__ import annotations

from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..proto import caffe_pb2


class _Neuron(Layer):
    """One bottom, one top of the same shape, computed element by element."""

    in_place = True

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(bottom[0].shape)


class _KeepsInput(_Neuron):
    """One whose gradient needs x: in place, forward copies it first where there is a backward."""

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self._in_place = _is_in_place(bottom, top)
        self._x = Blob()
        if self._in_place:
            self.keeps_bottom = False  # type: ignore[misc]  # what could be saved for it is y

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        self._x.reshape(bottom[0].shape)

    def keep(self, bottom: Any) -> None:
        """Copy x where backward could not read it from the bottom; before forward writes."""
        if self._in_place and self.needs_backward:
            self.state(self._x)[...] = bottom[0].data

    def kept(self, bottom: Any) -> Any:
        """x as forward read it."""
        return self.state(self._x) if self._in_place else bottom[0].data


def _is_in_place(bottom: Any, top: Any) -> bool:
    """Is the first top the first bottom? (Views differ, a user's subclass may be given Blobs.)"""
    x, y = (getattr(view, "blob", view) for view in (bottom[0], top[0]))
    return x is y


class ReLU(_Neuron):
    """y = x where x > 0, else negative_slope * x. May run in place (slope >= 0)."""

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        self.slope = self.param.negative_slope

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if self.slope:
            y[...] = self.xp.where(x > 0, x, self.slope * x)
        else:
            self.xp.maximum(x, 0, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = bottom[0].data, top[0].diff  # in place, x holds y: the same sign
            bottom[0].diff[...] = self.xp.where(x > 0, dy, self.slope * dy)


class Sigmoid(_Neuron):
    """y = 1 / (1 + exp(-x)), computed as tanh(x / 2) / 2 + 1/2; dx = dy y (1 - y). In place."""

    keeps_top = True

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        self.xp.multiply(x, 0.5, out=y)
        self.xp.tanh(y, out=y)
        y *= 0.5
        y += 0.5

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            bottom[0].diff[...] = dy * (y * (1 - y))


class TanH(_Neuron):
    """y = tanh(x); dx = dy (1 - y^2). May run in place."""

    keeps_top = True

    def forward(self, bottom: Any, top: Any) -> None:
        self.xp.tanh(bottom[0].data, out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            bottom[0].diff[...] = dy * (1 - y * y)


class PReLU(_KeepsInput):
    """y = x where x > 0, else a x, with one slope a a channel (axis 1). May run in place.

    da adds up dy min(x, 0). Parameter: slopes (C), or () with `channel_shared`, 0.25 unless
    `filler` says otherwise. ModelError for fewer than 2 axes or another number of channels.
    """

    writes_params = False

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self._check_axes(bottom[0].shape)
        param = self.param
        self.channels = bottom[0].shape[1]
        quarter = caffe_pb2.FillerParameter(type="constant", value=0.25)
        self.add_param(
            () if param.channel_shared else (self.channels,),
            param.filler if param.HasField("filler") else quarter,
        )

    def _check_axes(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ModelError(f"number of axes of bottom blob must be >= 2, got {len(shape)}")

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        self._check_axes(shape)
        if not self.param.channel_shared and shape[1] != self.channels:
            raise ModelError(
                f"negative slope size is {self.channels}; the bottom has {shape[1]} channels"
            )

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        x = bottom[0].data
        top[0].data[...] = self.xp.where(x > 0, x, self._slopes(x.ndim) * x)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        x, dy = self.kept(bottom), top[0].diff
        if self.param_propagate_down[0]:
            da = self.params[0].diff
            others = None if self.param.channel_shared else (0, *range(2, x.ndim))
            da += (dy * self.xp.minimum(x, 0)).sum(axis=others)
        if propagate_down[0]:
            bottom[0].diff[...] = self.xp.where(x > 0, dy, self._slopes(x.ndim) * dy)

    def _slopes(self, axes: int) -> Any:
        a = self.params[0].data
        return a if self.param.channel_shared else a.reshape(-1, *[1] * (axes - 2))


class ELU(_KeepsInput):
    """y = x where x > 0, else alpha (exp(x) - 1); alpha is 1. May run in place."""

    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.alpha = self.param.alpha

    def forward(self, bottom: Any, top: Any) -> None:
        if self.alpha < 0:
            self.keep(bottom)
        x = bottom[0].data
        below = self.xp.minimum(x, 0)
        self.xp.exp(below, out=below)
        below -= 1
        below *= self.alpha
        top[0].data[...] = self.xp.where(x > 0, x, below)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            x = y if self.alpha >= 0 else self.kept(bottom)  # y has the sign of x
            bottom[0].diff[...] = self.xp.where(x > 0, dy, dy * (y + self.alpha))


class Swish(_KeepsInput):
    """y = x s with s = 1 / (1 + exp(-beta x)); beta is 1. May run in place."""

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.beta = self.param.beta

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        x = bottom[0].data
        self.xp.multiply(x, self._sigmoid(x), out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, dy = self.kept(bottom), top[0].diff
            s = self._sigmoid(x)
            bottom[0].diff[...] = dy * s * (1 + self.beta * x * (1 - s))

    def _sigmoid(self, x: Any) -> Any:
        """By tanh, which cannot overflow."""
        s = x * (self.beta / 2)
        self.xp.tanh(s, out=s)
        s *= 0.5
        s += 0.5
        return s


class Clip(_KeepsInput):
    """y = min(max(x, `min`), `max`); dx = dy where min <= x <= max, else 0. May run in place.

    ModelError where min > max. (Caffe's gradient of clipped values is wrong in place.)
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.low, self.high = self.param.min, self.param.max
        if self.low > self.high:
            raise ModelError(f"min must be <= max, got {self.low:g} and {self.high:g}")

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        self.xp.clip(bottom[0].data, self.low, self.high, out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x = self.kept(bottom)
            bottom[0].diff[...] = top[0].diff * ((x >= self.low) & (x <= self.high))


class AbsVal(_KeepsInput):
    """y = |x|; dx = dy sign(x), 0 at 0. May run in place (an error in Caffe)."""

    def forward(self, bottom: Any, top: Any) -> None:
        self.keep(bottom)
        self.xp.abs(bottom[0].data, out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff * self.xp.sign(self.kept(bottom))


class Threshold(_Neuron):
    """y = 1 where x > `threshold` (0), else 0; dx = 0, where Caffe has no backward. In place."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.threshold = self.param.threshold

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data > self.threshold

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = 0


class Dropout(_Neuron):
    """TRAIN: y = x m / (1 - r), m drawn anew each forward, 1 with chance 1 - r; TEST: y = x.

    r is `dropout_ratio`, 0 < r < 1. Two fields of forks: `scale_train: false` has y = x m in TRAIN
    and y = x (1 - r) in TEST; `sample_weights_test: true` draws in TEST too. May run in place.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        ratio = self.param.dropout_ratio
        if not 0 < ratio < 1:
            raise ModelError(f"dropout_ratio must lie between 0 and 1, got {ratio:g}")
        self.ratio = ratio
        self.draws = self.phase != self.TEST or self.param.sample_weights_test
        self.factor = self._factor()
        self._scale = Blob()  # 0 or the factor an element, as the last forward drew it

    def _factor(self) -> float:
        """Of what is kept."""
        if self.param.scale_train:
            return 1 / (1 - self.ratio) if self.draws else 1
        return 1 if self.draws else 1 - self.ratio

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(bottom[0].shape)
        self._scale.reshape(bottom[0].shape)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if self.draws:
            scale = self.state(self._scale)
            drawn = self.rng.random(x.shape, dtype=x.dtype)
            self.xp.multiply(drawn >= self.ratio, self.factor, out=scale)
            self.xp.multiply(x, scale, out=y)
        elif self.factor != 1:
            self.xp.multiply(x, self.factor, out=y)
        elif x is not y:
            y[...] = x

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            scale = self.state(self._scale) if self.draws else self.factor
            self.xp.multiply(top[0].diff, scale, out=bottom[0].diff)
