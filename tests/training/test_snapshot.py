"""Snapshots: their files, and training that goes on from them as if it had not stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_solvers import BATCH, make_solver, regression, values, write_problem

import pycaffe_lite
from pycaffe_lite import TRAIN, MissingFileError, ModelError, Net, WeightsError, set_random_seed
from pycaffe_lite.proto import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "solvers"

KINDS = {
    "SGD": "momentum: 0.9",
    "Nesterov": "momentum: 0.9",
    "AdaGrad": "",
    "RMSProp": "rms_decay: 0.95",
    "AdaDelta": "momentum: 0.95",
    "Adam": "momentum: 0.9",
}
ENDS = {"BINARYPROTO": "", "HDF5": ".h5"}


@pytest.fixture
def train(tmp_path):
    """Writes a problem and a solver's prototxt; makes solvers of it, another net each time."""
    write_problem(tmp_path)
    seeds = iter(range(100))

    def make(more="", kind="SGD", net=None):
        text = (
            f"type: '{kind}' {KINDS[kind]} lr_policy: 'fixed' base_lr: 0.05 weight_decay: 0.1"
            f" snapshot_prefix: '{tmp_path}/s' {more}"
        )
        set_random_seed(next(seeds))
        return make_solver(tmp_path, text, regression(tmp_path) if net is None else net)

    return make


def everything(solver):
    """Values, updates and what updates remember."""
    blobs = [b for layer in solver.net.params.values() for b in layer]
    return [b.data.copy() for b in blobs + solver.history] + [b.diff.copy() for b in blobs]


def assert_same(one, other):
    assert one.iter == other.iter
    for a, b in zip(everything(one), everything(other), strict=True):
        assert_array_equal(a, b)


# ---- going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("form", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_is_uninterrupted_training(kind, form, shared, train, tmp_path):
    """Bit for bit."""
    net = regression(tmp_path, shared=shared)
    settings = f"snapshot_format: {form}"
    whole = train(settings, kind, net)
    whole.step(3)
    whole.snapshot()
    whole.step(4)
    resumed = train(settings, kind, net)
    resumed.restore(tmp_path / f"s_iter_3.solverstate{ENDS[form]}")
    assert resumed.iter == 3
    resumed.step(4)
    assert_same(resumed, whole)


RANDOM_NET = """
layer { name: 'd' type: 'HDF5Data' top: 'x' top: 'y'
  hdf5_data_param { source: '%s/list.txt' batch_size: 3 shuffle: true } }
layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'x' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'z' inner_product_param { num_output: 1
  weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'z' bottom: 'y' top: 'loss' }
"""


@pytest.mark.parametrize("form", ENDS)
def test_random_numbers_and_shuffled_data_go_on(form, train, tmp_path):
    settings = f"snapshot_format: {form} test_iter: 2 test_interval: 2 random_seed: 3"
    whole = train(settings, net=RANDOM_NET % tmp_path)
    whole.step(4)
    whole.snapshot()
    whole.step(5)
    resumed = train(settings, net=RANDOM_NET % tmp_path)
    resumed.restore(tmp_path / f"s_iter_4.solverstate{ENDS[form]}")
    resumed.step(5)
    assert_same(resumed, whole)
    for net, other in zip(resumed.test_nets, whole.test_nets, strict=True):
        assert_array_equal(net.forward(["x"])["x"], other.forward(["x"])["x"])


RECORDS_NET = """
layer { name: 'd' type: 'Data' top: 'x' top: 'y' data_param { source: '%s/db' batch_size: 3
  backend: LMDB } transform_param { crop_size: 4 mirror: true scale: 0.01 } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'z' inner_product_param { num_output: 7
  weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'z' bottom: 'y' top: 'loss' }
"""


def test_records_read_ahead_go_on(train, tmp_path, rng):
    """Cut and mirrored at random, by a thread that is some batches further."""
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(tmp_path / "db"), map_size=1 << 24) as env,
        env.begin(write=True) as transaction,
    ):
        for k in range(7):
            image = rng.integers(256, size=(2, 5, 6), dtype=np.uint8)
            datum = caffe_pb2.Datum(channels=2, height=5, width=6, label=k, data=image.tobytes())
            transaction.put(b"%02d" % k, datum.SerializeToString())
    settings = "test_iter: 2 test_interval: 2"
    whole = train(settings, net=RECORDS_NET % tmp_path)
    whole.step(3)
    whole.snapshot()
    whole.step(4)
    resumed = train(settings, net=RECORDS_NET % tmp_path)
    resumed.restore(tmp_path / "s_iter_3.solverstate")
    resumed.step(4)
    assert_same(resumed, whole)


