"""`pycaffe-lite train`: its flags, its lines, what it writes and what it refuses."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from caffe_logs import FOLDER, NUMBER, masked, messages, recorded, write_data
from fake_device import FakeOps
from numpy.testing import assert_array_equal

from pycaffe_lite import TRAIN, Layer, Net, device, get_solver
from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import _caffe
from pycaffe_lite.logs.reader import read_log
from pycaffe_lite.ops import gpu
from pycaffe_lite.training.csv_table import TrainingCsv
from pycaffe_lite.training.display import Pace


def leave(*args):
    """The exit status where the process ends, or where the command does."""
    try:
        return main(args)
    except SystemExit as error:
        return error.code


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder to be in, with the recorded solver, its net, and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    write_data(tmp_path)
    shutil.copy(FOLDER / "solver.prototxt", "solver.prototxt")
    shutil.copy(FOLDER / "tiny.prototxt", "train.prototxt")
    return tmp_path


def change(**settings):
    """Other settings in solver.prototxt, values as in the file; None takes one away."""
    path = Path("solver.prototxt")
    text = path.read_text()
    for name, value in settings.items():
        text = re.sub(rf"(?m)^{name}:.*\n", "", text)
        text += "" if value is None else f"{name}: {value}\n"
    path.write_text(text)


def trained(capsys, *args):
    """The messages of a training that goes well."""
    assert main(["train", "-solver", "solver.prototxt", *args]) == 0
    return messages(capsys.readouterr().err)


def refused(capsys, *args):
    """The one line of an error."""
    assert main(["train", *args]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("pycaffe-lite: error: ")
    return last.removeprefix("pycaffe-lite: error: ")


def weights_in(path):
    net = Net("train.prototxt", TRAIN, weights=path)
    return [blob.data for blobs in net.params.values() for blob in blobs]


# ---- the lines ----------------------------------------------------------------------------------


def without_times(message):
    """Masked; the two figures of speed, too."""
    return re.sub(r"\(\S+ iter/s, \S+s/4 iters\)", "(N)", masked(message))


@pytest.mark.usefixtures("tiny")
def test_lines_are_those_of_caffe(capsys):
    """But for the state of the test net, where Caffe leaves `level: 0` out."""
    found = trained(capsys)
    found[8] = found[8].replace("  phase: TEST\n  level: 0\n", "  phase: TEST\n")
    assert list(map(without_times, found)) == list(map(without_times, recorded("train.log")))


@pytest.mark.usefixtures("tiny")
def test_learning_rates_and_tests_are_the_recorded_ones(capsys):
    """They do not depend on the data."""
    kinds = ("Iteration", "Snapshotting", "Learning")

    def shown(lines):
        lines = [x for x in lines if x.startswith(kinds) and "loss" not in x]
        return [NUMBER.sub(lambda m: str(float(m[0])), x) for x in lines]

    assert shown(trained(capsys)) == shown(recorded("train.log"))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("how", ["flag", "environment"])
def test_less_in_the_log(how, monkeypatch, capsys):
    args = ["train", "-solver=solver.prototxt", "-log_csv=out.csv"]
    if how == "flag":
        args.append("-minloglevel=1")
    else:
        monkeypatch.setenv("GLOG_minloglevel", "1")
    assert main(args) == 0
    assert capsys.readouterr().err == ""
    assert len(rows_of(Path("out.csv"))) == 12
    assert Path("snap_iter_30.solverstate").exists()


@pytest.mark.usefixtures("tiny")
def test_debug_info_where_a_display_is_due(capsys):
    change(debug_info="true", max_iter=5, test_iter=None, test_interval=None)
    found = trained(capsys)
    backward = [k for k, line in enumerate(found) if "Layer ip2, param blob 0 diff" in line]
    assert len(backward) == 2  # iterations 0 and 4
    (first,) = [k for k, line in enumerate(found) if line.startswith("Iteration 0 (")]
    assert backward[0] < first < backward[1]


# ---- flags --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "args",
    [
        ["-solver", "solver.prototxt"],
        ["--solver", "solver.prototxt"],
        ["-solver=solver.prototxt", "-sigint_effect=none", "-sighup_effect=stop"],
        ["--solver=solver.prototxt", "--logtostderr=1"],
    ],
)
def test_spellings(args):
    change(max_iter=2, snapshot_prefix="'here'")
    assert main(["train", *args]) == 0
    assert Path("here_iter_2.caffemodel").exists()


@pytest.mark.usefixtures("tiny")
def test_level_and_stages_reach_the_training_net(capsys):
    with Path("train.prototxt").open("a") as file:
        file.write(
            "layer { name: 'extra' type: 'Reduction' bottom: 'ip2' top: 'sum'"
            " include { min_level: 2 stage: 'more' } }"
        )
    change(max_iter=0, test_iter=None, test_interval=None)
    line = "This network produces output sum"
    assert line in trained(capsys, "-level=2", "-stage=some,more")
    assert line not in trained(capsys, "-level=2")
    assert line not in trained(capsys, "-stage=more")


@pytest.mark.usefixtures("tiny")
def test_weights_take_the_place_of_the_solvers():
    net = Net("train.prototxt", TRAIN)
    net.save("first.caffemodel")
    net.params["ip2"][0].data[...] = 7
    net.save_hdf5("second.caffemodel.h5")
    expected = [blob.data for blobs in net.params.values() for blob in blobs]
    change(weights="'absent.caffemodel'", max_iter=0, snapshot=0, snapshot_prefix="'out'")
    args = ["-solver=solver.prototxt", "-weights", "first.caffemodel, second.caffemodel.h5"]
    assert main(["train", *args]) == 0
    for ours, wanted in zip(weights_in("out_iter_0.caffemodel"), expected, strict=True):
        assert_array_equal(ours, wanted)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("end", ["", ".h5"])
def test_resumed_is_uninterrupted(end, capsys):
    change(snapshot_format="HDF5" if end else "BINARYPROTO")
    trained(capsys)
    whole = weights_in(f"snap_iter_30.caffemodel{end}")
    Path(f"snap_iter_30.caffemodel{end}").unlink()
    change(weights="'absent.caffemodel'")
    found = trained(capsys, f"-snapshot=snap_iter_20.solverstate{end}")
    assert found.index(f"Resuming from snap_iter_20.solverstate{end}") < found.index(
        "Starting Optimization"
    )
    assert "Iteration 20, Testing net (#0)" in found
    assert "Iteration 10, Testing net (#0)" not in found
    for ours, theirs in zip(weights_in(f"snap_iter_30.caffemodel{end}"), whole, strict=True):
        assert_array_equal(ours, theirs)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "a solver definition to train is needed: -solver FILE"),
        (["-solver=s", "-snapshot=a", "-weights=b"], "-snapshot to resume training or -weights"),
        (["-solver=s", "-sigint_effect=halt"], "-sigint_effect must be stop, snapshot or none"),
        (["-solver=s", "-sighup_effect=halt"], "-sighup_effect must be stop, snapshot or none"),
        (["-solver=s", "-iterations=5"], "unknown flag: -iterations=5"),
        (["-solvre=s"], "unknown flag: -solvre=s; did you mean 'solver'?"),
        (["-solver=s", "-gpu=one"], "-gpu takes numbers with commas between, or all"),
        (["-solver"], "the flag -solver needs a value"),
        (["solver.prototxt"], "only flags are taken, not 'solver.prototxt'"),
    ],
)
def test_wrong_usage_is_status_1(args, said, capsys):
    shutil.copy("solver.prototxt", "s")
    assert leave("train", *args) == 1
    err = capsys.readouterr().err
    assert "usage: pycaffe-lite train [FLAGS]" in err
    assert said in err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr_policy": "'stp'"}, "solver.prototxt: unknown learning rate policy: stp; did you"),
        ({"type": "'Adma'"}, "solver.prototxt: unknown solver type: Adma; did you mean 'Adam'"),
        ({"net": None}, "solver.prototxt: must specify a train net using one of net"),
        ({"net": "'no.prototxt'"}, "(net of the solver; names are relative to the working"),
        ({"snapshot_prefix": "'no/s'"}, "cannot write to snapshot prefix 'no/s': there is no"),
        ({"weights": "'no.caffemodel'"}, "no.caffemodel"),
    ],
)
def test_wrong_solvers_are_one_line(settings, said, capsys):
    change(**settings)
    assert said in refused(capsys, "-solver=solver.prototxt")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-solver=absent.prototxt"], "absent.prototxt"),
        (["-solver=solver.prototxt", "-snapshot=no.solverstate"], "no.solverstate"),
        (["-solver=solver.prototxt", "-weights=no.caffemodel"], "no.caffemodel"),
        (["-solver=solver.prototxt", "-log_csv=no/a.csv"], "no/a.csv"),
        (["-solver=solver.prototxt", "-snapshot=train.prototxt"], "train.prototxt"),
    ],
)
def test_missing_files_are_one_line(args, said, capsys):
    assert said in refused(capsys, *args)


@pytest.mark.usefixtures("tiny")
def test_weights_given_as_snapshot(capsys):
    """https://github.com/BVLC/caffe/issues/4181"""
    Net("train.prototxt", TRAIN).save("net.caffemodel")
    said = refused(capsys, "-solver=solver.prototxt", "-snapshot=net.caffemodel")
    assert "expects a .solverstate file" in said
    assert said.endswith("here, -weights does")


