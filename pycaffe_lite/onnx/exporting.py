"""From a net to a file that is proved to compute the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import extras
from ..errors import ModelError
from ..net import Net
from .freedom import Freedom, freedom
from .model import Model, build
from .part import Part, part_of
from .proof import Proof, prove
from .saving import check, save

log = logging.getLogger("pycaffe_lite")

DYNAMIC = "dynamic"


@dataclass
class Export:
    """A model that is not in a file yet, and what became of the net in it.

    `part` says which layers were left off or became inputs, `notes` what a user should know.
    """

    part: Part
    model: Model
    freedom: Freedom
    notes: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> dict[str, list[int | str | None]]:
        """Input name -> shape, with a symbol ("N", "H", "W") for each open size."""
        blobs = self.part.net.blobs
        return {n: self.freedom.symbols(n, blobs[n].shape) for n in self.part.net.inputs}

    @property
    def outputs(self) -> list[str]:
        """Names of the results."""
        return self.model.outputs

    def prove(self, tolerance: float = 1e-4) -> Proof:
        """Run net and model and compare every blob. Raises ModelError where the model won't run."""
        _require("onnxruntime")
        return prove(self.part, self.model, self.freedom, tolerance)

    def save(self, path: str | os.PathLike[str], external: bool | None = None) -> list[Path]:
        """Write the model; the files written. See `export`."""
        return save(self.model, path, external)


def convert(
    net: Net,
    *,
    batch: int | str = DYNAMIC,
    sizes: str = "fixed",
    end: str | Sequence[str] = (),
    raw_heads: bool = False,
) -> Export:
    """The net as a model in memory, which onnx's checker accepts; arguments as for `export`."""
    _require("onnx")
    if sizes not in ("fixed", DYNAMIC):
        raise ModelError(f'sizes must be "fixed" or "dynamic", got {sizes!r}')
    part = part_of(net, [end] if isinstance(end, str) else end, raw_heads)
    if batch != DYNAMIC:
        _set_batch(part.net, batch)
    notes = [f"layer {n!r} ({t}) left off: {why}" for n, t, why in part.left_off]
    notes += [f"layer {n!r} ({t}): its tops are inputs of the model" for n, t in part.replaced]
    found, why = freedom(part.net, batch == DYNAMIC, sizes == DYNAMIC)
    if why:
        size = next((s[0] for s in map(lambda n: part.net.blobs[n].shape, part.net.inputs) if s), 1)
        notes.append(f"the batch is fixed to {size}: {why}")
    model = build(part, found)
    notes += model.notes
    check(model)
    for note in notes:
        log.info("%s", note)
    return Export(part, model, found, notes)


def export(
    net: Net,
    path: str | os.PathLike[str],
    *,
    batch: int | str = DYNAMIC,
    sizes: str = "fixed",
    end: str | Sequence[str] = (),
    raw_heads: bool = False,
    verify: bool = True,
    tolerance: float = 1e-4,
    external: bool | None = None,
) -> Proof | None:
    """Write a net in phase TEST, with its present parameters, as an ONNX model.

    `batch` is "dynamic" (where the net allows it, else fixed, which is logged) or a number; `sizes`
    "fixed", those of the net's inputs, or "dynamic": images of any size. The model ends at the
    blobs `end`, or at the net's outputs; `raw_heads` leaves DetectionOutput off. Data layers become
    inputs, losses are left off. With `verify` net and model are run and every blob compared; the
    result holds the figures. `external`: weights in a file PATH.data beside the model; by default
    where they exceed 2 GB. The net itself stays as it is.

    Raises ModelError for a layer that ONNX cannot say, with what to do instead, and where a blob is
    further from the net's than `tolerance` times its largest value: then nothing is written.
    RuntimeError where onnx or onnxruntime is missing, OSError where the file cannot be written.
    """
    result = convert(net, batch=batch, sizes=sizes, end=end, raw_heads=raw_heads)
    proof = result.prove(tolerance) if verify else None
    if proof is not None and proof.wrong:
        worst = proof.first or proof.worst
        raise ModelError(
            f"the model computes something else: blob {worst.blob!r} of layer {worst.layer!r}"
            f" ({worst.type}) differs by {worst.relative:.2g} of its largest value on inputs"
            f" {worst.run!r}, more than {tolerance:g}; nothing was written"
        )
    result.save(path, external)
    return proof


def _set_batch(net: Net, batch: int | str) -> None:
    """Give the inputs' first axes that size. ModelError where the net does not take it."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ModelError(f'batch must be "dynamic" or a number from 1 on, got {batch!r}')
    first = next((net.blobs[n].shape[:1] for n in net.inputs if net.blobs[n].shape), None)
    for name in net.inputs:
        shape = net.blobs[name].shape
        if shape and shape[:1] == first:
            net.blobs[name].reshape(batch, *shape[1:])
    net.reshape()


def _require(package: str) -> None:
    extras.require(package, f"{package} is needed to write ONNX models", "'pycaffe-lite[onnx]'")