SEQUENCE_NET = """
layer { name: 'd' type: 'HDF5Data' top: 'x' top: 'cont'
  hdf5_data_param { source: '%s/list.txt' batch_size: 4 } }
layer { name: 'r' type: '%s' bottom: 'x' bottom: 'cont' top: 'h'
  recurrent_param { num_output: 5 weight_filler { type: 'uniform' min: -0.2 max: 0.2 } } }
layer { name: 'loss' type: 'Reduction' bottom: 'h' top: 'loss' loss_weight: 1
  reduction_param { operation: SUMSQ } }
"""


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sequences_go_on(kind, train, tmp_path):
    """Over more than one batch: 4 steps of 3 streams each."""
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file.create_dataset("cont", data=np.ones((8, 3), "f4"))
    net = SEQUENCE_NET % (tmp_path, kind)
    whole = train(net=net)
    whole.step(3)
    whole.snapshot()
    whole.step(2)
    resumed = train(net=net)
    resumed.restore(tmp_path / "s_iter_3.solverstate")
    resumed.step(2)
    assert_same(resumed, whole)


def test_sequences_of_other_streams_begin_anew(train, tmp_path, caplog):
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file.create_dataset("cont", data=np.ones((8, 3), "f4"))
    first = train(net=SEQUENCE_NET % (tmp_path, "RNN"))
    first.step(1)
    first.snapshot()
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        for name in ("x", "cont"):
            part = file[name][:, :2]
            del file[name]
            file.create_dataset(name, data=part)
    train(net=SEQUENCE_NET % (tmp_path, "RNN")).restore(tmp_path / "s_iter_1.solverstate")
    assert "hidden states of 3 streams, the layer has 2" in caplog.text


MEMORY_NET = """
layer { name: 'd' type: 'MemoryData' top: 'x' top: 'y'
  memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'z' inner_product_param { num_output: 7
  weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'z' bottom: 'y' top: 'loss' }
"""


@pytest.mark.parametrize("restore_first", [False, True])
def test_arrays_in_memory_go_on(restore_first, train, tmp_path, rng):
    x = rng.normal(size=(6, 3, 4, 5)).astype("f4")
    labels = np.arange(6, dtype="f4")
    whole = train(net=MEMORY_NET)
    whole.net.set_input_arrays(x, labels)
    whole.step(2)
    whole.snapshot()
    whole.step(2)
    resumed = train(net=MEMORY_NET)
    if not restore_first:
        resumed.net.set_input_arrays(x, labels)
    resumed.restore(tmp_path / "s_iter_2.solverstate")
    if restore_first:
        resumed.net.set_input_arrays(x, labels)
    resumed.step(2)
    assert_same(resumed, whole)


def test_solve_goes_on_to_max_iter(train, tmp_path):
    whole = train("max_iter: 5 snapshot: 2")
    whole.solve()
    resumed = train("max_iter: 5 snapshot: 2")
    resumed.solve(tmp_path / "s_iter_4.solverstate")
    assert_same(resumed, whole)


def test_multistep_goes_on_at_its_step(train, tmp_path):
    settings = "stepvalue: 2 stepvalue: 4 gamma: 0.5"
    whole = train(settings)
    whole.param.lr_policy = "multistep"
    whole.step(6)
    whole.snapshot()
    resumed = train(settings)
    resumed.param.lr_policy = "multistep"
    resumed.restore(tmp_path / "s_iter_6.solverstate")
    assert resumed.lr == pytest.approx(0.05 / 4)


