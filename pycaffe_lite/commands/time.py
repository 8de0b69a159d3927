"""Time a net's forward and backward, layer by layer.

`time -model net.prototxt [-gpu 0] [-phase TEST] [-iterations 50] [-json FILE]`: Caffe's lines in
the log, then a table, and a file with all figures.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _caffe, show
from ._flags import FlagParser

if TYPE_CHECKING:
    from ..net import Net
    from ..timing import NetTime

log = logging.getLogger("pycaffe_lite")


def add_arguments(parser: FlagParser) -> None:
    """The flags of `pycaffe-lite time`."""
    _caffe.add_flags(
        parser, "model", "gpu", "phase", "level", "stage", "iterations",
        phase="TRAIN or TEST; default: TRAIN",
        iterations="how many forwards and backwards; default: 50",
    )  # fmt: skip
    parser.add_flag("json", "", "write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Build, run once, measure; log, print the table, write the file.

    No weights are loaded, and Input layers hold zeros, as in Caffe. Raises RuntimeError for a GPU
    that is not there, and as Net does for the model.
    """
    from .. import timing

    _caffe.require(args, "model", "a model definition to time")
    phase, count = _caffe.phase(args), _caffe.iterations(args)
    _check_folder(args.json)
    with _caffe.glog(args):
        _caffe.choose_device(args)
        net = _caffe.build_net(args, phase)
        _run_once(net)
        log.info("*** Benchmark begins ***")
        log.info("Testing for %d iterations.", count)
        found = timing.measure(net, count, _log_iteration)
        _log(found)
        log.info("*** Benchmark ends ***")
    show(table(found))
    if args.json:
        _write(args.json, as_dict(found, net) | {"model": args.model})
    return 0


def _run_once(net: Net) -> None:
    from .. import timing

    last = len(net.layers) - 1
    log.info("Performing Forward")
    log.info("Initial loss: %g", net._forward(0, last))
    if timing.has_backward(net):
        log.info("Performing Backward")
        net._backward(last, 0)
    else:
        log.info("No Backward: the net has no loss; write `force_backward: true` to time it")


def _log_iteration(k: int, ms: float) -> None:
    log.info("Iteration: %d forward-backward time: %g ms.", k, ms)


def _log(found: NetTime) -> None:
    """Caffe's lines, the means; a layer without backward has 0 ms there, for what reads them."""
    count = len(found.iterations)
    log.info("Average time per layer: ")
    for layer in found.layers:
        log.info("%10s\tforward: %g ms.", layer.name, sum(layer.forward) / count)
        log.info("%10s\tbackward: %g ms.", layer.name, sum(layer.backward) / count)
    log.info("Average Forward pass: %g ms.", found.forward_ms)
    log.info("Average Backward pass: %g ms.", found.backward_ms)
    log.info("Average Forward-Backward: %g ms.", found.total_ms / count)
    log.info("Total Time: %g ms.", found.total_ms)


# ---- the table ----------------------------------------------------------------------------------

_HEAD = (
    "layer", "type", "forward ms", "backward ms", "GFLOP/s", "GB/s", "blobs MB", "params MB",
)  # fmt: skip


def table(found: NetTime) -> str:
    """A line a layer: medians, forward's speed, bytes of its tops and parameters; then the sums."""
    rows = [list(_HEAD)]
    for layer in found.layers:
        rows.append(
            [
                layer.name,
                layer.type,
                f"{layer.forward_ms:.4f}",
                _or_dash(layer.backward_ms, ".4f"),
                _or_dash(layer.gflops, ".2f"),
                _or_dash(layer.gbs, ".2f"),
                f"{layer.work.top_bytes / 1e6:.3f}",
                f"{layer.work.param_bytes / 1e6:.3f}",
            ]
        )
    layers = found.layers
    backward = [layer.backward_ms for layer in layers if layer.backward_ms is not None]
    total = ["all", "", f"{sum(layer.forward_ms for layer in layers):.4f}"]
    total += [f"{sum(backward):.4f}" if backward else "-", "", ""]
    total += [f"{sum(layer.work.top_bytes for layer in layers) / 1e6:.3f}"]
    total += [f"{sum(layer.work.param_bytes for layer in layers) / 1e6:.3f}"]
    return "\n".join(_aligned([*rows, total]))


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if k < 2 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


# ---- the file -----------------------------------------------------------------------------------


def as_dict(found: NetTime, net: Net) -> dict[str, Any]:
    """All figures as JSON has them, the machine and the backend that ran; null is "none"."""
    from .. import device, machine
    from ..net import TRAIN
    from ..ops.cpu import threads

    ops = device.current()
    return {
        "format": 1,
        "unit": "milliseconds, bytes",
        "machine": machine.describe(),
        "device": {
            "kind": ops.kind,
            "backend": ops.name,
            "name": machine.device_name(ops),
            "threads": threads.get_num_threads() if ops.kind == "cpu" else None,
        },
        "net": net.name,
        "phase": "TRAIN" if net.phase == TRAIN else "TEST",
        "iterations": len(found.iterations),
        "iteration_ms": found.iterations,
        "mean_forward_ms": found.forward_ms,
        "mean_backward_ms": found.backward_ms,
        "layers": [
            {
                "layer": layer.name,
                "type": layer.type,
                "forward_ms": layer.forward_ms,
                "backward_ms": layer.backward_ms,
                "multiply_adds": layer.work.multiply_adds,
                "bytes": layer.work.bytes,
                "gflops": layer.gflops,
                "gbs": layer.gbs,
                "bottom_bytes": layer.work.bottom_bytes,
                "blob_bytes": layer.work.top_bytes,
                "parameter_bytes": layer.work.param_bytes,
            }
            for layer in found.layers
        ],
    }


def _check_folder(path: str) -> None:
    """Find out before measuring that a file cannot be written."""
    if path and Path(path).is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if path and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {Path(path).parent}")


def _write(path: str, figures: dict[str, Any]) -> None:
    from ..replacement import replacing

    with replacing(path) as temporary:
        temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
