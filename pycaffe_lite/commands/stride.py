"""Time one convolution at strides 1 to 4, on CPU and GPU, and say where the time goes.

The published experiment: 1 x 1 x 227 x 227 input, 96 outputs, kernel 11.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..replacement import replacing
from . import show

if TYPE_CHECKING:
    from ..stride.figures import DeviceFigures, Report, Spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pycaffe-lite stride`."""
    parser.add_argument(
        "--device", choices=["cpu", "gpu", "both"], help="default: both where there is a GPU"
    )
    parser.add_argument(
        "--runs",
        type=_count,
        metavar="N",
        help="times taken of each thing; default: up to 15, in about 10 s",
    )
    parser.add_argument(
        "--threads", type=_threads, metavar="N", help="threads of the convolution and of BLAS"
    )
    parser.add_argument("--json", type=_file, metavar="FILE", help="write every figure")
    parser.add_argument("--plot", type=_png, metavar="FILE.png", help="draw them (matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Measure, print tables and sentences, write the files asked for."""
    from .. import stride
    from ..stride import plot as stride_plot

    for path in (args.json, args.plot):
        _check_folder(path)
    if args.plot:
        stride_plot.require()
    report = stride.measure(
        args.device,
        args.runs,
        args.threads,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    show(render(report))
    if args.json:
        _write(args.json, (json.dumps(as_dict(report), indent=2) + "\n").encode())
    if args.plot:
        _write(args.plot, stride_plot.png(report))
    return 0


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON has it: its fields, what follows from them, and the sentences."""
    from dataclasses import asdict

    from ..stride.explain import explain

    result = asdict(report)
    for device, shown in zip(report.devices, result["devices"], strict=True):
        for figures, entry in zip(device.strides, shown["strides"], strict=True):
            for name in ("positions", "published_way", "gflops", "sgemm_gflops"):
                entry[name] = getattr(figures, name)
    return {"format": 1, "unit": "milliseconds, bytes"} | result | {"explanation": explain(report)}


# ---- text ---------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """Machine, tables and sentences."""
    from ..stride.explain import explain

    e, blocks = report.experiment, [_machine(report)]
    blocks.append(
        f"One Convolution: input 1 x 1 x {e.size} x {e.size}, {e.outputs} outputs, kernel"
        f" {e.kernel} x {e.kernel}. Times in ms."
    )
    if report.no_gpu:
        blocks.append(f"No GPU measured: {report.no_gpu}")
    blocks += [_device(device, report) for device in report.devices]
    blocks.append("\n".join(textwrap.fill(line, 100) for line in explain(report)))
    return "\n\n".join(blocks)


def _machine(report: Report) -> str:
    m = report.machine
    blas = ", ".join(f"{b['name']} {b['version']} ({b['threads']} threads)" for b in m["blas"])
    versions = ", ".join(f"{name} {v}" for name, v in m["versions"].items())
    return (
        f"{m['cpu']}, {m['usable_cores']} of {m['cores']} cores; {m['system']};"
        f" Python {m['python']}\n{versions}; BLAS: {blas or 'none found'}"
    )


def _device(d: DeviceFigures, report: Report) -> str:
    from ..stride.figures import PUBLISHED_MS, Experiment

    published = PUBLISHED_MS[d.kind] if report.experiment == Experiment() else ()
    plural = "" if d.threads == 1 else "s"
    place = f"{d.threads} thread{plural}" if d.threads else d.name
    head = f"{d.kind.upper()} (backend {d.backend}, {place}): median [quartiles] of {d.floor.runs}"
    on_gpu = d.kind == "gpu"
    over = "kernels/sgemm" if on_gpu else "forward/sgemm"
    rows = [["stride", "positions", "published", "mean of 3", "forward()", "GFLOP/s"]]
    rows[0] += ["kernels"] * on_gpu + ["sgemm alone", "GFLOP/s", over]
    for k, s in enumerate(d.strides):
        row = [str(s.stride), f"{s.side} x {s.side}"]
        row += [f"{published[k]:.2f}" if published else "-", f"{s.published_way:.2f}"]
        row += [_spread(s.forward), f"{s.gflops:.1f}"]
        row += [_spread(s.kernels)] if s.kernels else []
        row += [_spread(s.sgemm), f"{s.sgemm_gflops:.1f}", _spread(s.ratio)]
        rows.append(row)
    return "\n\n".join([f"{head}\n{_table(rows)}", _stages(d), _memory(d)])


def _stages(d: DeviceFigures) -> str:
    """The parts alone, beside the forward as it runs here."""
    copies = ["host to device", "device to host"] if d.kind == "gpu" else []
    rows = [["stride", "im2col", "GEMM", "bias", "sum", *copies, "forward() here"]]
    for s in d.strides:
        parts = [s.stages.im2col, s.stages.gemm, s.stages.bias]
        moved = [c for c in (s.stages.upload, s.stages.download) if c]
        row = [str(s.stride), *map(_spread, parts), f"{s.stages.sum:.3f}", *map(_spread, moved)]
        rows.append([*row, _spread(s.forward)])
    single = f"a single position: forward() {_spread(d.floor)}"
    if d.floor_kernels:
        single += f", kernels {_spread(d.floor_kernels)}"
    return (
        "The parts timed alone, the generic definition: whole column matrix, one product, bias\n"
        f"{_table(rows)}\n{single}"
    )


def _memory(d: DeviceFigures) -> str:
    rows = [["stride", "input MB", "weights MB", "columns MB", "output MB", "col/in", "col/out"]]
    for s in d.strides:
        m = s.memory
        sizes = [f"{size / 1e6:.3f}" for size in (m.input, m.weights, m.columns, m.output)]
        ratios = [f"{m.columns / m.input:.1f}", f"{m.columns / m.output:.2f}"]
        rows.append([str(s.stride), *sizes, *ratios])
    return f"Memory: the column matrix is the extra part\n{_table(rows)}"


def _spread(s: Spread) -> str:
    return f"{_digits(s.median)} [{_digits(s.low)}-{_digits(s.high)}]"


def _digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.{max(0, min(4, 2 - math.floor(math.log10(value))))}f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


# ---- arguments and files ------------------------------------------------------------------------


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def _threads(text: str) -> int:
    most = max(os.cpu_count() or 1, 2)
    if _count(text) > most:
        raise argparse.ArgumentTypeError(f"{text} threads are more than the {most} CPUs here")
    return int(text)


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a file's name is empty")
    return Path(text)


def _png(text: str) -> Path:
    if Path(text).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png")
    return Path(text)


def _check_folder(path: Path | None) -> None:
    """Find out before measuring that a file cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: permission denied")


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    print(f"wrote {path}", file=sys.stderr)