@pytest.mark.parametrize("form", ENDS)
def test_plateau_goes_on(form, train, tmp_path):
    settings = f"snapshot_format: {form} plateau_winsize: 3 gamma: 0.5"
    whole = train(settings)
    whole.param.lr_policy = "plateau"
    whole.step(5)
    whole.snapshot()
    resumed = train(settings)
    resumed.param.lr_policy = "plateau"
    resumed.restore(tmp_path / f"s_iter_5.solverstate{ENDS[form]}")
    assert resumed.schedule.current_step == whole.schedule.current_step
    assert resumed.schedule.iter_last_event == whole.schedule.iter_last_event
    assert resumed.schedule.minimum_loss == pytest.approx(whole.schedule.minimum_loss, rel=1e-6)


def test_test_nets_have_the_weights_at_once(train, tmp_path):
    """https://github.com/BVLC/caffe/issues/3336"""
    first = train()
    first.step(2)
    first.snapshot()
    resumed = train("test_iter: 1 test_interval: 5")
    resumed.restore(tmp_path / "s_iter_2.solverstate")
    for ours, theirs in zip(resumed.test_nets[0].params["ip"], first.net.params["ip"], strict=True):
        assert_array_equal(ours.data, theirs.data)


def test_a_state_of_caffes_starts_its_data_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in [*GOLDEN.iterdir(), *(GOLDEN / "sgd_plain").iterdir()]:
        if path.is_file():
            shutil.copy(path, tmp_path)
    solver = pycaffe_lite.get_solver("solver.prototxt")
    first = solver.net.forward(["data"])["data"].copy()
    solver = pycaffe_lite.get_solver("solver.prototxt")
    solver.restore("snap_iter_4.solverstate")
    assert_array_equal(solver.net.forward(["data"])["data"], first)


def test_a_layer_of_ones_own_goes_on(train, tmp_path):
    class Counting(pycaffe_lite.Layer):
        """Data: the number of the batch."""

        bottoms, host_only = 0, True

        def setup(self, bottom, top):
            self.n = 0

        def reshape(self, bottom, top):
            top[0].reshape(2, 3)

        def forward(self, bottom, top):
            self.n += 1
            top[0].data[...] = self.n

        def data_state(self):
            return {"n": np.int64(self.n), "drawn": np.arange(2)}

        def restore_data_state(self, state):
            assert state["drawn"] == [0, 1]
            self.n = state["n"]

    net = """layer { name: 'c' type: 'Counting' top: 'x' }
    layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'z' loss_weight: 1
      inner_product_param { num_output: 1 } }"""
    try:
        first = train(net=net)
        first.step(3)
        first.snapshot()
        resumed = train(net=net)
        resumed.restore(tmp_path / "s_iter_3.solverstate")
        assert resumed.net.layer_dict["c"].n == 3
    finally:
        del pycaffe_lite.Layer.registry["Counting"]


def test_layers_that_have_changed_are_named(train, tmp_path, caplog):
    first = train()
    first.snapshot()
    net = regression(tmp_path).replace("name: 'd'", "name: 'data'")
    train(net=net).restore(tmp_path / "s_iter_0.solverstate")
    assert "layer 'd' of the snapshot is not in net 'least_squares'" in caplog.text


def test_other_data_than_before_starts_anew(train, tmp_path, caplog):
    train().snapshot()
    (tmp_path / "data.h5").rename(tmp_path / "other.h5")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/other.h5")
    solver = train()
    solver.restore(tmp_path / "s_iter_0.solverstate")
    assert "layer 'd' does not go on where the snapshot was taken: the data's state" in caplog.text
    solver.step(1)


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ENDS)
def test_files_and_names(form, train, tmp_path):
    solver = train(f"snapshot_format: {form}")
    solver.step(2)
    solver.snapshot()
    end = ENDS[form]
    model, state = tmp_path / f"s_iter_2.caffemodel{end}", tmp_path / f"s_iter_2.solverstate{end}"
    other = Net(str(tmp_path / "net.prototxt"), TRAIN, weights=model)
    for a, b in zip(other.params["ip"], solver.net.params["ip"], strict=True):
        assert_array_equal(a.data, b.data)
    assert state.stat().st_mode & 0o777 == model.stat().st_mode & 0o777 != 0o600
    assert sorted(p.name for p in tmp_path.iterdir() if "iter" in p.name) == [
        model.name,
        state.name,
    ]


