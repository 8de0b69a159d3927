"""Pooling."""

from __future__ import annotations

from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window


class Pooling(Layer):
    """The maximum or the average of each window of a 4-axis input (N, C, H, W).

    Sizes round up (`round_mode: FLOOR` or `ceil_mode: false`: down); with any pad a last window
    that would start past the image and its pad is dropped. MAX: the first of equal values wins, NaN
    is never taken; a second top holds the winners' indices in their planes. AVE divides by the
    positions in the image and its pad. `global_pooling` takes all of H x W, read at each reshape.
    """

    tops = (1, 2)

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.is_max = param.pool == param.MAX
        if param.pool == param.STOCHASTIC:
            raise ModelError("pool: STOCHASTIC is not available")
        if len(top) > 1 and not self.is_max:
            raise ModelError("a second top is possible for MAX pooling only")
        if len(bottom[0].shape) != 4:
            raise ModelError(
                f"input must have 4 axes, corresponding to (num, channels, height, width),"
                f" got {len(bottom[0].shape)}"
            )
        self.round_up = param.round_mode == param.CEIL and param.ceil_mode
        self.window = self._fixed_window()
        self._mask = Blob(dtype="int32")

    def _fixed_window(self) -> Window | None:
        """The window that the file gives; None for global pooling."""
        param = self.param
        kernel = _pair(param, "kernel_size", "kernel")
        stride = _pair(param, "stride", "stride") or (1, 1)
        pad = _pair(param, "pad", "pad") or (0, 0)
        if param.global_pooling:
            if kernel is not None:
                raise ModelError(
                    f"with global_pooling: true filter size cannot be specified, got {kernel}"
                )
            if pad != (0, 0) or stride != (1, 1):
                raise ModelError(
                    "with global_pooling: true only pad = 0 and stride = 1 are possible,"
                    f" got pad {pad} and stride {stride}"
                )
            return None
        if kernel is None:
            raise ModelError("filter size is kernel_size or kernel_h and kernel_w; none is given")
        if 0 in kernel:
            raise ModelError(f"filter dimensions cannot be zero, got {kernel}")
        if 0 in stride:
            raise ModelError(f"stride dimensions cannot be zero, got {stride}")
        for name, p, k in zip("hw", pad, kernel, strict=True):
            if p >= k:
                raise ModelError(f"pad_{name} < kernel_{name} must hold ({p} vs. {k})")
        return Window(kernel, stride, pad)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ModelError(f"input must have 4 axes, got {len(shape)}")
        window = self.window or Window(shape[2:])
        self.pooled = (*shape[:2], *window.pool_shape(shape[2:], self.round_up))
        for y in top:
            y.reshape(self.pooled)
        self._mask.reshape(self.pooled)
        self._current = window

    def forward(self, bottom: Any, top: Any) -> None:
        x, y, window = bottom[0].data, top[0].data, self._current
        if not self.is_max:
            self.ops.pool_ave(x, window, y)
            return
        wanted = self.needs_backward or len(top) > 1
        mask = self.state(self._mask) if wanted else None
        self.ops.pool_max(x, window, y, mask)
        if len(top) > 1:
            top[1].data[...] = mask

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.is_max:
            self.ops.pool_max_backward(dy, self.state(self._mask), self._current, dx)
        else:
            self.ops.pool_ave_backward(dy, self._current, dx)


def _pair(param: Any, field: str, prefix: str) -> tuple[int, int] | None:
    """(h, w) from one field for both or from both _h and _w fields; None where none is set."""
    has_h, has_w = param.HasField(f"{prefix}_h"), param.HasField(f"{prefix}_w")
    if param.HasField(field) and (has_h or has_w):
        raise ModelError(f"{prefix} is {field} or {prefix}_h/w; not both")
    if has_h != has_w:
        raise ModelError(f"for non-square {prefix} both {prefix}_h and {prefix}_w are required")
    if has_h:
        return getattr(param, f"{prefix}_h"), getattr(param, f"{prefix}_w")
    if param.HasField(field):
        return (getattr(param, field),) * 2
    return None
