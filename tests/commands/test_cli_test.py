"""`pycaffe-lite test` and `device_query`, and what the commands of Caffe share."""

from __future__ import annotations

import re
import shutil

import h5py
import numpy as np
import pytest
from caffe_logs import FOLDER, LINE, masked, messages, old_reader_time, recorded, write_data
from fake_device import FakeOps

from pycaffe_lite import TEST, Net, device
from pycaffe_lite.__main__ import main
from pycaffe_lite.commands import _caffe
from pycaffe_lite.ops import gpu


def leave(*args):
    """The exit status where the process ends, or where the command does."""
    try:
        return main(args)
    except SystemExit as error:
        return error.code


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder to be in, with the tiny net, its data and weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    write_data(tmp_path)
    shutil.copy(FOLDER / "tiny.prototxt", "net.prototxt")
    Net("net.prototxt", TEST).save("net.caffemodel")
    return tmp_path


def scored(capsys, *args):
    assert main(["test", "-model", "net.prototxt", "-weights", "net.caffemodel", *args]) == 0
    found = messages(capsys.readouterr().err)
    assert found.count("weights net.caffemodel: 2 layers loaded") == 1
    return [line for line in found if not line.startswith("weights ")]


# ---- the lines ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_lines_are_those_of_caffe(capsys):
    found = scored(capsys, "-iterations", "4")
    assert list(map(masked, found)) == list(map(masked, recorded("test.log")))


@pytest.mark.usefixtures("tiny")
def test_readers_of_both_generations_of_glog_read_them(capsys):
    main(["test", "-model=net.prototxt", "-weights=net.caffemodel", "-iterations=2"])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("I")]
    lines = [line for line in lines if "] " in line]
    assert len(lines) == 15
    times = [old_reader_time(line) for line in lines]
    assert times == sorted(times)
    assert all(len(LINE.fullmatch(line)[2]) == 4 for line in lines)


@pytest.mark.usefixtures("tiny")
def test_means_by_hand(capsys):
    net = Net("net.prototxt", TEST, weights="net.caffemodel")
    w1, b1, w2, b2 = (b.data.astype("f8") for k in ("ip1", "ip2") for b in net.params[k])
    with h5py.File("data.h5") as file:
        x, labels = file["data"][:], file["label"][:].astype(int)
    losses, hits = [], []
    for batch in range(3):
        rows = slice(6 * batch, 6 * batch + 6)
        z = np.tanh(x[rows] @ w1.T + b1) @ w2.T + b2
        each = np.log(np.exp(z).sum(axis=1)) - z[range(6), labels[rows]]
        losses.append(each.mean())
        hits.append((z.argmax(axis=1) == labels[rows]).mean())
    found = scored(capsys, "-iterations", "3")
    numbers = [float(line.split(" = ")[1].split()[0]) for line in found if " = " in line]
    pairs = [value for pair in zip(hits, losses, strict=True) for value in pair]
    assert numbers == pytest.approx([*pairs, np.mean(hits), np.mean(losses)], rel=1e-4)
    (loss,) = [float(line[6:]) for line in found if line.startswith("Loss: ")]
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_an_output_of_several_values_and_no_loss(tmp_path, monkeypatch, capsys):
    """github.com/BVLC/caffe/pull/2484: three means."""
    monkeypatch.chdir(tmp_path)
    values = np.float32([[1, -2, 3.5], [7, 4, -5]])
    with h5py.File("data.h5", "w") as file:
        file["x"] = values
    (tmp_path / "list.txt").write_text("data.h5")
    (tmp_path / "net.prototxt").write_text(
        "layer { name: 'd' type: 'HDF5Data' top: 'x'"
        " hdf5_data_param { source: 'list.txt' batch_size: 1 } }"
        "layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }"
    )
    assert main(["test", "--model=net.prototxt", "--iterations=2"]) == 0
    found = messages(capsys.readouterr().err)
    assert found[found.index("Running for 2 iterations.") + 1 :] == [
        "Batch 0, y = 1", "Batch 0, y = 0", "Batch 0, y = 3.5",
        "Batch 1, y = 7", "Batch 1, y = 4", "Batch 1, y = 0",
        "Loss: 0", "y = 4", "y = 2", "y = 1.75",
    ]  # fmt: skip


