"""The solver's loop: which nets, in what order things happen, what the log says."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_solvers import make_solver, regression, values, write_problem

import pycaffe_lite
from pycaffe_lite import (
    TEST,
    TRAIN,
    MissingFileError,
    ModelError,
    Net,
    SGDSolver,
    get_solver,
    prototxt,
)
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.training.log import SmoothedLoss


@pytest.fixture
def train(tmp_path, caplog):
    """Writes a problem and makes solvers of it; the log is kept from level info on."""
    write_problem(tmp_path)
    caplog.set_level(logging.INFO, logger="pycaffe_lite")

    def make(more="", net=None):
        text = f"lr_policy: 'fixed' base_lr: 0.01 snapshot_prefix: '{tmp_path}/s' {more}"
        return make_solver(tmp_path, text, regression(tmp_path) if net is None else net)

    return make


# ---- which nets --------------------------------------------------------------------------------

STATED = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 't' dummy_data_param {
  shape { dim: [2, 3] } shape { dim: 2 }
  data_filler { type: 'gaussian' } data_filler { type: 'constant' } } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'z' inner_product_param { num_output: 5 } }
layer { name: 'accuracy' type: 'Accuracy' bottom: 'z' bottom: 't' top: 'accuracy'
  include { phase: TEST } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'z' bottom: 't' top: 'loss'
  include { phase: TRAIN } include { phase: TEST stage: 'with-softmax' } }
"""


def test_states_of_test_nets():
    """Caffe's own test of a solver's nets."""
    param = caffe_pb2.SolverParameter(test_interval=10, test_iter=[10, 10])
    param.test_state.add(stage=["with-softmax"])
    param.test_state.add()
    param.net_param.CopyFrom(prototxt.parse_net(STATED))
    solver = SGDSolver(param)
    nets = [solver.net, *solver.test_nets]
    found = [{"loss", "accuracy"} & set(net.blobs) for net in nets]
    assert found == [{"loss"}, {"loss", "accuracy"}, {"accuracy"}]
    assert [net.phase for net in nets] == [TRAIN, TEST, TEST]


LEVELS = """
state { level: 1 stage: 'a' }
layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: [2, 3] } } }
layer { name: 'one' type: 'TanH' bottom: 'x' top: 'one' include { min_level: 1 max_level: 1 } }
layer { name: 'two' type: 'TanH' bottom: 'x' top: 'two' include { min_level: 2 } }
layer { name: 'a' type: 'TanH' bottom: 'x' top: 'a' include { stage: 'a' } }
layer { name: 'b' type: 'TanH' bottom: 'x' top: 'b' include { stage: 'b' } }
"""


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", {"one", "a"}),
        ("train_state { level: 2 }", {"two", "a"}),
        ("train_state { stage: 'b' }", {"one", "a", "b"}),
    ],
)
def test_the_states_of_file_and_solver_are_merged(state, expected, train):
    solver = train(state, net=LEVELS)
    assert {n for n in solver.net.blobs if not n.startswith("x")} == expected


def test_test_nets_in_caffes_order(train, tmp_path):
    (tmp_path / "b.prototxt").write_text(regression(tmp_path, batch=2).replace("squares", "file"))
    text = (
        f"test_net: '{tmp_path}/b.prototxt' test_iter: [1, 2, 3, 4] test_interval: 5"
        " test_net_param { name: 'inline' }"
    )
    solver = train(text)
    names = ["inline", "least_file", "least_squares", "least_squares"]
    assert [net.name for net in solver.test_nets] == names
    assert [net.phase for net in solver.test_nets] == [TEST] * 4


def test_train_and_test_nets_of_their_own(train, tmp_path):
    (tmp_path / "a.prototxt").write_text(regression(tmp_path))
    text = f"train_net: '{tmp_path}/a.prototxt' test_net: '{tmp_path}/a.prototxt' test_iter: 3"
    path = tmp_path / "own.prototxt"
    path.write_text(f"{text} test_interval: 2")
    solver = get_solver(path)
    assert (solver.net.phase, [n.phase for n in solver.test_nets]) == (TRAIN, [TEST])


def test_an_old_net_inside_a_solver(tmp_path):
    path = tmp_path / "x.prototxt"
    path.write_text(
        "train_net_param { input: 'x' input_dim: [2, 3, 4, 5]"
        " layers { name: 'ip' type: INNER_PRODUCT bottom: 'x' top: 'y'"
        " inner_product_param { num_output: 7 } } }"
    )
    assert get_solver(path).net.blobs["y"].shape == (2, 7)