@pytest.mark.usefixtures("tiny")
def test_a_snapshot_given_as_weights(capsys):
    change(max_iter=0, snapshot=0)
    trained(capsys)
    said = refused(capsys, "-solver=solver.prototxt", "-weights=snap_iter_0.solverstate")
    assert "snap_iter_0.solverstate" in said
    assert said.endswith("; a .solverstate goes to -snapshot")
    assert "solver.prototxt" not in said


# ---- the device ---------------------------------------------------------------------------------


class Runtime:
    """Stands for CuPy's, with two devices."""

    @staticmethod
    def getDeviceCount():
        return 2

    @staticmethod
    def getDeviceProperties(device_id):
        return {"name": b"Pretended %d" % device_id}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "settings"),
    [(["-gpu=1"], {}), ([], {"solver_mode": "GPU", "device_id": 1}), (["-gpu", "1"], {})],
)
def test_on_a_gpu(args, settings, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(_caffe, "cuda_runtime", Runtime)
    change(**settings)
    with device.pretend(FakeOps()):
        found = trained(capsys, *args)
    assert found[:2] == ["Using GPUs 1", "GPU 1: Pretended 1"]
    assert found[-1] == "Optimization Done."


@pytest.mark.usefixtures("tiny")
def test_several_gpus(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(_caffe, "cuda_runtime", Runtime)
    said = "cannot train on several GPUs, there is no NCCL: give one of [0, 1] with -gpu"
    assert refused(capsys, "-solver=solver.prototxt", "-gpu=all") == said


@pytest.mark.usefixtures("tiny")
def test_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "missing", lambda: "none is plugged in")
    said = "cannot use GPU: none is plugged in"
    assert refused(capsys, "-solver=solver.prototxt", "-gpu=0") == said
    change(solver_mode="GPU")
    said += " (solver.prototxt has `solver_mode: GPU`; `solver_mode: CPU` trains without one)"
    assert refused(capsys, "-solver=solver.prototxt") == said


# ---- the table ----------------------------------------------------------------------------------


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_the_lines_of_the_log(tiny, capsys):
    found = trained(capsys, "--log-csv", "out.csv")
    header = "iteration,phase,seconds,learning_rate,smoothed_loss,loss,accuracy"
    assert (tiny / "out.csv").read_text().splitlines()[0] == header
    rows = rows_of(tiny / "out.csv")
    trains = [row for row in rows if row["phase"] == "train"]
    tests = [row for row in rows if row["phase"] == "test"]
    assert len(rows) == len(trains) + len(tests) == 8 + 4
    logged = [re.match(r"Iteration (\d+) \(.*loss = (\S+)", line) for line in found]
    logged = [(m[1], float(m[2])) for m in logged if m]
    assert [(r["iteration"], pytest.approx(float(r["smoothed_loss"]), 1e-5)) for r in trains] == (
        logged
    )
    rates = [float(line.split("lr = ")[1]) for line in found if ", lr = " in line]
    assert [float(row["learning_rate"]) for row in trains] == rates
    for kind, chosen in (("Train", trains), ("Test", tests)):
        for name in ("loss", "accuracy"):
            pattern = rf"    {kind} net output #\d: {name} = (\S+)"
            values = [float(m[1]) for m in map(re.compile(pattern).match, found) if m]
            mine = [float(row[name]) for row in chosen if row[name]]
            assert mine == pytest.approx(values, rel=1e-5)
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


def test_resumed_rows_are_appended(tiny, capsys):
    trained(capsys, "--log-csv=out.csv")
    before = (tiny / "out.csv").read_text()
    (tiny / "out.csv").write_text(before[:-7])  # as a kill may leave it
    trained(capsys, "--log-csv=out.csv", "-snapshot=snap_iter_20.solverstate")
    text = (tiny / "out.csv").read_text()
    assert text.startswith(before[:-7] + "\n20,test,")
    assert text.count("iteration,") == 1
    assert [row["iteration"] for row in rows_of(tiny / "out.csv")][-4:] == ["20", "24", "28", "30"]


def test_another_table_is_left_alone(tiny, capsys):
    (tiny / "out.csv").write_text("a,b\n1,2\n")
    said = refused(capsys, "-solver=solver.prototxt", "--log-csv=out.csv")
    assert "cannot append to out.csv: its columns are 'a,b', this training's 'iteration," in said
    assert (tiny / "out.csv").read_text() == "a,b\n1,2\n"


def test_several_numbers_and_test_nets(tiny, capsys):
    text = (tiny / "train.prototxt").read_text().replace('"loss"', '"seconds"')
    text += "layer { name: 's' type: 'Reduction' bottom: 'ip2' top: 's' reduction_param { axis: 1 }"
    (tiny / "train.prototxt").write_text(text + " include { phase: TEST } }")
    change(max_iter=1, test_iter="2 test_iter: 3", test_compute_loss="true")
    found = trained(capsys, "--log-csv=out.csv")
    rows = rows_of(tiny / "out.csv")
    assert [row["phase"] for row in rows] == ["test", "test 1", "train"]
    (first, second, last) = rows
    assert all(first[f"s[{k}]"] and not last[f"s[{k}]"] for k in range(1, 6))
    assert first["s"] != second["s"]
    assert float(last["output seconds"]) == pytest.approx(float(last["smoothed_loss"]), 1e-6)
    losses = [line.split(": ")[1] for line in found if line.startswith("Test loss: ")]
    mine = [float(row["smoothed_loss"]) for row in (first, second)]
    assert mine == pytest.approx(list(map(float, losses)), rel=1e-5)
    (run,) = read_log("out.csv")
    assert [len(run.train), *map(len, run.tests.values())] == [1, 1, 1]
    assert run.tests[1][0].outputs["s[2]"] == float(second["s[2]"])


def test_a_disk_that_gets_full_is_a_warning(tiny, monkeypatch, caplog):
    solver = get_solver("solver.prototxt")
    table = TrainingCsv(tiny / "out.csv", solver)
    solver.observers.append(table)

    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table, "_append", full)
    solver.step(9)
    assert caplog.text.count("no more rows are written: [Errno 28]") == 1


