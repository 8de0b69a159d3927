"""Which part of a net becomes the model? Its computing layers, without data sources and losses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError, did_you_mean
from ..layer import Layer
from ..net import TEST, Net
from ..proto import caffe_pb2

_MEASURES = {"Accuracy", "SegAccuracy", "DetectionEvaluate", "HDF5Output", "MatWrite"}
"""Layers that look at results, and are no part of what a model computes."""

SOURCES = {"Parameter", "ContinuationIndicator"}
"""Layers without bottoms that bring no data, but compute."""

RAW = {"DetectionOutput", "Yolov3DetectionOutput", "YoloDetectionOutput"}
"""Layers that `raw_heads` leaves off."""


@dataclass
class Part:
    """The part to export, as a net of its own that shares the parameters.

    `outputs` are its results, `left_off` the layers that are missing (name, type, why), `replaced`
    the data layers whose tops are inputs now.
    """

    net: Net
    outputs: list[str]
    left_off: list[tuple[str, str, str]] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)


def part_of(net: Net, end: Sequence[str] = (), raw_heads: bool = False) -> Part:
    """The part that leads to the blobs `end`, or all, of a net in phase TEST.

    Tops of data layers become inputs, losses and measures are left off with all that reads them,
    their bottoms being results; with `raw_heads` so is DetectionOutput. Raises ModelError for a
    net in phase TRAIN, an unknown blob, and where nothing is left.
    """
    if net.phase != TEST:
        raise ModelError("only a net in phase TEST can be exported: Net(prototxt, TEST, ...)")
    spec = without_splits(net.spec)
    part = Part(net, [])
    kept = _computing(spec, raw_heads, part)
    part.outputs = list(end) or _results(kept, spec)
    leading = _leading_to(part.outputs, kept)
    if not any(layer.bottom for layer in leading):
        raise ModelError("there is nothing to export: no layer computes a result")
    layers = [_as_input(layer, net, leading, part) for layer in leading]
    read = {name for layer in leading for name in layer.bottom}
    part.left_off += [
        (top, "Input", "nothing reads it")
        for layer in kept
        for top in layer.top
        if layer.type == "Input" and top not in read
    ]
    new = caffe_pb2.NetParameter(name=spec.name or "net")
    new.state.CopyFrom(spec.state)
    new.layer.extend(layer for layer in layers if layer.top)
    part.net = _sharing(net, new)
    return part


def _sharing(net: Net, spec: Any) -> Net:
    """A net of its own with the parameters of `net`, and the shapes of its blobs."""
    new = Net(spec, TEST)
    _share(new, net)
    for name in new.inputs:
        new.blobs[name].reshape(*net.blobs[name].shape)
    new.reshape()
    return new


def _share(new: Net, net: Net) -> None:
    """Not by the name alone, which several layers may have; `new` has some layers, in order."""
    left = iter(net.layers)
    for layer in new.layers:
        if layer.blobs:
            source = next(other for other in left if _identity(other) == _identity(layer))
            for ours, theirs in zip(layer.blobs, source.blobs, strict=True):
                ours.share_data(theirs)


def _identity(layer: Layer) -> tuple[str, str, list[str]]:
    return layer.name, layer.type, list(layer.spec.top)


def without_splits(spec: Any) -> Any:
    """A copy of a net's spec without the Splits that nets insert, and without rules of phases."""
    new = caffe_pb2.NetParameter()
    new.CopyFrom(spec)
    del new.layer[:]
    original: dict[str, str] = {}
    for old in spec.layer:
        if is_automatic(old):
            original |= {top: old.bottom[0] for top in old.top}
            continue
        layer = new.layer.add()
        layer.CopyFrom(old)
        del layer.blobs[:], layer.include[:], layer.exclude[:], layer.loss_weight[:]
        for k, name in enumerate(old.bottom):
            layer.bottom[k] = original.get(name, name)
    return new


def is_automatic(spec: Any) -> bool:
    """Is it a Split that the net has inserted?"""
    return (
        spec.type == "Split"
        and re.fullmatch(f"{re.escape(spec.bottom[0])}_.*_[0-9]+_split", spec.name) is not None
        and list(spec.top) == [f"{spec.name}_{k}" for k in range(len(spec.top))]
    )


def _computing(spec: Any, raw_heads: bool, part: Part) -> list[Any]:
    """The layers that are part of a model; the others are noted."""
    kept, gone = [], set[str]()
    for layer in spec.layer:
        why = _why_left_off(layer, raw_heads)
        if not why and gone.intersection(layer.bottom):
            why = "it reads what is left off"
        if why:
            part.left_off.append((layer.name, layer.type, why))
            gone.update(layer.top)
        elif layer.type != "Silence":
            kept.append(layer)
    return kept


def _why_left_off(spec: Any, raw_heads: bool) -> str:
    cls = Layer.registry.get(spec.type)
    if (cls is not None and cls.loss) or spec.type in _MEASURES:
        return "its bottoms are results"
    if raw_heads and spec.type in RAW:
        return "its bottoms are results (raw heads)"
    return ""


def _leading_to(end: Sequence[str], layers: list[Any]) -> list[Any]:
    known = {top for layer in layers for top in layer.top}
    for name in end:
        if name not in known:
            raise ModelError(f"no blob {name!r} to end the model at{did_you_mean(name, known)}")
    needed: set[str] = set(end)
    kept: list[Any] = []
    for layer in reversed(layers):
        if needed.intersection(layer.top):
            needed.update(layer.bottom)
            kept.insert(0, layer)
    return kept


def _as_input(spec: Any, net: Net, kept: list[Any], part: Part) -> Any:
    """The layer, or where it brings data an Input layer of those tops that are read."""
    if spec.bottom or spec.type in SOURCES:
        return spec
    read = {name for layer in kept for name in layer.bottom}
    if spec.type != "Input":
        part.replaced.append((spec.name, spec.type))
    new = caffe_pb2.LayerParameter(name=spec.name, type="Input")
    for top in spec.top:
        if top in read:
            new.top.append(top)
            new.input_param.shape.add().dim.extend(net.blobs[top].shape)
    return new


def _results(kept: list[Any], spec: Any) -> list[str]:
    """What no layer reads, or one that is left off, in the order of the layers; no inputs."""
    names = {layer.name for layer in kept}
    quiet, wanted, made = set[str](), set[str](), dict[str, bool]()
    for layer in spec.layer:
        if layer.name in names:
            made |= dict.fromkeys(layer.bottom, False)  # False: it is read
            made |= dict.fromkeys(layer.top, True)
        elif layer.type == "Silence":
            quiet.update(layer.bottom)
        else:
            wanted.update(layer.bottom)
    computed = {top for layer in kept if layer.bottom for top in layer.top}
    return [
        name
        for name, is_end in made.items()
        if name in computed and (name in wanted or is_end and name not in quiet)
    ]