NO_NET = "must specify a train net using one of net, net_param, train_net, train_net_param; "


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("base_lr: 1", NO_NET + "none is set"),
        ("net: 'a' train_net: 'b'", NO_NET + "several are set: net, train_net"),
        ("net_param { } net: 'a'", NO_NET + "several are set: net, net_param"),
        (
            "train_net: 'a' test_iter: 1",
            "test_iter must be specified for each test network: 1 entries for 0 test nets",
        ),
        (
            "net: 'a' test_net: 'b' test_net: 'c' test_iter: 1",
            "test_iter must be specified for each test network: 1 entries for 2 test nets",
        ),
        (
            "net: 'a' test_iter: [1, 1] test_interval: 1 test_state { }",
            "test_state must be unspecified or specified once per test net: 1 for 2 test nets",
        ),
        ("net: 'a' test_iter: 1", "test_interval must be positive where there are test nets"),
        ("net: 'a' test_iter: -1 test_interval: 1", r"test_iter must not be negative, got \[-1\]"),
        ("net: 'a' eval_type: 'x'", r"unknown eval_type: x \(known: classification, detection\)"),
        ("net: 'a' ap_version: '12point'", r"unknown ap_version: 12point \(known: 11point, Max"),
        ("net: 'a' lr_policy: 'no'", "unknown learning rate policy: no"),
        ("net: 'a' lr_policy: 'step'", "stepsize must be positive"),
        ("net: 'a' average_loss: 0", "average_loss must be at least 1, got 0"),
        ("net: 'a' display: -1", "display must not be negative, got -1"),
        ("net_param { layer { name: 'c' type: 'Cnv' } }", "net_param: layer 'c' .* unknown layer"),
    ],
)
def test_wrong_settings(settings, text, tmp_path):
    path = tmp_path / "wrong.prototxt"
    path.write_text(settings)
    with pytest.raises(ModelError, match=f"wrong.prototxt: .*{text}"):
        get_solver(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(MissingFileError, match="Could not open file no.prototxt"):
        get_solver("no.prototxt")
    (tmp_path / "s.prototxt").write_text("net: 'no.prototxt'")
    with pytest.raises(MissingFileError, match=r"no.prototxt.*net of the solver; names are rel"):
        get_solver(tmp_path / "s.prototxt")


def test_errors_in_nets_say_where(tmp_path):
    bad = "layer { name: 'c' type: 'Cnv' }"
    (tmp_path / "net.prototxt").write_text(f"name: 'n'\n{bad}")
    (tmp_path / "s.prototxt").write_text(f"net: '{tmp_path}/net.prototxt'")
    with pytest.raises(ModelError, match=rf"^{tmp_path}/net.prototxt:2: layer 'c' \(Cnv\)"):
        get_solver(tmp_path / "s.prototxt")
    (tmp_path / "s.prototxt").write_text(f"train_net_param {{ {bad} }}")
    with pytest.raises(ModelError, match=rf"^{tmp_path}/s.prototxt: train_net_param: layer 'c'"):
        get_solver(tmp_path / "s.prototxt")


def test_where_nets_come_from(train, tmp_path, caplog):
    train("test_net_param { name: 'n' } test_iter: [1, 1] test_interval: 1")
    net = f"net file: {tmp_path}/net.prototxt"
    lines = [m for m in caplog.messages if m.startswith("Creating")]
    assert lines[0] == f"Creating training net from {net}"
    assert "Creating test net (#0) specified by test_net_param" in lines
    assert f"Creating test net (#1) specified by {net}" in lines


def test_an_unknown_field_is_an_error_with_its_line(tmp_path):
    (tmp_path / "s.prototxt").write_text("base_lr: 1\nbase_rate: 2")
    with pytest.raises(ModelError, match=r"s.prototxt:2:\d+: .*base_rate"):
        get_solver(tmp_path / "s.prototxt")


def test_weights_go_into_all_nets(train, tmp_path):
    first = train()
    first.net.save(tmp_path / "w.caffemodel")
    first.net.save_hdf5(tmp_path / "w.caffemodel.h5")
    names = f"{tmp_path}/w.caffemodel.h5, {tmp_path}/w.caffemodel"
    solver = train(f"weights: '{names}' test_iter: 1 test_interval: 5")
    for net in (solver.net, *solver.test_nets):
        assert_array_equal(net.params["ip"][0].data, values(first)[0])


def test_random_seed(train):
    first, again, other = train("random_seed: 5"), train("random_seed: 5"), train("random_seed: 6")
    assert_array_equal(values(first)[0], values(again)[0])
    assert not np.array_equal(values(first)[0], values(other)[0])


def test_each_solver_draws_from_a_seed_of_its_own(train, monkeypatch):
    alone = train("random_seed: 6")
    monkeypatch.setattr("pycaffe_lite.process.solver_rank", lambda: 1)
    assert_array_equal(values(train("random_seed: 5"))[0], values(alone)[0])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", "solver"), ("snapshot_prefix: '{}/x'", "x"), ("snapshot_prefix: '{}/d'", "d/solver")],
)
def test_snapshot_prefix(setting, expected, tmp_path):
    (tmp_path / "d").mkdir()
    write_problem(tmp_path)
    solver = make_solver(tmp_path, setting.format(tmp_path), regression(tmp_path))
    assert solver.param.snapshot_prefix == f"{tmp_path}/{expected}"
    solver.snapshot()
    assert (tmp_path / f"{expected}_iter_0.solverstate").exists()


