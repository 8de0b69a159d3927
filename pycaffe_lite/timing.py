"""Where does a net's time go? Each layer's forward and backward timed; measures only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from . import device, work
from .net import Net
from .ops.base import Ops

HOOKS = ("before_forward", "after_forward", "before_backward", "after_backward")


@dataclass(frozen=True)
class LayerTime:
    """A layer, its work in one forward, and its times in milliseconds, one an iteration.

    `backward` is empty for a layer that has no part in the net's backward.
    """

    name: str
    type: str
    work: work.Work
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)

    @property
    def forward_ms(self) -> float:
        """The median."""
        return statistics.median(self.forward)

    @property
    def backward_ms(self) -> float | None:
        """The median; None where the layer has no backward."""
        return statistics.median(self.backward) if self.backward else None

    @property
    def gflops(self) -> float | None:
        """Forward's 10^9 operations a second, a multiply-add being two; None for no time at all."""
        return self._rate(2 * self.work.multiply_adds)

    @property
    def gbs(self) -> float | None:
        """10^9 bytes a second that forward reads and writes at least; None for no time at all."""
        return self._rate(self.work.bytes)

    def _rate(self, amount: int) -> float | None:
        return amount / self.forward_ms / 1e6 if self.forward_ms > 0 else None


@dataclass(frozen=True)
class NetTime:
    """What `measure` found: the layers in the net's order, and each iteration's time in ms."""

    layers: list[LayerTime]
    iterations: list[float] = field(default_factory=list)

    @property
    def forward_ms(self) -> float:
        """The mean time of all layers' forward together, of the layers' own times."""
        return sum(map(sum, (layer.forward for layer in self.layers))) / len(self.iterations)

    @property
    def backward_ms(self) -> float:
        """The mean time of all layers' backward together."""
        return sum(map(sum, (layer.backward for layer in self.layers))) / len(self.iterations)

    @property
    def total_ms(self) -> float:
        """All iterations together."""
        return sum(self.iterations)


def measure(
    net: Net, iterations: int, progress: Callable[[int, float], object] = lambda k, ms: None
) -> NetTime:
    """Time `iterations` forwards and backwards of a net on the current backend, layer by layer.

    The device is waited for before and after each layer, so that a layer's time is that of its
    work. `progress(k, ms)` is called after each iteration, from 1 on. The net should have run once:
    the first run allocates memory and starts threads. Only the layers that the net's backward needs
    have a backward here (Caffe calls that of every layer, whether it can run or not).
    """
    ops, last = device.current(), len(net.layers) - 1
    result = NetTime(
        [
            LayerTime(
                step.layer.name,
                step.layer.type,
                work.of_layer(step.layer, step.bottom, step.top),
            )
            for step in net._steps
        ]
    )
    learns = has_backward(net)
    with _watched(net, result.layers, ops):
        for k in range(iterations):
            ops.synchronize()
            start = time.perf_counter()
            net._forward(0, last)
            if learns:
                net._backward(last, 0)
            ops.synchronize()
            result.iterations.append((time.perf_counter() - start) * 1e3)
            progress(k + 1, result.iterations[-1])
    return result


def has_backward(net: Net) -> bool:
    """True where any layer has a part in the net's backward: there is a loss, or it is forced."""
    return any(step.needs_backward for step in net._steps)


@contextmanager
def _watched(net: Net, layers: list[LayerTime], ops: Ops) -> Iterator[None]:
    """Inside, each layer that runs adds its time; the net's hooks are as before afterwards."""
    start = 0.0

    def begin(index: int) -> None:
        nonlocal start
        ops.synchronize()
        start = time.perf_counter()

    def end(index: int, backward: bool) -> None:
        ops.synchronize()
        taken = (time.perf_counter() - start) * 1e3
        if not backward:
            layers[index].forward.append(taken)
        elif net._steps[index].needs_backward:
            layers[index].backward.append(taken)

    before = {name: list(net._hooks.get(name, ())) for name in HOOKS}
    net.before_forward(begin)
    net.after_forward(lambda index: end(index, backward=False))
    net.before_backward(begin)
    net.after_backward(lambda index: end(index, backward=True))
    try:
        yield
    finally:
        net._hooks.update(before)
