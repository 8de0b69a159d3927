"""What is in a net? Its layers with shapes, parameters, work and memory; from shapes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from . import work
from .blob import Blob
from .net import TRAIN, Net
from .storage import SyncedArray

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerSummary:
    """A layer: what it makes, has, computes and keeps.

    `tops` are (blob, shape). `parameters` counts numbers, those that another layer owns and this
    one shares not among them; `activation_bytes` are those of tops that have memory of their own:
    none for what is computed in place, or shared. Data sources have no `multiply_adds`. `weights`
    says what a weights file did for the layer: "loaded", "left" at its fillers' values, "" where
    nothing was loaded or it has none.
    """

    name: str
    type: str
    tops: tuple[tuple[str, Shape], ...]
    parameter_shapes: tuple[Shape, ...]
    parameters: int
    parameter_bytes: int
    multiply_adds: int
    activation_bytes: int
    weights: str = ""


@dataclass(frozen=True)
class NetSummary:
    """A net's layers in their order; `ignored` are layers of the weights file it has no use for."""

    name: str
    phase: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: tuple[LayerSummary, ...]
    ignored: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Numbers in all parameters, shared ones once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Memory of all parameters, shared ones once."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Those of one forward; see `work.multiply_adds`."""
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Memory of all blobs' values (not gradients), shared ones once."""
        return sum(layer.activation_bytes for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON has it, totals too; exact numbers."""
        result = asdict(self)
        result["total"] = {
            name: getattr(self, name)
            for name in ("parameters", "parameter_bytes", "multiply_adds", "activation_bytes")
        }
        return result


def summarize(net: Net) -> NetSummary:
    """Look a built net over, at its shapes of now. Allocates and computes nothing.

    The Splits that a net inserts where a blob has several consumers are left out: they compute and
    keep nothing.
    """
    seen: set[SyncedArray] = set()
    return NetSummary(
        net.name,
        "TRAIN" if net.phase == TRAIN else "TEST",
        tuple(net.inputs),
        tuple(net.outputs),
        tuple(
            _layer(net, index, seen)
            for index, layer in enumerate(net.layers)
            if not is_inserted(layer.spec)
        ),
        net.load_report.ignored if net.load_report else (),
    )


def is_inserted(spec: Any) -> bool:
    """True for a LayerParameter that is a Split which `graph.insert_splits` has added."""
    if spec.type != "Split" or len(spec.bottom) != 1:
        return False
    name = rf"{re.escape(spec.bottom[0])}_.*_\d+_split"
    tops = [f"{spec.name}_{k}" for k in range(len(spec.top))]
    return re.fullmatch(name, spec.name) is not None and list(spec.top) == tops


def _layer(net: Net, index: int, seen: set[SyncedArray]) -> LayerSummary:
    step, layer = net._steps[index], net.layers[index]
    own = [blob for k, blob in enumerate(layer.blobs) if net.owns_param(layer, k)]
    names = [net._blob_names[i] for i in net._top_ids(index)]
    return LayerSummary(
        layer.name,
        layer.type,
        tuple(zip(names, (blob.shape for blob in step.top), strict=True)),
        tuple(blob.shape for blob in layer.blobs),
        sum(blob.count for blob in own),
        sum(blob.count * blob.dtype.itemsize for blob in own),
        work.multiply_adds(layer, step.bottom, step.top) if step.bottom else 0,
        _new_bytes(step.top, seen),
        _weights(net, layer.name, bool(layer.blobs)),
    )


def _new_bytes(blobs: Iterable[Blob], seen: set[SyncedArray]) -> int:
    """Bytes of the blobs whose memory is not in `seen` yet; adds it there."""
    total = 0
    for blob in blobs:
        if blob.storages[0] not in seen:
            seen.add(blob.storages[0])
            total += blob.count * blob.dtype.itemsize
    return total


def _weights(net: Net, name: str, has_parameters: bool) -> str:
    report = net.load_report
    if report is None or not has_parameters:
        return ""
    if name in report.left:
        return "left"
    return "loaded" if name in report.loaded else ""
