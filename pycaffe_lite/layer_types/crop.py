"""Cropping a blob to the size of another, or by so much on each side."""

from __future__ import annotations

from typing import Any

from ..blob import canonical_axis
from ..errors import ModelError
from ..layer import Layer


class Crop(Layer):
    """bottom[0] cut to the size of bottom[1] in the axes from `axis` (2) on, from `offset` on.

    `offset` is given once for all those axes or once for each; none is 0, the first corner, not the
    middle. The axes before keep bottom[0]'s size, whatever bottom[1] has there. Of bottom[1] only
    the shape counts: its gradient is 0.
    """

    bottoms = 2

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, like = bottom[0].shape, bottom[1].shape
        axis = canonical_axis(self.param.axis, shape)
        if len(like) < len(shape):
            raise ModelError(
                f"the blob to crop has {len(shape)} axes, the one to crop to has {len(like)}"
            )
        offsets = self._offsets(len(shape) - axis)
        for i, offset in enumerate(offsets, axis):
            if shape[i] - offset < like[i]:
                raise ModelError(
                    f"the crop for dimension {i} is out-of-bounds with size {like[i]} and offset"
                    f" {offset}: the input has {shape[i]}"
                )
        top[0].reshape(*shape[:axis], *like[axis : len(shape)])
        self.part = (slice(None),) * axis + tuple(
            slice(offset, offset + like[i]) for i, offset in enumerate(offsets, axis)
        )

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data[self.part]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            dx[self.part] = top[0].diff
        if propagate_down[1]:
            bottom[1].diff[...] = 0

    def _offsets(self, axes: int) -> list[int]:
        given = list(self.param.offset)
        if len(given) not in (0, 1, axes):
            raise ModelError(
                "number of offset values specified must be 0, 1, or equal to the number of"
                f" dimensions following axis: {len(given)} vs. {axes}"
            )
        return given if len(given) == axes else (given or [0]) * axes


class CropCenter(Layer):
    """The bottom without `crop_size` positions at either end of each axis; waifu2x's.

    An entry of `crop_size` for each axis, 0 for those that are not given.
    """

    def reshape(self, bottom: Any, top: Any) -> None:
        shape, cut = bottom[0].shape, list(self.param.crop_size)
        if len(cut) > len(shape):
            raise ModelError(f"crop_size has {len(cut)} entries, the input {len(shape)} axes")
        cut += [0] * (len(shape) - len(cut))
        for i, (size, ends) in enumerate(zip(shape, cut, strict=True)):
            if ends and 2 * ends >= size:
                raise ModelError(
                    f"the crop for dimension {i} is out-of-bounds: {ends} at either end of {size}"
                )
        top[0].reshape(*(size - 2 * ends for size, ends in zip(shape, cut, strict=True)))
        self.part = tuple(slice(ends, size - ends) for size, ends in zip(shape, cut, strict=True))

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data[self.part]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            dx[self.part] = top[0].diff
