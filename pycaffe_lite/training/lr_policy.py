"""How fast does a solver learn at an iteration? The learning rate policies, one function each.

Formulas and names are Caffe's (`lr_policy` in a solver's prototxt), `plateau` is the SSD fork's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ModelError, did_you_mean

log = logging.getLogger("pycaffe_lite")


@dataclass
class Schedule:
    """Where a policy stands: what cannot be told from the iteration alone; kept in snapshots."""

    current_step: int = 0
    """How often multistep and plateau have lowered the rate; step sets it too."""
    minimum_loss: float = 1e38
    """The least smoothed loss that plateau has seen."""
    iter_last_event: int = 0
    """The iteration of that loss, or of the last step of plateau."""


def learning_rate(param: Any, schedule: Schedule, iteration: int) -> float:
    """The rate at an iteration, rounded to float32 as Caffe keeps it.

    `param` is the SolverParameter. The policies multistep and plateau go on by at most one step a
    call, and `schedule` says so from then on. Raises ModelError as `check` does.
    """
    check(param)
    with np.errstate(over="ignore"):
        try:
            return float(np.float32(_POLICIES[param.lr_policy](param, schedule, iteration)))
        except (OverflowError, ValueError):  # ValueError: 0 to a negative power
            return math.inf


def check(param: Any) -> None:
    """ModelError for an unknown policy, or settings that its formula has no value for."""
    policy = param.lr_policy
    if policy not in _POLICIES:
        found = f"unknown learning rate policy: {policy}" if policy else "no lr_policy is set"
        known = ", ".join(sorted(_POLICIES))
        raise ModelError(f"{found}{did_you_mean(policy, _POLICIES)} (known policies: {known})")
    if policy not in ("fixed", "poly") and param.gamma < 0:
        raise ModelError(f"gamma must not be negative for lr_policy {policy!r}, got {param.gamma}")
    if policy == "step" and param.stepsize <= 0:
        raise ModelError(f"stepsize must be positive for lr_policy 'step', got {param.stepsize}")


def observe_loss(param: Any, schedule: Schedule, iteration: int, loss: float) -> None:
    """Tell policy plateau the smoothed loss of an iteration; nothing to the others."""
    if param.lr_policy == "plateau" and loss < schedule.minimum_loss:
        schedule.minimum_loss, schedule.iter_last_event = loss, iteration


def _fixed(param: Any, schedule: Schedule, iteration: int) -> float:
    return float(param.base_lr)


def _step(param: Any, schedule: Schedule, iteration: int) -> float:
    schedule.current_step = iteration // param.stepsize
    return _stepped(param, schedule)


def _stepped(param: Any, schedule: Schedule) -> float:
    return float(param.base_lr * math.pow(param.gamma, schedule.current_step))


def _exp(param: Any, schedule: Schedule, iteration: int) -> float:
    return float(param.base_lr * math.pow(param.gamma, iteration))


def _inv(param: Any, schedule: Schedule, iteration: int) -> float:
    return float(param.base_lr * math.pow(1 + param.gamma * iteration, -param.power))


def _multistep(param: Any, schedule: Schedule, iteration: int) -> float:
    step = schedule.current_step
    if step < len(param.stepvalue) and iteration >= param.stepvalue[step]:
        schedule.current_step += 1
        log.info("MultiStep Status: Iteration %d, step = %d", iteration, schedule.current_step)
    return _stepped(param, schedule)


def _poly(param: Any, schedule: Schedule, iteration: int) -> float:
    """To 0 at max_iter; there it stays for those who train on, where Caffe's has no value."""
    rest = max(1 - iteration / param.max_iter, 0.0) if param.max_iter else 0.0
    return float(param.base_lr * math.pow(rest, param.power))


def _sigmoid(param: Any, schedule: Schedule, iteration: int) -> float:
    exponent = -param.gamma * (iteration - param.stepsize)
    return float(param.base_lr / (1 + math.exp(min(exponent, 700.0))))


def _plateau(param: Any, schedule: Schedule, iteration: int) -> float:
    step = schedule.current_step
    waited = iteration - schedule.iter_last_event
    if step < len(param.plateau_winsize) and waited >= param.plateau_winsize[step]:
        schedule.current_step += 1
        schedule.iter_last_event = iteration
        log.info("Plateau Status: Iteration %d, step = %d", iteration, schedule.current_step)
    return _stepped(param, schedule)


_POLICIES: dict[str, Callable[[Any, Schedule, int], float]] = {
    "fixed": _fixed,
    "step": _step,
    "exp": _exp,
    "inv": _inv,
    "multistep": _multistep,
    "poly": _poly,
    "sigmoid": _sigmoid,
    "plateau": _plateau,
}
