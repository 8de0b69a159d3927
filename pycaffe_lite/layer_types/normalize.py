"""Vectors made to have length 1, then scaled by what is learned."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..ops.base import Array
from ..proto import caffe_pb2


class Normalize(Layer):
    """y = s x / sqrt(sum(x^2) + eps), the sum over all axes but the first (SSD's L2 norm).

    With `across_spatial: false` the sum is over the channels (axis 1) at each place. The parameter
    s is one value, or one a channel with `channel_shared: false`; its filler is 1 by default.
    x: (N, C, ...); eps: 1e-10. dx = s (dy - x sum(x dy) / n^2) / n, n the root: SSD's formula, by
    which its models were trained. It is the gradient where the channels' s are equal, as they are
    at first; for others the sum would have s in it.
    `fix_scale: true`, a field of another fork, keeps s as it is. Raises ModelError for less than 2
    axes.
    """

    param_field = "norm_param"
    writes_params = False
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, bottom[0].shape
        if len(shape) < 2:
            raise ModelError(f"number of axes of bottom blob must be >= 2, got {len(shape)}")
        first = param.scale_filler
        if not param.HasField("scale_filler"):
            first = caffe_pb2.FillerParameter(type="constant", value=1)
        fixed = param.HasField("fix_scale") and param.fix_scale
        self.add_param(() if param.channel_shared else shape[1:2], first, learns=not fixed)
        self._length = Blob()

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, count = bottom[0].shape, self.blobs[0].count
        if not self.param.channel_shared and shape[1:2] != (count,):
            raise ModelError(f"there is one scale a channel: {count} for {shape[1]} channels")
        self.summed = tuple(range(1, len(shape))) if self.param.across_spatial else (1,)
        self._length.reshape([1 if k in self.summed else d for k, d in enumerate(shape)])
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, x, y, length = self.xp, bottom[0].data, top[0].data, self.state(self._length)
        xp.multiply(x, x, out=y)
        length[...] = xp.sqrt(y.sum(axis=self.summed, keepdims=True) + self.param.eps)
        xp.multiply(x, self._scale(x) / length, out=y)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        x, dy, length = bottom[0].data, top[0].diff, self.state(self._length)
        if self.param_propagate_down[0]:
            others = tuple(k for k in range(x.ndim) if self.param.channel_shared or k != 1)
            self.params[0].diff[...] += (dy * x / length).sum(axis=others)
        if propagate_down[0]:
            dx, inner = bottom[0].diff, (x * dy).sum(axis=self.summed, keepdims=True)
            self.xp.subtract(dy, x * (inner / (length * length)), out=dx)
            dx *= self._scale(x) / length

    def _scale(self, x: Array) -> Array:
        """The parameter, to be broadcast against x."""
        scale = self.params[0].data
        return scale.reshape(prod(scale.shape), *[1] * (x.ndim - 2))
