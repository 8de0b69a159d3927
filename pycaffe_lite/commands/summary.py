"""Show what is in a net: shapes, parameters, multiply-adds and memory of each layer.

`summary net.prototxt [--weights W] [--phase TRAIN] [--level 0] [--stage a,b] [--json]`: a table, or
with --json everything with exact numbers. With weights, also what the file did for each layer.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from . import _caffe, show
from ._flags import FlagParser
from ._table import aligned, count, shape, size

if TYPE_CHECKING:
    from ..net_summary import LayerSummary, NetSummary


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite summary`."""
    _caffe.add_flags(
        parser, "weights", "phase", "level", "stage", phase="TRAIN or TEST; default: TEST"
    )
    parser.add_flag("json", False, "print all figures as JSON")
    parser.usage = f"{parser.prog} FILE [FLAGS]"


def run(args: argparse.Namespace) -> int:
    """Build the net, load the weights, print. Raises as Net and its copy_from do."""
    from ..net import TEST, Net
    from ..net_summary import summarize

    if len(args.rest) != 1:
        args.refuse(f"one file is needed, a net's prototxt; got {len(args.rest)}")
    phase = _caffe.phase(args) if args.phase else TEST
    net = Net(args.rest[0], phase, level=args.level, stages=_caffe.stages(args))
    if args.weights:
        net.copy_from(args.weights)
    found = summarize(net)
    if args.json:
        result = {"format": 1, "model": args.rest[0], "weights_file": args.weights or None}
        if sys.stdout is not None:
            print(json.dumps(result | found.as_dict(), indent=2))
        return 0
    show(table(found, args.weights))
    return 0


def table(found: NetSummary, weights: str = "") -> str:
    """A line a top of each layer, totals, and a sentence about the weights file `weights`."""
    head = ["layer", "type", "output", "parameters", "bytes", "multiply-adds", "activations"]
    rows = [[*head, "weights"] if weights else head]
    for layer in found.layers:
        rows += _rows(layer, bool(weights))
    rows.append(["total", "", "", count(found.parameters), size(found.parameter_bytes)])
    rows[-1] += [count(found.multiply_adds), size(found.activation_bytes), *[""] * bool(weights)]
    lines = aligned(rows, left=(0, 1, 2, 7))
    lines.insert(-1, "-" * max(map(len, lines)))
    title = f"net {found.name!r}, phase {found.phase}" if found.name else f"phase {found.phase}"
    return "\n".join([title, *lines, *([_loaded(found, weights)] if weights else [])])


def _rows(layer: LayerSummary, with_weights: bool) -> list[list[str]]:
    """The layer's line with its first top, and a line for each further one."""
    shapes = [shape(dims) for _, dims in layer.tops] or ["-"]
    figures = [
        count(layer.parameters) if layer.parameter_shapes else "-",
        size(layer.parameter_bytes) if layer.parameter_shapes else "-",
        count(layer.multiply_adds) if layer.multiply_adds else "-",
        size(layer.activation_bytes) if layer.activation_bytes else "-",
    ]
    more = [layer.weights or "-"] if with_weights else []
    first = [layer.name, layer.type, shapes[0], *figures, *more]
    return [first, *(["", "", dims, *[""] * (len(first) - 3)] for dims in shapes[1:])]


def _loaded(found: NetSummary, weights: str) -> str:
    loaded = sum(layer.weights == "loaded" for layer in found.layers)
    left = [layer.name for layer in found.layers if layer.weights == "left"]
    text = f"weights {weights}: {loaded} layers loaded"
    if left:
        text += f"; left at their fillers, not in the file: {', '.join(left)}"
    if found.ignored:
        text += f"; ignored, not in the net: {', '.join(found.ignored)}"
    return text