def test_the_prefix_of_a_message_is_taken_as_it_is(tmp_path):
    """Only files have a name to put behind that of a folder."""
    write_problem(tmp_path)
    param = caffe_pb2.SolverParameter(
        base_lr=0.01, lr_policy="fixed", snapshot_prefix=f"{tmp_path}/"
    )
    param.net_param.CopyFrom(prototxt.parse_net(regression(tmp_path)))
    solver = get_solver(param)
    solver.step(1)
    solver.snapshot()
    assert (tmp_path / "_iter_1.solverstate").exists()


# ---- pycaffe's interface -----------------------------------------------------------------------


def test_solve(train, tmp_path):
    solver = train("max_iter: 20 momentum: 0.9")
    assert solver.iter == 0
    assert solver.solve() is None
    assert solver.iter == 20
    assert (tmp_path / "s_iter_20.caffemodel").exists()
    assert solver.lr == pytest.approx(0.01)


def test_training_lowers_the_loss(train):
    solver = train("momentum: 0.9")
    solver.net.forward()
    before = float(solver.net.blobs["loss"].data)
    solver.step(50)
    assert float(solver.net.blobs["loss"].data) < before / 10


def test_steps_that_are_none(train):
    solver = train("max_iter: 1")
    solver.step(0)
    solver.step(-1)
    assert solver.iter == 0
    solver.step(3)
    solver.solve()
    assert solver.iter == 3


def test_param(train):
    solver = train("max_iter: 7 display: 3")
    assert (solver.param.max_iter, solver.param.display) == (7, 3)
    assert solver.param.layer_wise_reduce
    solver.param.base_lr = 0.5
    assert solver.lr == 0.5


def test_a_net_outlives_its_solver(train):
    net = train().net
    assert net.forward()["loss"].shape == ()


def test_share_weights(train, tmp_path):
    solver = train()
    net = Net(str(tmp_path / "net.prototxt"), TEST)
    solver.share_weights(net)
    solver.step(1)
    assert_array_equal(net.params["ip"][0].data, values(solver)[0])


def test_the_order_of_an_iteration(train):
    solver = train("test_iter: 1 test_interval: 1 iter_size: 2")
    seen = []

    def note(what):
        grads = [float(abs(b.diff).sum()) for b in solver.net.params["ip"]]
        seen.append((what, solver.iter, any(grads)))

    solver.test_nets[0].before_forward(lambda k: k or note("test"))
    solver.net.before_forward(lambda k: k or note("forward"))
    solver.net.after_backward(lambda k: k or note("backward"))
    solver.add_callback(lambda: note("start"), lambda: note("ready"))
    solver.step(2)
    once = [
        ("test", False), ("start", False), ("forward", False), ("backward", True),
        ("forward", True), ("backward", True), ("ready", True),
    ]  # fmt: skip
    assert seen == [(what, i, grads) for i in range(2) for what, grads in once]


def test_gradients_are_exchanged_with_nobody(train):
    with pytest.raises(RuntimeError, match="NCCL"):
        train().add_callback(object())


def test_no_policy(train, tmp_path):
    solver = make_solver(tmp_path, "base_lr: 1", regression(tmp_path))
    with pytest.raises(ModelError, match="no lr_policy is set"):
        solver.step(1)


# ---- tests -------------------------------------------------------------------------------------


