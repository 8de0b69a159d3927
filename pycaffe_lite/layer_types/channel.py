"""Layers of forks that weight, exchange, move or measure channels (axis 1)."""

from __future__ import annotations

from typing import Any

from ..blob import Blob, describe
from ..errors import ModelError
from ..layer import Layer


class Axpy(Layer):
    """y = a x + b with a number of a for each channel of each image; SENet's.

    Bottoms: a (N, C) or (N, C, 1, ...), x (N, C, *S), b of the shape of x. da sums dy x over the
    positions of a channel, dx = a dy, db = dy.
    """

    bottoms = 3
    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        factor, shape, other = (view.shape for view in bottom)
        if other != shape:
            raise ModelError(
                f"x and the summand must have the same shape: `{describe(shape)}` vs."
                f" `{describe(other)}`"
            )
        if len(shape) < 2 or factor[:2] != shape[:2] or any(d != 1 for d in factor[2:]):
            raise ModelError(
                f"the factors must be (N, C) or (N, C, 1, 1) for x `{describe(shape)}`,"
                f" got `{describe(factor)}`"
            )
        self.wide = (*shape[:2], *[1] * (len(shape) - 2))
        self.positions = tuple(range(2, len(shape)))
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        a, x, b = (view.data for view in bottom)
        y = top[0].data
        self.xp.multiply(a.reshape(self.wide), x, out=y)
        y += b

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        a, x, b = bottom
        dy = top[0].diff
        if propagate_down[0]:
            a.diff[...] = (dy * x.data).sum(axis=self.positions).reshape(a.shape)
        if propagate_down[1]:
            x.diff[...] = a.data.reshape(self.wide) * dy
        if propagate_down[2]:
            b.diff[...] = dy


class ShuffleChannel(Layer):
    """Channel j group + i of the top is channel i C / group + j of the bottom; ShuffleNet's.

    The channels, read as a table with `group` (1) rows, are written out by columns. ModelError
    where the channels are no multiple of `group`.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        self.group = self.param.group
        if self.group < 1:
            raise ModelError(f"group must be greater than 0, got {self.group}")

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")
        if shape[1] % self.group:
            raise ModelError(f"channels must be a multiple of group: {shape[1]} vs. {self.group}")
        self.rows = (shape[0], self.group, shape[1] // self.group, *shape[2:])
        self.columns = (shape[0], shape[1] // self.group, self.group, *shape[2:])
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data.reshape(self.rows), top[0].data.reshape(self.columns)
        y[...] = x.swapaxes(1, 2)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx, dy = bottom[0].diff.reshape(self.rows), top[0].diff.reshape(self.columns)
            dx[...] = dy.swapaxes(1, 2)


class PixelShuffle(Layer):
    """(N, C r^2, H, W) -> (N, C, H r, W r) with r the `upscale_factor` (1).

    y[n, c, h r + i, w r + j] = x[n, (c r + i) r + j, h, w]. ModelError where the channels are no
    multiple of r^2.
    """

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, r = bottom[0].shape, self.param.upscale_factor
        if len(shape) != 4:
            raise ModelError(f"input must have 4 axes, got {len(shape)}")
        if r < 1 or shape[1] % (r * r):
            raise ModelError(
                f"channels must be a multiple of upscale_factor^2: {shape[1]} vs. {r * r}"
            )
        n, c, h, w = shape
        self.parts = (n, c // (r * r), r, r, h, w)
        self.blocks = (n, c // (r * r), h, r, w, r)
        top[0].reshape(n, c // (r * r), h * r, w * r)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data.reshape(self.parts), top[0].data.reshape(self.blocks)
        y[...] = x.transpose(0, 1, 4, 2, 5, 3)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx, dy = bottom[0].diff.reshape(self.parts), top[0].diff.reshape(self.blocks)
            dx[...] = dy.transpose(0, 1, 3, 5, 2, 4)


class ChannelNorm(Layer):
    """(N, C, *S) -> (N, 1, *S): the root of the sum of squares over the channels; FlowNet2's.

    dx = dy x / (y + 1e-9), so that there is no gradient where all channels are 0.
    """

    keeps_bottom = True
    keeps_top = True

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")
        top[0].reshape(shape[0], 1, *shape[2:])

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        self.xp.sqrt((x * x).sum(axis=1, keepdims=True), out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            x, y, dy = bottom[0].data, top[0].data, top[0].diff
            self.xp.multiply(x, dy / (y + 1e-9), out=bottom[0].diff)


class Mean(Layer):
    """y = output_scale (input_scale x + mean_scale m), with SUBTRACT minus m; FlowNet2's.

    m is `value` of the channel, from the first on again where there are fewer than channels; the
    three scales are 1. dx is the true gradient (FlowNet2 has none). A mean from a `file` is not
    read: ModelError.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.file:
            raise ModelError(f"mean_param {{ file }} is not read, got {param.file}; write value")
        if not len(param.value):
            raise ModelError("mean_param has no value: at least 1 is needed, got 0")
        sign = -1 if param.operation == param.SUBTRACT else 1
        self.scale = param.output_scale * param.input_scale
        self.shifts = [sign * param.output_scale * param.mean_scale * v for v in param.value]
        self._shift = Blob()

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")
        self._shift.reshape(shape[1], *[1] * (len(shape) - 2))
        for c in range(shape[1]):
            self._shift.data[c] = self.shifts[c % len(self.shifts)]
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        y = top[0].data
        self.xp.multiply(bottom[0].data, self.scale, out=y)
        y += self.state(self._shift)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            self.xp.multiply(top[0].diff, self.scale, out=bottom[0].diff)
