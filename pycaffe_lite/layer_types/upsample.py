"""Upsampling of images: by repeating values, or back to where a maximum was taken from."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import describe
from ..errors import ModelError
from ..layer import Layer


class _Unpool(Layer):
    """y (N, C, H', W') is 0 but for y[n, c, mask] = x, mask being indices in the plane H' W'.

    Where indices repeat in a plane, the last one's value stays, and its x alone gets the gradient.
    """

    bottoms = (2, 2)
    keeps_bottom = True

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, mask = bottom[0].shape, bottom[1].shape
        if len(shape) != 4:
            raise ModelError(f"input must have 4 axes, got {len(shape)}")
        if mask != shape:
            raise ModelError(
                f"the mask must have the shape of the input: `{describe(shape)}` vs."
                f" `{describe(mask)}`"
            )
        self.size = self._size(shape[2:])
        top[0].reshape(*shape[:2], *self.size)

    def _size(self, spatial: tuple[int, ...]) -> tuple[int, int]:
        """(H', W') from (H, W)."""
        raise NotImplementedError

    def forward(self, bottom: Any, top: Any) -> None:
        mask, y = bottom[1].data, top[0].data
        wrong = self.ops.first_outside(mask, 0, prod(self.size))
        if wrong is not None:
            raise ModelError(
                f"upsample top index out of range: the mask has {wrong:g}, the top"
                f" {prod(self.size)} values a plane ({self.size[0]} x {self.size[1]})"
            )
        y[...] = 0
        y.reshape(-1)[self._places(mask)] = bottom[0].data.reshape(-1)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx, dy, xp = bottom[0].diff, top[0].diff.reshape(-1), self.xp
            at, number = self._places(bottom[1].data), self.xp.arange(bottom[0].count)
            last = xp.zeros(dy.shape, dtype=number.dtype)
            last[at] = number
            dx[...] = (dy[at] * (last[at] == number)).reshape(dx.shape)
        if propagate_down[1]:
            bottom[1].diff[...] = 0

    def _places(self, mask: Any) -> Any:
        """For each value of x the index of its place in all of y."""
        planes = self.xp.arange(mask.shape[0] * mask.shape[1]) * prod(self.size)
        index = mask.reshape(len(planes), prod(mask.shape[2:])).astype(planes.dtype)
        return (index + planes[:, None]).reshape(-1)


class Upsample(_Unpool):
    """With a mask, from a max pooling's second top, each value goes where the maximum was; the
    rest is 0 (SegNet's). Without, each value fills a block of scale x scale (YOLO's).

    The top's size is `upsample_h` x `upsample_w`, else the bottom's times `scale` (or `scale_h` and
    `scale_w`), with a mask 2 by default, without it 1; `pad_out_h` and `pad_out_w`, with a mask
    and scale 2, take a row or column off. ModelError for a mask that points outside, and for a size
    that repeating cannot make.
    """

    bottoms = (1, 2)

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        default = 2 if len(bottom) > 1 else 1
        scale = param.scale if param.HasField("scale") else default
        self.scale = (scale, scale)
        if param.HasField("scale_h") != param.HasField("scale_w"):
            raise ModelError("scale_h and scale_w must both be given, or neither")
        if param.HasField("scale_h"):
            self.scale = (param.scale_h, param.scale_w)
        if param.HasField("upsample_h") != param.HasField("upsample_w"):
            raise ModelError("upsample_h and upsample_w must both be given, or neither")
        if min(self.scale) < 1:
            raise ModelError(f"scale must be at least 1, got {min(self.scale)}")
        for flag, s in zip((param.pad_out_h, param.pad_out_w), self.scale, strict=True):
            if flag and (s != 2 or len(bottom) == 1):
                raise ModelError(f"pad_out_h and pad_out_w are for a mask and scale 2, got {s}")

    def reshape(self, bottom: Any, top: Any) -> None:
        if len(bottom) > 1:
            super().reshape(bottom, top)
            return
        shape = bottom[0].shape
        if len(shape) != 4:
            raise ModelError(f"input must have 4 axes, got {len(shape)}")
        size = self._size(shape[2:])
        for made, given in zip(size, shape[2:], strict=True):
            if made % max(given, 1):
                raise ModelError(f"size {made} is no multiple of the input's, {given}")
        (h, w), (rows, columns) = shape[2:], size
        self.blocks = (*shape[:2], h, rows // max(h, 1), w, columns // max(w, 1))
        top[0].reshape(*shape[:2], *size)

    def _size(self, spatial: tuple[int, ...]) -> tuple[int, int]:
        param = self.param
        if param.HasField("upsample_h"):
            return param.upsample_h, param.upsample_w
        (h, w), (rows, columns) = spatial, self.scale
        return h * rows - param.pad_out_h, w * columns - param.pad_out_w

    def forward(self, bottom: Any, top: Any) -> None:
        if len(bottom) > 1:
            super().forward(bottom, top)
        else:
            top[0].data.reshape(self.blocks)[...] = bottom[0].data[:, :, :, None, :, None]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if len(bottom) > 1:
            super().backward(top, propagate_down, bottom)
        elif propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.reshape(self.blocks).sum(axis=(3, 5))


class MaxUnPool(_Unpool):
    """Each value goes where its mask says in a plane of `dst_h` x `dst_w`; the rest is 0.

    The mask holds indices of the top's planes. ModelError for one that points outside.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        if not self.param.dst_h or not self.param.dst_w:
            raise ModelError(
                f"dst_h and dst_w must be > 0, got {self.param.dst_h} and {self.param.dst_w}"
            )

    def _size(self, spatial: tuple[int, ...]) -> tuple[int, int]:
        return self.param.dst_h, self.param.dst_w