# ---- what is not finite -------------------------------------------------------------------------


def poison(values):
    import h5py

    with h5py.File("data.h5", "r+") as file:
        file["data"][...] = values


@pytest.mark.usefixtures("tiny")
def test_nan_is_a_warning_once(capsys):
    poison(np.nan)
    found = trained(capsys)
    assert [line for line in found if "diverged" in line] == [
        "Iteration 0, loss = nan: training has diverged"
    ]
    assert found[-1] == "Optimization Done."


@pytest.mark.usefixtures("tiny")
def test_debug_nan_names_the_data(capsys):
    poison(np.nan)
    change(snapshot=1)
    assert refused(capsys, "-solver=solver.prototxt", "--debug-nan") == (
        "training has diverged in iteration 0: loss = nan; the first not to be finite is the data"
        " of blob 'data' (layer 'd')"
    )
    assert not list(Path().glob("snap*"))


@pytest.mark.usefixtures("tiny")
def test_debug_nan_names_the_parameter(capsys):
    change(base_lr="1e38", weight_decay="1e6", lr_policy="'fixed'")
    said = refused(capsys, "-solver=solver.prototxt", "-debug_nan")
    where = "the first not to be finite is the param 0 of layer 'ip1'"
    assert re.fullmatch(rf"training has diverged in iteration [12]: loss = \S+; {where}", said)


