"""Learning rate policies against their formulas."""

from __future__ import annotations

import math

import pytest

from pycaffe_lite import ModelError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.training.lr_policy import Schedule, learning_rate, observe_loss


def param(policy, **settings):
    return caffe_pb2.SolverParameter(lr_policy=policy, **{"base_lr": 0.3, **settings})


FORMULAS = {
    "fixed": lambda i: 0.3,
    "step": lambda i: 0.3 * 0.5 ** (i // 7),
    "exp": lambda i: 0.3 * 0.5**i,
    "inv": lambda i: 0.3 * (1 + 0.5 * i) ** -0.75,
    "poly": lambda i: 0.3 * (1 - i / 50) ** 0.75,
    "sigmoid": lambda i: 0.3 / (1 + math.exp(-0.5 * (i - 7))),
}


@pytest.mark.parametrize("iteration", [0, 1, 6, 7, 13, 14, 49])
@pytest.mark.parametrize("policy", FORMULAS)
def test_formula(policy, iteration):
    settings = param(policy, gamma=0.5, power=0.75, stepsize=7, max_iter=50)
    rate = learning_rate(settings, Schedule(), iteration)
    assert rate == pytest.approx(FORMULAS[policy](iteration), rel=1e-6)


def test_multistep():
    settings = param("multistep", gamma=0.5, stepvalue=[3, 4, 8])
    schedule = Schedule()
    rates = [learning_rate(settings, schedule, i) for i in range(10)]
    assert rates == pytest.approx([0.3 * 0.5**k for k in [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]])
    assert schedule.current_step == 3


def test_multistep_goes_on_by_one_step_a_call():
    settings, schedule = param("multistep", gamma=0.5, stepvalue=[3, 4]), Schedule()
    steps = []
    for _ in range(3):
        learning_rate(settings, schedule, 100)
        steps.append(schedule.current_step)
    assert steps == [1, 2, 2]


def test_plateau():
    """A step whenever the loss has had no new minimum for as long as the window says."""
    settings = param("plateau", gamma=0.1, plateau_winsize=[2, 3])
    schedule, rates = Schedule(), []
    for i, loss in enumerate([5, 4, 4, 4.5, 4, 3, 3, 3, 3, 3]):
        observe_loss(settings, schedule, i, loss)
        rates.append(learning_rate(settings, schedule, i))
    assert rates == pytest.approx([0.3 * 0.1**k for k in [0, 0, 0, 1, 1, 1, 1, 1, 2, 2]])
    assert schedule == Schedule(2, 3, 8)


def test_other_policies_ignore_the_loss():
    schedule = Schedule()
    observe_loss(param("fixed"), schedule, 3, 0.5)
    assert schedule == Schedule()


def test_beyond_the_last_iteration_of_poly():
    assert learning_rate(param("poly", power=0.5, max_iter=10), Schedule(), 11) == 0
    assert learning_rate(param("poly", power=0.5), Schedule(), 0) == 0


@pytest.mark.parametrize(
    ("settings", "iteration", "expected"),
    [
        (dict(lr_policy="sigmoid", gamma=9, stepsize=10000), 0, 0.0),
        (dict(lr_policy="exp", gamma=1e30), 50, math.inf),
        (dict(lr_policy="exp", gamma=10), 40, math.inf),
        (dict(lr_policy="poly", power=-1, max_iter=10), 10, math.inf),
    ],
)
def test_extremes(settings, iteration, expected):
    settings = caffe_pb2.SolverParameter(base_lr=1, **settings)
    assert learning_rate(settings, Schedule(), iteration) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (dict(lr_policy="stpe"), r"unknown learning rate policy: stpe; did you mean 'step'\?"),
        (dict(lr_policy="nothing"), r"unknown .* \(known policies: exp, fixed, inv, multistep, p"),
        (dict(), "no lr_policy is set"),
        (dict(lr_policy="step"), "stepsize must be positive for lr_policy 'step', got 0"),
        (dict(lr_policy="inv", gamma=-1), "gamma must not be negative for lr_policy 'inv', got -1"),
    ],
)
def test_wrong_settings(settings, text):
    with pytest.raises(ModelError, match=text):
        learning_rate(caffe_pb2.SolverParameter(**settings), Schedule(), 0)
