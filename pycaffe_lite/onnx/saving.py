"""How does a model get into a file: checked, whole, and with its weights beside it where large?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..replacement import replacing
from .model import Model

LARGEST = 2**31 - 2**20
"""Bytes of weights above which a model is no valid protobuf message, with room for its graph."""

_SMALL = 4096
"""Bytes of an initialiser that shape inference may need to read."""

_ALIGNMENT = 4096
"""In the file of the weights, so that runtimes can map it."""


def check(model: Model) -> None:
    """onnx's checker and its strict shape inference. Raises ModelError with what they say."""
    import onnx

    skeleton = with_initializers(model, lambda name, value: value.nbytes <= _SMALL)
    for name, value in model.initializers.items():
        if value.nbytes > _SMALL:
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            skeleton.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    try:
        onnx.checker.check_model(skeleton)
        onnx.shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"onnx does not accept the model: {error}") from error


def with_initializers(model: Model, wanted: Any = None) -> Any:
    """A copy of the model's message with its initialisers, or those that `wanted(name, value)`."""
    from onnx import ModelProto, numpy_helper

    new = ModelProto()
    new.CopyFrom(model.proto)
    for name, value in model.initializers.items():
        if wanted is None or wanted(name, value):
            new.graph.initializer.append(numpy_helper.from_array(value, name))
    return new


def size(model: Model) -> int:
    """Bytes of all initialisers."""
    return sum(value.nbytes for value in model.initializers.values())


def save(model: Model, path: str | os.PathLike[str], external: bool | None = None) -> list[Path]:
    """Write the model; the files written.

    With `external` (by default where one file cannot hold them) weights go to PATH.data, which the
    model names; it must stay beside it. Files appear whole or not at all. Raises OSError.
    """
    target = Path(path)
    if external is None:
        external = size(model) > LARGEST
    if not external:
        with replacing(target) as temporary:
            temporary.write_bytes(with_initializers(model).SerializeToString())
        return [target]
    beside = target.with_name(target.name + ".data")
    proto = with_initializers(model, lambda name, value: value.nbytes <= _SMALL)
    with replacing(target) as temporary, replacing(beside) as weights:
        with weights.open("wb") as file:
            for name, value in model.initializers.items():
                if value.nbytes > _SMALL:
                    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                    _point(proto.graph.initializer.add(), name, value, beside.name, file.tell())
                    file.write(np.ascontiguousarray(value).data)
        temporary.write_bytes(proto.SerializeToString())
    return [target, beside]


def _point(tensor: Any, name: str, value: np.ndarray, location: str, offset: int) -> None:
    """Let an initialiser say where in which file its values are."""
    from onnx import TensorProto, helper

    tensor.name, tensor.data_type = name, helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor.dims.extend(value.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, number in (("location", location), ("offset", offset), ("length", value.nbytes)):
        tensor.external_data.add(key=key, value=str(number))
