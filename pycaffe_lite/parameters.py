"""Which layers share a parameter, and at what rate does each learn?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .blob import Blob, describe
from .errors import ModelError
from .proto import caffe_pb2


@dataclass
class Parameter:
    """A parameter that learns: its owner's blob, and the rates that all who share it agree on.

    A rate that nobody set is None and counts as 1.
    """

    blob: Blob
    layer: str
    index: int
    name: str
    lr_mult: float | None
    decay_mult: float | None


class Parameters:
    """The parameters of a net: `learnable` has each once, in order; equal names share one.

    The first to use a name owns the blob; values and gradients of the others become its own.
    """

    def __init__(self) -> None:
        self.learnable: list[Parameter] = []
        self._named: dict[str, Parameter] = {}
        self._owned: set[Blob] = set()

    def add(self, layer: str, index: int, blob: Blob, spec: Any) -> bool:
        """Register parameter `index` of a layer by its ParamSpec; True where it is shared.

        Raises ModelError where shapes (counts, if PERMISSIVE) or set rates differ from the owner's.
        """
        lr = spec.lr_mult if spec.HasField("lr_mult") else None
        decay = spec.decay_mult if spec.HasField("decay_mult") else None
        owner = self._named.get(spec.name) if spec.name else None
        if owner is None:
            parameter = Parameter(blob, layer, index, spec.name, lr, decay)
            self.learnable.append(parameter)
            self._owned.add(blob)
            if spec.name:
                self._named[spec.name] = parameter
            return False
        _check_shapes(owner, layer, blob, spec)
        owner.lr_mult = _agreed(owner, layer, "lr_mult", owner.lr_mult, lr)
        owner.decay_mult = _agreed(owner, layer, "decay_mult", owner.decay_mult, decay)
        blob.share_data(owner.blob)
        blob.share_diff(owner.blob)
        return True

    def owns(self, blob: Blob) -> bool:
        """True unless the blob's values belong to another layer."""
        return blob in self._owned


def _check_shapes(owner: Parameter, layer: str, blob: Blob, spec: Any) -> None:
    permissive = spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE
    if permissive and blob.count == owner.blob.count:
        return
    if not permissive and blob.shape == owner.blob.shape:
        return
    raise ModelError(
        f"cannot share param {owner.name!r} owned by layer {owner.layer!r} with layer {layer!r};"
        f" {'count' if permissive else 'shape'} mismatch. Owner layer param shape is"
        f" `{describe(owner.blob.shape)}`; sharing layer shape is `{describe(blob.shape)}`"
    )


def _agreed(
    owner: Parameter, layer: str, field: str, known: float | None, new: float | None
) -> float | None:
    if known is not None and new is not None and known != new:
        raise ModelError(
            f"shared param {owner.name!r} has mismatched {field}: {known} in layer"
            f" {owner.layer!r}, {new} in layer {layer!r}"
        )
    return known if new is None else new