def test_what_caffe_reads_in_a_binary_state(train, tmp_path):
    solver = train(kind="Adam")
    solver.step(2)
    solver.snapshot()
    state = caffe_pb2.SolverState.FromString((tmp_path / "s_iter_2.solverstate").read_bytes())
    assert (state.iter, state.current_step) == (2, 0)
    assert state.learned_net == f"{tmp_path}/s_iter_2.caffemodel"
    assert len(state.history) == 4
    for stored, blob in zip(state.history, solver.history, strict=True):
        assert tuple(stored.shape.dim) == blob.shape
        assert_array_equal(np.reshape(stored.data, blob.shape), blob.data)
    assert caffe_pb2.SolverState.DESCRIPTOR.fields_by_name["position"].number >= 5000


def test_what_caffe_reads_in_an_hdf5_state(train, tmp_path):
    """Names, types and shapes are those of the original's file."""
    solver = train("snapshot_format: HDF5")
    solver.step(2)
    solver.snapshot()
    original = GOLDEN / "sgd_h5" / "snap_iter_4.solverstate.h5"
    with h5py.File(tmp_path / "s_iter_2.solverstate.h5") as ours, h5py.File(original) as theirs:
        for name in ("iter", "current_step"):
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name].shape == theirs[name].shape
        assert ours["iter"][0] == 2
        name = f"{tmp_path}/s_iter_2.caffemodel.h5"
        assert ours["learned_net"][()] == name.encode()
        assert ours["learned_net"].dtype == f"S{len(name) + 1}"
        assert theirs["learned_net"].dtype == f"S{len('snap_iter_4.caffemodel.h5') + 1}"
        for k, blob in enumerate(solver.history):
            assert_array_equal(ours[f"history/{k}"][()], blob.data)
            assert ours[f"history/{k}"].dtype == theirs[f"history/{k}"].dtype


@pytest.mark.parametrize("form", ENDS)
def test_gradients_in_the_model(form, train, tmp_path):
    solver = train(f"snapshot_format: {form} snapshot_diff: true")
    solver.step(1)
    solver.snapshot()
    path = tmp_path / f"s_iter_1.caffemodel{ENDS[form]}"
    diffs = [b.diff for b in solver.net.params["ip"]]
    if form == "HDF5":
        with h5py.File(path) as file:
            stored = [file[f"diff/ip/{k}"][()] for k in range(2)]
    else:
        net = caffe_pb2.NetParameter.FromString(path.read_bytes())
        (layer,) = [layer for layer in net.layer if layer.name == "ip"]
        stored = [np.reshape(b.diff, b.shape.dim) for b in layer.blobs]
    for a, b in zip(stored, diffs, strict=True):
        assert_array_equal(a, b)
    Net(str(tmp_path / "net.prototxt"), TRAIN, weights=path)


def test_a_model_that_has_moved_with_its_state(train, tmp_path):
    solver = train()
    solver.step(1)
    solver.snapshot()
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("s_iter_1.caffemodel", "s_iter_1.solverstate"):
        (tmp_path / name).rename(folder / name)
    resumed = train()
    resumed.restore(folder / "s_iter_1.solverstate")
    assert_array_equal(values(resumed)[0], values(solver)[0])


def test_the_weights_of_an_old_model_are_upgraded(train, tmp_path):
    solver = train()
    solver.step(1)
    solver.snapshot()
    path = tmp_path / "s_iter_1.caffemodel"
    new = caffe_pb2.NetParameter.FromString(path.read_bytes())
    old = caffe_pb2.NetParameter(name="old")
    for layer in new.layer:
        if layer.blobs:
            entry = old.layers.add(name=layer.name, blobs=layer.blobs)
            entry.type = caffe_pb2.V1LayerParameter.INNER_PRODUCT
    path.write_bytes(old.SerializeToString())
    resumed = train()
    resumed.restore(tmp_path / "s_iter_1.solverstate")
    assert_array_equal(values(resumed)[0], values(solver)[0])


# ---- a stop at a bad moment --------------------------------------------------------------------


