"""Which layers did a weights file fill? What was found in it, and the report of a load."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..blob import Blob, describe
from ..errors import WeightsError
from ..ops.base import Ops

if TYPE_CHECKING:
    from ..layer import Layer
    from ..net import Net

log = logging.getLogger("pycaffe_lite")


_HOST = Ops()

Writer = Callable[[np.ndarray], None]
"""Fills a host array of a blob's shape from the file."""


class Copy(NamedTuple):
    """What writes a parameter's values, and its gradients where the file has them."""

    blob: Blob
    values: Writer
    diffs: Writer | None = None

    def make(self) -> None:
        """Write them into the blob."""
        self.values(self.blob.array(_HOST, read=False))
        if self.diffs is not None:
            self.diffs(self.blob.array(_HOST, diff=True, read=False))


@dataclass
class Found:
    """What a file has for a net: `layers` get their values by `copies`; `ignored` has no target."""

    copies: list[Copy] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoadReport:
    """The outcome of loading one file, in names of layers that have parameters.

    `loaded` got values; `ignored` are in the file but not in the net; `left` are in the net and
    still have the values of their fillers, as neither this file nor one loaded before has them.
    """

    path: str
    loaded: tuple[str, ...]
    ignored: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True where no layer is ignored or left."""
        return not (self.ignored or self.left)

    def __str__(self) -> str:
        """One line: "w.caffemodel: 7 layers loaded; ignored, not in the net: a, b; ..."."""
        parts = [f"{len(self.loaded)} layers loaded"]
        if self.ignored:
            parts.append(f"ignored, not in the net: {_listed(self.ignored)}")
        if self.left:
            parts.append(f"left at their fillers, not in the file: {_listed(self.left)}")
        return f"weights {self.path}: {'; '.join(parts)}"


def report(net: Net, found: Found, path: str) -> LoadReport:
    """What loading `found` comes to, after what has been loaded into the net before."""
    before = net.load_report
    left = [
        layer.name
        for layer in net.layers
        if (before is None or layer.name in before.left) and not _has_values(layer, found)
    ]
    loaded = [layer.name for layer in found.layers]
    return LoadReport(path, tuple(loaded), tuple(found.ignored), tuple(left))


def _has_values(layer: Layer, found: Found) -> bool:
    """True without parameters, too; and where the model or the layers that share them have them."""
    if layer.spec.blobs or any(layer is other for other in found.layers):
        return True
    return all(any(blob.shares_data(copy.blob) for copy in found.copies) for blob in layer.blobs)


def finish(net: Net, found: Found, path: str, strict: bool) -> None:
    """Copy, and set the net's report; one line of log, a warning where layers are left.

    In a new net the other parameters get their fillers' values. Raises WeightsError, with nothing
    copied, where `strict` and layers are ignored or left.
    """
    result = report(net, found, path)
    if strict and not result.complete:
        raise WeightsError(f"strict loading: {result}")
    net.fill_params(but=[copy.blob for copy in found.copies])
    for copy in found.copies:
        copy.make()
    net.load_report = result
    log.log(logging.WARNING if result.left else logging.INFO, "%s", result)


def check_number(name: str, source: int, target: int) -> None:
    """WeightsError where a layer has other than the file's number of parameters."""
    if source != target:
        raise WeightsError(
            f"incompatible number of blobs for layer {name}: the file has {source},"
            f" the net {target}"
        )


def mismatch(name: str, index: int, source: tuple[int, ...], target: tuple[int, ...]) -> str:
    """Caffe's sentence about shapes that differ, which people search for."""
    return (
        f"cannot copy param {index} weights from layer {name!r}; shape mismatch. Source param"
        f" shape is `{describe(source)}`; target param shape is `{describe(target)}`. To learn this"
        f" layer's parameters from scratch, rename the layer{by_count(source, target)}"
    )


def by_count(source: tuple[int, ...], target: tuple[int, ...]) -> str:
    """A hint, where only the counts of two shapes are equal."""
    same = prod(source) == prod(target)
    return "; copy_from(..., permissive=True) loads what has the same count" if same else ""


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
