"""Would the harness notice? Planted faults must make check_layer fail."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeOps
from harness import check_layer

from pycaffe_lite import Layer
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.proto import caffe_pb2


class Doubled(Layer):
    """The sound layer that the faulty ones are made from: y = w x, one weight."""

    def setup(self, bottom, top):
        self.add_param((), caffe_pb2.FillerParameter(value=3))

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * self.params[0].data

    def backward(self, top, propagate_down, bottom):
        dy = top[0].diff
        if self.param_propagate_down[0]:
            dw = self.params[0].diff
            dw += (dy * bottom[0].data).sum()
        if propagate_down[0]:
            bottom[0].diff[...] = dy * self.params[0].data


class WrongGradient(Doubled):
    def backward(self, top, propagate_down, bottom):
        super().backward(top, propagate_down, bottom)
        if propagate_down[0]:
            dx = bottom[0].diff
            dx *= 1.0005


class WrongParamGradient(Doubled):
    def backward(self, top, propagate_down, bottom):
        super().backward(top, propagate_down, bottom)
        if self.param_propagate_down[0]:
            dw = self.params[0].diff
            dw *= 1.0005


class WritesBottom(Doubled):
    def forward(self, bottom, top):
        super().forward(bottom, top)
        x = bottom[0].data
        x += 1


class AddsToBottom(Doubled):
    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            before = bottom[0].diff.copy()
        super().backward(top, propagate_down, bottom)
        if propagate_down[0]:
            dx = bottom[0].diff
            dx += before


class OverwritesParam(Doubled):
    def backward(self, top, propagate_down, bottom):
        if self.param_propagate_down[0]:
            self.params[0].diff[...] = 0
        super().backward(top, propagate_down, bottom)


class AlwaysWrites(Doubled):
    def backward(self, top, propagate_down, bottom):
        super().backward(top, [True], bottom)


class HostMixUp(Doubled):
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * np.full(1, 3.0, np.float32) * self.params[0].data / 3


class HiddenSync(Doubled):
    def forward(self, bottom, top):
        assert float(bottom[0].data.sum()) < 1e9
        super().forward(bottom, top)


class WrongAfterReshape(Doubled):
    def forward(self, bottom, top):
        n = getattr(self, "n", None) or bottom[0].shape[0]
        self.n = n
        top[0].data[...] = 0
        top[0].data[:n] = (bottom[0].data * self.params[0].data)[:n]


class WrongInPlace(Doubled):
    in_place = True

    def forward(self, bottom, top):
        top[0].data[...] = 1
        top[0].data[...] = bottom[0].data * self.params[0].data


class Float64(Doubled):
    """Its numbers are right, but not in Caffe's precision."""

    def forward(self, bottom, top):
        super().forward(bottom, top)
        top[0].data[...] = top[0].data + 1e-3


def check(ops, name):
    check_layer(ops, f"type: '{name}'", bottoms=[(2, 3, 5)], expect=lambda x, w: x * w)


@pytest.mark.parametrize("make", [Ops, FakeOps])
def test_a_sound_layer_passes(make):
    check(make(), "Doubled")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("WrongGradient", AssertionError, "gradient of bottom 0"),
        ("WrongParamGradient", AssertionError, "gradient of param 0"),
        ("WritesBottom", ValueError, "read-only"),
        ("AddsToBottom", AssertionError, "not overwritten"),
        ("OverwritesParam", AssertionError, "not added to"),
        ("AlwaysWrites", AssertionError, "not asked for"),
        ("WrongAfterReshape", AssertionError, "Not equal to tolerance"),
        ("WrongInPlace", AssertionError, "in place forward"),
        ("Float64", AssertionError, "Not equal to tolerance"),
    ],
)
def test_faults_are_caught_on_the_cpu(name, error, text):
    with pytest.raises(error, match=text):
        check(Ops(), name)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("HostMixUp", TypeError, "host array"),
        ("HiddenSync", AssertionError, "hidden sync"),
        ("WritesBottom", AssertionError, "Arrays are not equal"),
    ],
)
def test_faults_are_caught_on_the_device(name, error, text):
    with pytest.raises(error, match=text):
        check(FakeOps(), name)
