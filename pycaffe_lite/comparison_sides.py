"""Where do the blobs of a comparison come from? A Caffe net, an ONNX model, or saved arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .blob import describe
from .comparison import Arrays, LayerValue, Shape, align, match
from .errors import MissingFileError, ModelError
from .net import TEST, Net
from .net_summary import is_inserted

log = logging.getLogger("pycaffe_lite")

SAVED = (".npy", ".npz")


class Side(Protocol):
    """One of the two: `inputs` are the shapes of what it must be given, none where it is saved."""

    inputs: dict[str, Shape]
    layers: dict[str, LayerValue]  # what layers made in the last run, where they are known

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """All blobs, by name and in order, for inputs by its own names. Arrays of its own."""
        ...


def open_side(path: str, weights: str = "") -> Side:
    """What `path` is: a folder, .npy or .npz; an .onnx; else a prototxt with its `weights`.

    Raises MissingFileError, ModelError for files that are damaged or something else, WeightsError,
    and RuntimeError where a package is missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        return OnnxSide(path)
    if Path(path).is_dir() or suffix in SAVED:
        return SavedSide(path)
    return NetSide(path, weights)


class NetSide:
    """A net in phase TEST. In-place layers overwrite: a blob has its last value."""

    def __init__(self, path: str, weights: str = "") -> None:
        self.net = Net(path, TEST, weights=weights or None)
        if self.net.params and not weights:
            log.warning("%s has no weights: its parameters are what their fillers make", path)
        self.layers: dict[str, LayerValue] = {}
        self.net.after_forward(self._record)
        self.inputs = {name: self.net.blobs[name].shape for name in self.net.inputs}

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The net takes the inputs' shapes. The Splits that a net inserts are no blobs here."""
        net = self.net
        for name, value in inputs.items():
            net.blobs[name].reshape(*value.shape)
        for name, value in inputs.items():
            net.blobs[name].data[...] = value
        net.forward()
        copies = {
            top
            for layer in net.layers
            if is_inserted(layer.spec)
            for top in net.top_names[layer.name]
        }
        return {k: blob.data.copy() for k, blob in net.blobs.items() if k not in copies}

    def _record(self, index: int) -> None:
        """Keep the top of a layer that has one, under the layer's name."""
        layer = self.net.layers[index]
        tops = self.net.top_names[layer.name]
        if len(tops) == 1 and not is_inserted(layer.spec):
            self.layers[layer.name] = LayerValue(tops[0], self.net.blobs[tops[0]].data.copy())


class OnnxSide:
    """An ONNX model through onnxruntime: every value that a node computes, and the inputs."""

    def __init__(self, path: str) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise RuntimeError(
                f"{path} needs onnx and onnxruntime: pip install 'pycaffe-lite[onnx]' ({error})"
            ) from None
        if not Path(path).exists():
            raise MissingFileError(f"Could not open file {path} (file not found)")
        self.path, self.layers = path, dict[str, LayerValue]()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        try:
            model = onnx.load(path)
            self.names = _show_values(model, onnx.ValueInfoProto)
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of protobuf, onnx and onnxruntime: they share no class
            raise ModelError(f"cannot read {path} as an ONNX model: {error}") from error
        self._types = {i.name: _TYPES.get(i.type) for i in self._session.get_inputs()}
        self.inputs = {
            i.name: tuple(dim if isinstance(dim, int) else 1 for dim in i.shape)
            for i in self._session.get_inputs()
        }

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Inputs are cast to the model's types. Raises ModelError with what onnxruntime says."""
        feed = {k: np.asarray(v, self._types[k], order="C") for k, v in inputs.items()}
        try:
            values = self._session.run(self.names, feed)
        except Exception as error:
            raise ModelError(f"onnxruntime cannot run {self.path}: {error}") from error
        found = zip(self.names, values, strict=True)
        return feed | {name: v for name, v in found if isinstance(v, np.ndarray)}


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


