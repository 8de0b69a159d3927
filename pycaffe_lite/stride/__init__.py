"""How long does a convolution take at strides 1 to 4, and in which of its parts? Measures only.

The published experiment: one Convolution over a 1 x 1 x 227 x 227 image, 96 outputs, kernel 11.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np

from .. import device, machine, prototxt
from ..net import TEST, Net
from ..ops.base import Ops
from ..ops.cpu import threads
from ..ops.window import Window
from .figures import DeviceFigures, Experiment, Memory, Report, Spread, Stages, StrideFigures

RUNS = 15
BUDGET = 7.0
"""Seconds a device after which no further run starts, where the caller named no number of them."""

LOOP = 5
"""Calls of one thing in a row; a run's time is their median. One more goes before, uncounted."""

PAUSE = 0.03
"""Seconds of sleep before each kind of work: BLAS's threads spin that long after a product and take
a core from the convolution's own threads."""


def measure(
    wanted: str | None = None,
    runs: int | None = None,
    num_threads: int | None = None,
    experiment: Experiment | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure on "cpu", "gpu" or "both"; None: on both where there is a GPU, else on the CPU.

    `runs` of each thing are taken, by default up to RUNS within BUDGET. `num_threads` holds for the
    convolution and for the product alone, while it measures. Raises RuntimeError for a GPU that is
    not there.
    """
    experiment = experiment or Experiment()
    kinds, no_gpu = ["cpu", "gpu"] if wanted in (None, "both") else [wanted], None
    if "gpu" in kinds:
        try:
            with _mode("gpu"):
                pass
        except RuntimeError as error:
            if wanted is not None:
                raise
            kinds, no_gpu = ["cpu"], str(error)
    figures = []
    with held_threads(num_threads):
        info = machine.describe()
        for kind in kinds:
            progress(
                f"measuring on the {kind.upper()}: {runs or f'up to {RUNS}'} runs of {LOOP} calls"
            )
            with _mode(kind):
                figures.append(measure_current(experiment, runs))
    return Report(experiment, info, tuple(figures), no_gpu)


def measure_current(experiment: Experiment, runs: int | None = None) -> DeviceFigures:
    """Measure on the backend of the current mode; `runs` as for `measure`."""
    ops = device.current()
    with ops.running() if ops.kind == "gpu" else nullcontext():
        return _measure(experiment, runs, ops)


def _measure(experiment: Experiment, runs: int | None, ops: Ops) -> DeviceFigures:
    # Threads, BLAS and kernels of a GPU start here: once a process, whatever the stride.
    _net(experiment, experiment.strides[-1]).forward()
    first = {stride: _published_way(experiment, stride) for stride in experiment.strides}
    floor = _Bench(replace(experiment, size=experiment.kernel, strides=(1,)), 1, ops)
    benches = [_Bench(experiment, stride, ops) for stride in experiment.strides]
    end = time.perf_counter() + BUDGET if runs is None else float("inf")
    for run in range(runs or RUNS):
        if run and time.perf_counter() > end:
            break
        floor.run_forward()
        for bench in benches:
            bench.run()
    on_gpu = ops.kind == "gpu"
    return DeviceFigures(
        kind=ops.kind,
        backend=ops.name,
        name=machine.device_name(ops),
        threads=None if on_gpu else threads.get_num_threads(),
        floor=floor.spread("forward"),
        floor_kernels=floor.spread("kernels") if on_gpu else None,
        strides=tuple(bench.figures(first[bench.stride]) for bench in benches),
    )


@contextmanager
def held_threads(count: int | None) -> Iterator[None]:
    """Inside, the CPU kernels and BLAS have `count` threads; None: what they have anyway."""
    if count is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    before = threads.get_num_threads()
    threads.set_num_threads(None)
    unset = threads.get_num_threads() == before
    try:
        threads.set_num_threads(count)
        with threadpool_limits(count, user_api="blas"):
            yield
    finally:
        threads.set_num_threads(None if unset else before)


@contextmanager
def _mode(kind: str) -> Iterator[None]:
    set_mode = {"cpu": device.set_mode_cpu, "gpu": device.set_mode_gpu}
    before = device.current().kind
    set_mode[kind]()
    try:
        yield
    finally:
        set_mode[before]()


def _net(experiment: Experiment, stride: int) -> Net:
    return Net(prototxt.parse_net(experiment.prototxt(stride)), TEST)


def _published_way(experiment: Experiment, stride: int) -> tuple[float, ...]:
    net, taken, rng = _net(experiment, stride), [], np.random.default_rng(stride)
    for _ in range(3):
        for blob in (net.blobs["data"], net.params["conv"][0]):
            blob.data[...] = rng.standard_normal(blob.shape)
        start = time.perf_counter()
        net.forward()
        taken.append((time.perf_counter() - start) * 1e3)
    return tuple(taken)


def _ms(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """The median time of LOOP calls, each after an uncounted prepare()."""
    taken = []
    for _ in range(LOOP + 1):
        prepare()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[1:])) * 1e3


class _Bench:
    """One stride on one backend: its net, the arrays of its stages, the times taken so far."""

    def __init__(self, experiment: Experiment, stride: int, ops: Ops) -> None:
        self.stride, self.ops, self.net = stride, ops, _net(experiment, stride)
        self.times: dict[str, list[float]] = {}
        self.window = Window((experiment.kernel,) * 2, (stride, stride))
        rng, taps, outputs = np.random.default_rng(0), self.window.taps, experiment.outputs
        self.side = self.window.conv_shape((experiment.size,) * 2)[0]
        positions = self.side**2
        self.host_x = rng.standard_normal((1, 1, experiment.size, experiment.size)).astype("f")
        self.host_w = rng.standard_normal((outputs, 1, *self.window.kernel)).astype("f")
        self.host_y = np.zeros((outputs, positions), np.float32)
        self.x, self.w = ops.from_host(self.host_x), ops.from_host(self.host_w)
        self.y, self.b = ops.from_host(self.host_y.copy()), ops.from_host(self.host_y[:, :1].copy())
        zeros = np.zeros((1, 1, *self.window.kernel, self.side, self.side), np.float32)
        self.col = ops.from_host(zeros)
        self.w2d, self.col2d = self.w.reshape(outputs, taps), self.col.reshape(taps, positions)

    def run(self) -> None:
        """Take one time of everything, the products apart from the rest."""
        self.run_forward()
        if self.ops.kind == "gpu":
            self._take("upload", self._upload)
            self._take("download", lambda: self.ops.download(self.y, self.host_y))
        time.sleep(PAUSE)
        self._run_stages()
        self._take("sgemm", self._product)

    def run_forward(self) -> None:
        """Take one time of forward(), and on a GPU of its kernels without the copies."""
        time.sleep(PAUSE)
        self.times.setdefault("forward", []).append(_ms(self.net.forward, self._write))
        if self.ops.kind == "gpu":
            self._take("kernels", lambda: self.net._forward(0, len(self.net.layers) - 1))

    def _write(self) -> None:
        self.net.blobs["data"].data[...] = self.host_x
        self.net.params["conv"][0].data[...] = self.host_w

    def _upload(self) -> None:
        self.ops.upload(self.host_x, self.x)
        self.ops.upload(self.host_w, self.w)

    def _im2col(self) -> None:
        self.ops.im2col(self.x, self.window, self.col)

    def _product(self) -> None:
        self.ops.xp.matmul(self.w2d, self.col2d, out=self.y)

    def _add_bias(self) -> None:
        self.y += self.b

    def _take(self, name: str, call: Callable[[], object]) -> None:
        def finished() -> None:
            call()
            self.ops.synchronize()

        self.times.setdefault(name, []).append(_ms(finished))

    def _run_stages(self) -> None:
        """One after the other, as they follow in the layer: each finds the caches as it would."""
        stages = {"im2col": self._im2col, "gemm": self._product, "bias": self._add_bias}
        taken: dict[str, list[float]] = {name: [] for name in stages}
        for _ in range(LOOP + 1):
            for name, call in stages.items():
                start = time.perf_counter()
                call()
                self.ops.synchronize()
                taken[name].append((time.perf_counter() - start) * 1e3)
        for name, values in taken.items():
            self.times.setdefault(name, []).append(float(np.median(values[1:])))

    def spread(self, name: str) -> Spread:
        """Median and quartiles of the times of that name, in milliseconds."""
        return Spread.of(self.times[name])

    def figures(self, first_three: tuple[float, ...]) -> StrideFigures:
        """All that was measured, beside the three times taken in the published way."""
        on_gpu = self.ops.kind == "gpu"
        whole = self.times["kernels" if on_gpu else "forward"]
        copies = [self.spread(name) if on_gpu else None for name in ("upload", "download")]
        return StrideFigures(
            stride=self.stride,
            side=self.side,
            flop=2 * self.host_y.size * self.window.taps,
            memory=Memory(
                self.host_x.nbytes, self.host_w.nbytes, self.col.nbytes, self.host_y.nbytes
            ),
            first_three=first_three,
            forward=self.spread("forward"),
            kernels=self.spread("kernels") if on_gpu else None,
            stages=Stages(*map(self.spread, ("im2col", "gemm", "bias")), *copies),
            sgemm=self.spread("sgemm"),
            ratio=Spread.of([a / b for a, b in zip(whole, self.times["sgemm"], strict=True)]),
        )