@pytest.mark.usefixtures("tiny")
def test_debug_nan_names_all_layers_that_work_in_place(capsys):
    text = Path("train.prototxt").read_text()
    power = (
        "layer { name: 'half' type: 'Power' bottom: 'ip1' top: 'ip1' power_param { power: 0.5 } }"
    )
    at = text.index('layer { name: "ip2"')
    Path("train.prototxt").write_text(text[:at] + power + text[at:])
    said = refused(capsys, "-solver=solver.prototxt", "-debug_nan")
    assert said.endswith("is the data of blob 'ip1' (layer 'ip1' or 'act' or 'half', in place)")


@pytest.mark.usefixtures("tiny")
def test_debug_nan_names_a_gradient_of_a_finite_loss(capsys):
    Path("train.prototxt").write_text(
        "layer { name: 'd' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: 3 } } }"
        "layer { name: 'b' type: 'Bias' bottom: 'x' top: 'b' bias_param { axis: 0 num_axes: 1 } }"
        "layer { name: 'p' type: 'Power' bottom: 'b' top: 'p' power_param { power: 0.5 } }"
        "layer { name: 's' type: 'Reduction' bottom: 'p' top: 's' loss_weight: 1 }"
    )
    change(test_iter=None, test_interval=None)
    said = refused(capsys, "-solver=solver.prototxt", "-debug_nan")
    assert "in iteration 0: loss = 0; the first not to be finite is the gradient of blob" in said