def _show_values(model: Any, value_info: Any) -> list[str]:
    """Make every value that a node computes an output of the model; their names."""
    known = {output.name for output in model.graph.output}
    names = [k for n in model.graph.node if n.op_type != "Constant" for k in n.output if k]
    model.graph.output.extend(value_info(name=name) for name in names if name not in known)
    return names


class SavedSide:
    """Arrays from one .npy or .npz, or from all those in a folder and its subfolders.

    The name of a .npy's array is its path in the folder, without the suffix.
    """

    def __init__(self, path: str) -> None:
        self.inputs, self.layers = dict[str, Shape](), dict[str, LayerValue]()
        self.arrays = load_arrays(path)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The arrays; there is nothing to run."""
        return self.arrays


def load_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Arrays by name, sorted by files' names; see SavedSide.

    Raises MissingFileError, and ModelError where a file is no such file, or holds no numbers, or
    two arrays have one name, or there is none.
    """
    place = Path(path)
    files = [place]
    if place.is_dir():
        files = sorted(p for p in place.rglob("*") if p.suffix.lower() in SAVED and p.is_file())
    found: dict[str, np.ndarray] = {}
    for file in files:
        name = file.relative_to(place).with_suffix("").as_posix() if file != place else file.stem
        for key, array in _load(file, name).items():
            if key in found:
                raise ModelError(f"{path}: two arrays have the name {key!r}, one in {file.name}")
            found[key] = array
    if not found:
        raise ModelError(f"there are no arrays, .npy or .npz, in {path}")
    return found


def _load(file: Path, name: str) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, Mapping) else {name: loaded}
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {file} (file not found)") from None
    except Exception as error:  # zipfile's, zlib's, NumPy's
        raise ModelError(f"cannot read {file} as NumPy's: {error}") from error
    for key, array in arrays.items():
        if not np.can_cast(array.dtype, np.float64, "same_kind"):
            raise ModelError(f"{file}: {key!r} holds {array.dtype}, no real numbers")
    return arrays


# ---- inputs -------------------------------------------------------------------------------------


def inputs_for(side: Side, given: Arrays, by_name: bool = False) -> dict[str, np.ndarray]:
    """Those of `given` that the side needs, under its names and, where they align, in its shapes.

    Names match as in `comparison.match`; unless `by_name`, a single array is taken for a single
    input whatever the names. What is not given is missing in the result. Says in the log where a
    shape was changed by more than leading ones.
    """
    pairs = match(side.inputs, given)
    if not by_name and len(side.inputs) == len(given) == 1:
        pairs = dict(zip(side.inputs, given, strict=True))
    found = {}
    for name, other in pairs.items():
        aligned, note = align(side.inputs[name], given[other])
        found[name] = given[other] if aligned is None else aligned
        if aligned is not None and note not in ("", "leading ones differ"):
            shapes = describe(given[other].shape), describe(aligned.shape)
            log.warning("input %r: given as `%s`, transposed or reshaped to `%s`", name, *shapes)
    return found


def random_inputs(side: Side, but: Arrays) -> dict[str, np.ndarray]:
    """Normally distributed float32 values, always the same, for the side's inputs, `but` these."""
    draw = np.random.default_rng(0)
    return {
        name: draw.standard_normal(shape, np.float32)
        for name, shape in side.inputs.items()
        if name not in but
    }


def image_input(side: Side, path: str) -> dict[str, np.ndarray]:
    """An image file as the side's only input (N, C, H, W): its pixels, 0 to 255, no mean taken off.

    Channels are blue, green, red, or one grey; resized to H and W; each of N is the same. Raises
    ModelError for other inputs, and as `image.read_image` does.
    """
    from .data.image import read_image

    shapes = list(side.inputs.items())
    if len(shapes) != 1 or len(shapes[0][1]) != 4 or shapes[0][1][1] not in (1, 3):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes)
        raise ModelError(
            f"{path} is no .npy or .npz, and an image needs a single input of shape (N, 3 or 1, H,"
            f" W), not {listed or 'none'}"
        )
    ((name, shape),) = shapes
    image = read_image(path, shape[1] == 3, (shape[2], shape[3]))
    return {name: np.broadcast_to(image, shape).astype(np.float32)}
