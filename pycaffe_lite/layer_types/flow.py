"""Optical flow: how patches of two images correlate, and an image moved along a flow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .. import memory
from ..blob import describe
from ..errors import ModelError
from ..layer import Layer
from ..ops.window import Window
from .interp import image_shape


class Correlation(Layer):
    """Patches of the first image against patches of the second around the same place; FlowNet's.

    Both (N, C, H, W) get `pad` zeros around. Top: a channel for each displacement of the second
    patch, -max_displacement to max_displacement in steps of `stride_2` by rows and columns; values
    at centres `stride_1` apart that keep max_displacement + (kernel_size - 1) / 2 from the border,
    (room - 1) // stride_1 + 1 of them. A value is the mean over channels and the kernel_size^2
    positions of the product, or with SUBTRACT of the absolute difference (whose gradient is the
    true one). `do_abs` changes nothing, as in the original. ModelError for an even kernel,
    for images of other sizes, for no room, and for `single_direction`.
    """

    bottoms = 2
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.kernel_size % 2 == 0:
            raise ModelError(f"odd kernel size required, got {param.kernel_size}")
        if param.single_direction:
            raise ModelError(f"single_direction is not available, got {param.single_direction}")
        if min(param.stride_1, param.stride_2) < 1:
            raise ModelError(
                f"stride_1 and stride_2 must be > 0, got {param.stride_1} and {param.stride_2}"
            )
        self.subtracts = param.correlation_type == param.SUBTRACT
        self.reach = param.max_displacement // param.stride_2

    def reshape(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, image_shape(bottom[0])
        if bottom[1].shape != shape:
            raise ModelError(
                f"both inputs must have the same shape: `{describe(shape)}` vs."
                f" `{describe(bottom[1].shape)}`"
            )
        border = param.max_displacement + (param.kernel_size - 1) // 2
        room = [size + 2 * param.pad - 2 * border for size in shape[2:]]
        if min(room) < 1:
            raise ModelError(
                "correlation cannot be done with empty inputs: the padded input"
                f" {[size + 2 * param.pad for size in shape[2:]]} has no place"
                f" {border} from its borders"
            )
        self.positions = [-(-size // param.stride_1) for size in room]
        padded = [size + 2 * param.pad for size in shape[2:]]
        memory.check_padded(shape, Window((1, 1), pad=(param.pad,) * 2), padded)
        self.share = 1 / (param.kernel_size**2 * max(shape[1], 1))
        top[0].reshape(shape[0], (2 * self.reach + 1) ** 2, *self.positions)

    def forward(self, bottom: Any, top: Any) -> None:
        a, b = (self._padded(x.data) for x in bottom)
        y = top[0].data
        y[...] = 0
        for channel, here, there in self._pairs():
            y[:, channel] += self._compare(a[here], b[there])
        y *= self.share

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        xp = self.xp
        a, b = (self._padded(x.data) for x in bottom)
        da, db = xp.zeros_like(a), xp.zeros_like(b)
        dy = top[0].diff * self.share
        for channel, here, there in self._pairs():
            d = dy[:, channel, None]
            if self.subtracts:
                d = d * xp.sign(a[here] - b[there])
            if propagate_down[0]:
                da[here] += d if self.subtracts else d * b[there]
            if propagate_down[1]:
                db[there] += -d if self.subtracts else d * a[here]
        for wanted, x, d in zip(propagate_down, bottom, (da, db), strict=True):
            if wanted:
                h, w = x.shape[2:]
                pad = self.param.pad
                x.diff[...] = d[:, :, pad : pad + h, pad : pad + w]

    def _compare(self, a: Any, b: Any) -> Any:
        """(N, C, *P) twice -> (N, *P): sums over the channels."""
        if self.subtracts:
            return self.xp.abs(a - b).sum(axis=1)
        return self.xp.einsum("nchw,nchw->nhw", a, b)

    def _padded(self, x: Any) -> Any:
        (n, c, h, w), pad = x.shape, self.param.pad
        wide = self.xp.zeros((n, c, h + 2 * pad, w + 2 * pad), dtype=x.dtype)
        wide[:, :, pad : pad + h, pad : pad + w] = x
        return wide

    def _pairs(self) -> Iterator[tuple[int, Any, Any]]:
        """For each displacement and position in the patch: the top's channel, what is read of the
        first padded image, and what of the second."""
        param, reach = self.param, range(-self.reach, self.reach + 1)
        taps = list(itertools.product(range(param.kernel_size), repeat=2))
        for channel, shift in enumerate(itertools.product(reach, repeat=2)):
            for tap in taps:
                first = [param.max_displacement + t for t in tap]
                second = [f + s * param.stride_2 for f, s in zip(first, shift, strict=True)]
                yield channel, self._part(first), self._part(second)

    def _part(self, first: list[int]) -> Any:
        s = self.param.stride_1
        rows, columns = (
            slice(f, f + (count - 1) * s + 1, s)
            for f, count in zip(first, self.positions, strict=True)
        )
        return (slice(None), slice(None), rows, columns)


class FlowWarp(Layer):
    """y[n, :, i, j] = x[n, :, i + flow[n, 1, i, j], j + flow[n, 0, i, j]], bilinear; FlowNet2's.

    Bottoms: an image (N, C, H, W) and a flow (N, 2, H, W) in pixels. Places outside the image are
    0, or NaN with `fill_value: NOT_A_NUMBER`, and have no gradient.
    """

    bottoms = 2
    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, flow = image_shape(bottom[0]), bottom[1].shape
        if flow != (shape[0], 2, *shape[2:]):
            raise ModelError(
                f"the flow of an image `{describe(shape)}` must be (N, 2, H, W), got"
                f" `{describe(flow)}`"
            )
        top[0].reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if not y.size:
            return
        inside, corners, weights = self._places(bottom[1].data)
        flat = self._flat(x)
        total = self.xp.zeros(flat.shape, dtype=x.dtype)
        for index, weight in zip(corners, weights, strict=True):
            total += weight * self.xp.take_along_axis(flat, index, axis=2)
        param = self.param
        fill = float("nan") if param.fill_value == param.NOT_A_NUMBER else 0
        y[...] = self.xp.where(inside, total, fill).reshape(y.shape)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not bottom[0].count or not any(propagate_down):
            return
        xp = self.xp
        inside, corners, weights = self._places(bottom[1].data)
        dy = xp.where(inside, self._flat(top[0].diff), 0)
        if propagate_down[0]:
            dx = xp.zeros(dy.size, dtype=dy.dtype)
            planes = xp.arange(dy.shape[0] * dy.shape[1]).reshape(*dy.shape[:2], 1)
            for index, weight in zip(corners, weights, strict=True):
                at = (planes * dy.shape[2] + index).reshape(-1)
                xp.add.at(dx, at, (weight * dy).reshape(-1))
            bottom[0].diff[...] = dx.reshape(bottom[0].shape)
        if propagate_down[1]:
            self._flow_gradient(bottom, dy, corners)

    def _flow_gradient(self, bottom: Any, dy: Any, corners: Any) -> None:
        xp, flat = self.xp, self._flat(bottom[0].data)
        upper_left, upper_right, lower_left, lower_right = (
            (dy * xp.take_along_axis(flat, index, axis=2)).sum(axis=1) for index in corners
        )
        right, down = self._fractions(bottom[1].data)
        dflow = bottom[1].diff
        across = (1 - down) * (upper_right - upper_left) + down * (lower_right - lower_left)
        along = (1 - right) * (lower_left - upper_left) + right * (lower_right - upper_right)
        dflow[:, 0] = across.reshape(dflow[:, 0].shape)
        dflow[:, 1] = along.reshape(dflow[:, 1].shape)

    def _flat(self, x: Any) -> Any:
        n, c, h, w = x.shape
        return x.reshape(n, c, h * w)

    def _targets(self, flow: Any) -> tuple[Any, Any, Any]:
        """(N, H, W): columns and rows, 0 where outside, and which are inside."""
        xp, (_, _, h, w) = self.xp, flow.shape
        column, row = flow[:, 0] + xp.arange(w), flow[:, 1] + xp.arange(h)[:, None]
        inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
        return xp.where(inside, column, 0), xp.where(inside, row, 0), inside

    def _fractions(self, flow: Any) -> tuple[Any, Any]:
        """(N, HW): how far each place lies from the pixel to the left, and from that above."""
        column, row, _ = self._targets(flow)
        n = len(flow)
        right = (column - self.xp.floor(column)).reshape(n, -1).astype(flow.dtype)
        return right, (row - self.xp.floor(row)).reshape(n, -1).astype(flow.dtype)

    def _places(self, flow: Any) -> tuple[Any, list[Any], list[Any]]:
        """inside, and for the four pixels around each place, row by row: their indices in the
        plane and their weights; all (N, 1, HW)."""
        xp, (n, _, h, w) = self.xp, flow.shape
        column, row, inside = self._targets(flow)
        left, upper = xp.floor(column).astype("int64"), xp.floor(row).astype("int64")
        columns, rows = (left, xp.minimum(left + 1, w - 1)), (upper, xp.minimum(upper + 1, h - 1))
        right, down = self._fractions(flow)
        corners = [(r * w + c).reshape(n, 1, h * w) for r in rows for c in columns]
        weights = [
            (a * b).reshape(n, 1, h * w) for a in (1 - down, down) for b in (1 - right, right)
        ]
        return inside.reshape(n, 1, h * w), corners, weights
