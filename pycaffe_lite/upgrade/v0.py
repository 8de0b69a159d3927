"""The first generation: `layers { layer { type: "conv" } }`, one set of fields for all types."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import ModelError, did_you_mean
from ..proto import caffe_pb2
from .copying import copy, copy_without, put

_SAME_NAMES = (
    "accuracy bnll concat data dropout euclidean_loss flatten hdf5_data hdf5_output im2col"
    " infogain_loss lrn multinomial_logistic_loss relu sigmoid softmax softmax_loss split tanh"
    " window_data"
)
_TYPES = {name: name.upper() for name in _SAME_NAMES.split()} | {
    "conv": "CONVOLUTION",
    "images": "IMAGE_DATA",
    "innerproduct": "INNER_PRODUCT",
    "pool": "POOLING",
}
_PADDING = "padding"

_PARAM_FIELDS = {
    "concat": "concat_param",
    "conv": "convolution_param",
    "data": "data_param",
    "dropout": "dropout_param",
    "hdf5_data": "hdf5_data_param",
    "images": "image_data_param",
    "infogain_loss": "infogain_loss_param",
    "innerproduct": "inner_product_param",
    "lrn": "lrn_param",
    "pool": "pooling_param",
    "window_data": "window_data_param",
}


class _Field(NamedTuple):
    """Where a field goes: its name in the parameters of each type that may have it."""

    types: str
    name: str


_LEARNED = "conv innerproduct"
_WINDOWED = "conv pool"
_FIELDS = {
    "num_output": _Field(_LEARNED, "num_output"),
    "biasterm": _Field(_LEARNED, "bias_term"),
    "weight_filler": _Field(_LEARNED, "weight_filler"),
    "bias_filler": _Field(_LEARNED, "bias_filler"),
    "pad": _Field(_WINDOWED, "pad"),
    "kernelsize": _Field(_WINDOWED, "kernel_size"),
    "stride": _Field(_WINDOWED, "stride"),
    "group": _Field("conv", "group"),
    "pool": _Field("pool", "pool"),
    "dropout_ratio": _Field("dropout", "dropout_ratio"),
    "local_size": _Field("lrn", "local_size"),
    "alpha": _Field("lrn", "alpha"),
    "beta": _Field("lrn", "beta"),
    "k": _Field("lrn", "k"),
    "source": _Field("data hdf5_data images window_data infogain_loss", "source"),
    "batchsize": _Field("data hdf5_data images window_data", "batch_size"),
    "rand_skip": _Field("data images", "rand_skip"),
    "shuffle_images": _Field("images", "shuffle"),
    "new_height": _Field("images", "new_height"),
    "new_width": _Field("images", "new_width"),
    "concat_dim": _Field("concat", "concat_dim"),
    "det_fg_threshold": _Field("window_data", "fg_threshold"),
    "det_bg_threshold": _Field("window_data", "bg_threshold"),
    "det_fg_fraction": _Field("window_data", "fg_fraction"),
    "det_context_pad": _Field("window_data", "context_pad"),
    "det_crop_mode": _Field("window_data", "crop_mode"),
}
_TRANSFORMATION = {
    "scale": "scale",
    "meanfile": "mean_file",
    "cropsize": "crop_size",
    "mirror": "mirror",
}
_COPIED = {"name", "blobs", "blobs_lr", "weight_decay"}


def to_v1(spec: Any) -> Any:
    """V0 layers -> V1 layers; padding layers become the pad of what reads them.

    Entries that are V1 layers already stay. Raises ModelError for an unknown type, for a field that
    the layer's type has not, for V1 fields beside a V0 layer, and for a padding layer in front of
    anything but one convolution or pooling without a pad of its own.
    """
    if not any(entry.HasField("layer") for entry in spec.layers):
        return spec
    new = copy_without(spec, "layers")
    for entry in _without_padding(spec.layers):
        if entry.HasField("layer"):
            _convert(entry, new.layers.add())
        else:
            new.layers.add().CopyFrom(entry)
    return new


# ---- padding -----------------------------------------------------------------------------------


def _without_padding(entries: Any) -> list[Any]:
    """The entries but padding layers, whose readers are copies that pad by themselves."""
    result = []
    paddings: dict[str, Any] = {}  # what makes a blob, where that is a padding layer
    for entry in entries:
        reads = [name for name in entry.bottom if name in paddings]
        if reads:
            entry = _padded(entry, paddings[reads[0]])
        for top in entry.top:
            paddings.pop(top, None)
        if entry.layer.type == _PADDING:
            _check_single_blob(entry, "bottom")
            _check_single_blob(entry, "top")
            paddings[entry.top[0]] = entry
        else:
            result.append(entry)
    return result


def _padded(entry: Any, padding: Any) -> Any:
    """A copy of a convolution or pooling that reads what the padding layer reads."""
    name, kind, amount = entry.layer.name or entry.name, entry.layer.type, padding.layer.pad
    if kind not in ("conv", "pool"):
        raise ModelError(
            f"layer {name!r} ({kind or 'V1'}) reads padding layer"
            f" {padding.layer.name!r}, which only conv and pool may",
            layer=name,
        )
    _check_single_blob(entry, "bottom")
    if entry.layer.pad:
        raise ModelError(
            f"layer {name!r} ({kind}) has pad {entry.layer.pad} and reads padding layer"
            f" {padding.layer.name!r} of pad {amount}; which of the two?",
            layer=name,
        )
    new = copy(entry)
    new.layer.pad = amount
    new.bottom[0] = padding.bottom[0]
    return new


def _check_single_blob(entry: Any, side: str) -> None:
    count = len(getattr(entry, side))
    if count != 1:
        name = entry.layer.name
        raise ModelError(
            f"layer {name!r} ({entry.layer.type}) takes a single {side} blob, got {count}",
            layer=name,
        )


# ---- one layer ---------------------------------------------------------------------------------


def _convert(entry: Any, new: Any) -> None:
    old = entry.layer
    others = [f.name for f, _ in entry.ListFields() if f.name not in ("bottom", "top", "layer")]
    if others:
        raise ModelError(
            f"layer {old.name!r} ({old.type}) is a V0 layer inside a V1 layer: next to"
            f" `layer {{ }}` only bottom and top may stand, not {', '.join(others)}",
            layer=old.name,
        )
    if old.type not in _TYPES:
        known = sorted([*_TYPES, _PADDING])
        raise ModelError(
            f"layer {old.name!r}: unknown V0 layer type: {old.type}{did_you_mean(old.type, known)}"
            f" (known types: {', '.join(known)})",
            layer=old.name,
        )
    new.type = caffe_pb2.V1LayerParameter.LayerType.Value(_TYPES[old.type])
    new.bottom.extend(entry.bottom)
    new.top.extend(entry.top)
    for field, value in old.ListFields():
        if field.name != "type":
            _put_field(old, field.name, value, new)


def _put_field(old: Any, field: str, value: Any, new: Any) -> None:
    if field in _COPIED:
        put(new, field, value)
    elif field in _TRANSFORMATION:
        setattr(new.transform_param, _TRANSFORMATION[field], value)
    elif field == "hdf5_output_param" and old.type == "hdf5_output":
        put(new, field, value)
    elif field in _FIELDS and old.type in _FIELDS[field].types.split():
        put(getattr(new, _PARAM_FIELDS[old.type]), _FIELDS[field].name, value)
    else:
        raise ModelError(_not_for_this_type(old, field), layer=old.name)


def _not_for_this_type(old: Any, field: str) -> str:
    types = "hdf5_output" if field == "hdf5_output_param" else ""
    if field in _FIELDS:
        types = ", ".join(_FIELDS[field].types.split())
    belongs = f"it belongs to {types}" if types else "no type of layer has it any more"
    return f"layer {old.name!r} ({old.type}): field {field} is set, but {belongs}"