@pytest.mark.parametrize("form", ENDS)
@pytest.mark.parametrize("step", range(1, 5))
def test_an_error_leaves_the_files_of_before_whole(step, form, train, tmp_path, monkeypatch):
    """At each fsync and rename in turn; a state is never there without its model."""
    solver = train(f"snapshot_format: {form}")
    solver.snapshot()
    names = [f"s_iter_0.caffemodel{ENDS[form]}", f"s_iter_0.solverstate{ENDS[form]}"]
    before = [(tmp_path / name).read_bytes() for name in names]
    solver.step(1)
    solver.iter = 0
    real, calls = os.fsync, []

    def fsync(handle):
        calls.append(handle)
        if len(calls) == step:
            raise OSError("no space left")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="no space"):
        solver.snapshot()
    after = [(tmp_path / name).read_bytes() for name in names]
    assert [a == b for a, b in zip(before, after, strict=True)] == [step == 1, step <= 3]
    assert len([p for p in tmp_path.iterdir() if "iter_0" in p.name]) == 2


@pytest.mark.slow
def test_a_kill_leaves_a_whole_snapshot(train, tmp_path):
    train().snapshot()
    code = f"""
        import pycaffe_lite
        solver = pycaffe_lite.get_solver({str(tmp_path / "solver.prototxt")!r})
        print("go", flush=True)
        while True:
            solver.step(1)
            solver.snapshot()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "go\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.1)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    states = [p for p in tmp_path.iterdir() if p.name.startswith("s_") and "state" in p.name]
    for path in states:
        train().restore(path)
    assert states


def test_a_folder_that_is_not_there(tmp_path):
    write_problem(tmp_path)
    text = f"snapshot: 5 snapshot_prefix: '{tmp_path}/no/s' lr_policy: 'fixed'"
    with pytest.raises(ModelError, match=r"cannot write to snapshot prefix '.*no/s': there is no "):
        make_solver(tmp_path, text, regression(tmp_path))
    later = make_solver(tmp_path, text.replace("5", "0"), regression(tmp_path))
    with pytest.raises(ModelError, match="cannot write to snapshot prefix"):
        later.solve()
    with pytest.raises(FileNotFoundError, match="no/s_iter_0.caffemodel"):
        later.snapshot()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder that nobody may write")
def test_a_folder_that_may_not_be_written(tmp_path):
    write_problem(tmp_path)
    with pytest.raises(ModelError, match="cannot write to snapshot prefix '/proc/s': folder '/pr"):
        make_solver(tmp_path, "snapshot: 5 snapshot_prefix: '/proc/s'", regression(tmp_path))


def test_no_prefix():
    param = caffe_pb2.SolverParameter(snapshot=5)
    param.net_param.name = "n"
    with pytest.raises(ModelError, match="snapshot_prefix is not set"):
        pycaffe_lite.SGDSolver(param)


# ---- files that do not fit ---------------------------------------------------------------------


def restore_error(solver, path, text, kind=WeightsError):
    before, count = everything(solver), solver.iter
    with pytest.raises(kind, match=text):
        solver.restore(path)
    assert solver.iter == count
    for a, b in zip(before, everything(solver), strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("form", ENDS)
def test_weights_instead_of_a_state(form, train, tmp_path):
    """https://github.com/BVLC/caffe/issues/4181"""
    solver = train(f"snapshot_format: {form}")
    solver.snapshot()
    path = tmp_path / f"s_iter_0.caffemodel{ENDS[form]}"
    restore_error(solver, path, "expects a .solverstate file, .*these are weights: Net.copy_from")


def test_another_solver_type(train, tmp_path):
    train(kind="Adam").snapshot()
    text = "incorrect length of history blobs: .*s_iter_0.solverstate has 4, the solver 2; it is of"
    restore_error(train(), tmp_path / "s_iter_0.solverstate", text)


def test_another_net(train, tmp_path):
    train().snapshot()
    net = regression(tmp_path).replace("num_output: 1", "num_output: 2").replace("'y'", "'t'")
    net = net.replace("top: 't'", "top: 'y'").replace(
        "layer { name: 'loss'", "layer { name: 't' type: 'Tile' bottom: 'y' top: 't'"
        " tile_param { axis: 1 tiles: 2 } } layer { name: 'loss'",
    )  # fmt: skip
    text = r"history blob 0; shape mismatch: .* has `1 30 \(30\)`, the solver `2 30 \(60\)`"
    restore_error(train(net=net), tmp_path / "s_iter_0.solverstate", text)


