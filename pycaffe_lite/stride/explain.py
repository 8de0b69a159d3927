"""Where does the stride experiment's time go, and why are the ratios what they are? In sentences.

Every sentence is computed from the figures and branches on them: other figures, other sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .figures import PUBLISHED_MS, DeviceFigures, Experiment, Report, Spread, StrideFigures
from .words import digits, factor, in_mb, in_ms, join, percent

SAME = 0.15
"""Relative difference up to which two ratios count as equal."""

NOISY = 0.3
"""Distance of the quartiles, relative to the median, from which a machine counts as busy."""


def explain(report: Report) -> list[str]:
    """The sentences, one a list entry: each device by itself, then one against the other."""
    lines: list[str] = []
    for figures in report.devices:
        parts = [_noise, _shrinking, _fixed, _stages, _extra_memory, _product, _whole, _first_call]
        if figures.kind == "gpu":
            parts.insert(3, _copies)
        texts = [part(figures) for part in parts]
        lines += [f"{figures.kind.upper()}: {text}" for text in texts if text]
    by_kind = {figures.kind: figures for figures in report.devices}
    if len(by_kind) == 2:
        lines.append(_compare(by_kind["cpu"], by_kind["gpu"]))
    if report.experiment == Experiment():
        lines.append(_published(report.devices))
    return lines


# ---- one device ---------------------------------------------------------------------------------


def _noise(d: DeviceFigures) -> str:
    """Was the machine quiet enough for what follows? Nothing where it was."""
    spreads = [(s, spread) for s in d.strides for spread in (s.forward, s.sgemm)]
    s, worst = max(spreads, key=lambda pair: (pair[1].high - pair[1].low) / pair[1].median)
    width = (worst.high - worst.low) / worst.median
    if width < NOISY:
        return ""
    return (
        f"the machine was busy: the quartiles lie up to {percent(width)} of the median apart"
        f" (stride {s.stride}), so read the sentences below with that in mind."
    )


def _shrinking(d: DeviceFigures) -> str:
    """Do times fall as positions do?"""
    first, last = d.strides[0], d.strides[-1]
    fewer = [first.positions / s.positions for s in d.strides[1:]]
    faster = [first.forward.median / s.forward.median for s in d.strides[1:]]
    if not fewer:
        return f"one stride only, {first.stride}: {in_ms(first.forward.median)} in forward()."
    text = (
        f"from stride {first.stride} to {join(str(s.stride) for s in d.strides[1:])} the output"
        f" positions become {join(map(factor, fewer))} times fewer (the square of the stride's"
        f" ratio is {join(factor((s.stride / first.stride) ** 2) for s in d.strides[1:])}),"
        f" forward() {join(map(factor, faster))} times shorter; at stride {last.stride} that is "
    )
    each = [s.forward.median / s.positions * 1e6 for s in (first, last)]
    if faster[-1] < fewer[-1] * (1 - SAME):
        return text + "less than the positions: part of a call does not shrink with them."
    if faster[-1] > fewer[-1] * (1 + SAME):
        return text + (
            f"more than the positions: one costs {each[0]:.3g} ns at stride {first.stride} but"
            f" {each[1]:.3g} ns at stride {last.stride}."
        )
    return text + f"what the positions tell: {each[0]:.3g} and {each[1]:.3g} ns for each."


def _line(strides: Sequence[StrideFigures]) -> tuple[float, float, float]:
    """The line fixed (ms) + cost (ms) * positions with the least relative misses; the largest."""
    times = np.array([s.forward.median for s in strides])
    positions = np.array([s.positions for s in strides], dtype=float)
    matrix = np.stack([1 / times, positions / times], axis=1)
    (fixed, cost), *_ = np.linalg.lstsq(matrix, np.ones(len(times)), rcond=None)
    return float(fixed), float(cost), float(np.abs(matrix @ [fixed, cost] - 1).max())


def _fixed(d: DeviceFigures) -> str:
    """What does a call cost whatever the stride?"""
    first, last, floor = d.strides[0], d.strides[-1], d.floor.median
    share = floor / last.forward.median
    text = (
        f"a call with a single position takes {in_ms(floor)}"
        + (f" (layers alone {in_ms(d.floor_kernels.median)})" if d.floor_kernels else "")
        + f", {percent(floor / first.forward.median)} of stride {first.stride} and"
        f" {percent(share)} of stride {last.stride}: "
    )
    if share > 0.5:
        text += f"at stride {last.stride} the time is mostly what any call costs"
    elif share > 0.1:
        text += f"at stride {last.stride} what any call costs is a visible part"
    else:
        text += "what any call costs hardly matters"
    if len(d.strides) < 3:
        return text + "."
    fixed, cost, miss = _line(d.strides)
    text += (
        f". The nearest line through the times has {in_ms(fixed)} fixed and {cost * 1e6:.3g} ns a"
        f" position and misses by up to {percent(miss)}"
    )
    if miss > 0.25:
        return text + ": fixed cost plus positions does not describe these times."
    if fixed <= 0:
        return text + ": it leaves no fixed part."
    if fixed > 2 * floor:
        return text + ": its fixed part is more than such a call, so some of the work stays too."
    return text + "."


def _stages(d: DeviceFigures) -> str:
    """Which part takes the time when each is run alone?"""
    first, last = d.strides[0], d.strides[-1]
    named = [(s, _named_stages(s)) for s in (first, last)]
    shares = [
        f"{join(f'{name} {percent(ms / s.stages.sum)}' for name, ms in stages.items())} of"
        f" {in_ms(s.stages.sum)} at stride {s.stride}"
        for s, stages in named
    ]
    largest = [max(stages, key=lambda name: stages[name]) for _, stages in named]
    text = f"run one after the other as the original does, the parts are {join(shares)}; "
    if largest[0] == largest[1]:
        text += f"{largest[0]} is the largest at both"
    else:
        text += f"the largest is {largest[0]} at the first and {largest[1]} at the second"
    fewer = first.positions / last.positions
    fall = {name: ms / named[1][1][name] for name, ms in named[0][1].items()}
    slow = [name for name, ratio in fall.items() if ratio < fewer * (1 - SAME)]
    text += (
        f". For {factor(fewer)} times fewer positions they fall"
        f" {join(map(factor, fall.values()))} times: "
    )
    if slow:
        return text + f"{join(slow)} less than the positions."
    return text + "none of them less than the positions."


def _extra_memory(d: DeviceFigures) -> str:
    """What does the column matrix cost?"""
    first, last = d.strides[0], d.strides[-1]
    shares = [s.stages.im2col.median / s.stages.sum for s in (first, last)]
    m = first.memory
    return (
        f"the column matrix is the extra memory: {in_mb(m.columns)} at stride {first.stride},"
        f" {factor(m.columns / m.input)} times the input and {factor(m.columns / m.output)} times"
        f" the output, {in_mb(last.memory.columns)} at stride {last.stride}; filling it is"
        f" {percent(shares[0])} and {percent(shares[1])} of the parts' time."
    )


def _product(d: DeviceFigures) -> str:
    """Does the matrix product keep its speed when it gets smaller?"""
    first, last = d.strides[0], d.strides[-1]
    text = (
        f"the matrix product alone runs at {join(digits(s.sgemm_gflops) for s in d.strides)}"
        " GFLOP/s: "
    )
    change = last.sgemm_gflops / first.sgemm_gflops
    if change < 1 - SAME:
        return text + (
            f"at stride {last.stride} the smaller one keeps {percent(change)} of the speed,"
            " so it shrinks less than its work."
        )
    if change > 1 + SAME:
        return text + f"at stride {last.stride} the smaller one is {factor(change)} times as fast."
    return text + "its speed does not depend on the stride."


def _whole(d: DeviceFigures) -> str:
    """How far is the layer from the product alone, and from its parts?"""
    on_gpu = d.kind == "gpu"
    name = "the kernels take" if on_gpu else "forward() takes"
    parts = "parts, each of which waits for the device by itself," if on_gpu else "parts"
    times = [(s.kernels or s.forward).median for s in d.strides]
    against = [ms / s.stages.sum for ms, s in zip(times, d.strides, strict=True)]
    text = (
        f"as it runs here (backend {d.backend}) {name} {join(f'{t:.2f}' for t in against)} times"
        f" the sum of the {parts} and {join(f'{s.ratio.median:.2f}' for s in d.strides)} times the"
        " product alone: "
    )
    pairs = list(zip(d.strides, against, strict=True))
    groups = {
        "cheaper than": [s for s, t in pairs if t < 1 - SAME],
        "dearer than": [s for s, t in pairs if t > 1 + SAME],
        "about as dear as": [s for s, t in pairs if abs(t - 1) <= SAME],
    }
    every = [how for how, strides in groups.items() if len(strides) == len(d.strides)]
    if every:
        return text + f"{every[0]} its parts at every stride."
    said = [f"{how} its parts at {_at(strides)}" for how, strides in groups.items() if strides]
    return text + join(said) + "."


def _first_call(d: DeviceFigures) -> str:
    """Is the published way, a mean of 3 from the start, like the median?"""
    s = d.strides[0]
    first, *rest = s.first_three
    others = float(np.mean(rest)) if rest else first
    text = (
        f"the mean of 3 on a new net at stride {s.stride}, as published, is"
        f" {in_ms(s.published_way)}, {factor(s.published_way / s.forward.median)} times the median"
    )
    if others > 2 * s.forward.median:
        return text + (
            f": the calls took {in_ms(first)} and {in_ms(others)}, so something else kept the"
            " machine busy then."
        )
    if first > others * (1 + SAME):
        return text + (
            f": the first call took {in_ms(first)}, the others {in_ms(others)}, as the first one"
            " also touches the net's memory for the first time."
        )
    return text + f"; the first call ({in_ms(first)}) was no slower than the others."


def _copies(d: DeviceFigures) -> str:
    """GPU: what is copying, what computing?"""
    shares, largest = [], []
    for s in (d.strides[0], d.strides[-1]):
        parts = _gpu_parts(s)
        whole = s.forward.median
        shares.append(
            f"{join(f'{name} {in_ms(ms)} ({percent(ms / whole)})' for name, ms in parts.items())}"
            f" at stride {s.stride}"
        )
        largest.append(max(parts, key=lambda name: parts[name]))
    first, download = d.strides[0], d.strides[0].stages.download
    rate = first.memory.output / download.median / 1e6 if download else 0.0
    text = (
        f"timed apart, pieces of forward() are {join(shares)}; the output of stride"
        f" {first.stride} is {in_mb(first.memory.output)}, copied at {rate:.3g} GB/s. "
    )
    if largest[0] == largest[1]:
        return text + f"The largest piece at both is {largest[0]}."
    return text + f"The largest piece is {largest[0]} at the first, {largest[1]} at the second."


# ---- devices and publications -------------------------------------------------------------------


def _compare(cpu: DeviceFigures, gpu: DeviceFigures) -> str:
    """Where is which device faster, and why the CPU where it is?"""
    pairs = list(zip(cpu.strides, gpu.strides, strict=True))
    won = [(c, g) for c, g in pairs if c.forward.high < g.forward.low]
    lost = [(c, g) for c, g in pairs if g.forward.high < c.forward.low]
    open_ = [c for c, g in pairs if _overlap(c.forward, g.forward)]
    said = [f"the CPU is faster at {_at([c for c, _ in won])}"] if won else []
    said += [f"the GPU is faster at {_at([c for c, _ in lost])}"] if lost else []
    said += [f"neither is clearly faster at {_at(open_)}"] if open_ else []
    text = f"CPU against GPU: {join(said)}. "
    if not won:
        ratios = [c.forward.median / g.forward.median for c, g in (pairs[0], pairs[-1])]
        return text + (
            f"The CPU's time is {factor(ratios[0])} times the GPU's at stride"
            f" {pairs[0][0].stride} and {factor(ratios[1])} times at stride {pairs[-1][0].stride}."
        )
    c, g = won[-1]
    ours, kernels = c.forward.median, (g.kernels or g.forward).median
    if gpu.floor.median >= ours:
        return text + (
            f"At stride {c.stride} a GPU call with a single position ({in_ms(gpu.floor.median)})"
            f" takes no less than the CPU's whole forward() ({in_ms(ours)}): what any"
            " call costs there decides, not the positions."
        )
    if kernels < ours:
        return text + (
            f"At stride {c.stride} the GPU's kernels alone ({in_ms(kernels)}) are faster than the"
            f" CPU ({in_ms(ours)}); with the copies they are not ({in_ms(g.forward.median)})."
        )
    return text + (
        f"At stride {c.stride} even the GPU's kernels alone ({in_ms(kernels)}) take no less than"
        f" the CPU ({in_ms(ours)})."
    )


def _published(devices: Iterable[DeviceFigures]) -> str:
    """The published ratios beside those measured here."""
    there = {kind: ms[0] / ms[-1] for kind, ms in PUBLISHED_MS.items()}
    text = (
        "Published: from stride 1 to 4 the CPU's time fell"
        f" {factor(there['cpu'])} times and the GPU's {factor(there['gpu'])} times, so that the"
        " CPU, slower at stride 1, was faster from stride 2 on; here "
    )
    here = [
        f"the {d.kind.upper()}'s falls"
        f" {factor(d.strides[0].forward.median / d.strides[-1].forward.median)} times"
        for d in devices
    ]
    return text + join(here) + "."


# ---- figures ------------------------------------------------------------------------------------


def _named_stages(s: StrideFigures) -> dict[str, float]:
    parts = s.stages
    return {
        "im2col": parts.im2col.median,
        "the product": parts.gemm.median,
        "the bias": parts.bias.median,
    }


def _gpu_parts(s: StrideFigures) -> dict[str, float]:
    up, down = s.stages.upload, s.stages.download
    return {
        "the kernels": (s.kernels or s.forward).median,
        "the input's copy": up.median if up else 0.0,
        "the output's copy": down.median if down else 0.0,
    }


def _overlap(a: Spread, b: Spread) -> bool:
    return a.low <= b.high and b.low <= a.high


def _at(strides: Sequence[StrideFigures]) -> str:
    word = "stride" if len(strides) == 1 else "strides"
    return f"{word} {join(str(s.stride) for s in strides)}"
