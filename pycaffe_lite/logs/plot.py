"""How do trainings look as curves? Needs matplotlib, imported late."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import extras
from .run import Row, Run

X_AXES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "iterations": ("iteration", lambda row: row.iteration),
    "seconds": ("seconds of training", lambda row: row.seconds),
}
"""Name of a horizontal axis -> its label, and where a row lies on it."""


@dataclass
class Curve:
    """One line of a panel."""

    run: int
    """Number of the run that it belongs to."""
    role: str
    """smoothed, batch (beside smoothed), train, test (test#1 .. of several nets) or rate."""
    output: str
    x: list[float]
    y: list[float]

    @property
    def name(self) -> str:
        """What the legend says: "test accuracy"."""
        names = {"smoothed": "train loss", "rate": "learning rate", "batch": "one batch"}
        return names.get(self.role, f"{self.role} {self.output}")


@dataclass
class Panel:
    """Curves that share a vertical axis."""

    label: str
    curves: list[Curve] = field(default_factory=list)
    log: bool = False
    """Is the vertical axis logarithmic?"""


def require() -> None:
    """RuntimeError saying what to install where matplotlib is missing."""
    extras.matplotlib()


def png(runs: Sequence[tuple[str, Run]], x: str = "iterations", log_loss: bool = False) -> bytes:
    """Named runs in one picture, as a PNG file: losses, other outputs, learning rates.

    `x` is a key of X_AXES. With `log_loss` the losses' axis is logarithmic.
    """
    require()
    # The canvas itself, not pyplot: no display, and no state left in the user's process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = panels([run for _, run in runs], x, log_loss)
    heights = [1.0 if panel.label == "learning rate" else 1.7 for panel in drawn]
    figure = Figure(figsize=(9.5, 1.0 + 1.9 * sum(heights)), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(len(drawn), 1, squeeze=False, sharex=True, height_ratios=heights)
    names = [name for name, _ in runs]
    for axis, panel in zip(axes[:, 0], drawn, strict=True):
        _draw(axis, panel, names)
    axes[-1, 0].set_xlabel(X_AXES[x][0])
    if len(runs) == 1:
        figure.suptitle(names[0])
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()


# ---- what is drawn ------------------------------------------------------------------------------


def panels(runs: Sequence[Run], x: str = "iterations", log_loss: bool = False) -> list[Panel]:
    """The panels with anything in them: losses, outputs from 0 to 1, each other output, rates."""
    loss, share, rate = Panel("loss", log=log_loss), Panel("outputs"), Panel("learning rate")
    others: dict[str, Panel] = {}
    losses = {name for run in runs for name in run.losses}
    for curve in [curve for k, run in enumerate(runs) for curve in _curves(k, run, X_AXES[x][1])]:
        name = curve.output
        if curve.role == "rate":
            rate.curves.append(curve)
        elif curve.role == "smoothed" or name in losses or _sounds_like_loss(name):
            loss.curves.append(curve)
        elif all(0 <= y <= 1 for y in curve.y if math.isfinite(y)):
            share.curves.append(curve)
        else:
            whole = name.partition("[")[0]  # numbers of one output lie together
            others.setdefault(whole, Panel(whole)).curves.append(curve)
    if len({curve.output for curve in share.curves}) == 1:
        share.label = share.curves[0].output
    rates = [y for curve in rate.curves for y in curve.y if math.isfinite(y)]
    rate.log = bool(rates) and min(rates) > 0 and max(rates) >= 10 * min(rates)
    return [panel for panel in (loss, share, *others.values(), rate) if panel.curves]


def _sounds_like_loss(name: str) -> bool:
    """For logs and tables that tell no loss weights. GoogLeNet's loss1/top-1 is none."""
    return "loss" in name.rpartition("/")[2].lower()


def _curves(k: int, run: Run, place: Callable[[Row], float]) -> Iterator[Curve]:
    """Everything that a run has."""

    def curve(
        kind: str, output: str, rows: Sequence[Row], value: Callable[[Row], float | None]
    ) -> Iterator[Curve]:
        points = [(place(row), y) for row in rows if (y := value(row)) is not None]
        if points:
            yield Curve(k, kind, output, [at for at, _ in points], [y for _, y in points])

    smoothed = any(row.loss is not None for row in run.train)
    yield from curve("smoothed", "loss", run.train, lambda row: row.loss)
    for name in _outputs(run.train):
        kind = "batch" if smoothed and name == "loss" else "train"
        if kind == "train" or any(row.outputs.get(name, row.loss) != row.loss for row in run.train):
            yield from curve(kind, name, run.train, _output(name))
    for index, rows in sorted(run.tests.items()):
        kind = f"test#{index}" if len(run.tests) > 1 else "test"
        for name in _outputs(rows):
            yield from curve(kind, name, rows, _output(name))
    rated = [row for row in run.train or run.rows() if math.isfinite(row.rate)]
    yield from curve("rate", "", rated, lambda row: row.rate)


def _outputs(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.outputs))


def _output(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.outputs.get(name)


# ---- drawing ------------------------------------------------------------------------------------

_DASHES = ("-", "--", ":", "-.")


def _draw(axis: Any, panel: Panel, names: Sequence[str]) -> None:
    """Colours tell runs apart and dashes curves; of one run, colours tell the curves apart."""
    looks = list(dict.fromkeys(_look(curve) for curve in panel.curves))
    tests = [look for look in looks if look.startswith("test")]  # dots set them apart
    trains = [look for look in looks if look not in tests]
    many = len(names) > 1
    for curve in panel.curves:
        look = _look(curve)
        place = (tests if look in tests else trains).index(look)
        axis.plot(
            curve.x,
            curve.y,
            color=f"C{(curve.run if many else looks.index(look)) % 10}",
            linestyle=_DASHES[place % len(_DASHES)] if many else "-",
            label=_label(names[curve.run], curve) if many else curve.name,
            **_style(curve),
        )
    if panel.log:
        axis.set_yscale("log")
    axis.set_ylabel(panel.label)
    axis.grid(alpha=0.3)
    if panel.label == "learning rate" and len(panel.curves) == 1:
        return
    if len(panel.curves) > 6:
        axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    else:
        axis.legend(fontsize="small", loc="best")


def _label(run: str, curve: Curve) -> str:
    """What the legend says among several runs; nothing of the curves that are drawn faint."""
    return f"_{run}" if curve.role == "batch" else f"{run}: {curve.name}"


def _look(curve: Curve) -> str:
    """Curves with the same share colour and dashes: the loss of one batch, and its mean."""
    return "train" if curve.role in ("smoothed", "batch") else f"{curve.role} {curve.output}"


def _style(curve: Curve) -> dict[str, Any]:
    if curve.role == "rate":
        return {"drawstyle": "steps-post", "linewidth": 1.5}
    if curve.role == "batch":
        return {"linewidth": 0.8, "alpha": 0.4, "zorder": 1.5}
    if curve.role.startswith("test"):
        few = len(curve.x) <= 60
        return {"linewidth": 1.5, "marker": "o" if few else "", "markersize": 4}
    return {"linewidth": 1.5 if curve.role == "smoothed" else 1.0}
