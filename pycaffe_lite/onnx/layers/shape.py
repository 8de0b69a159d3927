"""Layers that move, cut, join and repeat values, and those that choose items."""

from __future__ import annotations

from typing import Any

from ..registry import exports
from ..writer import LayerWriter


@exports("Split")
def split(w: LayerWriter) -> None:
    """Identity for each top. Splits that a net inserts by itself make no node."""
    for top in w.top:
        w.add("Identity", w.bottom[0], to=top)


@exports("Concat")
def concat(w: LayerWriter) -> None:
    """Concat."""
    w.add("Concat", *w.bottom, to=w.top[0], axis=w.layer.axis)  # type: ignore[attr-defined]


@exports("Slice")
def cut(w: LayerWriter) -> None:
    """ONNX's Split."""
    axis = w.layer.axis  # type: ignore[attr-defined]
    if len(w.top) == 1:
        w.add("Identity", w.bottom[0], to=w.top[0])
        return
    dims = [d[axis] for d in w.top_dims]
    if None not in dims:
        sizes = w.integers(*[shape[axis] for shape in w.top_shapes])
        w.add_many("Split", [w.bottom[0], sizes], list(w.top), axis=axis)
    elif not w.param.slice_point:
        w.add_many("Split", [w.bottom[0]], list(w.top), axis=axis)
    else:
        w.refuse("slice_point on an axis whose size is open", "fix the sizes")


@exports("Tile")
def tile(w: LayerWriter) -> None:
    """Tile."""
    axes = len(w.bottom_shapes[0])
    repeats = [1] * axes
    repeats[w.param.axis % axes] = w.param.tiles
    w.add("Tile", w.bottom[0], w.integers(*repeats), to=w.top[0])


@exports("Flatten")
def flatten(w: LayerWriter) -> None:
    """Flatten where all from axis 1 on becomes one, else Reshape."""
    dims = w.bottom_dims[0]
    start, end = w.param.axis % len(dims), w.param.end_axis % len(dims)
    if start == 1 and end == len(dims) - 1:
        w.add("Flatten", w.bottom[0], to=w.top[0], axis=1)
        return
    merged: Any = w.top_dims[0][start]
    new = [
        *[("copy", k) for k in range(start)],
        -1 if merged is None else merged,
        *[("copy", k) for k in range(end + 1, len(dims))],
    ]
    w.reshape(w.bottom[0], dims, new, w.top[0])


@exports("Reshape")
def reshape(w: LayerWriter) -> None:
    """Reshape: 0 copies a size of the bottom, -1 is what remains, as in Caffe."""
    param, dims = w.param, w.bottom_dims[0]
    start = param.axis if param.axis >= 0 else len(dims) + param.axis + 1
    end = len(dims) if param.num_axes == -1 else start + param.num_axes
    new: list[Any] = [("copy", k) for k in range(start)]
    for k, dim in enumerate(param.shape.dim):
        new.append(("copy", start + k) if dim == 0 else int(dim))
    new += [("copy", k) for k in range(end, len(dims))]
    known = w.top_dims[0]
    new = [known[k] if e == -1 and known[k] is not None else e for k, e in enumerate(new)]
    w.reshape(w.bottom[0], dims, new, w.top[0])


@exports("Permute")
def permute(w: LayerWriter) -> None:
    """Transpose."""
    axes = list(w.layer.axes)  # type: ignore[attr-defined]
    w.add("Transpose", w.bottom[0], to=w.top[0], perm=axes)


