"""Convolution: windows from convolution_param, and the layer over the backend's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..blob import canonical_axis, describe
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window


class Convolution(Layer):
    """y[n, o, p] = b[o] + sum over c in the group, taps k of w[o, c, k] x[n, c, p stride + k ..].

    Cross-correlation over the axes behind `axis` (the channels), any number of them; those before
    are the batch. Output size (in + 2 pad - extent) // stride + 1 with extent = dilation
    (kernel - 1) + 1; a kernel larger than the padded input is an error (Caffe computes one position
    outside the image). Parameters: weights (num_output, channels / group, *kernel) and, with
    bias_term, bias (num_output). Several bottoms of one shape share them, a top each.
    `engine: CAFFE` always takes the plain im2col and matrix product; CUDNN is the same as DEFAULT.
    """

    bottoms = (1, None)
    tops = (1, None)
    writes_params = False
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, bottom[0].shape
        if len(bottom) != len(top):
            raise ModelError(f"{len(bottom)} bottoms need as many tops, got {len(top)}")
        self.axis = canonical_axis(param.axis, shape)
        self.axes = len(shape)
        self.window = conv_window(param, len(shape) - self.axis - 1)
        self.channels, self.outputs, self.group = shape[self.axis], param.num_output, param.group
        if self.outputs < 1:
            raise ModelError(f"num_output must be > 0, got {self.outputs}")
        if self.group < 1:
            raise ModelError(f"group must be > 0, got {self.group}")
        if self.channels % self.group:
            raise ModelError(
                f"input channels should be multiples of group: {self.channels} vs. {self.group}"
            )
        if self.outputs % self.group:
            raise ModelError(
                f"number of output should be multiples of group: {self.outputs} vs. {self.group}"
            )
        weight = (self.outputs, self.channels // self.group, *self.window.kernel)
        self.add_param(weight, param.weight_filler)
        if param.bias_term:
            self.add_param((self.outputs,), param.bias_filler)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != self.axes or shape[self.axis] != self.channels:
            raise ModelError(
                f"input size incompatible with convolution kernel: bottom `{describe(shape)}` vs."
                f" {self.channels} channels on axis {self.axis} of {self.axes} axes"
            )
        spatial = self.window.conv_shape(shape[self.axis + 1 :])
        for x, y in zip(bottom, top, strict=True):
            if x.shape != shape:
                raise ModelError(
                    f"all inputs must have the same shape: `{describe(shape)}` vs."
                    f" `{describe(x.shape)}`"
                )
            y.reshape(*shape[: self.axis], self.outputs, *spatial)

    def forward(self, bottom: Any, top: Any) -> None:
        w = self.params[0].data
        b = self.params[1].data if self.param.bias_term else None
        for x, y in zip(bottom, top, strict=True):
            self.ops.conv_forward(
                self._maps(x.data), w, b, self.window, self.group, self._maps(y.data)
            )

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        w, wanted = self.params[0], self.param_propagate_down
        for x, y, wants_dx in zip(bottom, top, propagate_down, strict=True):
            dy = self._maps(y.diff)
            if self.param.bias_term and wanted[1]:
                db = self.params[1].diff
                db += dy.sum(axis=(0, *range(2, dy.ndim)))
            if wanted[0]:
                self.ops.conv_backward_weights(
                    self._maps(x.data), dy, self.window, self.group, w.diff
                )
            if wants_dx:
                self.ops.conv_backward_data(dy, w.data, self.window, self.group, self._maps(x.diff))

    def _maps(self, array: Any) -> Any:
        """The array as (N, C, *S), whatever axes come before the channels."""
        shape = array.shape
        return array.reshape(prod(shape[: self.axis]), *shape[self.axis :])


def conv_window(param: Any, axes: int) -> Window:
    """The window of a ConvolutionParameter over that many spatial axes.

    kernel_size, stride, pad and dilation are given once or once an axis; over two axes kernel,
    stride and pad may be given as _h and _w instead. Raises ModelError for what does not fit.
    """
    kernel = _per_axis(param, "kernel_size", "kernel", axes, None)
    stride = _per_axis(param, "stride", "stride", axes, 1)
    if 0 in kernel:
        raise ModelError(f"filter dimensions must be nonzero, got kernel {kernel}")
    if 0 in stride:
        raise ModelError(f"stride dimensions must be nonzero, got {stride}")
    pad = _per_axis(param, "pad", "pad", axes, 0)
    return Window(kernel, stride, pad, _per_axis(param, "dilation", None, axes, 1))


def _per_axis(
    param: Any, field: str, pair: str | None, axes: int, default: int | None
) -> tuple[int, ...]:
    values: Sequence[int] = getattr(param, field)
    if pair and (param.HasField(f"{pair}_h") or param.HasField(f"{pair}_w")):
        if axes != 2:
            raise ModelError(f"{pair}_h and {pair}_w need 2 spatial axes; the input has {axes}")
        if len(values):
            raise ModelError(f"either {field} or {pair}_h/w should be specified; not both")
        return (getattr(param, f"{pair}_h"), getattr(param, f"{pair}_w"))
    if not len(values) and default is not None:
        return (default,) * axes
    if len(values) not in (1, axes) or not len(values) and axes:
        raise ModelError(
            f"{field} must be specified once, or once per spatial dimension: {len(values)} values"
            f" for {axes} spatial dimensions"
        )
    return tuple(values) if len(values) == axes else (values[0],) * axes