def test_no_such_state(train):
    restore_error(train(), "x.solverstate", "Could not open file x.solverstate", MissingFileError)


@pytest.mark.parametrize("form", ENDS)
def test_the_model_is_missing(form, train, tmp_path):
    solver = train(f"snapshot_format: {form}")
    solver.step(1)
    solver.snapshot()
    (tmp_path / f"s_iter_1.caffemodel{ENDS[form]}").unlink()
    path = tmp_path / f"s_iter_1.solverstate{ENDS[form]}"
    restore_error(train(f"snapshot_format: {form}"), path, "s_iter_1.caffemodel", MissingFileError)


@pytest.mark.parametrize("content", [b"", b"\x08", b"not a state", b"\x89HDF\r\n\x1a\n rest"])
def test_damaged_states(content, train, tmp_path):
    path = tmp_path / "x.solverstate"
    path.write_bytes(content)
    restore_error(train(), path, "x.solverstate")


@pytest.mark.parametrize("form", ENDS)
def test_a_state_cut_short(form, train, tmp_path):
    train(f"snapshot_format: {form}").snapshot()
    path = tmp_path / f"s_iter_0.solverstate{ENDS[form]}"
    content = path.read_bytes()
    solver = train(f"snapshot_format: {form}")
    for size in range(1, len(content), len(content) // 7):
        path.write_bytes(content[:size])
        restore_error(solver, path, "s_iter_0.solverstate")


@pytest.mark.parametrize("position", [b"{", b"{}", b"3"])
def test_a_damaged_position(position, train, tmp_path):
    train().snapshot()
    path = tmp_path / "s_iter_0.solverstate"
    state = caffe_pb2.SolverState.FromString(path.read_bytes())
    state.position = position
    path.write_bytes(state.SerializeToString())
    restore_error(train(), path, "the position of the data is damaged")


def test_a_position_with_another_number(train, tmp_path):
    """It is JSON still: only the checksum tells."""
    train().snapshot()
    path = tmp_path / "s_iter_0.solverstate"
    state = caffe_pb2.SolverState.FromString(path.read_bytes())
    state.position = state.position.replace(b'"seed":', b'"seem":')
    path.write_bytes(state.SerializeToString())
    restore_error(train(), path, "the position of the data is damaged: its checksum is another")


def test_a_position_without_checksum(train, tmp_path):
    train().snapshot()
    path = tmp_path / "s_iter_0.solverstate"
    state = caffe_pb2.SolverState.FromString(path.read_bytes())
    state.position, end = state.position[:-9], state.position[-9:]
    assert end == b"#%08x" % zlib.crc32(state.position)
    path.write_bytes(state.SerializeToString())
    train().restore(path)


def test_hdf5_numbers_of_a_damaged_type(train, tmp_path):
    train("snapshot_format: HDF5").snapshot()
    path = tmp_path / "s_iter_0.solverstate.h5"
    content = path.read_bytes()
    bias = (127).to_bytes(4, "little")  # of the exponent, as HDF5 describes a float
    start = content.index(b"\x00\x17\x08\x00\x17" + bias) + 5
    path.write_bytes(content[:start] + bytes(4) + content[start + 4 :])
    restore_error(train(), path, "failed to read HDF5 file")


def test_a_position_of_a_later_version(train, tmp_path, caplog):
    train().snapshot()
    path = tmp_path / "s_iter_0.solverstate"
    state = caffe_pb2.SolverState.FromString(path.read_bytes())
    state.position = state.position.replace(b'"version":1', b'"version":2')
    path.write_bytes(state.SerializeToString())
    train().restore(path)
    assert "the position of the data is of version 2, not 1" in caplog.text


def test_h5py_is_missing(train, monkeypatch):
    solver = train("snapshot_format: HDF5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(RuntimeError, match="h5py"):
        solver.snapshot()


def test_four_rows_a_batch_of_the_problem(train):
    """What the rest relies on: two batches, so that a position can be lost."""
    solver = train()
    first = solver.net.forward(["x"])["x"].copy()
    second = solver.net.forward(["x"])["x"].copy()
    assert len(first) == BATCH
    assert not np.array_equal(first, second)
    assert_allclose(solver.net.forward(["x"])["x"], first)
