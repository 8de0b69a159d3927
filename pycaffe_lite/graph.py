"""What net does a model file describe? Pure passes, NetParameter -> new NetParameter.

`upgrade` turns old forms into today's, `select_layers` keeps the layers of one phase, level and set
of stages, `insert_splits` gives every blob a single consumer. All give Caffe's results.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .errors import ModelError, did_you_mean
from .proto import caffe_pb2

log = logging.getLogger("pycaffe_lite")


def upgrade(spec: Any) -> Any:
    """Old forms -> today's, whatever the file's age; says so in the log once.

    Raises ModelError for what has no single meaning today: see `pycaffe_lite.upgrade`.
    """
    from .upgrade import PASSES  # here: few programs read a net while they import

    done = []
    for what, run in PASSES:
        new = run(spec)
        if new is not spec:
            done.append(what)
        spec = new
    if done:
        log.info("net %r is of an old form; upgraded: %s", spec.name, ", ".join(done))
    return spec


def select_layers(spec: Any, phase: int, level: int = 0, stages: Iterable[str] = ()) -> Any:
    """Keep the layers whose include/exclude rules the state meets; record the state.

    Stages are added to those that the file names. A rule is met where its phase is equal, the level
    lies in [min_level, max_level], all its stages are set and none of its not_stages. Raises
    ModelError for a layer with rules of both kinds.
    """
    new = _copy(spec)
    new.state.phase = phase
    new.state.level = level
    new.state.stage.extend(stages)
    kept = [_copy(layer) for layer in spec.layer if _is_kept(layer, new.state)]
    del new.layer[:]
    new.layer.extend(kept)
    return new


def _is_kept(layer: Any, state: Any) -> bool:
    if layer.include and layer.exclude:
        raise ModelError(
            f"layer {layer.name!r} has {len(layer.include)} include rules and"
            f" {len(layer.exclude)} exclude rules; specify either include rules or exclude rules;"
            " not both",
            layer=layer.name,
        )
    if layer.include:
        return any(_meets(state, rule) for rule in layer.include)
    return not any(_meets(state, rule) for rule in layer.exclude)


def _meets(state: Any, rule: Any) -> bool:
    if rule.HasField("phase") and rule.phase != state.phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)


Source = tuple[int, int]
"""Which layer makes a blob, as which of its tops."""


def insert_splits(spec: Any) -> Any:
    """Insert a Split after each top with several consumers, under Caffe's names.

    `<blob>_<layer>_<top index>_split`, its tops with `_<k>` appended; a loss weight counts as a
    consumer, takes k = 0 and moves to the split. Raises ModelError for an unknown bottom, for an
    in-place layer whose old values something else reads too, and for a blob of the user's that has
    a split's name.
    """
    sources, consumers = _trace(spec)
    _refuse_reserved_names(spec, consumers)
    new = _copy(spec)
    del new.layer[:]
    taken: Counter[Source] = Counter()
    for index, old in enumerate(spec.layer):
        layer = new.layer.add()
        layer.CopyFrom(old)
        for k in range(len(old.bottom)):
            source = sources[index, k]
            if consumers[source] > 1:
                _refuse_shared_in_place(old, k)
                layer.bottom[k] = f"{_split_name(spec, source)}_{taken[source]}"
                taken[source] += 1
        for k in range(len(old.top)):
            if consumers[index, k] > 1:
                new.layer.append(_split(spec, (index, k), consumers[index, k]))
                if _loss_weight(old, k):  # the loss reads the first copy
                    taken[index, k] += 1
                    layer.loss_weight[k] = 0
    return new


def _trace(spec: Any) -> tuple[dict[tuple[int, int], Source], Counter[Source]]:
    """(layer, bottom index) -> the source of that bottom, and the consumers of each source."""
    latest: dict[str, Source] = {}
    sources: dict[tuple[int, int], Source] = {}
    consumers: Counter[Source] = Counter()
    for index, layer in enumerate(spec.layer):
        for k, name in enumerate(layer.bottom):
            if name not in latest:
                raise ModelError(_unknown_bottom(layer, k, latest), layer=layer.name)
            sources[index, k] = latest[name]
            consumers[latest[name]] += 1
        for k, name in enumerate(layer.top):
            latest[name] = (index, k)
            consumers[index, k] += bool(_loss_weight(layer, k))
    return sources, consumers


def _unknown_bottom(layer: Any, index: int, known: Iterable[str]) -> str:
    name = layer.bottom[index]
    hint = did_you_mean(name, known)
    return f"unknown bottom blob {name!r} (layer {layer.name!r}, bottom index {index}){hint}"


def _split_name(spec: Any, source: Source) -> str:
    layer = spec.layer[source[0]]
    return f"{layer.top[source[1]]}_{layer.name}_{source[1]}_split"


def _split(spec: Any, source: Source, count: int) -> Any:
    layer = spec.layer[source[0]]
    name = _split_name(spec, source)
    split = caffe_pb2.LayerParameter(name=name, type="Split", bottom=[layer.top[source[1]]])
    split.top.extend(f"{name}_{k}" for k in range(count))
    weight = _loss_weight(layer, source[1])
    if weight:
        split.loss_weight.extend([weight] + [0.0] * (count - 1))
    return split


def _loss_weight(layer: Any, top: int) -> float:
    return layer.loss_weight[top] if top < len(layer.loss_weight) else 0.0


def _refuse_shared_in_place(layer: Any, bottom: int) -> None:
    name = layer.bottom[bottom]
    if name in layer.top:
        raise ModelError(
            f"top blob {name!r} produced by multiple sources: layer {layer.name!r} works in place"
            f" on {name!r}, whose old values another layer or a loss_weight reads too",
            layer=layer.name,
        )


def _refuse_reserved_names(spec: Any, consumers: Counter[Source]) -> None:
    own = {top: layer.name for layer in spec.layer for top in layer.top}
    for source, count in consumers.items():
        for k in range(count if count > 1 else 0):
            name = f"{_split_name(spec, source)}_{k}"
            if name in own:
                raise ModelError(
                    f"top blob {name!r} produced by multiple sources: layer {own[name]!r} uses the"
                    " name of an automatic split copy; rename it",
                    layer=own[name],
                )


def _copy(message: Any) -> Any:
    new = type(message)()
    new.CopyFrom(message)
    return new
