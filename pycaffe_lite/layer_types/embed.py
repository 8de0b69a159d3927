"""Rows of a table, looked up by index."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer
from .selection import index_values


class Embed(Layer):
    """y = W[int(x)] + b: a row of a table for each value of the bottom, as one more, last, axis.

    Parameters: weights (input_dim, num_output); bias (num_output) with bias_term. Indices must lie
    in 0 <= index < input_dim (Caffe reads foreign memory beyond). They have no gradient: to ask for
    one is an error.
    """

    writes_params = False
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        for field in ("num_output", "input_dim"):
            if getattr(param, field) < 1:
                raise ModelError(f"{field} must be > 0, got {getattr(param, field)}")
        self.add_param((param.input_dim, param.num_output), param.weight_filler)
        if param.bias_term:
            self.add_param((param.num_output,), param.bias_filler)

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].shape, self.param.num_output)

    def forward(self, bottom: Any, top: Any) -> None:
        index = index_values(self.ops, bottom[0].data, self.param.input_dim)
        y = self._rows(top[0].data)
        self.xp.take(self.params[0].data, index.reshape(len(y)), axis=0, out=y)
        if self.param.bias_term:
            y += self.params[1].data

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            raise ModelError("the indices have no gradient; set propagate_down: false for them")
        dy, wanted = self._rows(top[0].diff), self.param_propagate_down
        if wanted[0]:
            index = bottom[0].data.astype("int64").reshape(len(dy))
            self.xp.add.at(self.params[0].diff, index, dy)
        if self.param.bias_term and wanted[1]:
            db = self.params[1].diff
            db += dy.sum(axis=0)

    def _rows(self, array: Any) -> Any:
        return array.reshape(array.size // self.param.num_output, self.param.num_output)
