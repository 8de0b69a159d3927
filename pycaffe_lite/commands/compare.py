"""Compare two nets, or a net and saved blobs, blob by blob on the same inputs: compare A B.

A and B are each NET.prototxt:WEIGHTS (or NET.prototxt with --weights-a, --weights-b), a MODEL.onnx
(onnxruntime), or a .npz, .npy or folder of them with the blobs that another tool has saved.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import show
from ._flags import FlagParser
from ._table import aligned, shape

if TYPE_CHECKING:
    import numpy as np

    from ..comparison import Comparison, Row
    from ..comparison_sides import Side


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite compare`."""
    parser.add_argument(
        "sides",
        nargs="*",
        metavar="A B",
        help="each NET.prototxt:WEIGHTS, NET.prototxt (weights by the flags below, else random), "
        "MODEL.onnx, or saved blobs: a .npz, .npy or folder of .npy; B may be left out with --save",
    )
    parser.add_flag("weights_a", "", "A's .caffemodel or .caffemodel.h5")
    parser.add_flag("weights_b", "", "B's")
    parser.add_flag(
        "inputs",
        "",
        "a .npz or .npy, by the inputs' names, or an image; default: those saved on the other side,"
        " or random numbers, always the same",
    )
    parser.add_flag(
        "tolerance", 1e-3, "largest difference, relative to A's largest value; default: 0.001"
    )
    parser.add_flag("json", False, "print everything as JSON")
    parser.add_flag("save", "", "write A's blobs into this folder, a .npy each")
    parser.usage = f"{parser.prog} A B [FLAGS]"
    parser.epilog = (
        "Exit status: 0 all blobs that both have are within the tolerance, 1 else. A blob of A"
        " that is computed in place has its last value, unless only an earlier one agrees: the"
        " table says so."
    )
    parser.set_defaults(refuse=parser.error)


def run(args: argparse.Namespace) -> int:
    """Run both, save A's blobs, print. 0 where all agree, else 1.

    Raises as `comparison_sides` does, and ModelError where no name is on both sides.
    """
    from ..comparison import compare
    from ..comparison_sides import open_side
    from ..errors import ModelError

    names = _sides(args)
    sides = [open_side(*name) for name in names]
    blobs, source = _run_all(sides, args.inputs)
    if args.save:
        save(blobs[0], Path(args.save))
    if len(sides) == 1:
        return 0
    found = compare(blobs[0], blobs[1], args.tolerance, sides[0].layers)
    if not found.rows:
        raise ModelError(
            f"no blob is on both sides: {names[0][0]} has {_listed(found.only_a)}; {names[1][0]}"
            f" has {_listed(found.only_b)}"
        )
    if args.json:
        result = {"format": 1, "a": args.sides[0], "b": args.sides[1], "inputs": source}
        if sys.stdout is not None:
            print(json.dumps(result | found.as_dict(), indent=2))
    else:
        show(f"inputs: {source}\n{table(found)}")
    return 0 if found.first is None else 1


def _sides(args: argparse.Namespace) -> list[tuple[str, str]]:
    """A's and B's (path, weights)."""
    count = len(args.sides)
    if count != 2 and not (count == 1 and args.save):
        args.refuse(f"two sides are needed, A and B (or A and --save); got {count}")
    if not args.tolerance >= 0:
        args.refuse(f"-tolerance must be at least 0, got {args.tolerance}")
    return [_split(text, getattr(args, f"weights_{k}")) for text, k in zip(args.sides, "ab")]  # noqa: B905


def _split(text: str, weights: str) -> tuple[str, str]:
    """NET:WEIGHTS, the weights given separately aside; a path that exists has no colon for us."""
    path, colon, behind = text.rpartition(":")
    if weights or len(path) < 2 or not colon or Path(text).exists():  # C:\net.prototxt
        return text, weights
    return path, behind


