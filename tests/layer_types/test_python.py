"""Layers written by the user, named by module and class: `type: "Python"`."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from fake_array import FakeArray
from fake_device import FakeOps
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, Blob, Layer, ModelError, device
from pycaffe_lite.ops.base import Ops

MODULE = "layers_of_the_user"


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """A module of the user's, importable under MODULE, its classes put in by `define`."""
    made = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


@pytest.fixture
def define(module):
    """Puts a class into the user's module; what it registered is taken back after the test."""
    before = dict(Layer.registry)

    def put(cls):
        setattr(module, cls.__name__, cls)
        return cls

    yield put
    Layer.registry.clear()
    Layer.registry.update(before)


def python(name, bottom="x", top="y", more="", param_str=None):
    text = "" if param_str is None else f"param_str: '{param_str}'"
    ends = [f"bottom: '{b}'" for b in bottom.split()] + [f"top: '{t}'" for t in top.split()]
    return (
        f"layer {{ name: '{name.lower()}' type: 'Python' {' '.join(ends)} {more}"
        f" python_param {{ module: '{MODULE}' layer: '{name}' {text} }} }}\n"
    )


INPUT = "force_backward: true input: 'x' input_shape { dim: [2, 3] }\n"
X = np.float32([[1, 2, 3], [4, 5, 6]])


class Times(Layer):
    """As users have written layers for pycaffe: plain NumPy on data and diff."""

    def setup(self, bottom, top):
        self.factor = float(self.param_str or 10)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.factor * top[0].diff


def tens(define):
    define(Times)
    return make_net(
        "force_backward: true input: 'data' input_shape { dim: [10, 9, 8] }"
        + python("Times", "data", "one")
        + python("Times", "one", "two").replace("'times'", "'middle'")
        + python("Times", "two", "three").replace("'times'", "'last'")
    )


# ---- the recorded behaviour --------------------------------------------------------------------


def test_three_layers_times_10_forward(on_ops, define):
    net = tens(define)
    net.blobs["data"].data[...] = 8
    assert (net.forward()["three"] == 8 * 10**3).all()
    assert net.blobs["three"].data.dtype == np.float32


def test_three_layers_times_10_backward(on_ops, define):
    net = tens(define)
    net.forward()
    net.blobs["three"].diff[...] = 7
    assert (net.backward()["data"] == 7 * 10**3).all()


def test_three_layers_reshaped(on_ops, define):
    net = tens(define)
    net.blobs["data"].reshape(4, 5, 6, 7)
    net.forward()
    assert [blob.shape for blob in net.blobs.values()] == [(4, 5, 6, 7)] * 4


@pytest.mark.parametrize("factor", [2.5, -3])
@pytest.mark.parametrize("host_only", [True, False])
def test_it_owes_what_every_layer_owes(ops, define, factor, host_only):
    define(Times)

    @define
    class Careful(Times):
        def forward(self, bottom, top):
            self.xp.multiply(bottom[0].data, self.factor, out=top[0].data)

        def backward(self, top, propagate_down, bottom):
            if propagate_down[0]:
                super().backward(top, propagate_down, bottom)

    if not host_only:
        Careful.host_only = False
    user = f"module: '{MODULE}' layer: 'Careful' param_str: '{factor}'"
    check_layer(
        ops,
        f"type: 'Python' python_param {{ {user} }}",
        bottoms=[(2, 3, 5)],
        expect=lambda x: factor * x,
    )


def test_param_str_reaches_the_layer(define):
    define(Times)
    net = make_net(
        INPUT
        + python("Times", "x", "y", param_str="10")
        + python("Times", "y", "z", param_str="2").replace("'times'", "'other'")
    )
    assert_array_equal(net.forward(x=X)["z"], 20 * X)


# https://github.com/rbgirshick/py-faster-rcnn/issues/219
@pytest.mark.parametrize("text", ["", "feat_stride: 16", '{"a": [1, 2]}', "a\\nb", "ä"])
def test_param_str_is_handed_over_unchanged(define, text):
    @define
    class Keeps(Times):
        def setup(self, bottom, top):
            self.seen = self.param_str, self.param_str_

    net = make_net(INPUT + python("Keeps", param_str=text))
    wanted = text.replace("\\n", "\n")
    assert net.layer_dict["keeps"].seen == (wanted, wanted)
    assert make_net(INPUT + python("Keeps")).layer_dict["keeps"].seen == ("", "")


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_phase_is_known_in_setup(define, phase):
    @define
    class Phased(Times):
        def setup(self, bottom, top):
            self.seen = self.phase

    assert make_net(INPUT + python("Phased"), phase).layer_dict["phased"].seen == phase
    own = make_net(INPUT + python("Phased", more="phase: TRAIN"), phase)
    assert own.layer_dict["phased"].seen == TRAIN


