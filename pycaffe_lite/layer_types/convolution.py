"""Convolution, its transpose and its columns: windows from convolution_param, over the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .. import memory
from ..blob import canonical_axis, describe
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window


class _Filters(Layer):
    """What convolution and deconvolution share: one set of weights over several bottoms."""

    param_field = "convolution_param"
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
        self.channels, self.outputs = shape[self.axis], param.num_output
        self.group = self._groups()
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
        self.add_param((*self._channels(), *self.window.kernel), param.weight_filler)
        if param.bias_term:
            self.add_param((self.outputs,), param.bias_filler)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != self.axes or shape[self.axis] != self.channels:
            raise ModelError(
                f"input size incompatible with convolution kernel: bottom `{describe(shape)}` vs."
                f" {self.channels} channels on axis {self.axis} of {self.axes} axes"
            )
        spatial = self._positions(shape[self.axis + 1 :])
        for x, y in zip(bottom, top, strict=True):
            if x.shape != shape:
                raise ModelError(
                    f"all inputs must have the same shape: `{describe(shape)}` vs."
                    f" `{describe(x.shape)}`"
                )
            y.reshape(*shape[: self.axis], self.outputs, *spatial)
        image, places = self._image(merged(shape, self.axis), merged(top[0].shape, self.axis))
        memory.check_padded(image, self.window, places[2:])

    def forward(self, bottom: Any, top: Any) -> None:
        w = self.params[0].data
        b = self.params[1].data if self.param.bias_term else None
        for x, y in zip(bottom, top, strict=True):
            self._apply(self._maps(x.data), w, b, self._maps(y.data))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        w, wanted = self.params[0], self.param_propagate_down
        for x, y, wants_dx in zip(bottom, top, propagate_down, strict=True):
            dy = self._maps(y.diff)
            if self.param.bias_term and wanted[1]:
                db = self.params[1].diff
                db += dy.sum(axis=(0, *range(2, dy.ndim)))
            if wanted[0]:
                self._add_weight_gradient(self._maps(x.data), dy, w.diff)
            if wants_dx:
                self._input_gradient(dy, w.data, self._maps(x.diff))

    def _maps(self, array: Any) -> Any:
        return maps(array, self.axis)

    def _groups(self) -> int:
        return self.param.group  # type: ignore[no-any-return]

    def _channels(self) -> tuple[int, int]:
        """The first two dimensions of the weights."""
        raise NotImplementedError

    def _positions(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The spatial size of the top."""
        raise NotImplementedError

    def _image(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Of the two shapes (N, C, *S) first the one over which the window slides."""
        return x, y

    def _apply(self, x: Any, w: Any, b: Any, y: Any) -> None:
        raise NotImplementedError

    def _add_weight_gradient(self, x: Any, dy: Any, dw: Any) -> None:
        raise NotImplementedError

    def _input_gradient(self, dy: Any, w: Any, dx: Any) -> None:
        raise NotImplementedError


class Convolution(_Filters):
    """y[n, o, p] = b[o] + sum over c in the group, taps k of w[o, c, k] x[n, c, p stride + k ..].

    Cross-correlation over the axes behind `axis` (the channels), any number of them; those before
    are the batch. Output size (in + 2 pad - extent) // stride + 1 with extent = dilation
    (kernel - 1) + 1; a kernel larger than the padded input is an error (Caffe computes one position
    outside the image). Parameters: weights (num_output, channels / group, *kernel) and, with
    bias_term, bias (num_output). Several bottoms of one shape share them, a top each.
    `engine: CAFFE` always takes the plain im2col and matrix product; CUDNN is the same as DEFAULT.
    On the CPU many 3 x 3 convolutions are computed by Winograd's way, about 1e-5 of the largest
    value off, where a NaN or infinity reaches up to 3 positions further and infinities become NaN;
    PYCAFFE_LITE_WINOGRAD=0 in the environment turns that off.
    """

    def _channels(self) -> tuple[int, int]:
        return self.outputs, self.channels // self.group

    def _positions(self, spatial: Sequence[int]) -> tuple[int, ...]:
        return self.window.conv_shape(spatial)

    def _apply(self, x: Any, w: Any, b: Any, y: Any) -> None:
        self.ops.conv_forward(x, w, b, self.window, self.group, y)

    def _add_weight_gradient(self, x: Any, dy: Any, dw: Any) -> None:
        self.ops.conv_backward_weights(x, dy, self.window, self.group, dw)

    def _input_gradient(self, dy: Any, w: Any, dx: Any) -> None:
        self.ops.conv_backward_data(dy, w, self.window, self.group, dx)


class DepthwiseConvolution(Convolution):
    """Convolution under the name that MobileNet's forks give it; `group` has to be written."""


class ConvolutionDepthwise(Convolution):
    """Convolution of each channel by itself: where `group` is not given, it is the channels."""

    def _groups(self) -> int:
        return self.param.group if self.param.HasField("group") else self.channels


class Deconvolution(_Filters):
    """The transpose of Convolution: y[n, o, p stride + k ..] sums w[c, o, k] x[n, c, p], plus b[o].

    Each input position adds its kernel to the output; what falls into `pad` is cut off. Output size
    stride (in - 1) + extent - 2 pad with extent = dilation (kernel - 1) + 1; below 1 it is an
    error. Parameters: weights (channels, num_output / group, *kernel) and, with bias_term, bias
    (num_output). Axes, groups, several bottoms and `engine` are as for Convolution. Bilinear
    upsampling by f: num_output and group the channels, kernel 2 f - f % 2, stride f,
    pad ceil((f - 1) / 2), `weight_filler { type: "bilinear" }`.
    """

    def _channels(self) -> tuple[int, int]:
        return self.channels, self.outputs // self.group

    def _positions(self, spatial: Sequence[int]) -> tuple[int, ...]:
        if 0 in spatial:
            raise ModelError(f"input has no positions: spatial size {tuple(spatial)}")
        return self.window.deconv_shape(spatial)

    def _image(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return y, x

    def _apply(self, x: Any, w: Any, b: Any, y: Any) -> None:
        self.ops.conv_backward_data(x, w, self.window, self.group, y)
        if b is not None:
            y += b.reshape(-1, *(1,) * (y.ndim - 2))

    def _add_weight_gradient(self, x: Any, dy: Any, dw: Any) -> None:
        self.ops.conv_backward_weights(dy, x, self.window, self.group, dw)

    def _input_gradient(self, dy: Any, w: Any, dx: Any) -> None:
        self.ops.conv_forward(dy, w, None, self.window, self.group, dx)


class Im2col(Layer):
    """y[n, c taps + k, p] = x[n, c, p stride + k dilation - pad], zero outside the image.

    The columns that Convolution multiplies: kernel, stride, pad, dilation and axis come from
    `convolution_param`, and its output size. Top: `taps` (the product of the kernel) channels for
    each of the input's, a channel's taps in row-major order. dx adds up what windows share.
    """

    param_field = "convolution_param"

    def setup(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self.axis = canonical_axis(self.param.axis, shape)
        self.axes = len(shape)
        if self.axis == self.axes - 1:
            raise ModelError(
                f"input needs at least 1 spatial axis behind axis {self.axis}, got {self.axes} axes"
            )
        self.window = conv_window(self.param, self.axes - self.axis - 1)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != self.axes:
            raise ModelError(f"input must have {self.axes} axes, got {len(shape)}")
        self.positions = self.window.conv_shape(shape[self.axis + 1 :])
        memory.check_padded(merged(shape, self.axis), self.window, self.positions)
        channels = shape[self.axis] * self.window.taps
        top[0].reshape(*shape[: self.axis], channels, *self.positions)

    def forward(self, bottom: Any, top: Any) -> None:
        x = maps(bottom[0].data, self.axis)
        self.ops.im2col(x, self.window, self._columns(x, top[0].data))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = maps(bottom[0].diff, self.axis)
            self.ops.col2im(self._columns(dx, top[0].diff), self.window, dx)

    def _columns(self, x: Any, y: Any) -> Any:
        """The top as (N, C, *kernel, *positions)."""
        return y.reshape(*x.shape[:2], *self.window.kernel, *self.positions)


def maps(array: Any, axis: int) -> Any:
    """The array as (N, C, *S) with the channels from `axis`, whatever axes come before them."""
    return array.reshape(merged(array.shape, axis))


def merged(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """(N, C, *S): the shape with the channels from `axis`, all axes before them in one."""
    return (prod(shape[:axis]), *shape[axis:])


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
    for field in ("filter_stride", "filter_stride_h", "filter_stride_w"):
        if param.HasField(field) and getattr(param, field) != 1:
            raise ModelError(f"{field} of weiliu89/caffe's fcn branch is not read; write dilation")
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