def _run_all(sides: list[Side], given: str) -> tuple[list[Mapping[str, np.ndarray]], str]:
    """Each side's blobs, on the same inputs; and where these came from."""
    from ..comparison_sides import inputs_for
    from ..errors import ModelError

    running = [side for side in sides if side.inputs]
    inputs, source = _inputs(running[0], sides, given) if running else ({}, "none needed")
    blobs: list[Mapping[str, np.ndarray]] = []
    for side in sides:
        own = inputs if running and side is running[0] else inputs_for(side, inputs)
        missing = [name for name in side.inputs if name not in own]
        if missing:
            raise ModelError(
                f"no values for input {_listed(missing)}: there are {_listed(list(inputs))}; name"
                " them with --inputs FILE.npz"
            )
        blobs.append(side.run(own))
    return blobs, source


def _inputs(first: Side, sides: list[Side], given: str) -> tuple[dict[str, np.ndarray], str]:
    """The inputs of the side that runs first: from the file, a saved side, or random."""
    from ..comparison_sides import SAVED, SavedSide, image_input, inputs_for, load_arrays
    from ..comparison_sides import random_inputs as random

    if given and Path(given).suffix.lower() not in SAVED and not Path(given).is_dir():
        return image_input(first, given), f"the image {given}"
    if given:
        arrays = load_arrays(given)
        wanted = {name: array for side in sides for name, array in inputs_for(side, arrays).items()}
        return wanted | inputs_for(first, arrays), given
    for side in sides:
        if isinstance(side, SavedSide):
            return inputs_for(first, side.arrays, by_name=True), "the blobs saved on the other side"
    return random(first, {}), "random, normally distributed"


# ---- files --------------------------------------------------------------------------------------


def save(blobs: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write each blob as NAME.npy, with `_` for what files' names should not have.

    Names that would then be the same get the blob's number in front. Each file appears whole or
    not at all; the folder is made.
    """
    import numpy as np

    from ..replacement import replacing

    folder.mkdir(parents=True, exist_ok=True)
    names = {name: re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "_" for name in blobs}
    times = Counter(name.lower() for name in names.values())
    for k, (name, array) in enumerate(blobs.items(), 1):
        number = f"{k:03}_" if times[names[name].lower()] > 1 else ""
        with (
            replacing(folder / f"{number}{names[name]}.npy") as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, array)


# ---- text ---------------------------------------------------------------------------------------


def table(found: Comparison) -> str:
    """The first divergence in a sentence, a line a blob in A's order, and what has no partner."""
    rows = [["", "blob", "shape", "max abs", "relative", "mean abs", "cosine", "NaN a/b", "note"]]
    rows += [_row(row, found.agrees(row)) for row in found.rows]
    lines = [_verdict(found), *aligned(rows, left=(0, 1, 2, 8))]
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            lines.append(f"only in {side}: {', '.join(names)}")
    return "\n".join(lines)


def _verdict(found: Comparison) -> str:
    wrong = sum(not found.agrees(row) for row in found.rows)
    if found.first is None:
        return f"all {len(found.rows)} blobs agree within {found.tolerance:g}"
    place = found.rows.index(found.first)
    text = f"first divergence: {found.first.blob}"
    if place:
        text += f", after {found.rows[place - 1].blob}"
    return f"{text}; {wrong} of {len(found.rows)} blobs differ by more than {found.tolerance:g}"


def _row(row: Row, agrees: bool) -> list[str]:
    notes = [f"B: {row.other}"] if row.other != row.blob else []
    if row.shape != row.other_shape:
        notes.append(f"B has {shape(row.other_shape)}")
    notes += [row.note] if row.note else []
    head = ["" if agrees else "!", row.blob, shape(row.shape)]
    d = row.difference
    if d is None:
        return [*head, *["-"] * 5, "; ".join(notes)]
    if d.unlike:
        notes.append(f"{d.unlike} not finite in one only, or otherwise")
    figures = [f"{d.max_abs:.2e}", f"{d.relative:.2e}", f"{d.mean_abs:.2e}", f"{d.cosine:.6f}"]
    return [*head, *figures, f"{d.nan_a}/{d.nan_b}", "; ".join(notes)]


def _listed(names: Any) -> str:
    return (
        ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"
    )
