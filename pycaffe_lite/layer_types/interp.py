"""Images of another size: each top is rows @ x @ columns^T with two small matrices of weights."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer


class Resized(Layer, abstract=True):
    """(N, C, H, W) -> (N, C, H', W'), linear in each axis; dx is the transpose of that."""

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = image_shape(bottom[0])
        self.old, self.new = shape[2:], self._size(bottom)
        if min(*self.new, *self.old) < 1:
            raise ModelError(
                f"height and width must be > 0, got {self.old} for the input and {self.new} for"
                " the output"
            )
        top[0].reshape(*shape[:2], *self.new)

    def _size(self, bottom: Any) -> tuple[int, int]:
        """(H', W')."""
        raise NotImplementedError

    def _weights(self, axis: int) -> Any:
        """(new, old): the weights of the rows (axis 0) or of the columns (1)."""
        raise NotImplementedError

    def _matrices(self, dtype: Any) -> tuple[Any, Any]:
        return self._weights(0).astype(dtype), self._weights(1).astype(dtype)

    def forward(self, bottom: Any, top: Any) -> None:
        x = bottom[0].data
        resize(self.xp, x, *self._matrices(x.dtype), top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            dy = top[0].diff
            rows, columns = self._matrices(dy.dtype)
            resize(self.xp, dy, rows.T, columns.T, bottom[0].diff)
        if len(bottom) > 1 and propagate_down[1]:
            bottom[1].diff[...] = 0


class Interp(Resized):
    """Bilinear interpolation with the corner pixels of both sizes in the same place; PSPNet's.

    Where only `shrink_factor` f is given the size is (in - 1) // f + 1, where only `zoom_factor` z
    in + (in - 1) (z - 1); else it is `height` and `width`, or where those are missing, shrunk and
    then zoomed. `pad_beg` and `pad_end`, 0 or below, first cut rows and columns off. An infinity or
    NaN spreads over its channel of the image (in the original to its neighbours).
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.pad_beg > 0 or param.pad_end > 0:
            raise ModelError(
                "only supports non-pos padding (cropping): pad_beg and pad_end must be <= 0, got"
                f" {param.pad_beg} and {param.pad_end}"
            )
        for name in ("shrink_factor", "zoom_factor"):
            if getattr(param, name) < 1:
                raise ModelError(f"{name} must be positive, got {getattr(param, name)}")

    def _size(self, bottom: Any) -> tuple[int, int]:
        param = self.param
        height, width = (size + param.pad_beg + param.pad_end for size in bottom[0].shape[2:])
        if min(height, width) < 1:
            raise ModelError(
                f"height and width must be > 0, got {height} and {width} with pad_beg"
                f" {param.pad_beg} and pad_end {param.pad_end}"
            )
        has_shrink, has_zoom = param.HasField("shrink_factor"), param.HasField("zoom_factor")
        has_size = param.HasField("height") and param.HasField("width")
        if has_size and has_shrink == has_zoom:
            return param.height, param.width
        if not has_shrink and not has_zoom:
            raise ModelError(
                "zoom_factor, shrink_factor or both of height and width must be given, got"
                f" height {param.height} and width {param.width}"
            )
        return self._scaled(height), self._scaled(width)

    def _scaled(self, size: int) -> int:
        shrunk = (size - 1) // self.param.shrink_factor + 1
        return shrunk + (shrunk - 1) * (self.param.zoom_factor - 1)

    def _weights(self, axis: int) -> Any:
        first, cut = -self.param.pad_beg, -self.param.pad_beg - self.param.pad_end
        old = self.old[axis]
        return aligned_corners(self.xp, self.new[axis], old - cut, first, old)


class BilinearInterpolate(Resized):
    """Bilinear interpolation to `dst_h` x `dst_w`, or to `scale_factor` times the size.

    With `align_corners` (true) as Interp; without, pixels are areas whose centres are mapped.
    """

    def _size(self, bottom: Any) -> tuple[int, int]:
        param, (h, w) = self.param, bottom[0].shape[2:]
        if param.HasField("scale_factor"):
            return int(h * param.scale_factor), int(w * param.scale_factor)
        return param.dst_h, param.dst_w

    def _weights(self, axis: int) -> Any:
        xp, new, old = self.xp, self.new[axis], self.old[axis]
        if self.param.align_corners:
            return aligned_corners(xp, new, old)
        at = (xp.arange(new) + 0.5) * (old / new) - 0.5
        return triangle(distances(xp, xp.clip(at, 0, old - 1), old))


def image_shape(blob: Any) -> tuple[int, int, int, int]:
    """(N, C, H, W); ModelError for another number of axes."""
    if len(blob.shape) != 4:
        raise ModelError(f"input must have 4 axes, got {len(blob.shape)}")
    return blob.shape  # type: ignore[no-any-return]


def resize(xp: Any, x: Any, rows: Any, columns: Any, out: Any) -> Any:
    """x (N, C, H, W), rows (H', H), columns (W', W) -> out (N, C, H', W'), contiguous."""
    n, c, h, w = x.shape
    height, width = len(rows), len(columns)
    if height * width < h * w:
        narrow = xp.matmul(x.reshape(n * c * h, w), columns.T).reshape(n, c, h, width)
        return xp.matmul(rows, narrow, out=out)
    # The larger product at once for all images and channels, and into its place: much faster.
    tall = xp.matmul(rows, x).reshape(n * c * height, w)
    xp.matmul(tall, columns.T, out=out.reshape(n * c * height, width))
    return out


def aligned_corners(xp: Any, new: int, size: int, first: int = 0, old: int | None = None) -> Any:
    """(new, old): bilinear weights of `new` positions over `size` of the `old`, from `first` on."""
    at = xp.arange(new) * corner_step(new, size) + first
    return triangle(distances(xp, at, size if old is None else old))


def corner_step(new: int, old: int) -> float:
    """Positions of the old size from one of the new to the next, corners on corners."""
    return (old - 1) / (new - 1) if new > 1 else 0.0


def distances(xp: Any, at: Any, old: int) -> Any:
    """(new, old): |at - j|."""
    return xp.abs(at[:, None] - xp.arange(old))


def triangle(distance: Any) -> Any:
    """1 at 0, falling to 0 at 1."""
    return (1 - distance).clip(0, None)