def test_means_over_batches(train, caplog):
    text = "test_iter: 3 test_interval: 2 test_compute_loss: true"
    solver = train(text, net=STATED.replace(" stage: 'with-softmax'", ""))
    losses = []
    last = len(solver.test_nets[0].layers) - 1
    solver.test_nets[0].after_forward(
        lambda k: k == last and losses.append(float(solver.test_nets[0].blobs["loss"].data))
    )
    caplog.clear()
    solver.step(1)
    mean = sum(losses) / 3
    lines = [r.getMessage() for r in caplog.records]
    assert len(losses) == 3
    assert f"    Test net output #1: loss = {mean:g} (* 1 = {mean:g} loss)" in lines
    assert f"Test loss: {mean:g}" in lines


def test_initial_test_can_be_left_out(train, caplog):
    train("test_iter: 1 test_interval: 2 test_initialization: false").step(3)
    tests = [m for m in caplog.messages if "Testing" in m]
    assert tests == ["Iteration 2, Testing net (#0)"]


def test_test_nets_share_the_weights(train):
    solver = train("test_iter: 1 test_interval: 2")
    solver.step(2)
    assert_array_equal(solver.test_nets[0].params["ip"][0].data, values(solver)[0])


def test_every_number_of_an_output_has_a_mean(train, caplog):
    """https://github.com/BVLC/caffe/pull/2484"""
    train("test_iter: 2 test_interval: 1 test_initialization: true", net=STATED.replace(
        "top: 'accuracy'", "top: 'accuracy' top: 'each'")).step(1)  # fmt: skip
    lines = [m for m in caplog.messages if "Test net output" in m]
    assert [re.sub(" = .*", "", line) for line in lines] == [
        "    Test net output #0: accuracy",
        *(f"    Test net output #{k}: each" for k in range(1, 6)),
    ]


def test_outputs_that_change_their_size_have_no_mean(train):
    class Growing(pycaffe_lite.Layer):
        """A top with one number more each time."""

        bottoms, size, reshapes_every_time = 0, 1, True

        def reshape(self, bottom, top):
            self.size += 1
            top[0].reshape(self.size)

        def forward(self, bottom, top):
            top[0].data[...] = 0

    try:
        net = regression_with("layer { name: 'g' type: 'Growing' top: 'g' }", train)
        with pytest.raises(ModelError, match="output 'g' of test net 'least_squares' has no mean"):
            train("test_iter: 2 test_interval: 1", net=net).step(1)
    finally:
        del pycaffe_lite.Layer.registry["Growing"]


def regression_with(more, train):
    train()
    return Path(train().param.net).read_text() + more


# ---- stopping ----------------------------------------------------------------------------------


def test_actions_after_iterations(train, tmp_path, caplog):
    solver = train("max_iter: 10")
    wishes = iter([None, "snapshot", "none", "stop"])
    solver.action = lambda: next(wishes)
    solver.solve()
    assert solver.iter == 4
    names = {p.name for p in tmp_path.iterdir() if "state" in p.name}
    assert names == {"s_iter_2.solverstate", "s_iter_4.solverstate"}
    assert caplog.messages[-1] == "Optimization stopped early."


def test_actions_in_tests(train, tmp_path, caplog):
    solver = train("max_iter: 10 test_iter: 5 test_interval: 1")
    wishes = iter(["snapshot", "none", "stop"])
    solver.action = lambda: next(wishes)
    solver.solve()
    assert solver.iter == 0
    assert (tmp_path / "s_iter_0.solverstate").exists()
    assert "Test interrupted." in caplog.messages
    solver.action = None
    solver.step(1)
    assert solver.iter == 1


def test_another_action(train):
    solver = train()
    solver.action = lambda: "halt"
    with pytest.raises(ValueError, match="'none', 'snapshot' or 'stop', not 'halt'"):
        solver.step(1)


def test_snapshots_at_intervals(train, tmp_path):
    train("snapshot: 2 max_iter: 5").solve()
    names = sorted(p.name for p in tmp_path.iterdir() if "model" in p.name)
    assert names == [f"s_iter_{k}.caffemodel" for k in (2, 4, 5)]


def test_a_snapshot_that_was_due_is_not_written_again(train, caplog):
    train("snapshot: 2 max_iter: 4").solve()
    written = [m for m in caplog.messages if m.startswith("Snapshotting to")]
    assert [m[-17:] for m in written] == ["iter_2.caffemodel", "iter_4.caffemodel"]


