"""Score a net: run it over batches of its own data in phase TEST and print means of its outputs.

`test -model net.prototxt -weights net.caffemodel [-gpu 0] [-iterations 50]`, as Caffe's.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import _caffe
from ._flags import FlagParser

if TYPE_CHECKING:
    from ..net import Net

log = logging.getLogger("pycaffe_lite")


def add_arguments(parser: FlagParser) -> None:
    """The flags of `pycaffe-lite test`."""
    _caffe.add_flags(parser, "model", "weights", "gpu", "level", "stage", "iterations")


def run(args: argparse.Namespace) -> int:
    """Log each batch's outputs, then the mean loss and the mean of each output.

    Raises RuntimeError for a GPU that is not there, and as Net does for the files.
    """
    from ..net import TEST

    _caffe.require(args, "model", "a model definition to score")
    count = _caffe.iterations(args)
    with _caffe.glog(args):
        _check_weights(args)
        _caffe.choose_device(args)
        net = _caffe.build_net(args, TEST)
        if args.weights:
            net.copy_from(args.weights)
        elif net.params:
            args.refuse("model weights to score are needed: -weights FILE")
        log.info("Running for %d iterations.", count)
        for line in score(net, count):
            log.info("%s", line)
    return 0


def _check_weights(args: argparse.Namespace) -> None:
    """One file only; its name may have a comma in it."""
    if "," in args.weights and not Path(args.weights).exists():
        args.refuse(f"-weights takes a single file to score, not several: {args.weights}")


def score(net: Net, count: int) -> Iterator[str]:
    """The lines, as they come: `Batch 0, loss = 1.5` for each number, then mean loss and means.

    The loss is the weighted sum of all losses, hidden ones too. Numbers have C++'s 6 digits. Raises
    ModelError for an output whose size differs between batches: it has no mean.
    """
    losses = []
    totals: list[list[float]] = []
    for batch in range(count):
        losses.append(net._forward(0, len(net.layers) - 1))
        values = [net.blobs[name].data.reshape(-1).tolist() for name in net.outputs]
        for name, numbers in zip(net.outputs, values, strict=True):
            yield from (f"Batch {batch}, {name} = {number:g}" for number in numbers)
        totals = _added(net, totals, values)
    yield f"Loss: {sum(losses) / count:g}"
    for name, sums in zip(net.outputs, totals, strict=True):
        weight = net.blob_loss_weights[name]
        for total in sums:
            mean = total / count
            loss = f" (* {weight:g} = {weight * mean:g} loss)" if weight else ""
            yield f"{name} = {mean:g}{loss}"


def _added(net: Net, totals: list[list[float]], values: list[list[float]]) -> list[list[float]]:
    from ..errors import ModelError

    if not totals:
        return values
    for name, total, value in zip(net.outputs, totals, values, strict=True):
        if len(total) != len(value):
            raise ModelError(
                f"output {name!r} has no mean: its size differs between batches, {len(value)} vs."
                f" {len(total)}"
            )
    return [
        [a + b for a, b in zip(total, value, strict=True)]
        for total, value in zip(totals, values, strict=True)
    ]
