"""`pycaffe-lite plot-log`: what its panels hold, the picture, the tables, the errors."""

from __future__ import annotations

import math
import shutil
import struct
import sys

import pytest
from caffe_logs import FOLDER, write_data

from pycaffe_lite.__main__ import main
from pycaffe_lite.logs import plot as log_plot
from pycaffe_lite.logs.reader import read_log
from pycaffe_lite.logs.run import Row, Run

LOG = str(FOLDER / "train.log")


def size_of(path):
    """(width, height) of a PNG file."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


def plot(*args):
    return main(["plot-log", *map(str, args)])


# ---- panels -------------------------------------------------------------------------------------


def run_of(losses, **tests):
    """A run that displays every ten iterations, a second each, and is tested as often."""
    run = Run([Row(10 * k, float(k), {}, loss, 0.1) for k, loss in enumerate(losses)])
    run.tests[0] = [
        Row(10 * k, k + 0.5, dict(zip(tests, values, strict=True)))
        for k, values in enumerate(zip(*tests.values(), strict=True))
    ]
    return run


def test_what_goes_into_which_panel():
    run = run_of([3, 2, 1], accuracy=[0.1, 0.5, 1], top5=[0, 1, 1], loss=[9, 8, 7], error=[5, 4, 3])
    run.train[1].outputs["aux"] = 4.0
    run.losses = {"loss", "aux"}
    found = log_plot.panels([run])
    assert [(p.label, [c.name for c in p.curves]) for p in found] == [
        ("loss", ["train loss", "train aux", "test loss"]),
        ("outputs", ["test accuracy", "test top5"]),
        ("error", ["test error"]),
        ("learning rate", ["learning rate"]),
    ]
    assert (found[0].curves[1].x, found[0].curves[1].y) == ([10], [4.0])
    assert (found[1].curves[0].x, found[1].curves[0].y) == ([0, 10, 20], [0.1, 0.5, 1])


def test_seconds_as_the_axis():
    (loss, accuracy, _) = log_plot.panels([run_of([3, 2], accuracy=[0.5, 0.75])], "seconds")
    assert loss.curves[0].x == [0, 1]
    assert accuracy.curves[0].x == [0.5, 1.5]
    assert accuracy.label == "accuracy"


def test_the_loss_of_one_batch_only_where_it_differs_from_the_mean():
    run = run_of([3, 2])
    for row in run.train:
        row.outputs["loss"] = row.loss
    assert [c.role for c in log_plot.panels([run])[0].curves] == ["smoothed"]
    run.train[1].outputs["loss"] = 1.5
    assert [c.role for c in log_plot.panels([run])[0].curves] == ["smoothed", "batch"]


def test_names_of_googlenet_and_outputs_with_several_numbers():
    run = Run(tests={0: [Row(0, 0.0, {"loss1/top-1": 0.5, "a/loss": 2, "b": 3, "b[1]": 4})]})
    assert [(p.label, [c.output for c in p.curves]) for p in log_plot.panels([run])] == [
        ("loss", ["a/loss"]),
        ("loss1/top-1", ["loss1/top-1"]),
        ("b", ["b", "b[1]"]),
    ]


def test_the_axis_of_learning_rates():
    run = run_of([3, 2])
    assert not log_plot.panels([run])[-1].log
    run.train[1].rate = 0.01
    assert log_plot.panels([run])[-1].log
    run.train[1].rate = 0.0
    assert not log_plot.panels([run])[-1].log
    assert log_plot.panels([run], log_loss=True)[0].log


def test_a_run_without_rates_has_no_such_panel():
    run = run_of([3, 2])
    for row in run.train:
        row.rate = math.nan
    assert [p.label for p in log_plot.panels([run])] == ["loss"]


# ---- the picture --------------------------------------------------------------------------------


def test_a_picture(tmp_path, capsys):
    out = tmp_path / "x.png"
    assert plot(LOG, "-o", out) == 0
    assert capsys.readouterr().err == f"wrote {out}\n"
    width, height = size_of(out)
    assert (width, height > 900) == (1045, True)


@pytest.mark.slow
def test_several_logs_over_seconds(tmp_path):
    other = tmp_path / "other.log"
    other.write_text(
        (FOLDER / "train.log").read_text().replace("= 1.0", "= nan").replace("0.1", "inf")
    )
    assert plot(LOG, other, "--x", "seconds", "--log-loss", "-o", tmp_path / "x.png") == 0
    assert size_of(tmp_path / "x.png")[0] == 1045


def test_names_of_runs(tmp_path, monkeypatch):
    """The file's; the whole path where files share it; with a number where it has several."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "x.log").write_text("Iteration 0, loss = 1\n")
    (tmp_path / "b" / "x.log").write_text("Iteration 3, loss = 1\n")
    (tmp_path / "y.log").write_text("Iteration 5, loss = 1\nIteration 0, loss = 1\n")
    seen = []
    monkeypatch.setattr(log_plot, "png", lambda runs, x, log_loss: seen.append(runs) or b"png")
    assert plot("a/x.log", "b/x.log", "y.log", "-o", "x.png") == 0
    assert [name for name, _ in seen[0]] == ["a/x.log", "b/x.log", "y.log, run 1", "y.log, run 2"]
    assert (tmp_path / "x.png").read_bytes() == b"png"


