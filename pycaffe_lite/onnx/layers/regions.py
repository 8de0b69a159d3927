"""Pooling over regions of interest."""

from __future__ import annotations

from ..registry import exports
from ..writer import LayerWriter


@exports("ROIPooling")
def roi_pooling(w: LayerWriter) -> None:
    """MaxRoiPool, which rounds corners and bins alike."""
    rows = w.bottom[1]
    if len(w.bottom_shapes[1]) != 2:
        rows = w.add("Reshape", rows, w.integers(-1, 5))
    w.add(
        "MaxRoiPool",
        w.bottom[0],
        rows,
        to=w.top[0],
        pooled_shape=[int(w.param.pooled_h), int(w.param.pooled_w)],
        spatial_scale=float(w.param.spatial_scale),
    )