@exports("ShuffleChannel")
def shuffle(w: LayerWriter) -> None:
    """Channels as (group, rest), transposed."""
    layer: Any = w.layer
    dims, group = w.bottom_dims[0], int(layer.group)
    channels = w.bottom_shapes[0][1]
    inner = range(2, len(dims))
    apart = [("copy", 0), group, channels // group, *[("copy", k) for k in inner]]
    x = w.reshape(w.bottom[0], dims, apart)
    x = w.add("Transpose", x, perm=[0, 2, 1, *[k + 1 for k in inner]])
    swapped = (dims[0], channels // group, group, *dims[2:])
    back: list[Any] = [("copy", 0), channels, *[("copy", k + 1) for k in inner]]
    w.reshape(x, swapped, back, w.top[0])


@exports("Crop")
def crop(w: LayerWriter) -> None:
    """Slice; where the second bottom's size is open its end is read from there."""
    shape, dims = w.bottom_shapes[0], w.bottom_dims[1]
    axis = w.param.axis % len(shape)
    axes = range(axis, len(shape))
    offsets = [part.start for part in w.layer.part[axis:]]  # type: ignore[attr-defined]
    sizes = w.sizes(1, axis, len(shape))
    starts = w.integers(*offsets)
    if None in dims[axis : len(shape)]:
        ends = w.add("Add", sizes, starts) if any(offsets) else sizes
    else:
        like = w.bottom_shapes[1]
        ends = w.integers(*[like[k] + o for k, o in zip(axes, offsets, strict=True)])
    w.add("Slice", w.bottom[0], starts, ends, w.integers(*axes), to=w.top[0])


@exports("CropCenter")
def crop_centre(w: LayerWriter) -> None:
    """Slice by so much at each end."""
    cut = [(k, size) for k, size in enumerate(w.param.crop_size) if size]
    if not cut:
        w.add("Identity", w.bottom[0], to=w.top[0])
        return
    axes, sizes = zip(*cut, strict=True)
    ends = w.integers(*[-size for size in sizes])
    w.add("Slice", w.bottom[0], w.integers(*sizes), ends, w.integers(*axes), to=w.top[0])


@exports("Pad")
def pad(w: LayerWriter) -> None:
    """Pad of rows and columns."""
    layer: Any = w.layer
    (_, up, down), (_, left, right) = layer.ends
    pads = w.integers(0, 0, up, left, 0, 0, down, right)
    if layer.reflects:
        w.add("Pad", w.bottom[0], pads, to=w.top[0], mode="reflect")
    else:
        w.add("Pad", w.bottom[0], pads, w.constant(w.param.pad_value), to=w.top[0])


@exports("Unsqueeze")
def unsqueeze(w: LayerWriter) -> None:
    """Unsqueeze."""
    w.add("Unsqueeze", w.bottom[0], w.integers(w.param.dim), to=w.top[0])


@exports("PixelShuffle")
def pixel_shuffle(w: LayerWriter) -> None:
    """DepthToSpace with channels outside, then rows, then columns."""
    factor = int(w.param.upscale_factor)
    w.add("DepthToSpace", w.bottom[0], to=w.top[0], blocksize=factor, mode="CRD")


@exports("Reorg")
def reorganize(w: LayerWriter) -> None:
    """Blocks of positions and groups of channels change places, in Darknet's order."""
    if w.is_image_free():
        w.refuse("its rows depend on the image's size", "fix the sizes")
    layer: Any = w.layer
    if w.param.reverse:
        inner, perm = layer.planes, [0, 3, 4, 1, 5, 2]
    else:
        inner, perm = layer.blocks, [0, 3, 5, 1, 2, 4]
    dims = w.bottom_dims[0]
    x = w.reshape(w.bottom[0], dims, [("copy", 0), *inner[1:]])
    x = w.add("Transpose", x, perm=perm)
    w.reshape(x, (dims[0],), [("copy", 0), *w.top_shapes[0][1:]], w.top[0])


@exports("ContinuationIndicator")
def continuation(w: LayerWriter) -> None:
    """A constant: 0 in the first row, else 1."""
    w.add("Identity", w.constant(w.made_of_shapes()), to=w.top[0])


@exports("Parameter")
def parameter(w: LayerWriter) -> None:
    """The initialiser itself."""
    w.add("Identity", w.parameter(0), to=w.top[0])


@exports("BatchReindex")
def reindex(w: LayerWriter) -> None:
    """Gather of items."""
    w.add("Gather", w.bottom[0], w.cast(w.bottom[1], "INT64"), to=w.top[0], axis=0)


@exports("Filter")
def choose(w: LayerWriter) -> None:
    """Compress by the selector."""
    selector = w.cast(w.add("Reshape", w.bottom[-1], w.integers(-1)), "BOOL")
    for x, y in zip(w.bottom[:-1], w.top, strict=True):
        w.add("Compress", x, selector, to=y, axis=0)