@pytest.mark.usefixtures("tiny")
def test_debug_nan_lets_others_train(capsys):
    assert trained(capsys, "-debug_nan")[-1] == "Optimization Done."


# ---- signals ------------------------------------------------------------------------------------


def start(*args):
    """A process that trains; its log is in its stderr."""
    env = {name: value for name, value in os.environ.items() if name != "GLOG_minloglevel"}
    return subprocess.Popen(
        [sys.executable, "-m", "pycaffe_lite", "train", "-solver=solver.prototxt", *args],
        stderr=subprocess.PIPE,
        text=True,
        env=env | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )


def read_until(process, words):
    """The lines up to one with these words, that one included."""
    found = []
    for line in process.stderr:
        found.append(line)
        if words in line:
            return found
    raise AssertionError("".join(found[-20:]))


def end(process):
    """The rest of the log, and the status."""
    text = process.communicate(timeout=60)[1]
    return text, process.returncode


def endless():
    change(max_iter=100_000_000, test_iter=None, test_interval=None, snapshot=0, display=50)


@pytest.mark.usefixtures("tiny")
def test_an_interrupt_stops_with_a_snapshot():
    endless()
    process = start()
    read_until(process, "Iteration 50 ")
    process.send_signal(signal.SIGINT)
    text, status = end(process)
    assert status == 0
    assert "Optimization stopped early." in text
    (state,) = Path().glob("*.solverstate")
    count = int(state.stem.rpartition("_")[2])
    assert count > 50
    change(max_iter=count + 1)
    assert main(["train", "-solver=solver.prototxt", f"-snapshot={state}"]) == 0
    assert Path(f"snap_iter_{count + 1}.solverstate").exists()