def test_no_snapshot_after_training(train, tmp_path):
    train("max_iter: 2 snapshot_after_train: false").solve()
    assert not [p for p in tmp_path.iterdir() if "model" in p.name]


# ---- the log -----------------------------------------------------------------------------------

NUMBER = r"[-+.e\d]+"


def test_the_log_of_a_training(train, caplog, tmp_path):
    """Line by line as the original writes it, names of files and numbers aside."""
    text = (
        "test_iter: 5 test_interval: 10 gamma: 0.5 stepsize: 12 momentum: 0.9 max_iter: 20"
        " display: 4 average_loss: 3 snapshot: 12"
    )
    solver = train(text)
    solver.param.lr_policy = "step"
    solver.param.base_lr = 0.1
    caplog.clear()
    solver.solve()

    def shown(i, rate):
        return [
            rf"Iteration {i} \({NUMBER} iter/s, {NUMBER}s/4 iters\), loss = {NUMBER}",
            rf"    Train net output #0: loss = {NUMBER} \(\* 1 = {NUMBER} loss\)",
            rf"Iteration {i}, lr = {rate}",
        ]

    def tested(i):
        return [
            rf"Iteration {i}, Testing net \(#0\)",
            rf"    Test net output #0: loss = {NUMBER} \(\* 1 = {NUMBER} loss\)",
        ]

    def written(i):
        return [
            rf"Snapshotting to binary proto file .*/s_iter_{i}.caffemodel",
            rf"Snapshotting solver state to binary proto file .*/s_iter_{i}.solverstate",
        ]

    expected = [
        "Solving least_squares", "Learning Rate Policy: step",
        *tested(0), *shown(0, 0.1), *shown(4, 0.1), *shown(8, 0.1), *tested(10),
        *written(12), *shown(12, 0.05), *shown(16, 0.05), *written(20),
        f"Iteration 20, loss = {NUMBER}", *tested(20), "Optimization Done.",
    ]  # fmt: skip
    lines = [m for m in caplog.messages if not m.startswith(("weights", "shared"))]
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_numbers_are_written_as_cpp_does(train, caplog):
    solver = train("display: 1")
    solver.param.base_lr = 1e-5
    for blob in solver.net.params["ip"]:
        blob.data[...] = 1234.5678
    solver.step(1)
    assert "Iteration 0, lr = 1e-05" in caplog.messages
    loss = float(solver.net.blobs["loss"].data)
    assert f"    Train net output #0: loss = {loss:.6g} (* 1 = {loss:.6g} loss)" in caplog.messages


def test_weighted_losses_are_summed(train, caplog):
    """https://github.com/BVLC/caffe/issues/5820"""
    net = regression_with(
        "layer { name: 'far' type: 'EuclideanLoss' bottom: 'z' bottom: 'x1' top: 'far'"
        " loss_weight: 0.25 } layer { name: 'part' type: 'InnerProduct' bottom: 'x' top: 'x1'"
        " inner_product_param { num_output: 1 } }",
        train,
    )
    head, far = net.split("layer { name: 'far'")
    far, part = far.split(" layer { name: 'part'")
    solver = train(
        "display: 1", net=f"{head} layer {{ name: 'part'{part} layer {{ name: 'far'{far}"
    )
    caplog.clear()
    solver.step(1)
    loss, far = (float(solver.net.blobs[k].data) for k in ("loss", "far"))
    assert (
        f"    Train net output #0: far = {far:g} (* 0.25 = {0.25 * far:g} loss)" in caplog.messages
    )
    (line,) = [m for m in caplog.messages if "iter/s" in m]
    assert float(line.rpartition(" ")[2]) == pytest.approx(loss + 0.25 * far, rel=1e-4)


def test_the_loss_of_an_iteration_is_the_mean_over_its_batches(train, caplog, tmp_path):
    frozen = regression(tmp_path, mults=(0, 1, 0, 1))
    solver = train("display: 1 iter_size: 2", net=frozen)
    solver.step(1)
    (line,) = [m for m in caplog.messages if "iter/s" in m]
    each = []
    for _ in range(2):  # the same two batches again
        solver.net.forward()
        each.append(float(solver.net.blobs["loss"].data))
    assert each[0] != each[1]
    assert float(line.rpartition(" ")[2]) == pytest.approx(np.mean(each), rel=1e-4)


