"""The second generation: `layers { type: CONVOLUTION }`, an enum for the type."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..proto import caffe_pb2
from .copying import copy, copy_without, put

_DATA_FIELDS = {
    "DATA": "data_param",
    "IMAGE_DATA": "image_data_param",
    "WINDOW_DATA": "window_data_param",
}
_TRANSFORMATION = ("scale", "mean_file", "crop_size", "mirror")

# The names that are not the enum's words with a capital letter each.
_IRREGULAR = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "IM2COL": "Im2col",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}

# What is not copied into today's field of the same name.
_CHANGED = {"type", "param", "blob_share_mode", "blobs_lr", "weight_decay", "layer"}


def type_name(value: int) -> str:
    """Today's name of a V1 type: CONVOLUTION is "Convolution", NONE is ""."""
    word = _word(value)
    return _IRREGULAR.get(word, word.title().replace("_", ""))


def _word(value: int) -> str:
    word: str = caffe_pb2.V1LayerParameter.LayerType.Name(value)
    return word


def move_transformations(spec: Any) -> Any:
    """scale, mean_file, crop_size and mirror of the data layers -> transform_param."""
    if not any(_transformations(layer) for layer in spec.layers):
        return spec
    new = copy(spec)
    for layer in new.layers:
        for name in _transformations(layer):
            old = getattr(layer, _DATA_FIELDS[_word(layer.type)])
            setattr(layer.transform_param, name, getattr(old, name))
            old.ClearField(name)
    return new


def _transformations(layer: Any) -> list[str]:
    field = _DATA_FIELDS.get(_word(layer.type))
    if field is None or not layer.HasField(field):
        return []
    return [name for name in _TRANSFORMATION if getattr(layer, field).HasField(name)]


def to_current(spec: Any) -> Any:
    """`layers` -> `layer`: types by name; names, rates and decays of parameters in ParamSpecs.

    Raises ModelError for a net that has entries of both kinds, and for V0 layers.
    """
    if not spec.layers:
        return spec
    _refuse_both(spec)
    new = copy_without(spec, "layers")
    for old in spec.layers:
        _convert(old, new.layer.add())
    return new


def _refuse_both(spec: Any) -> None:
    """Raise ModelError where there are `layer` and `layers` entries."""
    if not (spec.layer and spec.layers):
        return
    old = spec.layers[0]
    raise ModelError(
        f"both `layer` and `layers` are there: {len(spec.layer)} `layer` (the first is"
        f" {spec.layer[0].name!r}) and {len(spec.layers)} `layers` (the first is"
        f" {_name_of(old)!r}). Write all of them as today's: `layers {{ type: CONVOLUTION"
        ' blobs_lr: 1 }` is `layer { type: "Convolution" param { lr_mult: 1 } }`',
        layer=_name_of(old),
    )


def _name_of(entry: Any) -> str:
    """The name of a `layers` entry of either generation."""
    name: str = entry.layer.name if entry.HasField("layer") else entry.name
    return name


def _convert(old: Any, new: Any) -> None:
    if old.HasField("layer"):
        raise ModelError(
            f"layer {_name_of(old)!r} ({old.layer.type}) is a V0 layer inside a V1 layer",
            _name_of(old),
        )
    for field, value in old.ListFields():
        if field.name not in _CHANGED:
            put(new, field.name, value)
    if old.HasField("type"):
        new.type = type_name(old.type)
    specs = [caffe_pb2.ParamSpec() for _ in range(_param_count(old))]
    for k, name in enumerate(old.param):
        specs[k].name = name
    for k, mode in enumerate(old.blob_share_mode):
        specs[k].share_mode = mode
    for k, rate in enumerate(old.blobs_lr):
        specs[k].lr_mult = rate
    for k, decay in enumerate(old.weight_decay):
        specs[k].decay_mult = decay
    new.param.extend(specs)


def _param_count(old: Any) -> int:
    return max(map(len, (old.param, old.blob_share_mode, old.blobs_lr, old.weight_decay)))
