"""Which backend runs? The mode, the device, backends by name, and what happens without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from fake_device import FakeOps
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import device
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps
from pycaffe_lite.ops.jit import JitOps

NET = (
    "input: 'x' input_shape { dim: [1, 2, 4, 3] } layer { name: 'c' type: 'Convolution'"
    " bottom: 'x' top: 'y' convolution_param { num_output: 1 kernel_size: 2 %s } }"
)
BEST = JitOps if JitOps.available() else CpuOps


@pytest.fixture
def no_cupy(monkeypatch):
    """As on a machine where CuPy is not installed."""
    monkeypatch.setitem(sys.modules, "cupy", None)


BEST = JitOps if JitOps.available() else CpuOps


def python(code, **variables):
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- without a GPU -----------------------------------------------------------------------------


def test_gpu_mode_without_cupy_says_what_to_install(no_cupy):
    text = r"cannot use GPU: CuPy is not installed: pip install 'pycaffe-lite\[cuda12\]'"
    with pytest.raises(RuntimeError, match=text):
        pycaffe_lite.set_mode_gpu()


def test_the_cpu_goes_on_after_that(no_cupy):
    net = make_net(NET % "weight_filler { value: 1 }")
    with pytest.raises(RuntimeError, match="cannot use GPU"):
        pycaffe_lite.set_mode_gpu()
    assert device.current().kind == "cpu"
    assert_array_equal(net.forward(x=np.ones((1, 2, 4, 3)))["y"], np.full((1, 1, 3, 2), 8))
    assert make_net(NET % "").blobs["y"].shape == (1, 1, 3, 2)


@pytest.mark.parametrize("number", [0, 3, 99])
def test_choosing_a_device_never_fails_and_changes_no_mode(no_cupy, number):
    pycaffe_lite.set_device(number)
    assert device.current().kind == "cpu"


def test_choosing_a_device_imports_no_cupy():
    code = (
        "import sys, pycaffe_lite as c; c.set_device(1); c.set_mode_cpu(); c.layer_type_list();"
        "print('cupy' in sys.modules)"
    )
    assert python(code) == "False"


# https://github.com/BVLC/caffe/issues/3135
def test_building_and_running_on_the_cpu_imports_no_cupy():
    code = (
        "import sys, pycaffe_lite as c; from pycaffe_lite.prototxt import parse_net;"
        "n = c.Net(parse_net(\"input: 'x' input_shape { dim: 3 } layer { name: 'r' type: 'ReLU'"
        " bottom: 'x' top: 'y' }\"), c.TEST); n.forward(x=[1, 2, 3]); n.backward(y=[1, 1, 1]);"
        "print('cupy' in sys.modules)"
    )
    assert python(code) == "False"


# ---- backends by name --------------------------------------------------------------------------


def test_the_best_backend_by_default():
    assert type(device.current()) is BEST
    assert device.current() is device.current()


def test_a_backend_by_name_and_back():
    pycaffe_lite.set_ops("generic")
    assert type(device.current()) is Ops
    pycaffe_lite.set_ops("cpu")
    assert type(device.current()) is CpuOps
    pycaffe_lite.set_ops("generic")
    pycaffe_lite.set_ops(None)
    assert type(device.current()) is BEST


def test_a_named_backend_serves_nets_that_exist():
    net = make_net(NET % "weight_filler { value: 1 }")
    for name, kind in (("generic", Ops), ("cpu", CpuOps)):
        pycaffe_lite.set_ops(name)
        assert_array_equal(net.forward(x=np.ones((1, 2, 4, 3)))["y"], np.full((1, 1, 3, 2), 8))
        assert type(net.layer_dict["c"].ops) is kind


def test_an_unknown_name_is_refused_and_changes_nothing():
    pycaffe_lite.set_ops("generic")
    with pytest.raises(ValueError, match="no backend is named 'genric'.*for cpu: cpu, generic"):
        pycaffe_lite.set_ops("genric")
    assert type(device.current()) is Ops


def test_a_name_of_the_other_kind_of_device_is_kept_for_it():
    """PYCAFFE_LITE_OPS=gpu must not stop a program from using the CPU as well."""
    pycaffe_lite.set_ops("gpu")
    assert type(device.current()) is BEST


def test_a_backend_that_cannot_run_here_is_refused(monkeypatch):
    class Absent(CpuOps):
        name = "absent"

        @classmethod
        def available(cls):
            return False

    monkeypatch.setattr(device, "_classes", lambda: [Ops, CpuOps, Absent])
    device._best.cache_clear()
    try:
        with pytest.raises(ValueError, match="no backend is named 'absent'"):
            pycaffe_lite.set_ops("absent")
    finally:
        device._best.cache_clear()


SHOW = (
    "import pycaffe_lite; from pycaffe_lite import device; print(type(device.current()).__name__)"
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("generic", "Ops"), ("cpu", "CpuOps"), ("", BEST.__name__), ("gpu", BEST.__name__)],
)
def test_the_environment_names_a_backend(name, kind):
    assert python(SHOW, PYCAFFE_LITE_OPS=name) == kind


def test_an_unknown_name_in_the_environment():
    code = f"""
