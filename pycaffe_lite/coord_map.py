"""Where does a blob's coordinate lie in another blob? Offsets for Crop, found from a NetSpec.

pycaffe's coord_map. A map is (axis, a, b): a coordinate x of one blob is a * x + b in the other,
along the axes after `axis`; None says that all axes are mapped alike. `a` and `b` are numbers or
float arrays of shape (1,) or (spatial axes,).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from .errors import ModelError
from .net_spec import Function, Top, layers

__all__ = [
    "PASS_THROUGH_LAYERS",
    "AxisMismatchException",
    "UndefinedMapException",
    "compose",
    "conv_params",
    "coord_map",
    "coord_map_from_to",
    "crop",
    "crop_params",
    "inverse",
]

Map = tuple[int | None, Any, Any]

PASS_THROUGH_LAYERS = [
    "AbsVal", "BatchNorm", "Bias", "BNLL", "Dropout", "Eltwise", "ELU", "Log", "LRN", "Exp", "MVN",
    "Power", "ReLU", "PReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold",
]  # fmt: skip
"""Types that leave every value where it is."""

_LEGACY = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")
_IDENTITY: Map = (None, 1, 0)


class UndefinedMapException(ModelError):
    """The layer's tops are not its bottoms with coordinates scaled and shifted."""


class AxisMismatchException(ModelError):
    """Two maps are along different axes."""


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """The map between two tops of one net, through the blobs that both are computed from.

    All ways from one blob to another are taken to give the same map; the shortest is followed.
    Raises RuntimeError where there is no such blob, AxisMismatchException, and AssertionError for
    kernels given by _h and _w.
    """
    from_maps: dict[Top, Map] = dict(_maps_back(top_from))
    for top, to_map in _maps_back(top_to):
        if top in from_maps:
            return compose(to_map, inverse(from_maps[top]))
    raise RuntimeError(
        "could not compute map between tops; are they connected by spatial layers?"
        f" ({top_from.fn.type_name} and {top_to.fn.type_name})"
    )


def crop(top_from: Top, top_to: Top) -> Any:
    """The Top of a Crop layer that cuts from `top_from` what lies over `top_to`.

    Raises AssertionError where their scales differ or the offset is negative or no whole number,
    and as coord_map_from_to.
    """
    axis, a, b = coord_map_from_to(top_from, top_to)
    offset = -np.round(np.atleast_1d(b))
    # Products of fractions such as 1/49 are off by a rounding error.
    if not np.allclose(a, 1):
        raise AssertionError(f"scale mismatch on crop (a = {a})")
    if not np.all(b <= 1e-6):
        raise AssertionError(f"cannot crop negative offset (b = {b})")
    if not np.allclose(offset, -np.atleast_1d(b), rtol=0, atol=1e-6):
        raise AssertionError(f"cannot crop noninteger offset (b = {b})")
    first = 2 if axis is None else axis + 1
    crop_param = {"axis": first, "offset": [int(value) for value in offset]}
    return layers.Crop(top_from, top_to, crop_param=crop_param)


def coord_map(fn: Function) -> Map:
    """The map of a layer's bottom in its top. Raises UndefinedMapException where it has none."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, kernel, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (kernel - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, kernel, pad = conv_params(fn)
        return axis, stride, (kernel - 1) / 2 - pad
    if fn.type_name in PASS_THROUGH_LAYERS:
        return _IDENTITY
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset
    raise UndefinedMapException(f"a layer of type {fn.type_name} has no coordinate map")


def conv_params(fn: Function) -> tuple[int, Any, Any, Any]:
    """(axis, stride, kernel, pad) of a convolution or pooling, the kernel with its dilation.

    All but the axis are int arrays of shape (1,) or (spatial axes,). Raises AssertionError for _h
    and _w keywords, UndefinedMapException where there is no kernel_size (global pooling).
    """
    field = "pooling_param" if fn.type_name == "Pooling" else "convolution_param"
    params = fn.params | fn.params.get(field, {})
    legacy = [key for key in _LEGACY if key in params]
    if legacy:
        raise AssertionError(
            f"cropping does not support legacy _h/_w params ({fn.type_name} has"
            f" {', '.join(legacy)})"
        )
    if "kernel_size" not in params:
        raise UndefinedMapException(f"{fn.type_name} without kernel_size has no coordinate map")
    kernel = np.atleast_1d(params["kernel_size"])
    dilation = np.atleast_1d(params.get("dilation", 1))
    stride = np.atleast_1d(params.get("stride", 1))
    pad = np.atleast_1d(params.get("pad", 0))
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, Any]:
    """(axis, offset) of a Crop; the offset is an int array of shape (1,) or (cropped axes,)."""
    params = fn.params | fn.params.get("crop_param", {})
    return params.get("axis", 2), np.atleast_1d(params.get("offset", 0))


def compose(base_map: Map, next_map: Map) -> Map:
    """The map that follows `next_map`, then `base_map`. Raises AxisMismatchException."""
    axis1, a1, b1 = base_map
    axis2, a2, b2 = next_map
    if axis1 is not None and axis2 is not None and axis1 != axis2:
        raise AxisMismatchException(f"maps along different axes do not compose: {axis1}, {axis2}")
    return axis2 if axis1 is None else axis1, a1 * a2, a1 * b2 + b1


def inverse(coord_map: Map) -> Map:
    """The map the other way round."""
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def _maps_back(start: Top) -> Iterator[tuple[Top, Map]]:
    """(top, map of its coordinates in `start`) for all that `start` is computed from, near first.

    The second bottom of a Crop gives only a size, so no way leads through it.
    """
    maps = {start: _IDENTITY}
    waiting = deque([start])
    while waiting:
        top = waiting.popleft()
        yield top, maps[top]
        inputs = top.fn.inputs[:1] if top.fn.type_name == "Crop" else top.fn.inputs
        for bottom in inputs:
            try:
                step = coord_map(top.fn)
            except UndefinedMapException:
                break
            if bottom not in maps:
                maps[bottom] = compose(maps[top], step)
                waiting.append(bottom)