def test_loss_counts_all_that_have_a_weight(tmp_path, monkeypatch, capsys):
    """One is an output, one is consumed by a layer, and one has no name."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5", "w") as file:
        file["x"] = np.float32([[1, 2], [3, 6]])
        file["y"] = np.float32([[1, 0], [0, 6]])
    (tmp_path / "list.txt").write_text("data.h5")
    (tmp_path / "net.prototxt").write_text(
        "layer { name: 'd' type: 'HDF5Data' top: 'x' top: 'y'"
        " hdf5_data_param { source: 'list.txt' batch_size: 1 } }"
        "layer { name: 's' type: 'Reduction' bottom: 'x' top: 's' loss_weight: 0.5 }"
        "layer { name: 'p' type: 'Power' bottom: 's' top: 'p' loss_weight: 0.25"
        " power_param { scale: 3 } }"
        "layer { name: 'e' type: 'EuclideanLoss' bottom: 'x' bottom: 'y' loss_weight: 10 }"
    )
    assert main(["test", "-model", "net.prototxt", "-iterations", "2"]) == 0
    found = messages(capsys.readouterr().err)
    # sums 3 and 9, halves of squared distances 2 and 4.5
    assert found[-3:] == [
        "Loss: 40",
        "p = 18 (* 0.25 = 4.5 loss)",
        "s_s_0_split_0 = 6 (* 0.5 = 3 loss)",
    ]


# ---- flags --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "flags",
    [
        ["-iterations", "2"],
        ["--iterations", "2"],
        ["-iterations=2"],
        ["--iterations=2"],
        ["-logtostderr", "-iterations=2"],
    ],
)
def test_spellings_of_a_flag(flags, capsys):
    assert "Running for 2 iterations." in scored(capsys, *flags)


@pytest.mark.usefixtures("tiny")
def test_50_iterations_unless_said(capsys):
    found = scored(capsys)
    assert "Running for 50 iterations." in found
    assert sum(line.startswith("Batch 49, ") for line in found) == 2


@pytest.mark.usefixtures("tiny")
def test_stage_and_level_choose_layers(capsys):
    with open("net.prototxt", "a") as file:  # noqa: PTH123  (the folder is the process's)
        file.write(
            "layer { name: 'more' type: 'Power' bottom: 'data' top: 'more'"
            " include { stage: 'extra' min_level: 3 } }\n"
        )
    more = "This network produces output more"
    assert more not in scored(capsys, "-iterations=1")
    assert more not in scored(capsys, "-iterations=1", "-stage=extra")
    assert more in scored(capsys, "-iterations=1", "-stage=some,extra", "-level=4")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-weights=net.caffemodel"], "a model definition to score is needed: -model FILE"),
        (["-model=net.prototxt"], "model weights to score are needed: -weights FILE"),
        (["-model=net.prototxt", "-weights=a,b"], "takes a single file to score, not several: a,b"),
        (["-model=net.prototxt", "-iterations=0"], "-iterations must be at least 1, got 0"),
        (["-model=net.prototxt", "-iterations=x"], "invalid int value: 'x'"),
        (["-model=net.prototxt", "-gpu=one"], "-gpu takes numbers with commas between, or all"),
        (["-modle=net.prototxt"], "unknown flag: -modle=net.prototxt; did you mean 'model'?"),
        (["-model=net.prototxt", "more"], "only flags are taken, not 'more'"),
    ],
)
def test_wrong_usage_is_status_1(args, said, capsys):
    assert leave("test", *args) == 1
    err = capsys.readouterr().err
    assert "usage: pycaffe-lite test" in err
    assert said in err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-model=absent.prototxt"], "absent.prototxt"),
        (["-model=net.prototxt", "-weights=absent.caffemodel"], "absent.caffemodel"),
    ],
)
def test_missing_files_are_one_line(args, said, capsys):
    assert main(["test", *args]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("pycaffe-lite: error: ")
    assert said in last


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("how", ["flag", "environment"])
def test_less_in_the_log(how, monkeypatch, capsys):
    args = ["test", "-model=net.prototxt", "-weights=net.caffemodel", "-iterations=1"]
    if how == "flag":
        args.append("-minloglevel=1")
    else:
        monkeypatch.setenv("GLOG_minloglevel", "1")
    assert main(args) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("tiny")
def test_the_log_is_as_before_afterwards(capsys):
    scored(capsys, "-iterations=1")
    _caffe.log.info("said to nobody")
    assert capsys.readouterr().err == ""


# ---- GPUs ---------------------------------------------------------------------------------------


class Runtime:
    """Stands for CuPy's, with two devices."""

    @staticmethod
    def getDeviceCount():
        return 2

    @staticmethod
    def getDeviceProperties(device_id):
        names = "totalConstMem sharedMemPerBlock regsPerBlock warpSize multiProcessorCount"
        numbers = dict.fromkeys([*names.split(), "maxThreadsPerBlock", "minor"], 3)
        return numbers | {
            "name": b"Pretended %d" % device_id, "major": 9, "totalGlobalMem": 1000,
            "maxThreadsDim": (4, 5, 6), "maxGridSize": (7, 8, 9),
        }  # fmt: skip


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(_caffe, "cuda_runtime", Runtime)


@pytest.mark.usefixtures("tiny", "two_gpus")
@pytest.mark.parametrize(("flag", "number"), [("1", 1), ("all", 0), ("1,0", 1)])
def test_on_a_gpu(flag, number, capsys):
    with device.pretend(FakeOps()):
        found = scored(capsys, "-iterations=4", "-gpu", flag)
    assert found[0] == f"Use GPU with device ID {number}"
    assert found[1] == f"GPU device name: Pretended {number}"
    assert list(map(masked, found[2:])) == list(map(masked, recorded("test.log")[1:]))


@pytest.mark.usefixtures("tiny", "two_gpus")
def test_a_gpu_of_a_number_too_high(capsys):
    args = ["-model=net.prototxt", "-weights=net.caffemodel", "-gpu=2"]
    assert main(["test", *args]) == 1
    said = "pycaffe-lite: error: cannot use GPU 2: there are 2, numbered from 0 on\n"
    assert capsys.readouterr().err == said


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "args",
    [["test", "-model=net.prototxt", "-weights=net.caffemodel"], ["device_query"]],
)
def test_no_gpu(args, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "missing", lambda: "none is plugged in")
    assert main([*args, "-gpu=0"]) == 1
    said = "pycaffe-lite: error: cannot use GPU: none is plugged in\n"
    assert capsys.readouterr().err == said


@pytest.mark.usefixtures("two_gpus")
def test_device_query(capsys):
    assert main(["device_query", "-gpu", "all"]) == 0
    found = messages(capsys.readouterr().err)
    assert found[0] == "Querying GPUs 0,1"
    values = [re.split(r": +", line) for line in found[1:]]
    assert len(values) == 2 * 13
    assert ["Name", "Pretended 1"] in values
    assert ["Major revision number", "9"] in values
    assert ["Maximum dimension of grid", "7, 8, 9"] in values


def test_device_query_without_gpu_says_nothing(capsys):
    assert main(["device-query"]) == 0
    assert capsys.readouterr() == ("", "")
    assert leave("device_query", "all") == 1
