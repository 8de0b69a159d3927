"""Layers of the user's own, used in a prototxt by their class names."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import Layer, ModelError, layer_type_list

INPUT = "force_backward: true input: 'x' input_shape { dim: [2, 3] }\n"
X = np.float32([[1, 2, 3], [4, 5, 6]])


class TimesFactor(Layer):
    """As a user writes a layer for one backend: plain NumPy."""

    def setup(self, bottom, top):
        self.factor = float(self.param_str or 10)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.factor * top[0].diff


class ThriceOnDevice(Layer):
    """A user's layer as the package's own are written."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        self.xp.multiply(bottom[0].data, 3, out=top[0].data)

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = 3 * top[0].diff


def test_a_users_layer_owes_what_every_layer_owes(ops):
    check_layer(ops, "type: 'ThriceOnDevice'", [(2, 3, 5)], lambda x: 3 * x)


def test_shapes_are_asked_for_only_where_one_has_changed():
    calls = []

    class CountsReshapes(TimesFactor):
        def reshape(self, bottom, top):
            super().reshape(bottom, top)
            calls.append(bottom[0].shape)

    net = make_net(INPUT + "layer { name: 'c' type: 'CountsReshapes' bottom: 'x' top: 'y' }")
    net.forward()
    net.forward()
    assert calls == [(2, 3)]
    net.blobs["x"].reshape(4, 5)
    net.forward()
    assert set(calls[1:]) == {(4, 5)}
    calls.clear()
    net.forward()
    assert calls == []


def test_in_place_the_gradient_is_there_whichever_side_is_asked_first(on_ops):
    class AsksBottomFirst(ThriceOnDevice):
        in_place = True

        def backward(self, top, propagate_down, bottom):
            dx = bottom[0].diff
            self.xp.multiply(top[0].diff, 3, out=dx)

    net = make_net(INPUT + "layer { name: 'a' type: 'AsksBottomFirst' bottom: 'x' top: 'x' }")
    assert_array_equal(net.forward(x=X)["x"], 3 * X)
    assert_array_equal(net.backward(x=X)["x"], 3 * X)


def test_a_layer_is_known_by_its_name_as_soon_as_it_is_defined():
    assert "NewlyDefined" not in layer_type_list()

    class NewlyDefined(TimesFactor):
        pass

    assert "NewlyDefined" in layer_type_list()
    assert layer_type_list() == sorted(layer_type_list())
    net = make_net(
        INPUT + "layer { name: 'n' type: 'NewlyDefined' bottom: 'x' top: 'y'"
        " python_param { param_str: '4' } }"
    )
    assert type(net.layer_dict["n"]) is NewlyDefined
    assert net.layer_dict["n"].type == "NewlyDefined"
    assert_array_equal(net.forward(x=X)["y"], 4 * X)


def test_its_numbers_of_bottoms_and_tops_count_there():
    with pytest.raises(ModelError, match=r"TimesFactor layer takes 1 bottom blob\(s\), got 2"):
        make_net(INPUT + "layer { name: 't' type: 'TimesFactor' bottom: 'x' bottom: 'x' top: 'y' }")


def test_defining_a_class_again_replaces_it():
    """As in a notebook cell run twice."""
    for factor in (2, 3):

        class RunTwice(TimesFactor):
            def setup(self, bottom, top, factor=factor):
                self.factor = factor

        net = make_net(INPUT + "layer { name: 'r' type: 'RunTwice' bottom: 'x' top: 'y' }")
        assert_array_equal(net.forward(x=X)["y"], factor * X)


def test_a_class_with_a_built_ins_name_does_not_replace_it(monkeypatch):
    class ReLU(TimesFactor):
        pass

    module = types.ModuleType("layers_named_alike")
    module.ReLU = ReLU
    monkeypatch.setitem(sys.modules, module.__name__, module)
    net = make_net(
        INPUT
        + "layer { name: 'built-in' type: 'ReLU' bottom: 'x' top: 'y' }"
        + "layer { name: 'mine' type: 'Python' bottom: 'x' top: 'z'"
        " python_param { module: 'layers_named_alike' layer: 'ReLU' } }"
    )
    out = net.forward(x=-X)
    assert_array_equal(out["y"], np.zeros((2, 3)))
    assert_array_equal(out["z"], -10 * X)


def test_a_class_that_starts_with_an_underscore_is_no_type():
    class _Shared(TimesFactor):
        pass

    assert "_Shared" not in layer_type_list()


def test_a_verb_that_is_not_defined():
    class OnlyShapes(Layer):
        def reshape(self, bottom, top):
            top[0].reshape(bottom[0].shape)

    net = make_net(INPUT + "layer { name: 'o' type: 'OnlyShapes' bottom: 'x' top: 'y' }")
    for verb in ("forward", "backward"):
        with pytest.raises(NotImplementedError, match=f"OnlyShapes defines no {verb}"):
            getattr(net, verb)()


class MyReLU(Layer.registry["ReLU"]):
    """A built-in under a name of the user's own: its parameters are the built-in's."""


def test_a_subclass_of_a_built_in_reads_its_parameters():
    net = make_net(
        "input: 'x' input_shape { dim: 2 } layer { name: 'l' type: 'MyReLU' bottom: 'x' top: 'y'"
        " relu_param { negative_slope: 0.5 } }"
    )
    assert net.forward(x=[-2, 3])["y"].tolist() == [-1, 3]
