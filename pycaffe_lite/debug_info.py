"""What do values and gradients look like, layer by layer? The log lines of a net's `debug_info`.

Each shows the mean of absolute values. The wording is Caffe's; scripts search logs for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from . import device
from .blob import Blob
from .layer import Layer

if TYPE_CHECKING:
    from .net import Net

log = logging.getLogger("pycaffe_lite")


def forward(net: Net, index: int) -> None:
    """Log what layer `index` has computed, and the parameters it did so with."""
    if not log.isEnabledFor(logging.INFO):
        return
    layer, step = net.layers[index], net._steps[index]
    for i, blob in zip(net._top_ids(index), step.top, strict=True):
        _line("Forward", layer, f"top blob {net._blob_names[i]} data", _mean(blob))
    for k, blob in enumerate(layer.blobs):
        _line("Forward", layer, f"param blob {_display_name(layer, k)} data", _mean(blob))


def backward(net: Net, index: int) -> None:
    """Log the gradients that layer `index` has computed, those of parameters as they add up."""
    if not log.isEnabledFor(logging.INFO):
        return
    layer, step = net.layers[index], net._steps[index]
    for k, (i, blob) in enumerate(zip(net._bottom_ids(index), step.bottom, strict=True)):
        if step.propagate_down[k]:
            _line("Backward", layer, f"bottom blob {net._blob_names[i]} diff", _mean(blob, True))
    for k, blob in enumerate(layer.blobs):
        if layer.param_propagate_down[k]:
            _line("Backward", layer, f"param blob {k} diff", _mean(blob, True))


def all_params(net: Net) -> None:
    """Log the norms of all parameters that learn and of their gradients, after a whole backward.

    Caffe does so when it trains, not in pycaffe's backward.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    ops = device.current()
    l1, squares = [0.0, 0.0], [0.0, 0.0]
    for parameter in net._parameters.learnable:
        for k in (0, 1):
            values = parameter.blob.array(ops, diff=bool(k), write=False)
            l1[k] += float(ops.xp.abs(values).sum())
            squares[k] += float((values * values).sum())
    log.info(
        "    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)",
        *l1,
        *(square**0.5 for square in squares),
    )


def _line(direction: str, layer: Layer, what: str, mean: float) -> None:
    log.info("    [%s] Layer %s, %s: %g", direction, layer.name, what, mean)


def _mean(blob: Blob, diff: bool = False) -> float:
    ops = device.current()
    values: Any = blob.array(ops, diff=diff, write=False)
    return float(ops.xp.abs(values).sum()) / max(blob.count, 1)


def _display_name(layer: Layer, index: int) -> str:
    """The name by which a parameter is shared, else its number."""
    given = layer.spec.param
    return (given[index].name if index < len(given) else "") or str(index)
