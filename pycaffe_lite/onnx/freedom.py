"""Which sizes may a model leave open? Asked of the net, by reshaping it and looking what moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ModelError
from ..net import Net
from .part import is_automatic

Shape = tuple[int, ...]

_STEP = 64
"""Pixels to enlarge an image by: no common net reduces its input further."""

_SIZED_BY_VALUES = {"DetectionOutput": 2, "Filter": 0}
"""Layer type -> the axis of its tops that is as long as what it finds."""


class Freedom:
    """The axes left open, of the net's inputs by name and of all blobs.

    `inputs[name]` maps an axis to its symbol ("N", "H" ..), `axes[name]` is the set of a blob's.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, dict[int, str]] = {}
        self.axes: dict[str, set[int]] = {}

    def dims(self, name: str, shape: Shape) -> tuple[int | None, ...]:
        """`shape` with None for what is open."""
        free = self.axes.get(name, set())
        return tuple(None if k in free else size for k, size in enumerate(shape))

    def symbols(self, name: str, shape: Shape) -> list[int | str | None]:
        """An input's shape with symbols for what is open."""
        known = self.inputs.get(name, {})
        return [known.get(k, size) for k, size in enumerate(shape)]

    def open(self, net: Net, wanted: dict[str, dict[int, str]], step: int) -> None:
        """Leave these axes of inputs open. Raises ModelError where the net cannot have them so."""
        with resized(net, {name: tuple(axes) for name, axes in wanted.items()}, step) as before:
            for name, blob in net.blobs.items():
                moved = {
                    k
                    for k, (a, b) in enumerate(zip(before[name], blob.shape, strict=False))
                    if a != b
                }
                self.axes[name] = self.axes.get(name, set()) | moved
        for name, axes in wanted.items():
            self.inputs.setdefault(name, {}).update(axes)


@contextmanager
def resized(net: Net, axes: dict[str, tuple[int, ...]], step: int) -> Iterator[dict[str, Shape]]:
    """Within the block those axes of inputs are larger by `step`; gives all shapes before.

    Raises ModelError where the net does not work with these sizes; it has its own again then.
    """
    before = {name: blob.shape for name, blob in net.blobs.items()}
    try:
        for name, grown in axes.items():
            shape = before[name]
            net.blobs[name].reshape(*(s + step if k in grown else s for k, s in enumerate(shape)))
        net.reshape()
        yield before
    finally:
        for name in net.inputs:
            net.blobs[name].reshape(*before[name])
        net.reshape()


def batch_axes(net: Net) -> dict[str, dict[int, str]]:
    """The first axis of each input that is as long as the first input's."""
    sizes = {name: net.blobs[name].shape[:1] for name in net.inputs}
    first = next((size for size in sizes.values() if size), None)
    return {name: {0: "N"} for name, size in sizes.items() if size and size == first}


def image_axes(net: Net) -> dict[str, dict[int, str]]:
    """The axes behind the second of each input that has 4 or more."""
    letters = {1: ["W"], 2: ["H", "W"], 3: ["D", "H", "W"]}
    found = {}
    for name in net.inputs:
        count = len(net.blobs[name].shape) - 2
        if count >= 2:
            symbols = letters.get(count, [f"S{k}" for k in range(count)])
            found[name] = dict(enumerate(symbols, 2))
    return found


def _open_by_values(net: Net, found: Freedom) -> None:
    """Axes whose size depends on values, with those of automatic copies."""
    for layer in net.layers:
        axis = _SIZED_BY_VALUES.get(layer.type)
        for name in layer.spec.top if axis is not None else ():
            found.axes.setdefault(name, set()).add(axis or 0)
        if is_automatic(layer.spec):
            for name in layer.spec.top:
                found.axes[name] = set(found.axes.get(layer.spec.bottom[0], ()))


def freedom(net: Net, batch: bool, sizes: bool) -> tuple[Freedom, str]:
    """What is open, and why the batch is not where it was asked for ("" where it is).

    Raises ModelError where `sizes` asks for images of any size and the net does not allow them.
    """
    found, why = Freedom(), ""
    if batch:
        try:
            found.open(net, batch_axes(net), 1)
        except ModelError as error:
            why = str(error)
    if sizes:
        try:
            found.open(net, image_axes(net), _STEP)
        except ModelError as error:
            raise ModelError(f"the net does not take images of any size: {error}") from error
    _open_by_values(net, found)
    return found, why