@pytest.fixture
def signalling(tiny):
    """Makes a layer that sends this process signals: iteration -> their numbers."""

    def make(sent):
        class Signalling(Layer):
            """Passes its bottom on."""

            host_only = True

            def setup(self, bottom, top):
                self.count = 0

            def reshape(self, bottom, top):
                top[0].reshape(*bottom[0].shape)

            def forward(self, bottom, top):
                top[0].data[...] = bottom[0].data
                for number in sent.get(self.count, ()):
                    os.kill(os.getpid(), number)
                self.count += 1

            def backward(self, top, propagate_down, bottom):
                bottom[0].diff[...] = top[0].diff

        layer = "layer { name: 'sig' type: 'Signalling' bottom: 'ip2' top: 'out' %s }\n"
        text = (tiny / "train.prototxt").read_text()
        (tiny / "train.prototxt").write_text(text + layer % "include { phase: TRAIN }")
        change(max_iter=9, test_iter=None, test_interval=None, snapshot=0)

    yield make
    Layer.registry.pop("Signalling", None)


needs_hangup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")


def states():
    return sorted(path.name for path in Path().glob("*.solverstate"))


def test_effects_of_an_interrupt(signalling, capsys):
    signalling({2: [signal.SIGINT]})
    found = trained(capsys)
    assert states() == ["snap_iter_3.solverstate"]
    assert found[-2:] == ["Optimization stopped early.", "Optimization Done."]
    trained(capsys, "-sigint_effect=snapshot")
    assert states() == ["snap_iter_3.solverstate", "snap_iter_9.solverstate"]
    for path in states():
        Path(path).unlink()
    trained(capsys, "-sigint_effect=none")
    assert states() == ["snap_iter_9.solverstate"]


@needs_hangup
def test_effects_of_a_hangup(signalling, capsys):
    signalling({1: [signal.SIGHUP], 4: [signal.SIGHUP]})
    trained(capsys)
    assert states() == [f"snap_iter_{k}.solverstate" for k in (2, 5, 9)]
    for path in states():
        Path(path).unlink()
    assert trained(capsys, "-sighup_effect=stop")[-2] == "Optimization stopped early."
    assert states() == ["snap_iter_2.solverstate"]


def test_two_interrupts_end_at_once(signalling, capsys):
    signalling({2: [signal.SIGINT, signal.SIGINT]})
    before = signal.getsignal(signal.SIGINT)
    assert main(["train", "-solver=solver.prototxt"]) == 130
    last = messages(capsys.readouterr().err)[-1]
    assert last == "Interrupted a second time: ended without a snapshot."
    assert states() == []
    assert signal.getsignal(signal.SIGINT) == before


# ---- the display --------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["train", "-solver=solver.prototxt"]) == 0
    return screen.getvalue()


@pytest.mark.usefixtures("tiny")
def test_a_live_line_below_an_undisturbed_log(monkeypatch):
    pytest.importorskip("rich")
    change(net="'a_long_name_%s.prototxt'" % ("x" * 200))
    shutil.move("train.prototxt", Path("solver.prototxt").read_text().split("'")[-2])
    text = on_a_terminal(monkeypatch)
    assert "30/30" in text
    assert re.search(r"loss [\d.]+  lr 0.025  \S+ it/s  ETA 0:00:00", text)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line for line in re.split(r"[\r\n]+", plain) if not line.startswith("Iteration ")]
    found = messages("\n".join(line for line in lines if line.strip()))
    assert (
        list(map(without_times, found))[-40:]
        == (list(map(without_times, recorded("train.log")))[-40:])
    )


@pytest.mark.usefixtures("tiny")
def test_without_rich_there_is_the_log_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    text = on_a_terminal(monkeypatch)
    assert "\x1b" not in text
    assert messages(text)[-1] == "Optimization Done."


def test_pace():
    pace = Pace(10, 100.0)
    assert pace.left(5) == "-:--:--"
    pace.update(20, 102.0)
    assert pace.speed == pytest.approx(5)
    pace.update(30, 103.0)
    assert pace.speed == pytest.approx(0.7 * 5 + 0.3 * 10)
    pace.speed = 0.5
    assert [pace.left(n) for n in (0, 15, 1900, 50000)] == [
        "0:00:00", "0:00:30", "1:03:20", "27:46:40",
    ]  # fmt: skip
    assert math.isfinite(pace.speed)
