"""Write a net, weights or a solver of an old form in today's form: upgrade IN OUT.

What IN holds is found by looking into it: a net's prototxt, a binary net with or without weights
(.caffemodel), a solver's prototxt. OUT is of the same kind and appears whole or not at all; it may
be IN. A file in today's form already is written again. Comments of a prototxt are lost.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import graph, prototxt
from ..errors import ModelError
from ..proto import caffe_pb2
from ..replacement import replacing
from ..upgrade import needs_upgrade, solver
from . import show
from ._flags import FlagParser


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite upgrade`."""
    parser.usage = f"{parser.prog} [-h] [-v] IN OUT"
    # Counted by `run`: argparse would end with 2, which here says that IN does not parse.
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="IN OUT",
        help="the file to read, and the file to write (may be the same)",
    )
    parser.epilog = (
        "Exit status: 0 done; 1 wrong arguments, a file that cannot be read or written, or a model"
        " that has no single meaning in today's form; 2 IN does not parse. OUT is written with"
        " status 0 only."
    )
    parser.set_defaults(usage=parser.usage)
    # glog's. With a flag of its own a command ends with 1 for all that are unknown.
    parser.add_flag("minloglevel", 0, argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Read, upgrade, write. 0, 1 for wrong usage, 2 where IN does not parse.

    Raises MissingFileError, OSError, and ModelError for what cannot be said in today's form.
    """
    if len(args.paths) != 2:
        print(
            f"usage: {args.usage}\npycaffe-lite: error: two files are needed, IN and OUT;"
            f" got {len(args.paths)}",
            file=sys.stderr,
        )
        return 1
    source, target = args.paths
    data = prototxt.read_file(source)
    is_binary = prototxt.describe_content(data).startswith("binary")
    try:
        spec = _parse_binary(data, source) if is_binary else _parse_text(data, source)
    except ModelError as error:
        if args.verbose:
            raise
        print(f"pycaffe-lite: error: {error}", file=sys.stderr)
        return 2
    text = "" if is_binary else data.decode("utf-8", "surrogateescape")
    new = _upgraded(spec, source, text)
    with replacing(target) as temporary:
        (prototxt.write_binary if is_binary else prototxt.write_text)(temporary, new)
    what = "upgraded to today's form" if _is_old(spec) else "of today's form already, written again"
    show(f"{target}: {_kind(new, is_binary)} {what}")
    return 0


def _is_old(spec: Any) -> bool:
    if not isinstance(spec, caffe_pb2.SolverParameter):
        return needs_upgrade(spec)
    return spec.HasField("solver_type") or any(map(needs_upgrade, solver.nets_of(spec)))


def _upgraded(spec: Any, path: str, text: str) -> Any:
    """The message in today's form; errors begin with file and, where known, line."""
    try:
        if isinstance(spec, caffe_pb2.SolverParameter):
            return solver.to_current(spec)
        return graph.upgrade(spec)
    except ModelError as error:
        lines = prototxt.layer_lines(text).get(error.layer or "", [])
        where = f"{path}:{' or '.join(map(str, lines))}" if lines else path
        raise ModelError(f"{where}: {error}") from error


def _kind(spec: Any, is_binary: bool) -> str:
    if isinstance(spec, caffe_pb2.SolverParameter):
        return "solver"
    return f"binary net {spec.name!r}" if is_binary else f"net {spec.name!r}"


def _parse_binary(data: bytes, path: str) -> Any:
    spec = prototxt.parse_binary(data, caffe_pb2.NetParameter, path)
    if not (spec.layer or spec.layers):  # other messages parse too: their fields count as unknown
        raise ModelError(
            f"failed to parse NetParameter file {path}: it holds no layer; is it a"
            " binary file of another kind?"
        )
    return spec


def _parse_text(data: bytes, path: str) -> Any:
    """The net or solver in a text. Raises ModelError, that of the kind which gets further."""
    content = prototxt.describe_content(data)
    if not content.startswith("text"):
        raise ModelError(f"failed to parse {path}: it looks like {content}")
    text = data.decode("utf-8", "surrogateescape")
    errors = []
    for kind in (caffe_pb2.NetParameter, caffe_pb2.SolverParameter):
        try:
            spec: Any = prototxt.parse_text(text, kind, path)
        except ModelError as error:
            errors.append(error)
        else:
            if spec.ListFields():
                return spec
            raise ModelError(f"failed to parse {path}: it sets no field of a net or solver")
    raise max(errors, key=_place)  # the first of two equal ones, the net's


def _place(error: ModelError) -> tuple[int, int]:
    """Line and column up to which the text did parse."""
    cause: Any = error.__cause__
    if not hasattr(cause, "GetLine"):  # the whole text did, and required fields are missing
        return (sys.maxsize, 0)
    return (cause.GetLine() or 0, cause.GetColumn() or 0)