# https://github.com/rbgirshick/py-faster-rcnn/issues/565
def test_phase_may_be_set_by_the_layer_itself(define):
    @define
    class Stubborn(Times):
        def setup(self, bottom, top):
            super().setup(bottom, top)
            self.phase = 7

    assert make_net(INPUT + python("Stubborn")).layer_dict["stubborn"].phase == 7


def test_the_verbs_and_their_order(define):
    calls = []

    @define
    class Logs(Times):
        def setup(self, bottom, top):
            super().setup(bottom, top)
            calls.append("setup")

        def reshape(self, bottom, top):
            super().reshape(bottom, top)
            calls.append("reshape")

        def forward(self, bottom, top):
            calls.append("forward")

        def backward(self, top, propagate_down, bottom):
            calls.append(("backward", list(propagate_down)))

    net = make_net(INPUT + python("Logs"))
    assert calls == ["setup", "reshape"]
    for verb in (net.forward, net.forward, net.backward):
        calls.clear()
        verb()
    assert calls == [("backward", [True])]
    calls.clear()
    net.forward()
    assert calls == ["reshape", "forward"], "before every forward, though no shape changed"


def test_a_layer_may_choose_another_shape_each_time(on_ops, define):
    @define
    class Grows(Times):
        def setup(self, bottom, top):
            self.rows = 0

        def reshape(self, bottom, top):
            self.rows += 1
            top[0].reshape(self.rows, 3)

        def forward(self, bottom, top):
            top[0].data[...] = self.rows

    net = make_net(
        INPUT + python("Grows") + "layer { name: 'r' type: 'ReLU' bottom: 'y' top: 'z' }"
    )
    for rows in (2, 3, 4):
        assert_array_equal(net.forward()["z"], np.full((rows, 3), rows))


# ---- parameters --------------------------------------------------------------------------------


class Holds(Times):
    """Copies its parameter out, and adds the gradient into it."""

    def setup(self, bottom, top):
        self.blobs.add_blob(4, 5)
        self.blobs[0].data[...] = 0

    def reshape(self, bottom, top):
        top[0].reshape(4, 5)

    def forward(self, bottom, top):
        top[0].data[...] = self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += top[0].diff


def test_a_parameter_of_the_layers_own(on_ops, define):
    define(Holds)
    net = make_net(INPUT + python("Holds"))
    assert [b.shape for b in net.params["holds"]] == [(4, 5)]
    net.params["holds"][0].data[...] = 3
    assert (net.forward()["y"] == 3).all()
    for times in (1, 2):
        net.backward(y=np.ones((4, 5)))
        assert (net.params["holds"][0].diff == times).all()


@pytest.mark.parametrize("form", ["save", "save_hdf5"])
def test_a_parameter_is_saved_loaded_and_shared(define, form, tmp_path):
    define(Holds)
    net, loaded, sharing = (make_net(INPUT + python("Holds")) for _ in range(3))
    net.params["holds"][0].data[...] = 1
    getattr(net, form)(tmp_path / "w")
    loaded.copy_from(tmp_path / "w")
    sharing.share_with(net)
    for other in (loaded, sharing):
        assert (other.forward()["y"] == 1).all()


def test_a_parameter_with_a_filler(define):
    @define
    class Filled(Holds):
        def setup(self, bottom, top):
            self.add_param((4, 5), pycaffe_lite.net.caffe_pb2.FillerParameter(value=6))

    net = make_net(INPUT + python("Filled"))
    assert (net.forward()["y"] == 6).all()


def test_a_rate_of_0_keeps_the_layer_out_of_backward(define):
    define(Holds)
    text = INPUT.replace("force_backward: true", "")
    for rate, needed in ((0, False), (1, True)):
        net = make_net(text + python("Holds", more=f"loss_weight: 1 param {{ lr_mult: {rate} }}"))
        net.forward()
        net.backward()
        assert net.params["holds"][0].diff.any() == needed


# ---- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["setup", "reshape", "forward", "backward"])
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError, ModelError])
def test_exceptions_of_the_layer_pass_unchanged(on_ops, define, verb, kind):
    error = kind("mine")

    def fails(self, *args):
        raise error

    def run():
        net = make_net(INPUT + python("Fails"))
        net.forward()
        net.backward()

    define(type("Fails", (Times,), {verb: fails}))
    with pytest.raises(kind) as caught:
        run()
    assert caught.value is error


def test_a_module_that_is_not_there():
    text = python("Times").replace(MODULE, "no_such_module")
    with pytest.raises(ImportError, match=r"layer 'times' \(Python\).*module 'no_such_module'"):
        make_net(INPUT + text)


