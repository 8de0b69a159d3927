"""The six solver types: their updates against float64 by hand, and recorded trajectories."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_device import FakeOps
from numpy.testing import assert_allclose, assert_array_equal
from small_solvers import BATCH, ByHand, make_solver, regression, values, write_problem

import pycaffe_lite
from pycaffe_lite import ModelError, SGDSolver, device
from pycaffe_lite.blob import precision
from pycaffe_lite.training.solver import Solver

GOLDEN = Path(__file__).parents[1] / "golden" / "solvers"

# Type -> settings in the prototxt, and by hand. AdaDelta by its rule has rate 1.
KINDS = {
    "SGD": ("momentum: 0.9", dict(momentum=0.9)),
    "Nesterov": ("momentum: 0.9", dict(momentum=0.9)),
    "AdaGrad": ("", {}),
    "RMSProp": ("rms_decay: 0.95 delta: 1e-5", dict(rms_decay=0.95, delta=1e-5)),
    "AdaDelta": ("momentum: 0.95 delta: 1e-6", dict(momentum=0.95, delta=1e-6)),
    "Adam": ("momentum: 0.9 momentum2: 0.999", dict(momentum=0.9, momentum2=0.999)),
}


def pair(folder, kind, text, *, net=None, **by_hand):
    """A solver and the same training by hand."""
    x, y = write_problem(folder)
    own, settings = KINDS[kind]
    text = f"type: '{kind}' lr_policy: 'fixed' snapshot_prefix: '{folder}/s' {own} {text}"
    solver = make_solver(folder, text, net or regression(folder))
    w, b = values(solver)[:2]
    return solver, ByHand(kind, x, y, w, b, **{**settings, **by_hand})


def check_steps(solver, hand, count=5, batch=BATCH):
    for _ in range(count):
        solver.step(1)
        hand.step(batch)
        w, b = (blob.data.ravel() for blob in solver.net.params["ip"])
        assert_allclose(w, hand.params[0], rtol=2e-4, atol=2e-5)
        assert_allclose(b, hand.params[1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("decay", [0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_updates(kind, decay, shared, tmp_path):
    lr = 1 if kind == "AdaDelta" else 0.05
    text = f"base_lr: {lr} weight_decay: {decay}"
    net = regression(tmp_path, shared=shared)
    solver, hand = pair(tmp_path, kind, text, net=net, lr=lr, decay=decay)
    check_steps(solver, hand)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_in_double_precision(kind, tmp_path):
    """Where rounding hides no slip in a formula; settings are float32 still."""

    def single(settings):
        return {k: float(np.float32(v)) for k, v in settings.items()}

    text = "base_lr: 0.05 weight_decay: 0.5 iter_size: 2"
    settings = single({**KINDS[kind][1], "lr": 0.05, "decay": 0.5})
    settings = {"momentum2": float(np.float32(0.999)), "delta": float(np.float32(1e-8)), **settings}
    with precision(np.float64):
        solver, hand = pair(tmp_path, kind, text, iter_size=2, **settings)
    for _ in range(5):
        solver.step(1)
        hand.step()
        for blob, expected in zip(solver.net.params["ip"], hand.params, strict=True):
            assert_allclose(blob.data.ravel(), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_on_every_backend(kind, on_ops, tmp_path):
    text = "base_lr: 0.05 weight_decay: 0.5 clip_gradients: 4 iter_size: 2"
    solver, hand = pair(tmp_path, kind, text, lr=0.05, decay=0.5, clip=4, iter_size=2)
    check_steps(solver, hand, count=3)


@pytest.mark.parametrize("kind", KINDS)
def test_long_parameters_go_block_by_block(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("pycaffe_lite.device.block_size", lambda ops: 7)
    solver, hand = pair(tmp_path, kind, "base_lr: 0.05 weight_decay: 0.5", lr=0.05, decay=0.5)
    check_steps(solver, hand)


@pytest.mark.parametrize(
    ("kind", "momentum"),
    [("SGD", 0), ("SGD", 0.5), ("Nesterov", 0), ("Nesterov", 0.5), ("AdaDelta", 0.5)],
)
def test_other_momenta(kind, momentum, tmp_path, monkeypatch):
    text, settings = KINDS[kind]
    text = re.sub(r"momentum: \S+", f"momentum: {momentum}", text)
    monkeypatch.setitem(KINDS, kind, (text, {**settings, "momentum": momentum}))
    solver, hand = pair(tmp_path, kind, "base_lr: 0.1", lr=0.1)
    check_steps(solver, hand)


@pytest.mark.parametrize("kind", KINDS)
def test_two_half_batches_are_one(kind, tmp_path):
    net = regression(tmp_path, batch=BATCH // 2)
    text = "base_lr: 0.05 iter_size: 2 weight_decay: 0.5"
    solver, hand = pair(tmp_path, kind, text, net=net, lr=0.05, decay=0.5)
    check_steps(solver, hand)


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_multipliers_and_regularization(norm, tmp_path):
    mults = (0.5, 2, 3, 0)
    text = f"base_lr: 0.05 weight_decay: 0.1 regularization_type: '{norm}'"
    net = regression(tmp_path, mults=mults)
    solver, hand = pair(tmp_path, "SGD", text, net=net, lr=0.05, decay=0.1, norm=norm, mults=mults)
    check_steps(solver, hand)


def test_clipping_comes_before_the_mean_over_batches(tmp_path):
    text = "base_lr: 0.05 clip_gradients: 0.5 iter_size: 2"
    solver, hand = pair(tmp_path, "SGD", text, lr=0.05, clip=0.5, iter_size=2)
    check_steps(solver, hand)


def test_a_large_limit_clips_nothing(tmp_path):
    solver, hand = pair(tmp_path, "SGD", "base_lr: 0.01 clip_gradients: 1e6", lr=0.01)
    check_steps(solver, hand, count=2)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_do_not_learn_stay(kind, tmp_path):
    net = regression(tmp_path, mults=(0, 1, 1, 1))
    solver, _ = pair(tmp_path, kind, "base_lr: 0.1 weight_decay: 0.5", net=net)
    before = values(solver)
    solver.step(2)
    after = values(solver)
    assert_array_equal(before[0], after[0])
    assert before[1] != after[1]


def test_batch_norm_statistics_are_left_alone(tmp_path):
    write_problem(tmp_path)
    net = regression(tmp_path).replace(
        "layer { name: 'ip'", "layer { name: 'bn' type: 'BatchNorm' bottom: 'x' top: 'n' }"
        " layer { name: 'ip'",
    ).replace("bottom: 'x' top: 'z'", "bottom: 'n' top: 'z'")  # fmt: skip
    text = "base_lr: 0.1 lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.5"
    solver = make_solver(tmp_path, text, net)
    solver.net.forward()
    before = [b.data.copy() for b in solver.net.params["bn"]]
    solver.net.backward()
    solver.apply_update()
    for old, blob in zip(before, solver.net.params["bn"], strict=True):
        assert_array_equal(blob.data, old)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_become_what_was_subtracted(kind, tmp_path):
    solver, _ = pair(tmp_path, kind, "base_lr: 0.1")
    before = values(solver)
    solver.step(1)
    after = values(solver)
    for old, new, blob in zip(before, after, solver.net.params["ip"], strict=True):
        assert_array_equal(new, old - blob.diff)


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_history_blobs(kind, tmp_path):
    solver, _ = pair(tmp_path, kind, "base_lr: 0.1")
    shapes = [b.shape for b in solver.net.params["ip"]]
    assert [h.shape for h in solver.history] == shapes * (1 + (kind in ("AdaDelta", "Adam")))


def test_apply_update_alone(tmp_path):
    solver, _ = pair(tmp_path, "SGD", "base_lr: 0.01")
    for blob in solver.net.params["ip"]:
        blob.data[...], blob.diff[...] = 0, 1
    solver.apply_update()
    assert solver.iter == 1
    for blob in solver.net.params["ip"]:
        assert_allclose(blob.data, -0.01, rtol=1e-6)


def test_an_iteration_waits_for_no_device(fake, tmp_path):
    solver, _ = pair(tmp_path, "Adam", "base_lr: 0.01 weight_decay: 0.5 clip_gradients: 4")
    solver.step(1)
    before = replace(fake.counters)
    solver.apply_update()
    assert replace(fake.counters, launches=before.launches) == before


@pytest.fixture
def fake():
    ops = FakeOps()
    with device.pretend(ops):
        yield ops


# ---- types -------------------------------------------------------------------------------------


def test_get_solver_honours_the_type_and_a_class_does_not(tmp_path):
    write_problem(tmp_path)
    solver = make_solver(tmp_path, "type: 'Adam' momentum: 0.9 base_lr: 1", regression(tmp_path))
    assert type(solver) is pycaffe_lite.AdamSolver
    plain = SGDSolver(str(tmp_path / "solver.prototxt"))
    assert type(plain) is SGDSolver
    assert len(plain.history) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_old_names_of_types(kind, tmp_path):
    write_problem(tmp_path)
    solver = make_solver(tmp_path, f"solver_type: {kind.upper()}", regression(tmp_path))
    assert type(solver).__name__ == f"{kind}Solver"
    assert isinstance(solver, SGDSolver)


def test_both_forms_of_the_type(tmp_path):
    with pytest.raises(ModelError, match=r"solver.prototxt: both type \('SGD'\) and solver_type"):
        make_solver(tmp_path, "type: 'SGD' solver_type: ADAM")


def test_unknown_type(tmp_path):
    text = r"solver.prototxt: unknown solver type: adam; did you mean 'Adam'\? \(known types: AdaD"
    with pytest.raises(ModelError, match=text):
        make_solver(tmp_path, "type: 'adam'")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("type: 'AdaGrad' momentum: 0.5", "momentum cannot be used with AdaGrad, got 0.5"),
        ("type: 'RMSProp' momentum: 0.5", "momentum cannot be used with RMSProp, got 0.5"),
        ("type: 'RMSProp' rms_decay: 1", r"rms_decay must lie in \[0, 1\), got 1"),
        ("regularization_type: 'L3'", "unknown regularization type: L3"),
        ("iter_size: 0", "iter_size must be at least 1, got 0"),
    ],
)
def test_wrong_settings(settings, text, tmp_path):
    with pytest.raises(ModelError, match=f"solver.prototxt: {text}"):
        make_solver(tmp_path, settings, regression(tmp_path))


def test_a_type_of_ones_own(tmp_path):
    class SignSolver(SGDSolver):
        """w -= r sign(g)."""

        def update(self, g, history, rate, spare):
            self.xp.sign(g, out=g)
            g *= rate

    try:
        write_problem(tmp_path)
        text = "type: 'Sign' base_lr: 0.5 lr_policy: 'fixed'"
        solver = make_solver(tmp_path, text, regression(tmp_path))
        solver.step(1)
        assert_allclose(abs(solver.net.params["ip"][0].diff), 0.5)
    finally:
        del Solver.registry["Sign"]


def test_a_built_in_type_is_not_replaced():
    class AdamSolver(SGDSolver):
        """Another of that name."""

    assert Solver.registry["Adam"] is pycaffe_lite.AdamSolver


# ---- recorded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
def test_recorded_trajectory(case, tmp_path, monkeypatch):
    """All steps, and those after the fourth once more from the original's own snapshot."""
    monkeypatch.chdir(tmp_path)
    for source in (GOLDEN, GOLDEN / case):
        for path in source.iterdir():
            if path.is_file():
                shutil.copy(path, tmp_path)
    with np.load("trace.npz") as file:
        trace = dict(file)
    finals = {k.split(":")[1] + k[-1]: v for k, v in trace.items() if k.startswith("final")}

    def check(solver):
        for key, expected in finals.items():
            got = solver.net.params[key[:-1]][int(key[-1])].data
            assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())

    solver = pycaffe_lite.get_solver("solver.prototxt")
    for key, value in trace.items():
        if key.startswith("init:"):
            _, layer, k = key.split(":")
            solver.net.params[layer][int(k)].data[...] = value
    losses = []
    for _ in trace["loss"]:
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert_allclose(losses, trace["loss"], rtol=1e-4)
    check(solver)

    resumed = pycaffe_lite.get_solver("solver.prototxt")
    resumed.restore(next(p.name for p in tmp_path.iterdir() if ".solverstate" in p.name))
    assert resumed.iter == 4
    for _ in range(4 * resumed.param.iter_size):  # the original keeps no position in the data
        resumed.net.forward()
    resumed.step(len(trace["loss"]) - 4)
    check(resumed)
