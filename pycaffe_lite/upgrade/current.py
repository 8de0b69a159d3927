"""Today's form, as people wrote it before: input fields, and what BatchNorm must not learn."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from .copying import copy, copy_without


def inputs_to_layer(spec: Any) -> Any:
    """`input` with `input_shape` or four `input_dim` each -> one Input layer, "input", first.

    Inputs without any shape are dropped, as Caffe does. Raises ModelError for shapes or dimensions
    that are not as many as the inputs.
    """
    if not spec.input:
        return spec
    new = copy_without(spec, "input", "input_shape", "input_dim", "layer")
    if spec.input_shape or spec.input_dim:
        layer = new.layer.add(name="input", type="Input", top=spec.input)
        for dims in _input_dims(spec):
            layer.input_param.shape.add(dim=dims)
    new.layer.extend(spec.layer)
    return new


def _input_dims(spec: Any) -> list[list[int]]:
    """The shape of each input, from `input_shape` or four `input_dim` each."""
    n = len(spec.input)
    if spec.input_shape and spec.input_dim:
        raise ModelError("specify inputs by input_shape or by input_dim; not both")
    if spec.input_shape:
        if len(spec.input_shape) != n:
            raise ModelError(f"{n} inputs but {len(spec.input_shape)} input_shape entries")
        return [list(shape.dim) for shape in spec.input_shape]
    if len(spec.input_dim) != 4 * n:
        raise ModelError(f"{n} inputs need {4 * n} input_dim values, got {len(spec.input_dim)}")
    dims = list(spec.input_dim)
    return [dims[4 * k : 4 * k + 4] for k in range(n)]


def still_statistics(spec: Any) -> Any:
    """A BatchNorm layer with three ParamSpecs gets lr_mult and decay_mult 0 in each.

    Its parameters are statistics; older files give them learning rates.
    """
    if not has_learning_statistics(spec):
        return spec
    new = copy(spec)
    for layer in filter(_learns_statistics, new.layer):
        for param in layer.param:
            param.lr_mult = param.decay_mult = 0
    return new


def has_learning_statistics(spec: Any) -> bool:
    """Is there a BatchNorm layer that `still_statistics` would change?"""
    return any(map(_learns_statistics, spec.layer))


def _learns_statistics(layer: Any) -> bool:
    return (
        layer.type == "BatchNorm"
        and len(layer.param) == 3
        and any(param.lr_mult or param.decay_mult for param in layer.param)
    )
