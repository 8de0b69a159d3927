"""Layers that enlarge or shrink images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.base import Ops
from ..registry import exports
from ..writer import LayerWriter


@exports("Interp")
def interp(w: LayerWriter) -> None:
    """Resize between aligned corners, of the image without what negative pads cut off."""
    param, x = w.param, w.bottom[0]
    if param.pad_beg or param.pad_end:
        begin, stop = -param.pad_beg, param.pad_end or 2**31
        x = w.add("Slice", x, w.integers(begin, begin), w.integers(stop, stop), w.integers(2, 3))
    size = None
    if None in w.top_dims[0][2:]:
        size = _scaled(w, x, param.shrink_factor, param.zoom_factor)
    _resize(w, x, size, mode="linear", coordinate_transformation_mode="align_corners")


def _scaled(w: LayerWriter, x: str, shrink: int, zoom: int) -> str:
    """Height and width shrunk, then zoomed, computed in the run."""
    one = w.integers(1)
    size = w.add("Slice", w.add("Shape", x), w.integers(2), w.integers(4))
    shrunk = w.add("Add", w.add("Div", w.add("Sub", size, one), w.integers(shrink)), one)
    more = w.add("Mul", w.add("Sub", shrunk, one), w.integers(zoom - 1))
    return w.add("Add", shrunk, more)


@exports("BilinearInterpolate")
def bilinear(w: LayerWriter) -> None:
    """Resize, corners on corners, or pixels as areas."""
    _refuse_open(w)
    how = "align_corners" if w.param.align_corners else "half_pixel"
    _resize(w, w.bottom[0], None, mode="linear", coordinate_transformation_mode=how)


@exports("Resample")
def resample(w: LayerWriter) -> None:
    """Two matrix products: Resize has neither these offsets nor these weights."""
    _refuse_open(w)
    layer: Any = w.layer
    layer.bind(Ops())
    rows, columns = layer._matrices(np.dtype("float32"))
    wide = w.add("MatMul", w.bottom[0], w.constant(columns.T))
    w.add("MatMul", w.constant(rows), wide, to=w.top[0])


@exports("Accum")
def accumulate(w: LayerWriter) -> None:
    """Each bottom resized between aligned corners, behind one another."""
    _refuse_open(w)
    layer: Any = w.layer
    parts = [
        _resize(w, x, None, k, None, mode="linear", coordinate_transformation_mode="align_corners")
        for k, x in enumerate(w.bottom[: layer.used])
    ]
    w.add("Concat", *parts, to=w.top[0], axis=1)


def _refuse_open(w: LayerWriter) -> None:
    if any(w.is_image_free(k) for k in range(len(w.bottom))):
        w.refuse("its weights depend on the image's size", "fix the sizes")


def _resize(
    w: LayerWriter, x: str, size: str | None, bottom: int = 0, to: Any = True, **how: Any
) -> str:
    """Resize of x, which has the batch and channels of a bottom, to `size` or that of the top."""
    size = w.integers(*w.top_shapes[0][2:]) if size is None else size
    before = w.sizes(bottom, 0, 2)
    sizes = w.add("Concat", before, size, axis=0)
    return w.add("Resize", x, "", "", sizes, to=w.top[0] if to is True else to, **how)


@exports("Upsample", "MaxUnPool")
def upsample(w: LayerWriter) -> None:
    """With a mask each value goes to its place in the plane; without, it fills a block."""
    if len(w.bottom) == 1:
        _repeat(w)
        return
    if any(w.is_image_free(k) for k in range(2)):
        w.refuse("its planes' size depends on the image's", "fix the sizes")
    channels, height, width = w.top_shapes[0][1:]
    dims = w.bottom_dims[0]
    values = w.reshape(w.bottom[0], dims, [("copy", 0), channels, -1])
    places = w.cast(w.reshape(w.bottom[1], dims, [("copy", 0), channels, -1]), "INT64")
    plane = w.integers(channels, height * width)
    shape = w.add("Concat", w.sizes(0, 0, 1), plane, axis=0)
    found = w.add("ScatterElements", w.fill(shape, 0.0), places, values, axis=2)
    w.reshape(found, (dims[0], channels, None), [("copy", 0), channels, height, width], w.top[0])


def _repeat(w: LayerWriter) -> None:
    if w.param.HasField("upsample_h"):
        _refuse_open(w)
    old, new = w.bottom_shapes[0][2:], w.top_shapes[0][2:]
    scales = w.constant([1, 1, *[b / a for a, b in zip(old, new, strict=True)]])
    w.add(
        "Resize",
        w.bottom[0],
        "",
        scales,
        to=w.top[0],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
