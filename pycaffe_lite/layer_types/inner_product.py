"""The fully connected layer."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import canonical_axis
from ..errors import ModelError
from ..layer import Layer


class InnerProduct(Layer):
    """y = x W^T + b over all axes from `axis` on, flattened to K; with `transpose` y = x W + b.

    Top: the axes before `axis`, then num_output. Parameters: weights (num_output, K), or
    (K, num_output) with `transpose`; bias (num_output) with bias_term.
    """

    writes_params = False
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, bottom[0].shape
        if param.num_output < 1:
            raise ModelError(f"num_output must be > 0, got {param.num_output}")
        self.axis = canonical_axis(param.axis, shape)
        self.size, self.outputs = prod(shape[self.axis :]), param.num_output
        weight = (self.outputs, self.size)
        self.add_param(weight[::-1] if param.transpose else weight, param.weight_filler)
        if param.bias_term:
            self.add_param((self.outputs,), param.bias_filler)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        size = prod(shape[self.axis :])
        if size != self.size:
            raise ModelError(
                f"input size incompatible with inner product parameters: {size} vs. {self.size}"
            )
        top[0].reshape(*shape[: self.axis], self.outputs)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = self._rows(bottom[0].data, self.size), self._rows(top[0].data, self.outputs)
        self.ops.matmul(x, self._weights().T, y)
        if self.param.bias_term:
            y += self.params[1].data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        dy, wanted = self._rows(top[0].diff, self.outputs), self.param_propagate_down
        if self.param.bias_term and wanted[1]:
            db = self.params[1].diff
            db += dy.sum(axis=0)
        if wanted[0]:
            x, dw = self._rows(bottom[0].data, self.size), self.params[0].diff
            a, b = (x, dy) if self.param.transpose else (dy, x)
            dw += self.ops.matmul(a.T, b, self.xp.empty_like(dw))
        if propagate_down[0]:
            dx = self._rows(bottom[0].diff, self.size)
            self.ops.matmul(dy, self._weights(), dx)

    def _weights(self) -> Any:
        """(num_output, K) whichever way they are stored."""
        w = self.params[0].data
        return w.T if self.param.transpose else w

    def _rows(self, array: Any, size: int) -> Any:
        return array.reshape(prod(array.shape[: self.axis]), size)
