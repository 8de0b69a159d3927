"""Pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from typing import Any

from .. import memory
from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window


class Pooling(Layer):
    """The maximum, average or an element by chance of each window of (N, C, H, W).

    Other than in Caffe there may be one spatial axis, or three and more, which then all have the
    sizes of `kernel_size`, `stride` and `pad`; _h and _w fields are for two.
    Sizes round up (`round_mode: FLOOR` or `ceil_mode: false`: down); with any pad a last window
    that would start past the image and its pad is dropped. MAX: the first of equal values wins, NaN
    is never taken; a second top holds the winners' indices in their planes. AVE divides by the
    positions in the image and its pad. STOCHASTIC, on every device and without pad: in TRAIN a
    value is taken with a chance in proportion to it, in TEST y = sum x^2 / sum x (0 where the sum
    is 0); values are meant to be non-negative, as behind a ReLU. `global_pooling` takes all of
    H x W, read at each reshape.
    """

    tops = (1, 2)

    @classmethod
    def from_spec(cls, spec: Any) -> Layer:
        param = spec.pooling_param
        stochastic = cls is Pooling and param.pool == param.STOCHASTIC
        return (_Stochastic if stochastic else cls)(spec)

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.is_max = param.pool == param.MAX
        if len(top) > 1 and not self.is_max:
            raise ModelError("a second top is possible for MAX pooling only")
        self.axes = len(bottom[0].shape) - 2
        if self.axes < 1:
            raise ModelError(
                "input must have 4 axes, corresponding to (num, channels, height, width), or 3 or"
                f" 5 and more, got {len(bottom[0].shape)}"
            )
        self.round_up = param.round_mode == param.CEIL and param.ceil_mode
        self.window = self._fixed_window()
        self._mask = Blob(dtype="int32")

    def _fixed_window(self) -> Window | None:
        """The window that the file gives; None for global pooling."""
        param = self.param
        for field in ("bin_size", "bin_h", "bin_w"):
            if param.HasField(field):
                raise ModelError(f"{field} of weiliu89/caffe's fcn branch is not read")
        kernel = _sizes(param, "kernel_size", "kernel", self.axes)
        stride = _sizes(param, "stride", "stride", self.axes) or (1,) * self.axes
        pad = _sizes(param, "pad", "pad", self.axes) or (0,) * self.axes
        if param.global_pooling:
            if kernel is not None:
                raise ModelError(
                    f"with global_pooling: true filter size cannot be specified, got {kernel}"
                )
            if any(pad) or set(stride) != {1}:
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
        names = "hw" if self.axes == 2 else range(self.axes)
        for name, p, k in zip(names, pad, kernel, strict=True):
            if p >= k:
                raise ModelError(f"pad_{name} < kernel_{name} must hold ({p} vs. {k})")
        return Window(kernel, stride, pad)

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != self.axes + 2:
            raise ModelError(f"input must have {self.axes + 2} axes, got {len(shape)}")
        window = self.window or Window(shape[2:])
        self.pooled = (*shape[:2], *window.pool_shape(shape[2:], self.round_up))
        memory.check_padded(shape, window, self.pooled[2:])
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


class _Stochastic(Pooling):
    """`pool: STOCHASTIC`, which Caffe has on the GPU only.

    TRAIN: r is drawn from (0, 1] for each window, and the first element in row-major order whose
    running sum is at least r times the window's sum is taken; it gets the gradient. TEST: the mean
    of what TRAIN takes, with its true gradient (2 x - y) / sum x (Caffe has none). Looking for
    negative values would wait for the device: where no running sum gets there the result is 0 and
    has no gradient; NaN gives NaN.
    """

    param_field = "pooling_param"
    keeps_bottom = True
    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        if self.window and any(self.window.pad):
            raise ModelError(f"pad is possible for MAX and AVE pooling only, got {self.window.pad}")

    def forward(self, bottom: Any, top: Any) -> None:
        if self.phase == self.TEST:
            self._average(bottom[0].data, top[0].data)
        else:
            self._draw(bottom[0].data, top[0].data, self.state(self._mask))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.phase != self.TEST:
            self.ops.pool_max_backward(dy, self.state(self._mask), self._current, dx)
            return
        xp, x, y = self.xp, bottom[0].data, top[0].data
        total = self._sum(x)
        share = xp.where(total <= 0, 0, dy) / xp.where(total <= 0, 1, total)
        dx[...] = 0
        for there, here in self._taps(x.shape[2:]):
            dx[there] += share[here] * (2 * x[there] - y[here])

    def _average(self, x: Any, y: Any) -> None:
        xp = self.xp
        total, squares = self._sum(x), self._sum(x * x)
        y[...] = xp.where(total <= 0, 0, squares) / xp.where(total <= 0, 1, total)

    def _draw(self, x: Any, y: Any, mask: Any) -> None:
        xp, total = self.xp, self._sum(x)
        threshold = (1 - self.rng.random(total.shape, dtype=x.dtype)) * total
        running = xp.zeros(total.shape, dtype=x.dtype)
        y[...] = xp.where(total == total, 0, total)  # a NaN stays one
        mask[...] = -1
        for tap, (there, here) in enumerate(self._taps(x.shape[2:])):
            now = running[here]
            now += x[there]
            takes = (now >= threshold[here]) & (mask[here] < 0)
            xp.copyto(y[here], x[there], where=takes)
            mask[here] = xp.where(takes, tap, mask[here])
        self._place(mask, x.shape[2:])

    def _place(self, mask: Any, spatial: tuple[int, ...]) -> None:
        """From taps to indices in a plane of that size, -1 where nothing was taken."""
        xp, window = self.xp, self._current
        at, left, taps, below = 0, mask, window.taps, prod(spatial)
        for axis, (k, s, size) in enumerate(
            zip(window.kernel, window.stride, spatial, strict=True)
        ):
            taps, below = taps // k, below // max(size, 1)
            start = xp.arange(mask.shape[2 + axis], dtype=mask.dtype) * s
            start = start.reshape(-1, *[1] * (self.axes - 1 - axis))
            at = at + (start + left // taps) * below
            left = left % taps
        mask[...] = xp.where(mask < 0, -1, at)

    def _sum(self, x: Any) -> Any:
        """The sum of each window, its taps in row-major order."""
        total = self.xp.zeros(self.pooled, dtype=x.dtype)
        for there, here in self._taps(x.shape[2:]):
            total[here] += x[there]
        return total

    def _taps(self, spatial: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
        """For each tap in row-major order: what windows read, and which of them have it."""
        window = self._current
        for tap in itertools.product(*map(range, window.kernel)):
            there, here = [], []
            for t, s, size, pooled in zip(
                tap, window.stride, spatial, self.pooled[2:], strict=True
            ):
                count = max(min(pooled, -(-(size - t) // s)), 0)
                there.append(slice(t, t + max(count * s - s + 1, 0), s))
                here.append(slice(count))
            yield (..., *there), (..., *here)


def _sizes(param: Any, field: str, prefix: str, axes: int) -> tuple[int, ...] | None:
    """An entry an axis, from one field for all or from both _h and _w fields; None without."""
    has_h, has_w = param.HasField(f"{prefix}_h"), param.HasField(f"{prefix}_w")
    if param.HasField(field) and (has_h or has_w):
        raise ModelError(f"{prefix} is {field} or {prefix}_h/w; not both")
    if has_h != has_w:
        raise ModelError(f"for non-square {prefix} both {prefix}_h and {prefix}_w are required")
    if has_h and axes != 2:
        raise ModelError(f"{prefix}_h and {prefix}_w are for 2 spatial axes; the bottom has {axes}")
    if has_h:
        return getattr(param, f"{prefix}_h"), getattr(param, f"{prefix}_w")
    if param.HasField(field):
        return (getattr(param, field),) * axes
    return None
