"""Pooling over regions of interest: boxes of any size made maps of one size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import boxes
from ..blob import describe
from ..errors import ModelError
from ..layer import Layer
from ..ops.base import Array


class _RegionLayer(Layer, abstract=True):
    """Bottoms: maps (N, C, H, W) and regions (R, 5), rows [batch index, x1, y1, x2, y2]."""

    bottoms = 2

    def reshape(self, bottom: Any, top: Any) -> None:
        maps, regions = (b.shape for b in bottom)
        if len(maps) != 4:
            raise ModelError(f"the maps must have 4 axes (N, C, H, W), got `{describe(maps)}`")
        if len(regions) < 2 or regions[0] * 5 != bottom[1].count:
            raise ModelError(f"regions must be (R, 5), got `{describe(regions)}`")

    def check_batch_index(self, regions: Array, count: int) -> None:
        """ModelError where a region (R, 5) lies on a map that is not there."""
        wrong = self.ops.first_outside(regions[:, 0], 0, count)
        if wrong is not None:
            raise ModelError(
                f"the batch index of a region, {wrong:g}, is out of range: there are {count} maps"
                f" (0 to {count - 1})"
            )

    def allow_force_backward(self, index: int) -> bool:
        return index == 0

    def check_asked(self, propagate_down: Any) -> bool:
        """True where the maps want a gradient; ModelError where the regions do."""
        if propagate_down[1]:
            raise ModelError("regions have no gradient; set propagate_down: false for them")
        return bool(propagate_down[0])


class ROIPooling(_RegionLayer):
    """The largest value of each channel in each of `pooled_h` x `pooled_w` bins of a region.

    Maps (N, C, H, W), regions (R, 5) in pixels of the image, of which `spatial_scale` makes those
    of the map -> (R, C, pooled_h, pooled_w). As in Fast R-CNN: corners are rounded, halves away
    from 0, and included; a region is at least 1 x 1; bin k of p covers floor(k s / p) to
    ceil((k + 1) s / p) of side s, cut to the map; an empty bin is 0. The gradient goes to the first
    largest value, none to regions that end before they begin. Regions have no gradient: to ask for
    one is an error, and so is a batch index out of range.

    Works on the host: bins differ in size, so that on a device each would be a call of its own.
    """

    host_only = True
    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        for name in ("pooled_h", "pooled_w"):
            if getattr(param, name) < 1:
                raise ModelError(f"{name} must be > 0, got {getattr(param, name)}")
        self.bins = (param.pooled_h, param.pooled_w)

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        top[0].reshape(bottom[1].shape[0], bottom[0].shape[1], *self.bins)

    def forward(self, bottom: Any, top: Any) -> None:
        maps, regions, y = self._maps(bottom), self._regions(bottom), top[0].data
        self.check_batch_index(regions, len(maps))
        y[...] = 0
        for r, (image, _, rows, columns) in enumerate(self._windows(regions, maps)):
            left, right = columns[0][0], columns[-1][1]
            lines = self.xp.zeros((len(rows), right - left, maps.shape[3]), maps.dtype)
            for p, (begin, end) in enumerate(rows):
                if begin < end:
                    maps[image, begin:end, left:right].max(axis=0, out=lines[p])
            for q, (begin, end) in enumerate(columns):
                if begin < end:
                    y[r, :, :, q] = lines[:, begin - left : end - left].max(axis=1).T

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        maps, regions = self._maps(bottom), self._regions(bottom)
        dy, dx = top[0].diff, self.xp.zeros_like(maps)
        channels = self.xp.arange(maps.shape[3])
        for r, (image, valid, rows, columns) in enumerate(self._windows(regions, maps)):
            bins = [(p, q) for p in range(len(rows)) for q in range(len(columns)) if valid]
            for p, q in bins:
                (y0, y1), (x0, x1) = rows[p], columns[q]
                if y0 < y1 and x0 < x1:
                    window = maps[image, y0:y1, x0:x1].reshape((y1 - y0) * (x1 - x0), len(channels))
                    row, column = self.xp.divmod(window.argmax(axis=0), x1 - x0)
                    dx[image, y0 + row, x0 + column, channels] += dy[r, :, p, q]
        bottom[0].diff[...] = dx.transpose(0, 3, 1, 2)

    def _maps(self, bottom: Any) -> Array:
        """(N, H, W, C): what is compared lies together."""
        maps = bottom[0].array(self.ops, write=False)
        return self.xp.ascontiguousarray(maps.transpose(0, 2, 3, 1))

    def _regions(self, bottom: Any) -> Array:
        return bottom[1].array(self.ops, write=False).reshape(-1, 5)

    def _windows(self, regions: Array, maps: Array) -> Iterator[tuple[int, bool, Any, Any]]:
        """Of each region: its map, whether it ends behind its begin, bins as (begin, end)."""
        if not self.xp.isfinite(regions).all():
            raise ModelError("regions must be finite numbers")
        height, width = maps.shape[1:3]
        x = boxes.pooling_bins(regions[:, 1::2], self.param.spatial_scale, self.bins[1], width)
        y = boxes.pooling_bins(regions[:, 2::2], self.param.spatial_scale, self.bins[0], height)
        for r, image in enumerate(regions[:, 0]):
            yield int(image), bool(x[1][r] and y[1][r]), y[0][r].tolist(), x[0][r].tolist()


class PSROIPooling(_RegionLayer):
    """The mean of each bin of a region, each bin from channels of its own (R-FCN).

    Maps (N, D g g, H, W), regions (R, 5) in pixels of the image -> (R, D, g, g), D `output_dim`, g
    `group_size`: bin (p, q) of output d is the mean over channel (d g + p) g + q. Corners are
    rounded, halves away from 0, the last pixel included, and scaled by `spatial_scale`; a side is
    at least 0.1; bins reach from floor to ceil, cut to the map; an empty one is 0. dx spreads dy
    evenly over the bin. Regions have no gradient: to ask for one is an error, and so is a batch
    index out of range.
    """

    keeps_bottom = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        for name in ("spatial_scale", "output_dim", "group_size"):
            if getattr(param, name) <= 0:
                raise ModelError(f"{name} must be > 0, got {getattr(param, name):g}")
        self.outputs, self.group = param.output_dim, param.group_size
        self.scale = param.spatial_scale

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        needed, channels = self.outputs * self.group**2, bottom[0].shape[1]
        if channels != needed:
            raise ModelError(
                f"input channel number {channels} does not match layer parameters, which need"
                f" output_dim * group_size^2 = {needed}"
            )
        top[0].reshape(bottom[1].shape[0], self.outputs, self.group, self.group)

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = self._grouped(bottom[0].data), top[0].data
        regions = bottom[1].data.reshape(-1, 5)
        self.check_batch_index(regions, len(x))
        y[...] = 0
        for image, p, q, rows, columns in self._masks(regions, x):
            # Products with masks instead of slices, whose sizes would depend on values.
            lines = columns @ x[image, :, p, q].reshape(-1, x.shape[-1]).T
            lines = lines.reshape(len(regions), self.outputs, x.shape[-2])
            y[:, :, p, q] += (lines @ rows[:, :, None])[:, :, 0]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not self.check_asked(propagate_down):
            return
        dx, dy = self._grouped(bottom[0].diff), top[0].diff
        regions = bottom[1].data.reshape(-1, 5)
        for image, p, q, rows, columns in self._masks(regions, dx):
            lines = dy[:, :, p, q].T[:, None] * rows.T
            dx[image, :, p, q] = lines @ columns

    def _grouped(self, maps: Array) -> Array:
        """(N, D g g, H, W) -> (N, D, g, g, H, W)."""
        return maps.reshape(len(maps), self.outputs, self.group, self.group, *maps.shape[2:])

    def _masks(self, regions: Array, x: Array) -> Iterator[tuple[int, int, int, Array, Array]]:
        """Of each map and bin (p, q): rows (R, H), 1 / area of the bin where it lies, and columns
        (R, W), 1 where it lies; regions of another map have no rows.
        """
        height, width = x.shape[-2:]
        rows, columns = self._bins(regions[:, 2::2], height), self._bins(regions[:, 1::2], width)
        tall, wide = rows.sum(axis=2), columns.sum(axis=2)
        for image in range(len(x)):
            here = regions[:, 0].astype("int32") == image
            for p in range(self.group):
                for q in range(self.group):
                    share = here / self.xp.maximum(tall[:, p] * wide[:, q], 1)
                    part = (rows[:, p] * share[:, None]).astype(x.dtype)
                    yield image, p, q, part, columns[:, q]

    def _bins(self, ends: Array, limit: int) -> Array:
        """(R, 2) first and last pixel -> (R, g, limit): 1 where a bin lies, 0 elsewhere."""
        xp = self.xp
        rounded = xp.floor(xp.abs(ends) + 0.5) * xp.sign(ends)
        start, end = rounded[:, :1] * self.scale, (rounded[:, 1:] + 1) * self.scale
        side = xp.maximum(end - start, 0.1) / self.group
        k = xp.arange(self.group).astype(ends.dtype)
        first, last = xp.floor(k * side + start), xp.ceil((k + 1) * side + start)
        at = xp.arange(limit)
        inside = (at >= first[:, :, None]) & (at < last[:, :, None])
        return inside.astype(ends.dtype)
