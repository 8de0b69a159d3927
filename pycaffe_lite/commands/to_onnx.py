"""Write a net as an ONNX model and prove, blob by blob, that it computes the same.

Both run on random values, zeros, large and negative ones, another batch and another image size.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from . import show

if TYPE_CHECKING:
    from ..onnx import Export, Proof, Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pycaffe-lite to-onnx`."""
    parser.add_argument("model", metavar="MODEL", help="the net's prototxt, as for deploying it")
    parser.add_argument(
        "weights", metavar="WEIGHTS", nargs="?", help="its .caffemodel or .caffemodel.h5"
    )
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write")
    parser.add_argument(
        "--batch",
        type=_batch,
        default="dynamic",
        metavar="N",
        help='images a run: a number, or "dynamic", any number where the net allows it (default)',
    )
    parser.add_argument(
        "--sizes",
        choices=("fixed", "dynamic"),
        default="fixed",
        help="images of the net's size (default), or of any size",
    )
    parser.add_argument(
        "--end",
        action="append",
        default=[],
        metavar="BLOB",
        help="the model's result, instead of the net's; may be given several times",
    )
    parser.add_argument(
        "--raw-heads", action="store_true", help="leave DetectionOutput off; results: its bottoms"
    )
    parser.add_argument(
        "--external-data",
        action="store_true",
        default=None,
        help="weights in a file OUT.data of their own; without it only above 2 GB",
    )
    parser.add_argument("--no-verify", action="store_true", help="do not run and compare")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="T",
        help="a blob's largest difference allowed, of its largest value (default 1e-4)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--unknown-fields",
        choices=("error", "warn"),
        default="error",
        help="what to do about fields of the prototxt that no known fork has",
    )
    parser.epilog = (
        "Exit status: 0 written; 1 a file or layer that cannot be exported, or wrong arguments to"
        " it; 2 wrong usage; 3 a blob differs by more than the tolerance. OUT is written with"
        " status 0 only."
    )


def _batch(text: str) -> int | str:
    if text == "dynamic":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"dynamic" or a number from 1 on, not {text!r}')
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Convert, compare, print, write. 0, or 3 where a blob differs.

    Raises MissingFileError, ModelError, RuntimeError without onnx, OSError.
    """
    from .. import TEST, Net
    from ..onnx import convert

    net = Net(args.model, TEST, weights=args.weights, unknown_fields=args.unknown_fields)
    result = convert(
        net, batch=args.batch, sizes=args.sizes, end=args.end, raw_heads=args.raw_heads
    )
    proof = None if args.no_verify else result.prove(args.tolerance)
    is_right = proof is None or not proof.wrong
    files = result.save(args.output, args.external_data) if is_right else []
    names = [str(path) for path in files]
    if args.json:
        print(json.dumps(_as_json(result, proof, names), indent=2))
    else:
        show(_as_text(result, proof, names))
    return 0 if is_right else 3


def _as_json(result: Export, proof: Proof | None, files: list[str]) -> dict[str, Any]:
    from ..onnx import OPSET

    said: dict[str, Any] = {
        "files": files,
        "opset": OPSET,
        "inputs": result.inputs,
        "outputs": result.outputs,
        "notes": result.notes,
    }
    if proof is not None:
        said |= {
            "tolerance": proof.tolerance,
            "runs": proof.runs,
            "passed": not proof.wrong,
            "blank": proof.blank,
            "blobs": [
                {
                    "layer": row.layer,
                    "type": row.type,
                    "blob": row.blob,
                    "shape": list(row.shape),
                    "difference": _number(row.difference),
                    "relative": _number(row.relative),
                    "own": None if row.own is None else _number(row.own),
                    "run": row.run,
                }
                for row in proof.rows
            ],
        }
    return said


def _number(value: float) -> float | str:
    """JSON has neither infinity nor NaN."""
    return value if abs(value) < float("inf") else str(value)


def _as_text(result: Export, proof: Proof | None, files: list[str]) -> str:
    lines = [*result.notes]
    for name, shape in result.inputs.items():
        lines.append(f"input {name}: {' x '.join(map(str, shape))}")
    lines.append(f"outputs: {', '.join(result.outputs)}")
    if proof is None:
        lines.append("not verified")
    else:
        lines += ["", *_table(proof), ""]
    lines.append(f"written: {', '.join(files)}" if files else "nothing written")
    return "\n".join(lines)


def _table(proof: Proof) -> list[str]:
    """A line a blob, the worst first, then what it amounts to."""
    from ..onnx.proof import order

    rows = sorted(proof.rows, key=lambda row: -order(row.relative))
    cells = [("blob", "layer", "type", "shape", "max diff", "relative", "inputs", "")]
    for row in rows:
        cells.append(
            (
                row.blob,
                row.layer,
                row.type,
                "x".join(map(str, row.shape)) or "scalar",
                f"{row.difference:.3g}",
                f"{row.relative:.3g}",
                row.run,
                _verdict(row, proof.tolerance),
            )
        )
    widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    worst = proof.worst
    lines.append(
        f"{len(rows)} blobs on {len(proof.runs)} inputs ({', '.join(proof.runs)}): the worst,"
        f" {worst.blob}, is off by {worst.relative:.2g} of its largest value;"
        f" {len(proof.wrong)} beyond {proof.tolerance:g}{_by_rounding(proof)}"
    )
    if proof.first is not None:
        lines.append(f"the first that computes something else: layer {proof.first.layer!r}")
    if proof.blank:
        lines.append(
            f"{len(proof.blank)} blobs were 0 on all inputs, so nothing is known about them (are"
            f" the weights there?): {', '.join(dict.fromkeys(proof.blank))}"
        )
    return lines


def _verdict(row: Row, tolerance: float) -> str:
    if row.relative <= tolerance:
        return ""
    if row.excess(tolerance) <= 1:
        return f"rounding, by itself {row.own:.2g}"
    return "<- WRONG" if row.own is None else f"<- WRONG, by itself {row.own:.2g}"


def _by_rounding(proof: Proof) -> str:
    beyond = [row for row in proof.rows if not row.relative <= proof.tolerance]
    count = len(beyond) - len(proof.wrong)
    return f", {count} more by rounding that has grown, each layer being right" if count else ""
