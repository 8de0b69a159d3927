"""How do gradients become updates? The six solver types, one `update` each, and `get_solver`."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ModelError, did_you_mean
from ..ops.base import Array
from .solver import PathLike, Solver
from .solver_file import located, read_solver


def get_solver(solver_file: PathLike | Any) -> Solver:
    """The solver that a solver's prototxt (or SolverParameter) describes, of the type it names.

    Raises MissingFileError, and ModelError for what is wrong in it, an unknown type included.
    """
    name, known = read_solver(solver_file).type, Solver.registry
    if name not in known:
        with located(solver_file):
            raise ModelError(
                f"unknown solver type: {name}{did_you_mean(name, known)} (known types:"
                f" {', '.join(sorted(known))})"
            )
    return known[name](solver_file)


class SGDSolver(Solver):
    """Gradient descent with momentum: h = r g + m h; w -= h."""

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        (h,) = history
        h *= self.param.momentum
        g *= rate
        h += g
        g[...] = h


class NesterovSolver(SGDSolver):
    """Nesterov's momentum: h' = r g + m h; w -= (1 + m) h' - m h."""

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        (h,), m = history, self.param.momentum
        self.xp.multiply(h, m, out=spare)  # m h
        g *= rate
        self.xp.add(g, spare, out=h)  # h'
        self.xp.multiply(h, 1 + m, out=g)
        g -= spare


class AdaGradSolver(SGDSolver):
    """AdaGrad: h += g^2; w -= r g / (sqrt(h) + delta). Raises ModelError for a momentum."""

    def check(self) -> None:
        if self.param.momentum:
            raise ModelError(
                f"momentum cannot be used with AdaGrad, got {self.param.momentum:g}: leave it out"
            )

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        (h,) = history
        self.xp.multiply(g, g, out=spare)
        h += spare
        _divide_by_root(self.xp, g, h, self.param.delta, rate, spare)


class RMSPropSolver(SGDSolver):
    """RMSProp: h = d h + (1 - d) g^2; w -= r g / (sqrt(h) + delta), d = rms_decay in [0, 1).

    Raises ModelError for a momentum, or another rms_decay.
    """

    def check(self) -> None:
        if self.param.momentum:
            raise ModelError(
                f"momentum cannot be used with RMSProp, got {self.param.momentum:g}: leave it out"
            )
        if not 0 <= self.param.rms_decay < 1:
            raise ModelError(f"rms_decay must lie in [0, 1), got {self.param.rms_decay:g}")

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        (h,) = history
        _average_square(self.xp, h, g, self.param.rms_decay, spare)
        _divide_by_root(self.xp, g, h, self.param.delta, rate, spare)


class AdaDeltaSolver(SGDSolver):
    """AdaDelta: h = m h + (1 - m) g^2; u = g sqrt((h2 + delta) / (h + delta));
    h2 = m h2 + (1 - m) u^2; w -= r u, m the momentum."""

    histories = 2

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        h, h2 = history
        m, delta, xp = self.param.momentum, self.param.delta, self.xp
        _average_square(xp, h, g, m, spare)
        xp.add(h2, delta, out=spare)
        rest = h + delta
        spare /= rest
        xp.sqrt(spare, out=spare)
        g *= spare
        _average_square(xp, h2, g, m, spare)
        g *= rate


class AdamSolver(SGDSolver):
    """Adam: h = b1 h + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= r c h / (sqrt(v) + delta) with
    c = sqrt(1 - b2^t) / (1 - b1^t), t from 1; b1 is the momentum, b2 momentum2."""

    histories = 2

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        h, v = history
        b1, b2, t = self.param.momentum, self.param.momentum2, self.iter + 1
        h *= b1
        self.xp.multiply(g, 1 - b1, out=spare)
        h += spare
        _average_square(self.xp, v, g, b2, spare)
        g[...] = h
        correction = math.sqrt(1 - b2**t) / (1 - b1**t)
        _divide_by_root(self.xp, g, v, self.param.delta, rate * correction, spare)


def _average_square(xp: Any, h: Array, g: Array, decay: float, spare: Array) -> None:
    """h = decay h + (1 - decay) g^2."""
    h *= decay
    xp.multiply(g, g, out=spare)
    spare *= 1 - decay
    h += spare


def _divide_by_root(xp: Any, g: Array, h: Array, delta: float, rate: float, spare: Array) -> None:
    """g = rate g / (sqrt(h) + delta)."""
    xp.sqrt(h, out=spare)
    spare += delta
    g *= rate
    g /= spare
