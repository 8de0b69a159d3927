"""What is a net? Build it from a prototxt, run it forward and backward.  Read this file first."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from . import debug_info, device, graph, memory, plan, prototxt, weights
from .batch import Parts, check_names, length, pieces
from .blob import Blob, BlobVec
from .errors import MissingFileError, ModelError
from .layer import Layer
from .layer_types.memory_data import MemoryData
from .proto import caffe_pb2
from .step import describe
from .weights.load_report import LoadReport
from .wiring import Wiring

PathLike = str | os.PathLike[str]
Hook = Callable[[int], Any]

TRAIN: int = caffe_pb2.TRAIN
TEST: int = caffe_pb2.TEST

log = logging.getLogger("pycaffe_lite")

# Methods of the pycaffe of 2014 that scripts still call.
_GONE = {
    "set_mode_cpu": "pycaffe_lite.set_mode_cpu() is for all nets",
    "set_mode_gpu": "pycaffe_lite.set_mode_gpu() is for all nets",
    "set_device": "pycaffe_lite.set_device(id) is for all nets",
    "set_phase_train": "the phase is given once: Net(prototxt, pycaffe_lite.TRAIN)",
    "set_phase_test": "the phase is given once: Net(prototxt, pycaffe_lite.TEST)",
}


class Net:
    """A net as pycaffe has it: `Net('deploy.prototxt', TEST, weights='x.caffemodel')`.

    `network_file` is the path of a prototxt (or a NetParameter message), `phase` TRAIN or TEST;
    `level` (0) and `stages` choose layers by their include and exclude rules; `weights` is the path
    of a .caffemodel or .caffemodel.h5; with `strict` it must hold all of the net's layers that have
    parameters and no others. With `unknown_fields` "warn" a field of the prototxt that no schema
    here has is left out and logged as a warning; else it is an error. The old order
    `Net(prototxt, weights, phase)` works too. While `debug_info` (the prototxt's; may be set) is
    true, the log shows the mean value and gradient of each layer's blobs; see debug_info.py. `plan`
    (True; may be set to False) lets whole forwards of a net without backward, hooks and debug_info
    run convolutions with what follows in place as one step; see plan.py.

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
        strict: bool = False,
        unknown_fields: str = "error",
    ) -> None:
        if isinstance(phase, str | os.PathLike):
            if level is None:
                raise TypeError("no phase: Net(prototxt, phase, weights=) with phase TRAIN or TEST")
            log.warning(
                "deprecated: Net(prototxt, weights, phase); use Net(prototxt, phase, weights=)"
            )
            phase, weights, level = level, phase, None  # type: ignore[assignment]
        elif isinstance(level, str | os.PathLike):
            raise TypeError(
                f"level is a number, got {level!r}; weights go by name: weights={level!r}"
            )
        if isinstance(stages, str):
            raise ModelError(f"stages must be a list of names, not one string: [{stages!r}]")
        if phase not in (TRAIN, TEST):
            raise ModelError(f"phase must be TRAIN ({TRAIN}) or TEST ({TEST}), not {phase!r}")
        if weights is not None and not Path(weights).exists():
            raise MissingFileError(f"Could not open file {os.fspath(weights)} (file not found)")
        prototxt.check_unknown_fields(unknown_fields)
        spec = self._read(network_file, unknown_fields)
        spec = self._located(graph.upgrade, spec)
        spec = self._located(graph.select_layers, spec, phase, level or 0, stages or ())
        if log.isEnabledFor(logging.INFO):
            log.info("Initializing net from parameters: \n%s", prototxt.to_text(spec))
        spec = self._located(graph.insert_splits, spec)
        self._build(spec)
        self._log_built()
        if weights is not None:
            self.copy_from(weights, strict)
        self.fill_params()

    # ---- building ------------------------------------------------------------------------------

    def _read(self, source: PathLike | Any, unknown_fields: str) -> Any:
        # Errors find lines in the text of now: the file may change or go while the net lives. Steps
        # get the function without the net, so that a net dropped is gone at once.
        self._locate: Callable[[str | None], str] = partial(_locate, "", "")
        if isinstance(source, caffe_pb2.NetParameter):
            return source
        data, name = prototxt.read_file(source), os.fspath(source)  # once: it may be a pipe
        spec = prototxt.parse_bytes(data, caffe_pb2.NetParameter, name, unknown_fields)
        self._locate = partial(_locate, name, data.decode("utf-8", "surrogateescape"))
        return spec

    def _build(self, spec: Any) -> None:
        """Wire the layers, and refuse what needs too much memory. Nothing is allocated yet."""
        self.spec, self.name, self.phase = spec, str(spec.name), int(spec.state.phase)
        self.debug_info = bool(spec.debug_info)
        self._wiring = Wiring(spec, self._locate)
        self.layers, self._steps = self._wiring.layers, self._wiring.steps
        self._layer_names = [layer.name for layer in self.layers]
        self._blobs, self._blob_names = self._wiring.blobs, self._wiring.blob_names
        self._blob_loss_weights = self._wiring.loss_weights
        self._inputs, self._outputs = self._wiring.inputs, self._wiring.outputs
        self._parameters = self._wiring.parameters
        self._hooks: dict[str, list[Hook]] = {}
        self._checked_shapes: list[tuple[int, ...]] | None = None
        self._checked_diffs = self._is_filled = False
        self.load_report: LoadReport | None = None
        self.plan = True
        self._planned: list[Any] | None = None
        self._check_memory()

    def _log_built(self) -> None:
        """The last of the lines in which Caffe tells how it builds a net."""
        tops = (top for step in self._steps for top in step.top)
        log.info("Memory required for data: %d", sum(t.count * t.dtype.itemsize for t in tops))
        for name in self.outputs:
            log.info("This network produces output %s", name)
        log.info("Network initialization done.")

    def fill_params(self, but: Iterable[Blob] = ()) -> None:
        """Give parameters the values of their fillers, once, `but` these.

        A net does it when it is built: for all that its weights file does not bring.
        """
        if self._is_filled:
            return
        self._is_filled = True
        known = {id(blob.storages[0]) for blob in but}
        for step, shared in zip(self._steps, self._wiring.shared, strict=True):
            layer = step.layer
            others = [id(blob.storages[0]) in known for blob in layer.blobs]
            try:
                layer.fill_params([a or b for a, b in zip(shared, others, strict=False)])
            except ModelError as error:
                raise step.located(error) from error

    def _storage(self) -> Iterator[tuple[str, Blob]]:
        yield from zip(self._blob_names, self._blobs, strict=True)
        for layer in self.layers:
            yield from ((f"{layer.name} param {k}", blob) for k, blob in enumerate(layer.blobs))
        for step in self._steps:
            yield from ((f"{step.layer.name} kept values", blob) for blob in step.kept)

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
        names += [name for name in _names(blobs) if name not in names]
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
        names += [name for name in _names(diffs) if name not in names]
        self._assign(kwargs, self.outputs, diff=True)
        self._run_backward(first, last)
        return {name: self.blobs[name].diff for name in names}

    def _forward(self, start: int, end: int) -> float:
        """Run layers `start` to `end` (indices, both included); the loss. Copies nothing else.

        Raises IndexError for an index that no layer has.
        """
        self._check_indices(range(start, end + 1))
        return float(sum(self._run_forward(start, end, want_loss=True), 0.0))

    def _backward(self, start: int, end: int) -> None:
        """Run backward from layer `start` down to `end` (indices, both included)."""
        self._check_indices(range(start, end - 1, -1))
        self._run_backward(start, end)

    def _check_indices(self, run: range) -> None:
        for index in (run[0], run[-1]) if run else ():
            if not 0 <= index < len(self._steps):
                raise IndexError(f"no layer {index}: the net has {len(self._steps)}, from 0 on")

    def _run_forward(self, start: int, end: int, want_loss: bool = False) -> list[Any]:
        ops, losses = device.current(), []
        before, after = self._hooks.get("before_forward"), self._hooks.get("after_forward")
        if self._input_shapes() != self._checked_shapes:
            self.reshape()
        with np.errstate(all="ignore"), ops.running():  # NaN and infinity are results, as in Caffe
            for i, step in enumerate(self._steps_of(start, end), start):
                _call(before, i)
                if step.reshape_if_needed(ops):
                    self._check_memory()
                step.forward()
                if want_loss and any(step.loss_weights):
                    losses.append(step.loss())
                if self.debug_info:
                    debug_info.forward(self, i)
                _call(after, i)
        return losses

    def _steps_of(self, start: int, end: int) -> Sequence[Any]:
        """The steps of these layers; fewer that do the same where nobody can tell."""
        is_whole = start == 0 and end == len(self._steps) - 1
        is_watched = self.debug_info or any(self._hooks.values())
        if not (self.plan and self.phase == TEST and is_whole) or is_watched:
            return self._steps[start : end + 1]
        if self._planned is None:
            learns = any(step.needs_backward for step in self._steps)
            self._planned = self._steps if learns else plan.optimize(self._steps)
        return self._planned

    def _run_backward(self, start: int, end: int) -> None:
        ops = device.current()
        before, after = self._hooks.get("before_backward"), self._hooks.get("after_backward")
        if not any(step.needs_backward for step in self._steps):
            log.warning(
                "backward: nothing in net %r needs it, all gradients stay as they are; set"
                " `force_backward: true` in the prototxt or add a loss",
                self.name,
            )
        if not self._checked_diffs:
            self._located(memory.check, self._storage(), True)
            self._checked_diffs = True
        with np.errstate(all="ignore"), ops.running():  # NaN and infinity are results, as in Caffe
            for i in range(start, end - 1, -1):
                _call(before, i)
                if self._steps[i].needs_backward:
                    self._steps[i].backward(ops)
                    if self.debug_info:
                        debug_info.backward(self, i)
                _call(after, i)
            if self.debug_info and start - end == len(self._steps) - 1:
                debug_info.all_params(self)

    def reshape(self) -> None:
        """Give every blob its shape from those of the inputs. Raises ModelError where too large.

        Optional: the next forward does it where an input's shape has changed.
        """
        for step in self._steps:
            step.reshape()
        self._check_memory()

    def _check_memory(self) -> None:
        """Refuse shapes that need too much; from here on arrays may be allocated."""
        self._checked_shapes = None  # so that after an error the next forward reshapes all
        self._located(memory.check, self._storage())
        self._checked_shapes, self._checked_diffs = self._input_shapes(), False
        for step in self._steps:
            step.seed()

    def _input_shapes(self) -> list[tuple[int, ...]]:
        return [self._blobs[i].shape for i in self._inputs]

    def _assign(self, arrays: dict[str, Any], expected: list[str], diff: bool) -> None:
        """Write the given arrays into the data (diff) of the blobs that must all be given."""
        if not arrays:
            return
        check_names(arrays, expected, diff)
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

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Let the first layer, MemoryData, read its batches from these float32 arrays, in turn.

        `data` is (n, channels, height, width), `labels` (n,) or (n, 1, 1, 1), both C contiguous, n
        a multiple of the batch size. They are kept, not copied. Raises RuntimeError where the first
        layer is another, and ModelError for arrays that do not fit.
        """
        if not (self.layers and isinstance(self.layers[0], MemoryData)):
            found = describe(self.layers[0]) if self.layers else "nothing"
            raise RuntimeError(
                f"set_input_arrays may only be called if the first layer is MemoryData, not {found}"
            )
        try:
            self.layers[0].reset(data, labels)
        except ModelError as error:
            raise self._steps[0].located(error) from error

    # ---- batches -------------------------------------------------------------------------------

    def forward_all(
        self, blobs: Sequence[str] | None = None, **kwargs: Any
    ) -> dict[str, np.ndarray]:
        """Run inputs of any length in batches of the net's own size; outputs as copies.

        The last batch is padded with zeros, and the outputs cut to the inputs' length.
        """
        check_names(kwargs, self.inputs, diff=False)
        count, values = length(kwargs), Parts()
        for batch in self._batch(kwargs):
            values.add(self.forward(blobs=blobs, **batch))
        return values.joined(count)

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
        check_names(inputs, self.inputs, diff=False)
        if tops:
            check_names(tops, self.outputs, diff=True)
        count, values, grads = length(kwargs), Parts(), Parts()
        batches = zip(self._batch(inputs), self._batch(tops) if tops else repeat({}), strict=False)
        for batch, top in batches:
            values.add(self.forward(blobs=blobs, **batch))
            grads.add(self.backward(diffs=diffs, **top))
        return values.joined(count), grads.joined(count)

    def _batch(self, arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Pieces of the arrays of the net's batch size, the last one padded with zeros."""
        if not arrays:
            return iter([{}])
        shape = self.blobs[next(iter(arrays))].shape
        return pieces(arrays, shape[0] if shape else 1)

    def __getattr__(self, name: str) -> Any:
        if name in _GONE:
            raise AttributeError(f"Net has no {name} any more: {_GONE[name]}")
        raise AttributeError(f"'Net' object has no attribute {name!r}")

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

    def _top_ids(self, layer: int) -> list[int]:
        return list(self._wiring.ids[layer][1])

    def _bottom_ids(self, layer: int) -> list[int]:
        return list(self._wiring.ids[layer][0])

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

    def copy_from(self, path: PathLike, strict: bool = False, permissive: bool = False) -> None:
        """Load parameters by layer name from a .caffemodel or .caffemodel.h5; see weights.load.

        `load_report` then says which layers were loaded, ignored or left as they were; with
        `strict`, any of the last two is a WeightsError. With `permissive`, shapes may differ where
        counts are equal, say (1, 16, 1, 1) and (16).
        """
        weights.load(self, path, strict, permissive)

    def save(self, path: PathLike) -> None:
        """Write the parameters as a .caffemodel."""
        weights.save_binary(self, path)

    def save_hdf5(self, path: PathLike) -> None:
        """Write the parameters as a .caffemodel.h5."""
        weights.save_hdf5(self, path)

    def load_hdf5(self, path: PathLike, strict: bool = False, permissive: bool = False) -> None:
        """Load parameters by layer name from a .caffemodel.h5; options as in `copy_from`."""
        weights.load_hdf5(self, path, strict, permissive)

    def share_with(self, other: Net) -> None:
        """From now on use the parameter values of `other`'s layers of the same names."""
        weights.share(self, other)


def _locate(path: str, text: str, layer: str | None) -> str:
    """ "file:line: " of a layer's entry in the prototxt, as far as it is known."""
    if not path:
        return ""
    lines = prototxt.layer_lines(text).get(layer or "", [])
    return f"{path}:{' or '.join(map(str, lines))}: " if lines else f"{path}: "


def _names(names: Sequence[str] | None) -> Sequence[str]:
    if isinstance(names, str):
        raise TypeError(f"a list of blob names is needed, not one string: [{names!r}]")
    return names or ()


def _call(hooks: list[Hook] | None, index: int) -> None:
    for hook in hooks or ():
        hook(index)
