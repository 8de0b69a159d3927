"""How do the stride experiment's times look as a picture? Needs matplotlib, imported late."""

from __future__ import annotations

import io
from typing import Any

from .. import extras
from .figures import DeviceFigures, Report, StrideFigures


def require() -> None:
    """RuntimeError saying what to install where matplotlib is missing."""
    extras.matplotlib()


def png(report: Report) -> bytes:
    """Two panels a device, as a PNG file: the parts beside forward(), and times over positions."""
    require()
    # The canvas itself, not pyplot: no display, and no state left in the user's process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(report.devices)
    figure = Figure(figsize=(11, 4.2 * count), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(count, 2, squeeze=False)
    for (left, right), device in zip(axes, report.devices, strict=True):
        _parts(left, device)
        _scaling(right, device)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()


def _parts(axes: Any, device: DeviceFigures) -> None:
    """Bars: the parts on top of each other, forward() and the product alone at their side."""
    at = list(range(len(device.strides)))
    below = [0.0] * len(at)
    for name in ("im2col", "gemm", "bias", "upload", "download"):
        parts = [getattr(s.stages, name) for s in device.strides]
        if None in parts:
            continue
        heights = [part.median for part in parts]
        axes.bar([x - 0.27 for x in at], heights, 0.25, bottom=below, label=name)
        below = [b + h for b, h in zip(below, heights, strict=True)]
    axes.bar(at, [s.forward.median for s in device.strides], 0.25, label="forward()")
    axes.bar([x + 0.27 for x in at], [s.sgemm.median for s in device.strides], 0.25, label="sgemm")
    axes.set_xticks(at, [f"stride {s.stride}" for s in device.strides])
    axes.set_ylabel("ms")
    axes.set_title(f"{device.kind.upper()}: parts timed alone, forward(), product alone")
    axes.legend()


def _scaling(axes: Any, device: DeviceFigures) -> None:
    """Times over positions, both logarithmic, with what they would be if only positions counted."""
    positions = [s.positions for s in device.strides]

    def curve(name: str, marker: str) -> None:
        spreads = [getattr(s, name) for s in device.strides]
        if None in spreads:
            return
        middle = [spread.median for spread in spreads]
        error = [
            [spread.median - spread.low for spread in spreads],
            [spread.high - spread.median for spread in spreads],
        ]
        axes.errorbar(positions, middle, yerr=error, marker=marker, capsize=3, label=name)

    for name, marker in (("forward", "o"), ("kernels", "s"), ("sgemm", "^")):
        curve(name, marker)
    first: StrideFigures = device.strides[0]
    ideal = [first.forward.median * p / first.positions for p in positions]
    axes.plot(positions, ideal, "--", color="grey", label="positions alone")
    axes.axhline(device.floor.median, ls=":", color="grey", label="a single position")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(positions, [f"{s.side}x{s.side}" for s in device.strides])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("output positions")
    axes.set_ylabel("ms, median and quartiles")
    axes.set_title(f"{device.kind.upper()}: time over positions")
    axes.legend()
