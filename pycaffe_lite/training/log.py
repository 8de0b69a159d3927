"""What does training say? Caffe's log lines, which scripts parse, and the smoothed loss in them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..net import Net

log = logging.getLogger("pycaffe_lite")

_PENDING = 32  # losses left on the device before it is waited for


class SmoothedLoss:
    """The mean of the last `window` losses, of fewer at the beginning.

    Losses may be 0-d arrays of a device; they are fetched when the value is asked for, or a few
    dozen have come together. The first that is not finite is a warning which names its iteration.
    """

    def __init__(self) -> None:
        self._warned = False
        self.restart(1)

    def restart(self, window: int) -> None:
        """Forget all losses."""
        self._window = window
        self._losses: list[float] = []
        self._mean = 0.0
        self._count = 0
        self._pending: list[tuple[int, Any]] = []

    def add(self, iteration: int, loss: Any) -> None:
        """Take the loss of the next iteration."""
        self._pending.append((iteration, loss))
        if len(self._pending) >= _PENDING:
            self.settle()

    @property
    def value(self) -> float:
        """The mean; infinity without losses."""
        self.settle()
        return self._mean if self._count else math.inf

    def settle(self) -> None:
        """Fetch the losses that have come."""
        pending, self._pending = self._pending, []
        for iteration, value in pending:
            loss = float(value)
            self._smooth(loss)
            if not math.isfinite(loss) and not self._warned:
                self._warned = True
                log.warning("Iteration %d, loss = %g: training has diverged", iteration, loss)

    def _smooth(self, loss: float) -> None:
        if len(self._losses) < self._window:
            self._losses.append(loss)
            size = len(self._losses)
            self._mean = (self._mean * (size - 1) + loss) / size
        else:
            k = self._count % self._window
            self._mean += (loss - self._losses[k]) / self._window
            self._losses[k] = loss
        self._count += 1


class Clock:
    """Iterations a second since the last time it was asked."""

    def __init__(self, iteration: int) -> None:
        self._last = (iteration, time.perf_counter())

    def lap(self, iteration: int) -> tuple[float, float]:
        """(iterations a second, seconds) since the last lap."""
        before, start = self._last
        self._last = (iteration, time.perf_counter())
        seconds = self._last[1] - start
        return (iteration - before) / (seconds or 1.0), seconds


def display(net: Net, iteration: int, loss: float, clock: Clock, interval: int) -> None:
    """The lines of a display: iteration, speed and loss, then the net's outputs."""
    speed, seconds = clock.lap(iteration)
    log.info(
        "Iteration %d (%g iter/s, %gs/%d iters), loss = %g",
        iteration,
        speed,
        seconds,
        interval,
        loss,
    )
    values = ((name, net.blobs[name].data.reshape(-1).tolist()) for name in net.outputs)
    for line in output_lines("Train", net, values):
        log.info("%s", line)


def output_lines(kind: str, net: Net, outputs: Iterable[tuple[str, list[float]]]) -> Iterator[str]:
    """A line for each number of each output, `kind` being Train or Test."""
    k = 0
    for name, values in outputs:
        weight = net.blob_loss_weights[name]
        for value in values:
            loss = f" (* {weight:g} = {weight * value:g} loss)" if weight else ""
            yield f"    {kind} net output #{k}: {name} = {value:g}{loss}"
            k += 1


def first_bad_blob(net: Net) -> str | None:
    """Where NaN or infinity stands first, as the net computes: "data of blob 'ip1' (layer 'ip1')".

    Values of parameters and tops in the order of the layers, then gradients in backward's order.
    None where all is finite.
    """
    for name, layer in net.layer_dict.items():
        for k, blob in enumerate(layer.blobs):
            if not _is_finite(blob.data):
                return f"param {k} of layer {name!r}"
        for top in net.top_names[name]:
            if not _is_finite(net.blobs[top].data):
                return f"data of blob {top!r} ({_writers(net, top)})"
    for name, layer in reversed(net.layer_dict.items()):
        for k, blob in enumerate(layer.blobs):
            if not _is_finite(blob.diff):
                return f"gradient of param {k} of layer {name!r}"
        for bottom in net.bottom_names[name]:
            if not _is_finite(net.blobs[bottom].diff):
                return f"gradient of blob {bottom!r} (layer {name!r})"
    return None


def _writers(net: Net, blob: str) -> str:
    """The layers that a blob's values come from: several where some work in place."""
    names = [repr(name) for name in net.layer_dict if blob in net.top_names[name]]
    return f"layer {' or '.join(names)}{', in place' if len(names) > 1 else ''}"


def _is_finite(values: Any) -> bool:
    return bool(np.isfinite(values).all())