try:
    {SHOW.replace("; ", chr(10) + "    ")}
except ValueError as error:
    print(error)
"""
    assert "no backend is named 'nope'" in python(code, PYCAFFE_LITE_OPS="nope")


def test_engine_caffe_always_gets_the_definition():
    net = make_net(NET % "engine: CAFFE")
    other = make_net(NET % "engine: DEFAULT")
    for _ in range(2):
        assert type(net.layer_dict["c"].ops) is Ops
        assert type(other.layer_dict["c"].ops) is BEST
        net.forward()
        other.forward()
    pycaffe_lite.set_ops("generic")
    other.forward()
    assert type(other.layer_dict["c"].ops) is Ops


# ---- a mode for the whole process --------------------------------------------------------------


def in_thread(function):
    """Run in a worker thread; its result, or its exception raised here."""
    box = {}

    def work():
        try:
            box["result"] = function()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["result"]


def test_a_worker_thread_sees_what_main_has_set():
    pycaffe_lite.set_ops("generic")
    assert type(in_thread(device.current)) is Ops
    in_thread(lambda: pycaffe_lite.set_ops("cpu"))
    assert type(device.current()) is CpuOps


# https://github.com/BVLC/caffe/issues/4178
# https://github.com/BVLC/caffe/issues/5744
def test_a_net_runs_in_a_worker_on_the_device_that_main_chose():
    fake = FakeOps()
    net = make_net(NET % "weight_filler { value: 1 }")
    with device.pretend(fake):
        out = in_thread(lambda: net.forward(x=np.ones((1, 2, 4, 3))))
    assert_array_equal(out["y"], np.full((1, 1, 3, 2), 8))
    assert fake.counters.launches > 0


def test_a_net_changes_its_place_with_the_mode():
    """Values and weights follow it, both ways."""
    net = make_net(NET % "weight_filler { value: 1 }")
    x, wanted = np.ones((1, 2, 4, 3)), np.full((1, 1, 3, 2), 8)
    assert_array_equal(net.forward(x=x)["y"], wanted)
    fake = FakeOps()
    with device.pretend(fake):
        net.params["c"][0].data[...] = 2
        assert_array_equal(net.forward(x=x)["y"], 2 * wanted)
        assert net.layer_dict["c"].ops is fake
        net.params["c"][0].data[...] = 3
    assert_array_equal(net.forward(x=x)["y"], 3 * wanted)


# ---- random numbers ----------------------------------------------------------------------------


def test_a_seed_starts_the_numbers_anew(ops):
    draws = []
    for seed in (3, 3, 4):
        pycaffe_lite.set_random_seed(seed)
        draws.append([ops.to_host(device.rng(ops).random(5)) for _ in range(2)])
    assert_array_equal(draws[0], draws[1])
    assert (draws[0][0] != draws[0][1]).all()
    assert (draws[0][0] != draws[2][0]).all()


def test_a_negative_seed_is_refused_at_once():
    pycaffe_lite.set_random_seed(np.int64(0))
    wanted = device.rng(device.current()).random()
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        pycaffe_lite.set_random_seed(-1)
    pycaffe_lite.set_random_seed(0)
    assert device.rng(device.current()).random() == wanted


def test_without_a_seed_each_process_draws_its_own_numbers():
    code = "from pycaffe_lite import device; print(device.rng(device.current()).random())"
    assert python(code) != python(code)