@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_smoothed_loss(window):
    losses = [5.0, 3.0, 4.0, 8.0, 1.0, 2.0]
    smoothed = SmoothedLoss()
    smoothed.restart(window)
    assert smoothed.value == math.inf
    for k, loss in enumerate(losses):
        smoothed.add(k, loss)
        assert smoothed.value == pytest.approx(np.mean(losses[max(0, k + 1 - window) : k + 1]))


def test_clipping_is_logged(train, caplog):
    solver = train("clip_gradients: 1e-3")
    solver.step(1)
    (line,) = [m for m in caplog.messages if m.startswith("Gradient clipping")]
    pattern = (
        rf"Gradient clipping: scaling down gradients \(L2 norm ({NUMBER}) > 0.001\)"
        rf" by scale factor ({NUMBER})"
    )
    norm, scale = re.fullmatch(pattern, line).groups()
    assert float(norm) * float(scale) == pytest.approx(1e-3, rel=1e-4)
    grads = [b.diff / 0.01 for b in solver.net.params["ip"]]
    assert math.sqrt(sum((g**2).sum() for g in grads)) == pytest.approx(1e-3, rel=1e-4)


def test_a_test_net_without_tests(train, caplog):
    """https://github.com/s9xie/hed has `test_iter: 0` in its solver."""
    solver = train("test_iter: 0 test_interval: 2 test_compute_loss: true max_iter: 2")
    solver.solve()
    assert [m for m in caplog.messages if ", Testing net (#0)" in m] == [
        "Iteration 0, Testing net (#0)",
        "Iteration 2, Testing net (#0)",
    ]
    assert not any("Test " in m for m in caplog.messages)
    assert_array_equal(solver.test_nets[0].params["ip"][0].data, solver.net.params["ip"][0].data)


def test_clipping_to_nothing(train):
    """A norm of 0 is not above the limit."""
    solver = train("clip_gradients: 0")
    before = [blob.data.copy() for blob in solver.net.params["ip"]]
    for grad in (0.0, 2.0):
        for blob in solver.net.params["ip"]:
            blob.diff[...] = grad
        solver.apply_update()
        for blob, data in zip(solver.net.params["ip"], before, strict=True):
            assert_array_equal(blob.data, data)


def test_clipping_leaves_gradients_beside_nan(train):
    """As in Caffe: NaN is not above the limit either, so what is finite stays as it is."""
    solver = train("clip_gradients: 1")
    weights, bias = solver.net.params["ip"]
    weights.diff[...], bias.diff[...] = np.nan, 8
    solver.apply_update()
    assert_array_equal(bias.diff, np.float32(8) * np.float32(solver.last_lr))


def test_debug_info_at_displays_and_in_tests(train, caplog):
    solver = train("debug_info: true display: 2 test_iter: 1 test_interval: 3")
    caplog.clear()
    solver.step(4)
    counts = Counter(re.findall(r"\[(\w+)\] Layer loss", "\n".join(caplog.messages)))
    assert counts == {"Forward": 2 + 2, "Backward": 2}


# ---- NaN ---------------------------------------------------------------------------------------


def test_divergence_is_a_warning_once(train, caplog):
    solver = train()
    solver.step(3)
    solver.net.params["ip"][0].data[0, 7] = np.nan
    solver.step(40)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line == "Iteration 3, loss = nan: training has diverged"


def test_the_first_bad_blob(train):
    solver = train()
    solver.step(1)
    assert solver.first_bad_blob() is None
    solver.net.params["ip"][1].diff[0] = np.inf
    assert solver.first_bad_blob() == "gradient of param 1 of layer 'ip'"
    solver.net.blobs["z"].data[2] = np.nan
    assert solver.first_bad_blob() == "data of blob 'z' (layer 'ip')"
    solver.net.params["ip"][0].data[0, 3] = np.nan
    assert solver.first_bad_blob() == "param 0 of layer 'ip'"


def test_large_finite_values_are_not_bad(train):
    solver = train()
    solver.step(1)
    solver.net.blobs["x"].data[...] = 3e38
    assert solver.first_bad_blob() is None


def test_values_by_hand_after_one_test(train, tmp_path):
    """A test leaves the net in training as it is."""
    tested, plain = train("random_seed: 2 test_iter: 2 test_interval: 1"), train("random_seed: 2")
    for solver in (tested, plain):
        solver.step(3)
    for a, b in zip(values(tested), values(plain), strict=True):
        assert_allclose(a, b)


def test_the_solver_file_may_go(train, tmp_path):
    solver = train()
    shutil.move(tmp_path / "solver.prototxt", tmp_path / "gone")
    solver.step(1)
    solver.snapshot()
