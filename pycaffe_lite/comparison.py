"""How far apart are two sets of blobs? Names are matched, shapes aligned, differences measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
Shape = tuple[int, ...]


class LayerValue(NamedTuple):
    """What a layer wrote into a blob, which later layers may have overwritten in place."""

    blob: str
    array: np.ndarray


@dataclass(frozen=True)
class Difference:
    """Of b from a, in float64, over the elements that are finite in both.

    `relative` is `max_abs` over the largest magnitude in a; `cosine` is 1 for equal directions, NaN
    where only one of them is all zeros. `nan_a` and `nan_b` count NaNs, `unlike` the elements where
    one is NaN or infinite and the other is not the same.
    """

    max_abs: float
    relative: float
    mean_abs: float
    cosine: float
    nan_a: int
    nan_b: int
    unlike: int

    def within(self, tolerance: float) -> bool:
        """True where `relative` is, and NaNs and infinities are the same in both."""
        return self.relative <= tolerance and not self.unlike


@dataclass(frozen=True)
class Row:
    """A blob of a, and b's of the name `other`. No `difference`: shapes do not fit, `note` says so.

    Else `note` says how b's shape was understood, and which of a's values was compared where it is
    not the blob's last; it is empty for the last value and equal shapes.
    """

    blob: str
    other: str
    shape: Shape
    other_shape: Shape
    difference: Difference | None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The rows in a's order, and the names that only one side has."""

    rows: tuple[Row, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    tolerance: float

    def agrees(self, row: Row) -> bool:
        """True where the row was compared and is within the tolerance."""
        return row.difference is not None and row.difference.within(self.tolerance)

    @property
    def first(self) -> Row | None:
        """The first row that does not agree; later ones may only follow from it."""
        return next((row for row in self.rows if not self.agrees(row)), None)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON has it: null for what is not a finite number."""
        rows = [asdict(row) | {"agrees": self.agrees(row)} for row in self.rows]
        for row in rows:
            for name, value in (row["difference"] or {}).items():
                row["difference"][name] = value if np.isfinite(value) else None
        return {
            "tolerance": self.tolerance,
            "agree": self.first is None,
            "first_divergence": self.first.blob if self.first else None,
            "blobs": rows,
            "only_in_a": list(self.only_a),
            "only_in_b": list(self.only_b),
        }


def compare(
    a: Arrays, b: Arrays, tolerance: float, layers: Mapping[str, LayerValue] = MappingProxyType({})
) -> Comparison:
    """Compare blob by blob in a's order; see `match` and `align` for names and shapes.

    `layers` says what a's layers made. Names of b that are no blobs of a may be those of layers,
    which have rows of their own. And where a blob does not agree, but b has the value that an
    earlier layer wrote and a later one, in place, overwrote, that value is compared; the row's note
    says so.
    """
    pairs = match(a, b)
    others = match(
        (name for name in layers if name not in a), (k for k in b if k not in pairs.values())
    )
    rows: list[Row] = []
    for name in a:
        made = {layer: value.array for layer, value in layers.items() if value.blob == name}
        if name in pairs:
            rows.append(_nearest(name, a[name], made, pairs[name], b[pairs[name]], tolerance))
        for layer in (layer for layer in made if layer in others):
            text = f"{name} (layer {layer})"
            rows.append(_row(text, made[layer], others[layer], b[others[layer]]))
    known = pairs.keys() | {layers[layer].blob for layer in others}
    matched = {row.other for row in rows}
    return Comparison(
        tuple(rows),
        tuple(name for name in a if name not in known),
        tuple(name for name in b if name not in matched),
        tolerance,
    )


def _row(name: str, x: np.ndarray, other: str, y: np.ndarray) -> Row:
    aligned, note = align(x.shape, y)
    difference = None if aligned is None else measure(x, aligned)
    return Row(name, other, x.shape, y.shape, difference, note)


def _nearest(
    name: str, x: np.ndarray, made: Arrays, other: str, y: np.ndarray, tolerance: float
) -> Row:
    """The row of the blob's last value; of one behind an earlier layer where only that agrees."""
    last = _row(name, x, other, y)
    if last.difference is None or last.difference.within(tolerance):
        return last
    for layer, value in list(made.items())[:-1]:
        row = _row(name, value, other, y)
        if row.difference is not None and row.difference.within(tolerance):
            said = f"as it is behind layer {layer!r}, before later ones in place"
            return replace(row, note=f"{row.note}; {said}" if row.note else said)
    return last


# ---- names --------------------------------------------------------------------------------------


def match(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """Names of a -> names of b, by ever looser rules; what is not unique under a rule is left.

    Equal names first; then those equal without case and with any punctuation as `_`, as tools write
    them in files' names; then without a number in front (`001_conv1`) or the number of an output
    behind (`conv1_0`, `conv1:0`, `conv1_output_0`).
    """
    pairs: dict[str, str] = {}
    left, right = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    for of_a, of_b in _RULES:
        known, others = _unique(left, of_a), _unique(right, of_b)
        pairs |= {known[key]: others[key] for key in known if key in others}
        left = [name for name in left if name not in pairs]
        right = [name for name in right if name not in pairs.values()]
    return pairs


def _unique(names: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    keys = {name: key(name) for name in names}
    times = Counter(keys.values())
    return {key: name for name, key in keys.items() if times[key] == 1}


def _clean(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def _core(name: str) -> str:
    """Without numbers in front and an output's behind; a name of only numbers stays."""
    clean = _clean(name)
    if not re.search("[a-z]", clean):
        return clean
    return re.sub(r"^\d+_|(_output)?_0$|_output0$", "", clean)


_RULES: tuple[tuple[Callable[[str], str], Callable[[str], str]], ...] = (
    (str, str),
    (_clean, _clean),
    (_clean, _core),
    (_core, _clean),
    (_core, _core),
)


# ---- shapes -------------------------------------------------------------------------------------

# How b is transposed, and what that says of it. No more ways: of NHWC and NWHC either would fit
# wherever height and width are equal.
_LAYOUTS = {
    "b is NHWC, transposed": (0, 3, 1, 2),
    "a is NHWC, b transposed": (0, 2, 3, 1),
    "height and width swapped, transposed": (0, 1, 3, 2),
}


def align(shape: Shape, other: np.ndarray) -> tuple[np.ndarray | None, str]:
    """The other array in `shape`, and a note on what its own shape was taken to be.

    Taken are: the same shape; one that differs in ones; one of four axes in another usual order,
    where only one such order fits; a flat array of the same count. None, and a note, for others.
    """
    if other.shape == shape:
        return other, ""
    rank = max(len(shape), other.ndim)
    wanted = (1,) * (rank - len(shape)) + shape
    padded = other.reshape((1,) * (rank - other.ndim) + other.shape)
    if padded.shape == wanted:
        return other.reshape(shape), "leading ones differ"
    found: dict[Shape, tuple[np.ndarray, str]] = {}  # by the order of the axes that are not 1
    if _without_ones(shape) == _without_ones(other.shape):
        found[_order(padded.shape, range(rank))] = padded, "ones differ"
    for note, axes in _LAYOUTS.items() if rank == 4 else ():
        turned = padded.transpose(axes)
        if turned.shape == wanted:
            found.setdefault(_order(padded.shape, axes), (turned, note))
    if len(found) == 1:
        ((array, note),) = found.values()
        return array.reshape(shape), note
    if found:
        return None, f"shapes differ, ambiguous: {' or '.join(note for _, note in found.values())}"
    if other.size != prod(shape):
        return None, "shapes differ"
    if min(len(_without_ones(shape)), len(_without_ones(other.shape))) <= 1:
        return other.reshape(shape), "flat, taken in order"
    return None, "shapes differ, same count"


def _without_ones(shape: Shape) -> Shape:
    return tuple(dim for dim in shape if dim != 1)


def _order(shape: Shape, axes: Iterable[int]) -> Shape:
    """Two transpositions of equal order hold the same values in the same order."""
    return tuple(axis for axis in axes if shape[axis] != 1)


# ---- values -------------------------------------------------------------------------------------


def measure(a: np.ndarray, b: np.ndarray) -> Difference:
    """The difference of two arrays of one shape; 0 for empty ones."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    finite = np.isfinite(x) & np.isfinite(y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    nans = int(np.isnan(x).sum()), int(np.isnan(y).sum())
    unlike = int((~finite & ~same).sum())
    x, y = x[finite], y[finite]
    apart = np.abs(x - y)
    most = float(apart.max(initial=0))
    scale = float(np.abs(x).max(initial=0))
    return Difference(
        max_abs=most,
        relative=most / scale if scale else (0.0 if most == 0 else float("inf")),
        mean_abs=float(apart.mean()) if apart.size else 0.0,
        cosine=_cosine(x, y),
        nan_a=nans[0],
        nan_b=nans[1],
        unlike=unlike,
    )


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    lengths = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    if not all(lengths):
        return 1.0 if lengths[0] == lengths[1] else float("nan")
    return float((x / lengths[0]) @ (y / lengths[1]))
