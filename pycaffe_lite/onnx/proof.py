"""Does the model compute what the net does? Both run on the same inputs, layer by layer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..net import Net
from . import saving
from .freedom import Freedom, resized
from .inputs import KINDS, values
from .model import Model, Top
from .part import Part

Arrays = dict[str, np.ndarray]

_OWN_SHARE = 0.3
"""What part of the tolerance each layer by itself may use where rounding has grown beyond it."""

_NOISE = 0.1
"""How much noise stands for rounding: this part of the tolerance, of a channel's largest value."""

_MARGIN = 10
"""A difference may be so many times what the noise moves."""

_DRAWS = 2
"""How often noise is drawn."""


@dataclass(frozen=True)
class Row:
    """How far one top is from the net's: the largest difference in all runs.

    `relative` is the difference over `largest`, the blob's largest value (over 1 where all are 0),
    `run` says on which inputs. `own` is the same difference where the layer gets the model's
    values for its bottoms, measured where a run is beyond the tolerance: it tells the layer that
    computes something else from those that only hand it on. `before` is the largest `own` of this
    and all layers before, `moved` the difference that noise in all layers before makes in the net.
    """

    layer: str
    type: str
    blob: str
    shape: tuple[int, ...]
    difference: float
    relative: float
    run: str
    largest: float
    own: float | None = None
    before: float = np.inf
    moved: float = 0.0

    def excess(self, tolerance: float) -> float:
        """Above 1: something else is computed. NaN counts as infinite.

        1 where each layer by itself is right to a third of the tolerance, and rounding has grown:
        a sigmoid of values of 10^6 that were added in another order may be anything. Noise must
        grow as much: what is wrong in a channel of small values is small beside the blob's largest.
        """
        relative = order(self.relative) / max(tolerance, 1e-30)
        is_right = self.before <= _OWN_SHARE * tolerance
        return min(relative, 1.0) if is_right and self.is_moved else relative

    @property
    def is_moved(self) -> bool:
        """Is the difference one that noise makes too?"""
        return self.difference <= _MARGIN * self.moved


@dataclass(frozen=True)
class Proof:
    """What was compared: a row a top, in the net's order, and the runs.

    `blank` are the blobs that were 0 in all runs: nothing is known about them.
    """

    rows: list[Row]
    runs: list[str]
    tolerance: float
    blank: list[str]

    @property
    def wrong(self) -> list[Row]:
        """The rows beyond the tolerance, but for what rounding has made of less."""
        return [row for row in self.rows if not row.excess(self.tolerance) <= 1]

    @property
    def first(self) -> Row | None:
        """Of those the first in the net whose layer by itself computes something else."""
        share = _OWN_SHARE * self.tolerance
        return next((row for row in self.wrong if row.own is None or row.own > share), None)

    @property
    def worst(self) -> Row:
        """The row with the largest relative difference (NaN counts as that)."""
        return max(self.rows, key=lambda row: order(row.relative))


def order(relative: float) -> float:
    """To sort by: NaN is as bad as can be."""
    return relative if relative == relative else float("inf")


def prove(part: Part, model: Model, freedom: Freedom, tolerance: float, seed: int = 0) -> Proof:
    """Run the net and the model, all values its outputs, with onnxruntime on the CPU.

    Inputs: random, zeros, large and negative values, then a second batch size and a second image
    size where the model leaves them open. The model as it is saved runs too, with onnxruntime's
    rewriting, and its results count for their blobs. Raises ModelError where onnxruntime refuses.
    """
    everything, itself = _session(model, every=True), _session(model, every=False)
    rows: dict[int, Row] = {}
    seen: set[int] = set()
    runs = []
    draw = np.random.default_rng(seed)
    for run, kind, axes in _runs(freedom):
        with resized(part.net, axes[0], axes[1]):
            feeds = values(part.net, kind, draw)
            runs.append(run)
            found = _run(everything, feeds)
            new = _rows(part.net, model.tops, feeds, [found, _run(itself, feeds)], run)
            if any(row.excess(tolerance) > 1 for row in new):
                new = _with_own(part.net, model.tops, feeds | found, new)
                new = _with_noise(part.net, model.tops, feeds, new, tolerance)
            del found  # all blobs of a large net may be gigabytes
        seen.update(k for k, row in enumerate(new) if row.largest)
        for k, row in enumerate(new):
            if k not in rows or row.excess(tolerance) > rows[k].excess(tolerance):
                rows[k] = row
    blank = [row.blob for k, row in rows.items() if k not in seen]
    return Proof(list(rows.values()), runs, tolerance, blank)


def _rows(net: Net, tops: list[Top], feeds: Arrays, found: Sequence[Arrays], run: str) -> list[Row]:
    """A row a top: the worst of what was found for it."""
    rows = []
    for top, wanted in _forward(net, tops, feeds):
        arrays = [results[top.value] for results in found if top.value in results]
        near = [_compare(top, wanted, array, run) for array in arrays]
        rows.append(max(near, key=lambda row: order(row.relative)))
    return rows


def _with_own(net: Net, tops: list[Top], found: Arrays, rows: list[Row]) -> list[Row]:
    """The same rows, with what each layer makes of the model's own values of its bottoms."""
    before, new = 0.0, []
    for top, row in zip(tops, rows, strict=True):
        own = order(_own(net, top, found).relative)
        before = max(before, own)
        new.append(replace(row, own=own, before=before))
    return new