def test_a_class_that_is_not_there():
    text = rf"layer 'nope' \(Python\): module '{MODULE}' has no class 'Nope'"
    with pytest.raises(ImportError, match=text):
        make_net(INPUT + python("Nope"))


@pytest.mark.parametrize("thing", [object, 5, lambda spec: spec, Times.__init__])
def test_something_that_is_no_layer(module, thing):
    module.Thing = thing
    text = rf"layer 'thing' \(Python\): {MODULE}.Thing is not a subclass of Layer"
    with pytest.raises(TypeError, match=text):
        make_net(INPUT + python("Thing"))


@pytest.mark.parametrize(
    ("param", "missing"), [("", "module"), ("python_param { module: 'm' }", "layer")]
)
def test_a_layer_without_its_module_or_class(param, missing):
    with pytest.raises(ModelError, match=rf"layer 'p' \(Python\): .*python_param .*{missing}"):
        make_net(INPUT + f"layer {{ name: 'p' type: 'Python' bottom: 'x' top: 'y' {param} }}")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import no_such_dependency", ImportError),
        ("None.attribute", AttributeError),
        ("1 / 0", ZeroDivisionError),
    ],
)
def test_a_module_with_an_error_of_its_own(tmp_path, monkeypatch, code, kind):
    """What is wrong in it is what the user gets to see."""
    (tmp_path / "broken_user_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    text = python("Times").replace(MODULE, "broken_user_module")
    message = "no_such_dependency|'NoneType' object has no attribute|division by zero"
    with pytest.raises(kind, match=message):
        make_net(INPUT + text)


def test_a_module_is_found_along_the_path(tmp_path, monkeypatch):
    (tmp_path / "user_module_on_path.py").write_text(
        "import pycaffe_lite as caffe\n"
        "class Twice(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data\n"
        "    def backward(self, top, propagate_down, bottom): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = make_net(INPUT + python("Twice").replace(MODULE, "user_module_on_path"))
    assert_array_equal(net.forward(x=X)["y"], 2 * X)
    Layer.registry.pop("Twice", None)


# ---- bottoms, tops, places ---------------------------------------------------------------------


def test_any_number_of_bottoms_and_tops(define):
    @define
    class Shapes(Layer):
        def setup(self, bottom, top):
            self.seen = len(bottom), len(top), [type(b) for b in (*bottom, *top)]

        def reshape(self, bottom, top):
            for blob in top:
                blob.reshape(1)

        def forward(self, bottom, top):
            pass

    for bottom, top in (("", ""), ("", "a"), ("x", ""), ("x x x", "a b")):
        net = make_net(INPUT + python("Shapes", bottom, top))
        counts = len(bottom.split()), len(top.split())
        assert net.layer_dict["shapes"].seen == (*counts, [Blob] * sum(counts))
        net.forward()


def test_it_may_work_in_place(on_ops, define):
    define(Times)
    net = make_net(INPUT + python("Times", "x", "x"))
    assert_array_equal(net.forward(x=X)["x"], 10 * X)


def test_it_gets_host_arrays_in_a_net_on_a_device(define):
    """Its neighbours stay on the device; each blob crosses once."""
    kinds = []

    @define
    class Watches(Times):
        def forward(self, bottom, top):
            kinds.append(type(bottom[0].data))
            super().forward(bottom, top)

    fake = FakeOps()
    with device.pretend(fake):
        net = make_net(
            INPUT
            + "layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'a' }"
            + python("Watches", "a", "b")
            + "layer { name: 'c' type: 'TanH' bottom: 'b' top: 'c' }"
        )
        net.forward(x=X)
        fake.counters.reset()
        out = net.forward(x=X / 60)
        assert (fake.counters.uploads, fake.counters.downloads) == (2, 2)
        assert type(net.layer_dict["a"].ops) is FakeOps
        assert type(net.layer_dict["watches"].ops) is Ops
        assert set(kinds) == {np.ndarray}
        assert np.allclose(out["c"], np.tanh(X / 6), rtol=1e-5)
        dx = net.backward(c=np.ones((2, 3)))["x"]
        assert np.allclose(dx, 10 * (1 - np.tanh(X / 6) ** 2), rtol=1e-4)


def test_a_layer_that_says_so_works_on_the_device(define):
    kinds = []

    @define
    class Graduated(Times):
        host_only = False

        def forward(self, bottom, top):
            kinds.append(type(bottom[0].data))
            self.xp.multiply(bottom[0].data, self.factor, out=top[0].data)

    with device.pretend(FakeOps()):
        net = make_net(INPUT + python("Graduated"))
        assert_array_equal(net.forward(x=X)["y"], 10 * X)
    assert kinds == [FakeArray]
