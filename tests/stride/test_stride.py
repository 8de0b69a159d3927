"""The stride experiment: what is measured is what it says, and sentences follow the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fake_device import FakeOps
from fake_gpu import FakeGpuOps
from scipy.signal import correlate2d
from threadpoolctl import threadpool_info

from pycaffe_lite import device, set_ops, stride
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import threads
from pycaffe_lite.stride import explain as stride_explain
from pycaffe_lite.stride.figures import (
    DeviceFigures,
    Experiment,
    Memory,
    Report,
    Spread,
    Stages,
    StrideFigures,
)

SMALL = Experiment(size=23, kernel=5, outputs=7, strides=(1, 2, 3))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stride, "PAUSE", 0.0)
    monkeypatch.setattr(stride, "LOOP", 2)
    before = threads.get_num_threads()
    yield
    assert threads.get_num_threads() == before
    threads.set_num_threads(None)


# ---- measuring ----------------------------------------------------------------------------------


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5, 1, 2, 4, 3]) == Spread(3, 2, 4, 5)
    assert Spread.of([7.5]) == Spread(7.5, 7.5, 7.5, 1)


def test_the_published_experiment() -> None:
    sides = {1: 217, 2: 109, 3: 73, 4: 55}
    assert Experiment().strides == (1, 2, 3, 4)
    for step, side in sides.items():
        net = stride._net(Experiment(), step)
        assert net.blobs["data"].shape == (1, 1, 227, 227)
        assert net.params["conv"][0].shape == (96, 1, 11, 11)
        assert net.blobs["conv"].shape == (1, 96, side, side)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("backend", [Ops, FakeOps, FakeGpuOps])
def test_parts_together_give_the_convolution(backend: type[Ops], step: int) -> None:
    with device.pretend(backend()):
        bench = stride._Bench(SMALL, step, device.current())
        bench.run()
        bench._im2col()
        bench._product()
        x, w = bench.host_x[0, 0], bench.host_w[:, 0]
        expected = [correlate2d(x, each, "valid")[::step, ::step].ravel() for each in w]
        np.testing.assert_allclose(bench.ops.to_host(bench.y), expected, rtol=1e-4, atol=1e-4)
        ours = bench.net.blobs["conv"].data.reshape(7, -1)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_measure_on_the_cpu() -> None:
    set_ops("cpu")
    report = stride.measure("cpu", runs=3, experiment=SMALL)
    assert report.no_gpu is None
    (d,) = report.devices
    assert (d.kind, d.backend, d.threads) == ("cpu", "cpu", threads.get_num_threads())
    assert d.floor.median > 0
    assert d.floor_kernels is None
    assert [s.side for s in d.strides] == [19, 10, 7]
    for s, positions in zip(d.strides, (361, 100, 49), strict=True):
        assert s.positions == positions
        assert s.flop == 2 * 7 * 25 * positions
        assert s.memory == Memory(23 * 23 * 4, 7 * 25 * 4, 25 * positions * 4, 7 * positions * 4)
        assert len(s.first_three) == 3
        assert s.published_way == pytest.approx(sum(s.first_three) / 3)
        assert s.gflops == pytest.approx(s.flop / (s.forward.median / 1e3) / 1e9)
        assert s.kernels is s.stages.upload is s.stages.download is None
        spreads = (s.forward, s.sgemm, s.ratio, s.stages.im2col, s.stages.gemm, s.stages.bias)
        assert all(0 < t.low <= t.median <= t.high and t.runs == 3 for t in spreads)
    assert stride_explain.explain(report)


def test_one_run() -> None:
    (d,) = stride.measure("cpu", runs=1, experiment=SMALL).devices
    assert d.strides[0].forward.runs == 1
    assert d.strides[0].forward.low == d.strides[0].forward.high


def test_no_run_starts_past_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stride, "BUDGET", 0.0)
    (d,) = stride.measure("cpu", experiment=SMALL).devices
    assert d.floor.runs == 1


@pytest.mark.parametrize("backend", [FakeOps, FakeGpuOps])
def test_measure_on_a_pretend_gpu(backend: type[Ops]) -> None:
    ops = backend()
    with device.pretend(ops):
        d = stride.measure_current(SMALL, 2)
        report = Report(SMALL, {}, (d,))
    assert (d.kind, d.threads) == ("gpu", None)
    assert d.floor_kernels is not None
    for s in d.strides:
        assert s.kernels is not None
        assert s.stages.upload is not None
        assert s.stages.download is not None
        assert s.ratio.median > 0
    assert any("copied at" in line for line in stride_explain.explain(report))


def test_a_gpu_forward_copies_what_the_experiment_wrote_and_the_kernels_nothing() -> None:
    ops = FakeOps()
    with device.pretend(ops):
        bench = stride._Bench(SMALL, 2, ops)
        bench._write()
        bench.net.forward()
        ops.counters.reset()
        bench._write()
        bench.net.forward()
        assert ops.counters.upload_elements == 23 * 23 + 7 * 25
        assert ops.counters.download_elements == 7 * 100
        ops.counters.reset()
        bench.net._forward(0, len(bench.net.layers) - 1)
        assert ops.counters.uploads == ops.counters.downloads == 0


def test_without_a_gpu_the_default_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("cannot use GPU: none is plugged in")

    monkeypatch.setattr(device, "set_mode_gpu", refuse)
    report = stride.measure(runs=1, experiment=SMALL)
    assert [d.kind for d in report.devices] == ["cpu"]
    assert report.no_gpu == "cannot use GPU: none is plugged in"
    for wanted in ("gpu", "both"):
        with pytest.raises(RuntimeError, match="none is plugged in"):
            stride.measure(wanted, runs=1, experiment=SMALL)
    assert device.current().kind == "cpu"


def _blas_threads() -> list[int]:
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


def test_threads_hold_for_both_and_are_given_back() -> None:
    before = _blas_threads()
    with stride.held_threads(1):
        assert threads.get_num_threads() == 1
        assert set(_blas_threads()) == {1}
        report = stride.measure("cpu", 1, experiment=SMALL)
    assert report.devices[0].threads == 1
    assert {library["threads"] for library in report.machine["blas"]} == {1}
    assert _blas_threads() == before


def test_threads_chosen_before_are_restored_after_an_error() -> None:
    other = threads.get_num_threads() + 3
    threads.set_num_threads(other)
    with pytest.raises(ZeroDivisionError), stride.held_threads(1):
        raise ZeroDivisionError
    assert threads.get_num_threads() == other
    threads.set_num_threads(None)


# ---- sentences, from made-up figures ------------------------------------------------------------

POSITIONS = (217, 109, 73, 55)


def spread(value: float, width: float = 0.02) -> Spread:
    return Spread(value, value * (1 - width / 2), value * (1 + width / 2), 15)


def made_up(
    forward: Sequence[float],
    kind: str = "cpu",
    sgemm: Sequence[float] = (8, 2, 0.9, 0.512),
    im2col: Sequence[float] = (4, 1, 0.45, 0.257),
    bias: Sequence[float] = (1, 0.25, 0.11, 0.064),
    kernels: Sequence[float] = (2, 0.5, 0.2, 0.1),
    download: Sequence[float] = (5, 1.2, 0.6, 0.3),
    floor: float = 0.05,
    first: float = 20.0,
    width: float = 0.02,
) -> DeviceFigures:
    """A device whose strides 1 to 4 took these milliseconds."""
    on_gpu, strides = kind == "gpu", []
    for k, side in enumerate(POSITIONS):
        count = side**2
        copies = (spread(0.05), spread(download[k])) if on_gpu else (None, None)
        strides.append(
            StrideFigures(
                stride=k + 1,
                side=side,
                flop=2 * 96 * 121 * count,
                memory=Memory(227 * 227 * 4, 96 * 121 * 4, 121 * count * 4, 96 * count * 4),
                first_three=(first, forward[k], forward[k]),
                forward=spread(forward[k], width),
                kernels=spread(kernels[k]) if on_gpu else None,
                stages=Stages(spread(im2col[k]), spread(sgemm[k]), spread(bias[k]), *copies),
                sgemm=spread(sgemm[k]),
                ratio=spread((kernels if on_gpu else forward)[k] / sgemm[k]),
            )
        )
    single = spread(floor / 2) if on_gpu else None
    threads_ = None if on_gpu else 2
    return DeviceFigures(kind, kind, None, threads_, spread(floor), single, tuple(strides))


def text(*devices: DeviceFigures) -> str:
    return "\n".join(stride_explain.explain(Report(Experiment(), {}, devices)))


AS_POSITIONS = tuple(10 * side**2 / 217**2 for side in POSITIONS)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (AS_POSITIONS, "that is what the positions tell: 212 and 212 ns for each"),
        ((10, 5, 4, 3), "3.3 times shorter; at stride 4 that is less than the positions"),
        ((49.77, 9.92, 4.5, 1.96), "5.0, 11.1 and 25.4 times shorter; at stride 4 that is more"),
    ],
)
def test_do_times_fall_as_positions_do(forward: tuple[float, ...], said: str) -> None:
    found = text(made_up(forward))
    assert said in found
    assert "become 4.0, 8.8 and 15.6 times fewer" in found


def test_fixed_cost_and_line() -> None:
    affine = [2 + 1e-4 * side**2 for side in POSITIONS]  # ms: 2 fixed, 100 ns a position
    found = text(made_up(affine, floor=1.9))
    assert "2 ms fixed and 100 ns a position" in found
    assert "at stride 4 the time is mostly what any call costs" in found
    assert "the work stays too" not in found
    found = text(made_up(affine, floor=0.05))
    assert "its fixed part is more than such a call, so some of the work stays too" in found
    assert "what any call costs hardly matters" in found
    assert "a visible part" in text(made_up(affine, floor=0.5))
    assert "does not describe these times" in text(made_up((10, 1, 9, 0.4)))
    assert "leaves no fixed part" in text(made_up([1e-4 * side**2 - 0.1 for side in POSITIONS]))


def test_largest_part_and_what_does_not_shrink() -> None:
    found = text(made_up(AS_POSITIONS))
    assert "im2col 31 %, the product 62 % and the bias 8 % of 13 ms at stride 1" in found
    assert "the product is the largest at both" in found
    assert "none of them less than the positions" in found
    found = text(made_up(AS_POSITIONS, im2col=(4, 2, 1.5, 1)))
    assert "the largest is the product at the first and im2col at the second" in found
    assert "im2col less than the positions" in found


def test_extra_memory() -> None:
    found = text(made_up(AS_POSITIONS))
    assert "22.8 MB at stride 1, 111 times the input and 1.3 times the output" in found
    assert "1.46 MB at stride 4" in found
    assert "filling it is 31 % and 31 % of the parts' time" in found


@pytest.mark.parametrize(
    ("sgemm", "said"),
    [
        ((8, 2, 0.9, 0.512), "its speed does not depend on the stride"),
        ((8, 2, 1, 1), "the smaller one keeps 51 % of the speed"),
        ((8, 2, 0.9, 0.256), "the smaller one is 2.0 times as fast"),
    ],
)
def test_speed_of_the_product(sgemm: tuple[float, ...], said: str) -> None:
    assert said in text(made_up(AS_POSITIONS, sgemm=sgemm))


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ((0.5, 0.5, 0.5, 0.5), "cheaper than its parts at every stride"),
        ((1, 1, 1, 1), "about as dear as its parts at every stride"),
        ((2, 2, 2, 2), "dearer than its parts at every stride"),
        (
            (0.5, 1, 2, 0.5),
            "cheaper than its parts at strides 1 and 4, dearer than its parts at stride 3 and about"
            " as dear as its parts at stride 2",
        ),
    ],
)
def test_whole_against_parts(factors: tuple[float, ...], said: str) -> None:
    sums = (13, 3.25, 1.46, 0.833)
    forward = [f * s for f, s in zip(factors, sums, strict=True)]
    assert said in text(made_up(forward))


def test_first_call() -> None:
    found = text(made_up((10, 5, 4, 3), first=40))
    assert "is 20 ms, 2.0 times the median: the first call took 40 ms, the others 10 ms" in found
    assert "no slower than the others" in text(made_up((10, 5, 4, 3), first=10))


def test_a_busy_machine_is_named() -> None:
    assert "the machine was busy" not in text(made_up(AS_POSITIONS))
    found = text(made_up(AS_POSITIONS, width=0.8))
    assert "busy: the quartiles lie up to 80 % of the median apart" in found


def test_pieces_of_a_gpu_forward() -> None:
    found = text(made_up((8, 3, 2, 1), kind="gpu"))
    assert "the kernels 2 ms (25 %)" in found
    assert "18.1 MB, copied at 3.62 GB/s" in found
    assert "The largest piece at both is the output's copy" in found
    found = text(made_up((8, 3, 2, 1), kind="gpu", kernels=(6, 2, 1, 0.1)))
    assert "The largest piece is the kernels at the first, the output's copy at the second" in found
    assert "the kernels take" in found


CPU = made_up((50, 10, 4.5, 2))


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (
            made_up((27, 14, 10, 7), "gpu", floor=3, kernels=(5, 4, 3, 2)),
            [
                "the CPU is faster at strides 2, 3 and 4 and the GPU is faster at stride 1",
                "a GPU call with a single position (3 ms) takes no less than the CPU's whole",
            ],
        ),
        (
            made_up((27, 14, 10, 7), "gpu", kernels=(5, 1, 0.5, 0.3)),
            ["the GPU's kernels alone (0.3 ms) are faster than the CPU (2 ms); with the copies"],
        ),
        (
            made_up((27, 14, 10, 7), "gpu", kernels=(20, 12, 8, 6)),
            ["even the GPU's kernels alone (6 ms) take no less than the CPU (2 ms)"],
        ),
        (
            made_up((5, 2, 1.5, 1), "gpu"),
            [
                "the GPU is faster at strides 1, 2, 3 and 4. The CPU's time is 10.0 times",
                "at stride 1 and 2.0 times at stride 4",
            ],
        ),
        (made_up((50, 10, 4.5, 2), "gpu"), ["neither is clearly faster at strides 1, 2, 3 and 4"]),
    ],
)
def test_cpu_against_gpu(gpu: DeviceFigures, said: list[str]) -> None:
    found = text(CPU, gpu)
    for part in said:
        assert part in found
    assert "here the CPU's falls 25.0 times and the GPU's falls" in found


def test_published_figures_stand_beside_the_published_experiment_only() -> None:
    figures = made_up(AS_POSITIONS)
    assert "Published: from stride 1 to 4 the CPU's time fell 25.4 times" in text(figures)
    other = Report(Experiment(size=200), {}, (figures,))
    assert "Published" not in "\n".join(stride_explain.explain(other))


def test_few_strides() -> None:
    figures = made_up(AS_POSITIONS)
    for count in (1, 2):
        fewer = replace(figures, strides=figures.strides[:count])
        assert stride_explain.explain(Report(SMALL, {}, (fewer,)))