def _own(net: Net, top: Top, found: Arrays) -> Row:
    for index, value in top.bottoms:
        data, given = net._blobs[index].data, found[value]
        if data.shape != given.shape:
            return _compare(top, data, given, "")
        data[...] = given
    net._forward(top.layer, top.layer)
    return _compare(top, net._blobs[top.blob_index].data, found[top.value], "")


def _with_noise(
    net: Net, tops: list[Top], feeds: Arrays, rows: list[Row], tolerance: float
) -> list[Row]:
    """The same rows; those beyond the tolerance with what noise in all layers before moves."""
    draw = np.random.default_rng(0)
    quiet: dict[int, np.ndarray] = {}
    for k, (_, data) in enumerate(_forward(net, tops, feeds)):
        if not rows[k].relative <= tolerance:
            quiet[k] = data.copy()
    new = list(rows)
    for _ in range(_DRAWS):
        for k, (top, data) in enumerate(_forward(net, tops, feeds)):
            if k in quiet:
                moved = order(_compare(top, quiet[k], data, "").difference)
                new[k] = replace(new[k], moved=max(new[k].moved, moved))
            _disturb(data, _NOISE * tolerance, draw)
    return new


def _disturb(data: np.ndarray, noise: float, draw: np.random.Generator) -> None:
    """Add noise, relative to each channel's largest value; not to whole numbers, as indices are."""
    with np.errstate(invalid="ignore"):
        if not data.size or (data == np.rint(data)).all():
            return
    others = tuple(k for k in range(data.ndim) if k != 1)
    sizes = np.where(np.isfinite(data), np.abs(data), 0).max(axis=others, keepdims=True)
    data += (noise * sizes * draw.uniform(-1, 1, data.shape)).astype(data.dtype)


def _runs(freedom: Freedom) -> Iterator[tuple[str, str, tuple[dict[str, tuple[int, ...]], int]]]:
    """(name, kind of values, axes to enlarge and by how much)."""
    for kind in KINDS:
        yield kind, kind, ({}, 0)
    for what, symbols, step in (("batch", "N", 1), ("size", "DHWS", 32)):
        axes = {
            name: tuple(k for k, symbol in known.items() if symbol[0] in symbols)
            for name, known in freedom.inputs.items()
        }
        axes = {name: found for name, found in axes.items() if found}
        if axes:
            yield f"another {what}", "random", (axes, step)


def _forward(net: Net, tops: list[Top], feeds: Arrays) -> Iterator[tuple[Top, np.ndarray]]:
    """Each top's values as its layer has left them; later layers may overwrite them."""
    for name, value in feeds.items():
        net.blobs[name].data[...] = value
    at = 0
    for k in range(len(net.layers)):
        net._forward(k, k)
        while at < len(tops) and tops[at].layer == k:
            yield tops[at], net._blobs[tops[at].blob_index].data
            at += 1


def _compare(top: Top, wanted: np.ndarray, found: np.ndarray, run: str) -> Row:
    row = Row(top.layer_name, top.layer_type, top.blob, wanted.shape, 0.0, 0.0, run, 0.0)
    if top.layer_type == "DetectionOutput":
        wanted, found = matched(wanted, found)
    if wanted.shape != found.shape:
        return replace(row, difference=np.inf, relative=np.inf)
    if not wanted.size:
        return row
    with np.errstate(all="ignore"):
        apart = np.abs(wanted.astype("f8") - found)
        same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
        difference = float(np.where(same, 0, apart).max())
        finite = np.abs(wanted[np.isfinite(wanted)])
        largest = float(finite.max(initial=0))
    scale = largest or 1.0
    return replace(row, difference=difference, relative=difference / scale, largest=largest)


def matched(wanted: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of detections, each found one beside the wanted one that it is nearest to.

    Of nearly equal scores either may come first.
    """
    if wanted.shape != found.shape:
        return wanted, found
    a, b = wanted.reshape(-1, 7), found.reshape(-1, 7)
    left, order = list(range(len(b))), []
    with np.errstate(invalid="ignore"):
        for row in a:
            near = left[int(np.argmin(np.abs(b[left] - row).max(axis=1)))]
            left.remove(near)
            order.append(near)
    return a, b[order]


# ---- onnxruntime -------------------------------------------------------------------------------


def _session(model: Model, every: bool) -> Any:
    """A session of the model; with `every` its outputs are all tops, and nothing is rewritten."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    changed = model
    if every:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        changed = _every_top(model)
    try:
        if saving.size(model) <= saving.LARGEST:
            data: Any = saving.with_initializers(changed).SerializeToString()
            return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            saving.save(changed, path)
            return ort.InferenceSession(
                os.fspath(path), options, providers=["CPUExecutionProvider"]
            )
    except Exception as error:  # its own classes, which have no common base
        raise ModelError(f"onnxruntime does not load the model: {error}") from error


def _every_top(model: Model) -> Model:
    from onnx import ModelProto, ValueInfoProto

    proto = ModelProto()
    proto.CopyFrom(model.proto)
    known = {info.name for info in proto.graph.output}
    proto.graph.output.extend(
        ValueInfoProto(name=top.value) for top in model.tops if top.value not in known
    )
    return replace(model, proto=proto)


def _run(session: Any, feeds: Arrays) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    try:
        results = session.run(names, {k: v for k, v in feeds.items() if k in wanted})
    except Exception as error:
        raise ModelError(f"onnxruntime does not run the model: {error}") from error
    return dict(zip(names, results, strict=True))