# ---- tables -------------------------------------------------------------------------------------


def test_tables_as_parse_log_writes_them(tmp_path):
    assert plot(LOG, "--csv", tmp_path / "new") == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "train.log.test", "train.log.train",
    ]  # fmt: skip
    train = (tmp_path / "new" / "train.log.train").read_text().splitlines()
    assert train[0] == "NumIters,Seconds,LearningRate,loss"
    assert train[4] == "12.0,0.004232,0.05,1.01302"
    test = (tmp_path / "new" / "train.log.test").read_text().splitlines()
    assert test[0] == "NumIters,Seconds,LearningRate,accuracy,loss"
    assert test[1:] == [
        "0.0,0.003746,0.1,0.3,1.57103",
        "10.0,0.004173,0.1,0.566667,1.10611",
        "20.0,0.004749,0.05,0.6,0.971587",
        "30.0,0.005087,0.025,0.6,0.901353",
    ]


def test_tables_of_several_runs_and_test_nets(tmp_path):
    log = tmp_path / "y.log"
    log.write_text(
        "Iteration 5, loss = 1\nIteration 0, loss = 1\n"
        "Iteration 2, Testing net (#1)\nTest net output #0: a = 3\n"
    )
    assert plot(log, "--csv", tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "y.log", "y.log.run1.train", "y.log.run2.test1", "y.log.run2.train",
    ]  # fmt: skip


# ---- our own logs -------------------------------------------------------------------------------


def train(log, capsys, *args):
    """Train the tiny net with its log appended to a file and its table to another."""
    assert main(["train", "-solver=solver.prototxt", "-log_csv=out.csv", *args]) == 0
    with log.open("a") as file:
        file.write(capsys.readouterr().err)


def same(log, table):
    """Do two runs say the same? In the log's six digits."""
    assert [row.iteration for row in log] == [row.iteration for row in table]
    for a, b in zip(log, table, strict=True):
        assert a.outputs == pytest.approx(b.outputs, rel=1e-5)
        assert (a.loss is None) == (b.loss is None)
        assert a.loss is None or a.loss == pytest.approx(b.loss, rel=1e-5)
        assert (a.rate, a.seconds) == pytest.approx((b.rate, b.seconds), rel=1e-5, abs=0.2)


def test_log_and_table_of_the_train_command(tmp_path, monkeypatch, capsys):
    """At once, and gone on with from a snapshot."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    write_data(tmp_path)
    shutil.copy(FOLDER / "solver.prototxt", "solver.prototxt")
    shutil.copy(FOLDER / "tiny.prototxt", "train.prototxt")
    log = tmp_path / "train.log"
    for args in ((), ("-snapshot=snap_iter_20.solverstate",)):
        train(log, capsys, *args)
        (run,), (table,) = read_log(log), read_log("out.csv")
        assert [row.iteration for row in run.train] == [0, 4, 8, 12, 16, 20, 24, 28]
        assert [row.iteration for row in run.tests[0]] == [0, 10, 20, 30]
        same(run.train, table.train)
        same(run.tests[0], table.tests[0])


# ---- errors -------------------------------------------------------------------------------------


def error_of(capsys, *args):
    assert plot(*args) == 1
    return capsys.readouterr().err


def test_what_is_no_log_is_told_and_nothing_written(tmp_path, capsys):
    (tmp_path / "a.log").write_text("hello\n")
    said = error_of(capsys, LOG, tmp_path / "a.log", "-o", tmp_path / "x.png", "--csv", tmp_path)
    assert "a.log is no training log" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
    assert "log not found" in error_of(capsys, tmp_path / "b.log", "-o", tmp_path / "x.png")


def test_seconds_of_a_log_without_times(tmp_path, capsys):
    (tmp_path / "a.log").write_text("Iteration 5, loss = 1\n")
    said = error_of(capsys, tmp_path / "a.log", "--x", "seconds", "-o", tmp_path / "x.png")
    assert "a.log: its lines say no times; draw it with --x iterations" in said


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = error_of(capsys, LOG, "-o", tmp_path / "x.png")
    assert "pip install 'pycaffe-lite[plot]'" in said
    assert plot(LOG, "--csv", tmp_path) == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((LOG,), "give -o FILE.png, --csv DIR or both"),
        ((LOG, "-o", "x.pdf"), "does not end in .png"),
        (("-o", "x.png"), "LOG"),
    ],
)
def test_usage(args, said, capsys):
    with pytest.raises(SystemExit) as error:
        plot(*args)
    assert error.value.code == 2
    assert said in capsys.readouterr().err
