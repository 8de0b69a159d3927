"""Layers that enlarge or shrink images."""

from __future__ import annotations

from typing import Any

from ..registry import exports
from ..writer import LayerWriter


@exports("Interp")
def interp(w: LayerWriter) -> None:
    """Resize between aligned corners, of the image without what negative pads cut off."""
    param, x = w.param, w.bottom[0]
    begin, end = -param.pad_beg, -param.pad_end
    if begin < 0 or end < 0:
        w.refuse(f"pads above 0 are not known to Caffe: {param.pad_beg}, {param.pad_end}")
    if begin or end:
        stop = -end if end else 2**31
        x = w.add("Slice", x, w.integers(begin, begin), w.integers(stop, stop), w.integers(2, 3))
    resize(w, x, "linear", "align_corners")


def resize(w: LayerWriter, x: str, mode: str, transformation: str, **more: Any) -> None:
    """x of the bottom's channels -> the top's size."""
    if w.is_free(0, 2, 3) and None in w.top_dims[0][2:]:
        w.refuse("its output size depends on the image's", "fix the sizes")
    size = w.integers(*w.top_shapes[0][2:])
    if w.is_free(0, 0, 1):
        sizes = w.add("Concat", w.sizes(0, 0, 2), size, axis=0)
    else:
        sizes = w.integers(*w.bottom_shapes[0][:2], *w.top_shapes[0][2:])
    w.add(
        "Resize",
        x,
        "",
        "",
        sizes,
        to=w.top[0],
        mode=mode,
        coordinate_transformation_mode=transformation,
        **more,
    )


@exports("Upsample")
def upsample(w: LayerWriter) -> None:
    """SegNet's: each value goes to the place in the plane that the mask of a pooling names."""
    if len(w.bottom) == 1:
        resize(w, w.bottom[0], "nearest", "asymmetric", nearest_mode="floor")
        return
    if w.is_free(0, 1, 2, 3):
        w.refuse("its planes' size depends on the image's", "fix the sizes")
    channels, height, width = w.top_shapes[0][1:]
    dims = w.bottom_dims[0]
    values = w.reshape(w.bottom[0], dims, [("copy", 0), channels, -1])
    places = w.cast(w.reshape(w.bottom[1], dims, [("copy", 0), channels, -1]), "INT64")
    plane = w.integers(channels, height * width)
    shape = w.add("Concat", w.sizes(0, 0, 1), plane, axis=0)
    found = w.add("ScatterElements", w.fill(shape, 0.0), places, values, axis=2)
    w.reshape(found, (dims[0], channels, None), [("copy", 0), channels, height, width], w.top[0])
