"""Which blob goes where? Layers, blobs and steps made from a model, and who takes part in backward.

The model has been upgraded, filtered and given its splits, so that every blob has one consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .blob import Blob
from .errors import ModelError
from .layer import Layer, check_arity, is_built_in
from .parameters import Parameters
from .proto import caffe_pb2
from .step import Step
from .storage import SyncedArray

AUTOMATIC = "(automatic)"
"""The name of a top that the prototxt leaves out and the layer needs; no layer can consume it."""


class Wiring:
    """The parts of a net as its model connects them; arrays are not allocated yet.

    `blobs` has each blob once, `blob_names` and `loss_weights` go with it; `ids` are each layer's
    bottoms and tops as indices of it. `inputs` are the tops of Input layers, `available` the blobs
    that nothing consumes. `shared[i][k]`: parameter k of layer i belongs to another layer. `locate`
    gives "file:line: " of a layer by name. Raises ModelError for what cannot be built.
    """

    def __init__(self, spec: Any, locate: Callable[[str | None], str]) -> None:
        self.spec = spec
        self._locate = locate
        self.layers: list[Layer] = []
        self.steps: list[Step] = []
        self.blobs: list[Blob] = []
        self.blob_names: list[str] = []
        self.loss_weights: list[float] = []
        self.ids: list[tuple[list[int], list[int]]] = []
        self.inputs: list[int] = []
        self.available: dict[str, int] = {}
        self.parameters = Parameters()
        self.shared: list[list[bool]] = []
        self._index: dict[str, int] = {}
        self._needs: list[bool] = []  # per blob: does anything before it learn?
        for layer_spec in spec.layer:
            self._add_layer(layer_spec)
        self._mark_backward()
        self._mark_shared_seeds()
        self._separate_splits()
        self._mark_kept()

    @property
    def outputs(self) -> list[int]:
        """The blobs that no layer consumes, by name in ASCII order as in Caffe."""
        return [self.available[name] for name in sorted(self.available)]

    def _add_layer(self, spec: Any) -> None:
        """Create the layer, wire its blobs, set it up, shape its tops, register its parameters."""
        if not spec.HasField("phase"):
            spec.phase = self.spec.state.phase
        try:
            layer = Layer.create(spec)
            bottom = self._take_bottoms(layer)
            top = self._make_tops(layer, bottom)
        except ModelError as error:
            place = self._locate(spec.name)
            raise type(error)(f"{place}layer {spec.name!r} ({spec.type}): {error}") from error
        step = Step(
            layer, [self.blobs[i] for i in bottom], [self.blobs[i] for i in top], self._locate
        )
        self.layers.append(layer)
        self.steps.append(step)
        self.ids.append((bottom, top))
        try:
            step.loss_weights = self._loss_weights(layer, top)
            self._mark_need(step, bottom)
        except ModelError as error:
            raise step.located(error) from error
        step.setup()
        try:
            self._register_params(step)
        except ModelError as error:
            raise step.located(error) from error
        for i in top:
            self._needs[i] = step.needs_backward
        if spec.type == "Input":
            self.inputs += top

    def _take_bottoms(self, layer: Layer) -> list[int]:
        names = layer.spec.bottom
        if layer.type != "Python":
            check_arity("bottom", layer.bottoms, len(names), layer.type)
        missing = [name for name in names if name not in self.available]
        if missing:
            raise ModelError(
                f"unknown bottom blob {missing[0]!r} (layer {layer.name!r}, bottom index"
                f" {list(names).index(missing[0])})"
            )
        return [self.available.pop(name) for name in names]

    def _make_tops(self, layer: Layer, bottom: list[int]) -> list[int]:
        names = list(layer.spec.top)
        low = layer.tops if isinstance(layer.tops, int) else layer.tops[0]
        if layer.loss and len(names) < low:
            names += [AUTOMATIC] * (low - len(names))
        if layer.type != "Python":
            check_arity("top", layer.tops, len(names), layer.type)
        ids = []
        for k, name in enumerate(names):
            if k < len(bottom) and name == layer.spec.bottom[k]:
                if is_built_in(layer) and not layer.in_place and layer.type != "Python":
                    raise ModelError(f"{layer.type} does not allow in-place computation ({name!r})")
                ids.append(bottom[k])
            elif name in self._index:
                raise ModelError(f"top blob {name!r} produced by multiple sources")
            else:
                ids.append(len(self.blobs))
                self.blobs.append(Blob())
                self.blob_names.append(name)
                if name != AUTOMATIC:
                    self._index[name] = ids[-1]
                self.loss_weights.append(0.0)
                self._needs.append(False)
        self.available |= {n: i for n, i in zip(names, ids, strict=True) if n != AUTOMATIC}
        return ids

    def _loss_weights(self, layer: Layer, top: list[int]) -> list[float]:
        given = list(layer.spec.loss_weight)
        if given and len(given) != len(top):
            raise ModelError(
                "loss_weight must be unspecified or specified once per top blob:"
                f" {len(given)} weights for {len(top)} tops"
            )
        result = given or [float(layer.loss and k == 0) for k in range(len(top))]
        for i, weight in zip(top, result, strict=True):
            self.loss_weights[i] = weight
        return result

    def _mark_need(self, step: Step, bottom: list[int]) -> None:
        """Which bottoms want a gradient, as far as the layers before tell."""
        asked = list(step.layer.spec.propagate_down)
        if asked and len(asked) != len(bottom):
            raise ModelError(
                f"propagate_down param must be specified either 0 or bottom_size times:"
                f" {len(asked)} for {len(bottom)} bottoms"
            )
        needed = [self._needs[i] for i in bottom]
        step.propagate_down = asked or needed
        step.needs_backward = any(needed)

    def _register_params(self, step: Step) -> None:
        layer, given = step.layer, list(step.layer.spec.param)
        if len(given) > len(layer.blobs):
            raise ModelError(
                f"too many params specified for layer {layer.name}: {len(given)} for"
                f" {len(layer.blobs)} blobs"
            )
        given += [caffe_pb2.ParamSpec() for _ in range(len(layer.blobs) - len(given))]
        # Caffe counts a parameter that cannot learn too, unless the prototxt says lr_mult: 0.
        step.needs_backward |= any(p.lr_mult != 0 for p in given)
        for k in layer.fixed_params:
            if not given[k].HasField("lr_mult"):
                fixed = caffe_pb2.ParamSpec(lr_mult=0)
                fixed.MergeFrom(given[k])
                given[k] = fixed
        layer.param_propagate_down = [p.lr_mult != 0 for p in given]
        self.shared.append(
            [
                self.parameters.add(layer.name, k, blob, given[k])
                for k, blob in enumerate(layer.blobs)
            ]
        )

    def _mark_backward(self) -> None:
        """Switch backward off where no loss is above, on everywhere under `force_backward`."""
        under_loss: set[int] = set()
        skipped: set[int] = set()
        for step, (bottom, top) in zip(reversed(self.steps), reversed(self.ids), strict=True):
            contributes = any(step.loss_weights) or not under_loss.isdisjoint(top)
            if not contributes or skipped.issuperset(top):
                step.needs_backward = False
                step.propagate_down = [False] * len(bottom)
            for k, i in enumerate(bottom):
                if contributes:
                    under_loss.add(i)
                if not step.propagate_down[k]:
                    skipped.add(i)
        for step in self.steps:
            if self.spec.force_backward:
                step.needs_backward = True
                step.propagate_down = [
                    flag or step.layer.allow_force_backward(k)
                    for k, flag in enumerate(step.propagate_down)
                ]
                step.layer.param_propagate_down = [True] * len(step.layer.blobs)
            step.layer.needs_backward = step.needs_backward

    def _mark_shared_seeds(self) -> None:
        """Find loss tops whose gradient their consumer's backward writes over the weight.

        With a weight given in the prototxt there is a Split between; a loss layer's own default
        weight brings none. (In Caffe the weight is then lost.)
        """
        written = {
            blob
            for step in self.steps
            if step.needs_backward
            for blob, wanted in zip(step.bottom, step.propagate_down, strict=True)
            if wanted and blob not in step.top
        }
        for step in self.steps:
            step.shares_diff = [top in written for top in step.top]

    def _separate_splits(self) -> None:
        """Let a Split copy the tops that a later step overwrites in place, and share the others.

        (A layer whose top shares its bottom's storage, such as Flatten, can lie between.) Sharing
        all would change the values that the other consumers read; Caffe shares nevertheless. Only
        with every top apart does it show which one is overwritten.
        """
        splits = list(self._overwritten_tops())
        if not splits:
            return
        self._copy_tops({step: frozenset(range(len(step.top))) for step in splits})
        apart = self._overwritten_tops()
        self._copy_tops({step: apart.get(step, frozenset()) for step in splits})

    def _overwritten_tops(self) -> dict[Step, frozenset[int]]:
        """Splits -> their tops whose storage, as it is shared now, a later step overwrites."""
        overwritten: set[SyncedArray] = set()
        found = {}
        for step in reversed(self.steps):
            if step.layer.type == "Split":
                tops = [k for k, top in enumerate(step.top) if top.storages[0] in overwritten]
                if tops:
                    found[step] = frozenset(tops)
            overwritten |= _overwritten(step)
        return found

    def _copy_tops(self, copied: dict[Step, frozenset[int]]) -> None:
        for step, tops in copied.items():
            step.layer.copied = tops  # type: ignore[attr-defined]
        for step in self.steps:
            step.reshape()

    def _mark_kept(self) -> None:
        """Let steps save what their backward reads and a later in-place step overwrites."""
        overwritten: set[SyncedArray] = set()
        for step in reversed(self.steps):
            step.keep([b for b in step.backward_reads() if b.storages[0] in overwritten])
            overwritten |= _overwritten(step)


def _overwritten(step: Step) -> set[SyncedArray]:
    """Storage whose values the step replaces in place."""
    return {blob.storages[0] for blob in step.top if blob in step.bottom}
