"""Images of another size as FlowNet2 makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..blob import describe
from ..errors import ModelError
from ..layer import Layer
from .interp import Resized, aligned_corners, corner_step, distances, image_shape, resize, triangle


class Resample(Resized):
    """Interpolation of kind `type` to `width` x `height`, to `factor` times the size, or to that
    of a second bottom; FlowNet2's.

    NEAREST takes a pixel; LINEAR and CUBIC weigh those around by a triangle or a cubic, which are
    widened by the factor where the image shrinks, unless `antialias` is false, and their weights
    sum to 1. As in the original the offset of each axis is that of the other's factor: it shows
    where the two differ. dx is the true gradient (FlowNet2 has none). AREA is not there either.
    """

    bottoms = (1, 2)

    def setup(self, bottom: Any, top: Any) -> None:
        if self.param.type == self.param.AREA:
            raise ModelError("type AREA is not available; NEAREST, LINEAR and CUBIC are")

    def _size(self, bottom: Any) -> tuple[int, int]:
        param, (h, w) = self.param, bottom[0].shape[2:]
        if len(bottom) > 1:
            return image_shape(bottom[1])[2:]
        if param.HasField("width") and param.HasField("height"):
            return param.height, param.width
        if param.HasField("factor"):
            return int(h * param.factor), int(w * param.factor)
        raise ModelError(
            "width and height, factor or a second bottom must be given, got"
            f" width {param.width} and height {param.height}"
        )

    def _weights(self, axis: int) -> Any:
        xp, param = self.xp, self.param
        factors = [old / new for old, new in zip(self.old, self.new, strict=True)]
        at = xp.arange(self.new[axis]) * factors[axis] + factors[1 - axis] / 2 - 0.5
        if param.type == param.NEAREST:
            nearest = xp.clip(xp.floor(at + 0.5), 0, self.old[axis] - 1)
            return distances(xp, nearest, self.old[axis]) == 0
        widens = param.antialias and max(factors) > 1
        distance = distances(xp, at, self.old[axis]) / (factors[axis] if widens else 1)
        kernel = _cubic(xp, distance) if param.type == param.CUBIC else triangle(distance)
        total = kernel.sum(axis=1, keepdims=True)
        return xp.where(total == 0, 0, kernel / xp.where(total == 0, 1, total))


class Downsample(Resized):
    """Means, by a triangle as wide as the factor, around the places of an image's pixels in a
    larger one, corners on corners; FlowNet2's.

    The size is `top_height` x `top_width` or that of a second bottom. NaN counts for nothing, and
    where its weight is more than half that of the numbers the result is NaN. dx is the true
    gradient, 0 at NaN (FlowNet2 has none).
    """

    bottoms = (1, 2)
    keeps_bottom = True

    def _size(self, bottom: Any) -> tuple[int, int]:
        if len(bottom) > 1:
            return image_shape(bottom[1])[2:]
        return self.param.top_height, self.param.top_width

    def _weights(self, axis: int) -> Any:
        xp, new, old = self.xp, self.new[axis], self.old[axis]
        spacing = corner_step(new, old)
        distance = distances(xp, xp.arange(new) * spacing, old)
        kernel = triangle(distance / max(spacing, 1))
        return kernel / kernel.sum(axis=1, keepdims=True)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, x, y = self.xp, bottom[0].data, top[0].data
        matrices = self._matrices(x.dtype)
        known = self._known_share(x, matrices, y.shape)
        resize(xp, xp.where(x == x, x, 0), *matrices, y)
        y /= xp.where(known == 0, 1, known)
        xp.copyto(y, float("nan"), where=1 - known > 0.5 * known)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            xp, x, dy, dx = self.xp, bottom[0].data, top[0].diff, bottom[0].diff
            rows, columns = matrices = self._matrices(x.dtype)
            known = self._known_share(x, matrices, dy.shape)
            share = xp.where(1 - known > 0.5 * known, 0, dy / xp.where(known == 0, 1, known))
            resize(xp, share, rows.T, columns.T, dx)
            dx *= x == x
        if len(bottom) > 1 and propagate_down[1]:
            bottom[1].diff[...] = 0

    def _known_share(self, x: Any, matrices: tuple[Any, Any], shape: tuple[int, ...]) -> Any:
        """Of each value's weights the sum of those that lie on numbers."""
        known = self.xp.empty(shape, dtype=x.dtype)
        return resize(self.xp, (x == x).astype(x.dtype), *matrices, known)


class Accum(Layer):
    """All bottoms (N, C_i, H_i, W_i), interpolated to one size, behind each other along the
    channels; FlowNet2's.

    The size is `top_height` x `top_width`, else the largest height and width, rounded up to a
    multiple of `size_divisible_by`; with `have_reference` that of the last bottom, of which only
    the size counts. Corners lie on corners. dx is the true gradient (FlowNet2 has none).
    """

    bottoms = (1, None)

    def reshape(self, bottom: Any, top: Any) -> None:
        shapes = [image_shape(x) for x in bottom]
        self.size = self._size(shapes)
        self.used = len(bottom) - self.param.have_reference
        shapes = shapes[: self.used]
        if not shapes:
            raise ModelError("with have_reference at least 2 bottoms are needed, got 1")
        for shape in shapes:
            if shape[0] != shapes[0][0]:
                raise ModelError(
                    f"all inputs must have the same num: `{describe(shapes[0])}` vs."
                    f" `{describe(shape)}`"
                )
        if min(*self.size, *(d for shape in shapes for d in shape[2:])) < 1:
            raise ModelError(f"height and width must be > 0, got {self.size} for the output")
        top[0].reshape(shapes[0][0], sum(shape[1] for shape in shapes), *self.size)

    def _size(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        param = self.param
        if param.have_reference:
            return shapes[-1][2], shapes[-1][3]
        if param.top_height and param.top_width:
            return param.top_height, param.top_width
        unit = max(param.size_divisible_by, 1)
        height, width = (-(-max(s[axis] for s in shapes) // unit) * unit for axis in (2, 3))
        return height, width

    def forward(self, bottom: Any, top: Any) -> None:
        for x, y in self._parts(bottom, top[0].data):
            part = self.xp.empty(y.shape, dtype=y.dtype)
            y[...] = resize(self.xp, x.data, *self._matrices(x.shape, y.dtype), part)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for wanted, (x, dy) in zip(propagate_down, self._parts(bottom, top[0].diff), strict=False):
            if wanted:
                rows, columns = self._matrices(x.shape, dy.dtype)
                resize(self.xp, dy, rows.T, columns.T, x.diff)
        if self.used < len(bottom) and propagate_down[-1]:
            bottom[-1].diff[...] = 0

    def _parts(self, bottom: Any, y: Any) -> list[tuple[Any, Any]]:
        """Each bottom that counts, with its channels of the top."""
        parts, start = [], 0
        for x in bottom[: self.used]:
            stop = start + x.shape[1]
            parts.append((x, y[:, start:stop]))
            start = stop
        return parts

    def _matrices(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        rows, columns = (
            aligned_corners(self.xp, new, old).astype(dtype)
            for new, old in zip(self.size, shape[2:], strict=True)
        )
        return rows, columns


def _cubic(xp: Any, distance: Any) -> Any:
    """The cubic of Catmull and Rom, 0 from 2 on."""
    d = distance
    near, far = d * d * (1.5 * d - 2.5) + 1, d * (d * (-0.5 * d + 2.5) - 4) + 2
    return xp.where(d <= 1, near, xp.where(d < 2, far, 0))
