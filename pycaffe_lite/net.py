"""What is a net? Build it from a prototxt, run it forward and backward.  Read this file first."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from . import device, graph, memory, prototxt, weights
from .blob import Blob, BlobVec
from .errors import MissingFileError, ModelError
from .layer import Layer, check_arity, is_built_in
from .parameters import Parameters
from .proto import caffe_pb2
from .step import Step

PathLike = str | os.PathLike[str]
Hook = Callable[[int], Any]

TRAIN: int = caffe_pb2.TRAIN
TEST: int = caffe_pb2.TEST

log = logging.getLogger("pycaffe_lite")


class Net:
    """A net as pycaffe has it: `Net('deploy.prototxt', TEST, weights='x.caffemodel')`.

    `network_file` is the path of a prototxt (or a NetParameter message), `phase` TRAIN or TEST;
    `level` (0) and `stages` choose layers by their include and exclude rules; `weights` is the path
    of a .caffemodel or .caffemodel.h5. The old order `Net(prototxt, weights, phase)` works too.

    Raises MissingFileError for a file that is not there, ModelError for what is wrong in it,
    WeightsError for weights that do not fit. Results are live views: the next forward overwrites
    them, so copy what is to be kept.
    """

    def __init__(
        self,
        network_file: PathLike | Any,
        phase: int | PathLike,
        level: int | PathLike | None = None,
        stages: Iterable[str] | None = None,
        weights: PathLike | None = None,
    ) -> None:
        if isinstance(phase, str | os.PathLike):
            if level is None:
                raise TypeError("no phase: Net(prototxt, phase, weights=) with phase TRAIN or TEST")
            log.warning(
                "deprecated: Net(prototxt, weights, phase); use Net(prototxt, phase, weights=)"
            )
            phase, weights, level = level, phase, None  # type: ignore[assignment]
        if isinstance(stages, str):
            raise ModelError(f"stages must be a list of names, not one string: [{stages!r}]")
        if phase not in (TRAIN, TEST):
            raise ModelError(f"phase must be TRAIN ({TRAIN}) or TEST ({TEST}), not {phase!r}")
        if weights is not None and not Path(weights).exists():
            raise MissingFileError(f"Could not open file {os.fspath(weights)} (file not found)")
        spec = self._read(network_file)
        spec = self._located(graph.upgrade, spec)
        spec = self._located(graph.select_layers, spec, phase, level or 0, stages or ())
        spec = self._located(graph.insert_splits, spec)
        self._start(spec)
        for layer_spec in spec.layer:
            self._add_layer(layer_spec)
        self._mark_backward()
        self._check_memory()
        self._fill_params()
        if weights is not None:
            self.copy_from(weights)

    # ---- building ------------------------------------------------------------------------------

    def _read(self, source: PathLike | Any) -> Any:
        # Errors find lines in the text of now: the file may change or go while the net lives. Steps
        # get the function without the net, so that a net dropped is gone at once.
        self._locate: Callable[[str | None], str] = partial(_locate, "", "")
        if isinstance(source, caffe_pb2.NetParameter):
            return source
        spec = prototxt.read_net(source)
        text = prototxt.read_file(source).decode("utf-8", "surrogateescape")
        self._locate = partial(_locate, os.fspath(source), text)
        return spec

    def _start(self, spec: Any) -> None:
        self.spec = spec
        self.name: str = spec.name
        self.phase: int = spec.state.phase
        self.layers: list[Layer] = []
        self._steps: list[Step] = []
        self._layer_names: list[str] = []
        self._blobs: list[Blob] = []
        self._blob_names: list[str] = []
        self._index: dict[str, int] = {}
        self._blob_loss_weights: list[float] = []
        self._needs: list[bool] = []  # per blob: does anything before it learn?
        self._available: dict[str, int] = {}  # made and not yet consumed: name -> index
        self._ids: list[tuple[list[int], list[int]]] = []  # per layer: bottom, top indices
        self._parameters = Parameters()
        self._shared: list[list[bool]] = []
        self._inputs: list[int] = []
        self._hooks: dict[str, list[Hook]] = {}

    def _add_layer(self, spec: Any) -> None:
        """Create the layer, wire its blobs, set it up, shape its tops, register its parameters."""
        if not spec.HasField("phase"):
            spec.phase = self.phase
        try:
            layer = Layer.create(spec)
            bottom = self._take_bottoms(layer)
            top = self._make_tops(layer, bottom)
        except ModelError as error:
            place = self._locate(spec.name)
            raise type(error)(f"{place}layer {spec.name!r} ({spec.type}): {error}") from error
        step = Step(
            layer, [self._blobs[i] for i in bottom], [self._blobs[i] for i in top], self._locate
        )
        self.layers.append(layer)
        self._layer_names.append(layer.name)
        self._steps.append(step)
        self._ids.append((bottom, top))
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
            self._inputs += top

    def _take_bottoms(self, layer: Layer) -> list[int]:
        names = layer.spec.bottom
        if layer.type != "Python":
            check_arity("bottom", layer.bottoms, len(names), layer.type)
        missing = [name for name in names if name not in self._available]
        if missing:
            raise ModelError(
                f"unknown bottom blob {missing[0]!r} (layer {layer.name!r}, bottom index"
                f" {list(names).index(missing[0])})"
            )
        return [self._available.pop(name) for name in names]

    def _make_tops(self, layer: Layer, bottom: list[int]) -> list[int]:
        names = list(layer.spec.top)
        low = layer.tops if isinstance(layer.tops, int) else layer.tops[0]
        if layer.loss and len(names) < low:
            names += ["(automatic)"] * (low - len(names))
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
                ids.append(len(self._blobs))
                self._blobs.append(Blob())
                self._blob_names.append(name)
                if name != "(automatic)":
                    self._index[name] = ids[-1]
                self._blob_loss_weights.append(0.0)
                self._needs.append(False)
        self._available |= {n: i for n, i in zip(names, ids, strict=True) if n != "(automatic)"}
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
            self._blob_loss_weights[i] = weight
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
        layer.param_propagate_down = [p.lr_mult != 0 for p in given]
        step.needs_backward |= any(layer.param_propagate_down)
        self._shared.append(
            [
                self._parameters.add(layer.name, k, blob, given[k])
                for k, blob in enumerate(layer.blobs)
            ]
        )

    def _mark_backward(self) -> None:
        """Switch backward off where no loss is above, on everywhere under `force_backward`."""
        under_loss: set[int] = set()
        skipped: set[int] = set()
        for step, (bottom, top) in zip(reversed(self._steps), reversed(self._ids), strict=True):
            contributes = any(step.loss_weights) or not under_loss.isdisjoint(top)
            if not contributes or skipped.issuperset(top):
                step.needs_backward = False
                step.propagate_down = [False] * len(bottom)
            for k, i in enumerate(bottom):
                if contributes:
                    under_loss.add(i)
                if not step.propagate_down[k]:
                    skipped.add(i)
        for step in self._steps:
            if self.spec.force_backward:
                step.needs_backward = True
                step.propagate_down = [
                    flag or step.layer.allow_force_backward(k)
                    for k, flag in enumerate(step.propagate_down)
                ]
                step.layer.param_propagate_down = [True] * len(step.layer.blobs)
            step.layer.needs_backward = step.needs_backward

    def _fill_params(self) -> None:
        for step, shared in zip(self._steps, self._shared, strict=True):
            try:
                step.layer.fill_params(shared)
            except ModelError as error:
                raise step.located(error) from error

    def _storage(self) -> Iterator[tuple[str, Blob]]:
        yield from zip(self._blob_names, self._blobs, strict=True)
        for layer in self.layers:
            yield from ((f"{layer.name} param {k}", blob) for k, blob in enumerate(layer.blobs))

    def _located(self, build: Callable[..., Any], *args: Any) -> Any:
        """Run a pass over the model; its errors get file and line in front."""
        try:
            return build(*args)
        except ModelError as error:
            raise ModelError(f"{self._locate(error.layer)}{error}") from error

    # ---- running -------------------------------------------------------------------------------

    def forward(
        self,
        blobs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """Run the layers from `start` to `end` (names, both included) and give their outputs.

        Keywords are the net's inputs, all of them or none, each of its blob's batch size. The
        result holds the net's outputs (the tops of layer `end`, where given) and `blobs`: live
        views, complete on the host. Raises ModelError for inputs that do not fit, ValueError for
        an unknown layer, KeyError for an unknown blob.
        """
        first = self._layer_names.index(start) if start is not None else 0
        if end is not None:
            last = self._layer_names.index(end)
            names = list(self.top_names[end])
        else:
            last, names = len(self._steps) - 1, list(self.outputs)
        names += [name for name in blobs or () if name not in names]
        self._assign(kwargs, self.inputs, diff=False)
        self._run_forward(first, last)
        return {name: self.blobs[name].data for name in names}

    def backward(
        self,
        diffs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """Run backward from layer `start` (the last) to `end` (the first) and give gradients.

        Keywords are the gradients of the net's outputs, all of them or none. The result holds the
        gradients of the net's inputs (the bottoms of layer `end`, where given) and of `diffs`: live
        views. Gradients of parameters are added to what they hold; `clear_param_diffs` zeroes them.
        """
        first = self._layer_names.index(start) if start is not None else len(self._steps) - 1
        if end is not None:
            last = self._layer_names.index(end)
            names = list(self.bottom_names[end])
        else:
            last, names = 0, list(self.inputs)
        names += [name for name in diffs or () if name not in names]
        self._assign(kwargs, self.outputs, diff=True)
        self._run_backward(first, last)
        return {name: self.blobs[name].diff for name in names}

    def _forward(self, start: int, end: int) -> float:
        """Run layers `start` to `end` (indices, both included); the loss. Copies nothing else."""
        return float(sum(self._run_forward(start, end, want_loss=True), 0.0))

    def _backward(self, start: int, end: int) -> None:
        """Run backward from layer `start` down to `end` (indices, both included)."""
        self._run_backward(start, end)

    def _run_forward(self, start: int, end: int, want_loss: bool = False) -> list[Any]:
        ops, losses = device.current(), []
        before, after = self._hooks.get("before_forward"), self._hooks.get("after_forward")
        if self._input_shapes() != self._checked_shapes:
            self.reshape()
        with ops.running():
            for i in range(start, end + 1):
                _call(before, i)
                self._steps[i].forward(ops)
                if want_loss and any(self._steps[i].loss_weights):
                    losses.append(self._steps[i].loss())
                _call(after, i)
        return losses

    def _run_backward(self, start: int, end: int) -> None:
        ops = device.current()
        before, after = self._hooks.get("before_backward"), self._hooks.get("after_backward")
        if not any(step.needs_backward for step in self._steps):
            log.warning(
                "backward: nothing in net %r needs it, all gradients stay as they are; set"
                " `force_backward: true` in the prototxt or add a loss",
                self.name,
            )
        with ops.running():
            for i in range(start, end - 1, -1):
                _call(before, i)
                if self._steps[i].needs_backward:
                    self._steps[i].backward(ops)
                _call(after, i)

    def reshape(self) -> None:
        """Give every blob its shape from those of the inputs. Raises ModelError where too large.

        Optional: the next forward does it where an input's shape has changed.
        """
        for step in self._steps:
            step.reshape()
        self._check_memory()

    def _check_memory(self) -> None:
        """Refuse shapes that need too much; from here on arrays may be allocated."""
        memory.check(self._storage())
        self._checked_shapes = self._input_shapes()
        for step in self._steps:
            step.seed()

    def _input_shapes(self) -> list[tuple[int, ...]]:
        return [self._blobs[i].shape for i in self._inputs]

    def _assign(self, arrays: dict[str, Any], expected: list[str], diff: bool) -> None:
        """Write the given arrays into the data (diff) of the blobs that must all be given."""
        if not arrays:
            return
        _check_names(arrays, expected, diff)
        values = {name: np.asarray(value) for name, value in arrays.items()}
        for name, value in values.items():
            self._check_fits(name, value, "Diff" if diff else "Input")
        for name, value in values.items():
            blob = self.blobs[name]
            (blob.diff if diff else blob.data)[...] = value

    def _check_fits(self, name: str, value: np.ndarray, what: str) -> None:
        shape = self.blobs[name].shape
        maker = next(k for k, names in reversed(self.top_names.items()) if name in names)
        text = f"{name!r} (layer {maker!r}) has shape {value.shape}, its blob {shape}"
        if value.shape[:1] != shape[:1]:
            raise ModelError(f"{what} is not batch sized: {text}")
        try:
            np.broadcast_to(value, shape)
        except ValueError:
            raise ModelError(f"{what.lower()} does not fit: {text}") from None

    # ---- batches -------------------------------------------------------------------------------

    def forward_all(
        self, blobs: Sequence[str] | None = None, **kwargs: Any
    ) -> dict[str, np.ndarray]:
        """Run inputs of any length in batches of the net's own size; outputs as copies.

        The last batch is padded with zeros, and the outputs cut to the inputs' length.
        """
        _check_names(kwargs, self.inputs, diff=False)
        count = _length(kwargs)
        parts: dict[str, list[np.ndarray]] = {}
        for batch in self._batch(kwargs):
            for name, value in self.forward(blobs=blobs, **batch).items():
                parts.setdefault(name, []).append(self._per_sample(name, value))
        return {name: np.concatenate(arrays)[:count] for name, arrays in parts.items()}

    def forward_backward_all(
        self,
        blobs: Sequence[str] | None = None,
        diffs: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Like `forward_all` with a backward after each batch: (blobs, diffs), both copies.

        Keywords are inputs and the gradients of outputs.
        """
        inputs = {k: v for k, v in kwargs.items() if k in self.inputs}
        tops = {k: v for k, v in kwargs.items() if k not in self.inputs}
        _check_names(inputs, self.inputs, diff=False)
        if tops:
            _check_names(tops, self.outputs, diff=True)
        count = _length(kwargs)
        values: dict[str, list[np.ndarray]] = {}
        grads: dict[str, list[np.ndarray]] = {}
        batches = zip(self._batch(inputs), self._batch(tops) if tops else _nothing(), strict=False)
        for batch, top in batches:
            for name, value in self.forward(blobs=blobs, **batch).items():
                values.setdefault(name, []).append(self._per_sample(name, value))
            for name, value in self.backward(diffs=diffs, **top).items():
                grads.setdefault(name, []).append(self._per_sample(name, value))
        return (
            {name: np.concatenate(arrays)[:count] for name, arrays in values.items()},
            {name: np.concatenate(arrays)[:count] for name, arrays in grads.items()},
        )

    def _batch(self, arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Cut the arrays into pieces of the net's batch size, the last one padded with zeros."""
        count, size = _length(arrays), self.blobs[next(iter(arrays))].shape[0]
        for start in range(0, count, size):
            piece = {k: np.asarray(v[start : start + size]) for k, v in arrays.items()}
            short = size - len(next(iter(piece.values())))
            yield {
                k: np.concatenate([v, np.zeros((short, *v.shape[1:]), v.dtype)]) if short else v
                for k, v in piece.items()
            }

    def _per_sample(self, name: str, value: np.ndarray) -> np.ndarray:
        return value.copy() if value.ndim else value.reshape(1).copy()

    # ---- what is in it -------------------------------------------------------------------------

    @cached_property
    def blobs(self) -> dict[str, Blob]:
        """Blob name -> Blob, in the net's order."""
        return dict(zip(self._blob_names, self._blobs, strict=True))

    @cached_property
    def params(self) -> dict[str, BlobVec]:
        """Layer name -> its parameter blobs, for the layers that have any."""
        return {layer.name: layer.blobs for layer in self.layers if layer.blobs}

    @cached_property
    def layer_dict(self) -> dict[str, Layer]:
        """Layer name -> Layer; of several with one name the last."""
        return dict(zip(self._layer_names, self.layers, strict=True))

    @cached_property
    def blob_loss_weights(self) -> dict[str, float]:
        """Blob name -> its weight in the loss, 0.0 for most."""
        return dict(zip(self._blob_names, self._blob_loss_weights, strict=True))

    @cached_property
    def inputs(self) -> list[str]:
        """Names of the tops of Input layers, in the file's order."""
        return [self._blob_names[i] for i in self._inputs]

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the blobs that no layer consumes, in ASCII order as in Caffe."""
        return [self._blob_names[i] for i in self._outputs]

    @cached_property
    def top_names(self) -> dict[str, list[str]]:
        """Layer name -> names of its tops."""
        return self._names_by_layer(self._top_ids)

    @cached_property
    def bottom_names(self) -> dict[str, list[str]]:
        """Layer name -> names of its bottoms."""
        return self._names_by_layer(self._bottom_ids)

    def _names_by_layer(self, ids: Callable[[int], list[int]]) -> dict[str, list[str]]:
        return {
            name: [self._blob_names[i] for i in ids(k)] for k, name in enumerate(self._layer_names)
        }

    @property
    def _outputs(self) -> list[int]:
        return [self._available[name] for name in sorted(self._available)]

    def _top_ids(self, layer: int) -> list[int]:
        return list(self._ids[layer][1])

    def _bottom_ids(self, layer: int) -> list[int]:
        return list(self._ids[layer][0])

    def first_layer(self, name: str) -> Layer | None:
        """The first layer of that name."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def owns_param(self, layer: Layer, index: int) -> bool:
        """True unless the layer's parameter `index` is shared from another layer."""
        return self._parameters.owns(layer.blobs[index])

    # ---- hooks ---------------------------------------------------------------------------------

    def before_forward(self, hook: Hook) -> None:
        """Call hook(layer index) before each layer's forward."""
        self._hooks.setdefault("before_forward", []).append(hook)

    def after_forward(self, hook: Hook) -> None:
        """Call hook(layer index) after each layer's forward."""
        self._hooks.setdefault("after_forward", []).append(hook)

    def before_backward(self, hook: Hook) -> None:
        """Call hook(layer index) before each layer's backward, needed or not."""
        self._hooks.setdefault("before_backward", []).append(hook)

    def after_backward(self, hook: Hook) -> None:
        """Call hook(layer index) after each layer's backward, needed or not."""
        self._hooks.setdefault("after_backward", []).append(hook)

    # ---- weights -------------------------------------------------------------------------------

    def clear_param_diffs(self) -> None:
        """Zero the gradients of all parameters, where they are: nothing is copied."""
        ops = device.current()
        with ops.running():
            for parameter in self._parameters.learnable:
                parameter.blob.array(ops, diff=True, read=False)[...] = 0

    def copy_from(self, path: PathLike) -> None:
        """Load parameters by layer name from a .caffemodel or .caffemodel.h5; see weights.load."""
        weights.load(self, path)

    def save(self, path: PathLike) -> None:
        """Write the parameters as a .caffemodel."""
        weights.save_binary(self, path)

    def save_hdf5(self, path: PathLike) -> None:
        """Write the parameters as a .caffemodel.h5."""
        weights.save_hdf5(self, path)

    def load_hdf5(self, path: PathLike) -> None:
        """Load parameters by layer name from a .caffemodel.h5."""
        weights.load_hdf5(self, path)

    def share_with(self, other: Net) -> None:
        """From now on use the parameter values of `other`'s layers of the same names."""
        weights.share(self, other)


def _locate(path: str, text: str, layer: str | None) -> str:
    """ "file:line: " of a layer's entry in the prototxt, as far as it is known."""
    if not path:
        return ""
    lines = prototxt.layer_lines(text).get(layer or "", [])
    return f"{path}:{' or '.join(map(str, lines))}: " if lines else f"{path}: "


def _call(hooks: list[Hook] | None, index: int) -> None:
    for hook in hooks or ():
        hook(index)


def _nothing() -> Iterator[dict[str, Any]]:
    while True:
        yield {}


def _check_names(arrays: dict[str, Any], expected: list[str], diff: bool) -> None:
    if set(arrays) != set(expected):
        what = "Top diff arguments do not match net outputs"
        what = what if diff else "Input blob arguments do not match net inputs"
        raise ModelError(f"{what}. Given: {sorted(arrays)}; the net has: {sorted(expected)}")


def _length(arrays: dict[str, Any]) -> int:
    """The common length of the arrays' first axes."""
    lengths = {name: len(value) for name, value in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ModelError(f"the inputs must have one common length, got {lengths}")
    return next(iter(lengths.values()))
