"""How long do a net and its memory live? As long as somebody holds them, on every device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from fake_device import FakeOps
from harness import make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import device

NET = """
    force_backward: true input: 'x' input_shape { dim: [2, 3, 6, 5] }
    layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
            convolution_param { num_output: 4 kernel_size: 3 weight_filler { value: 1 } } }
    layer { name: 'd' type: 'Dropout' bottom: 'c' top: 'd' phase: TRAIN }
    layer { name: 'p' type: 'Pooling' bottom: 'd' top: 'p' pooling_param { kernel_size: 2 } }
    layer { name: 'r' type: 'ReLU' bottom: 'p' top: 'p' }
    layer { name: 'b' type: 'TanH' bottom: 'p' top: 'b' }
    layer { name: 'ip' type: 'InnerProduct' bottom: 'p' top: 'y'
            inner_product_param { num_output: 7 weight_filler { value: 0.5 } } }
"""
X = np.ones((2, 3, 6, 5))


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Memory comes back by itself, it does not wait for the garbage collector."""
    gc.disable()
    yield
    gc.enable()


def run(net):
    net.forward(x=X)
    net.backward()
    return net


def test_a_net_dropped_is_gone_at_once(on_ops):
    net = run(make_net(NET))
    net.before_forward(print)
    things = [weakref.ref(thing) for thing in (net, net.blobs["b"], net.layers[1])]
    del net
    assert [thing() for thing in things] == [None] * 3


class Remembers(FakeOps):
    """A pretend device that knows which of its arrays are still held."""

    def __init__(self):
        super().__init__()
        self._arrays = []

    def allocate(self, count, dtype):
        array = super().allocate(count, dtype)
        self._arrays.append(weakref.ref(array))
        return array

    def held(self):
        return sum(array() is not None for array in self._arrays)


# https://github.com/BVLC/caffe/issues/6012, https://github.com/BVLC/caffe/issues/1702
def test_memory_of_a_device_is_free_once_the_net_is_dropped():
    ops = Remembers()
    with device.pretend(ops):
        for _ in range(3):
            net = run(make_net(NET))
            assert ops.held() > 8
            del net
            assert ops.held() == 0


def test_making_nets_over_and_over_holds_no_more_than_one():
    ops, most = Remembers(), set()
    with device.pretend(ops):
        net = run(make_net(NET))
        for _ in range(3):
            net = None
            net = run(make_net(NET))
            most.add(ops.held())
    assert net is not None
    assert len(most) == 1


# https://github.com/BVLC/caffe/issues/5327
def test_dropping_one_net_leaves_the_others(on_ops):
    text = NET.replace("layer { name: 'd' type: 'Dropout' bottom: 'c' top: 'd' phase: TRAIN }", "")
    text = text.replace("bottom: 'd'", "bottom: 'c'")
    one, two, three = (run(make_net(text)) for _ in range(3))
    two.share_with(one)
    wanted = two.forward(x=X)["y"].copy()
    del one
    for net in (two, three):
        assert_array_equal(net.forward(x=X)["y"], wanted)
    del two
    assert_array_equal(three.forward(x=X)["y"], wanted)


def test_blobs_outlive_their_net():
    net = make_net(NET)
    net.params["ip"][1].data[...] = 5
    net.forward(x=X)
    blobs, params, data = net.blobs, net.params, net.blobs["y"].data
    wanted = data.copy()
    del net
    gc.collect()
    assert_array_equal(data, wanted)
    assert_array_equal(blobs["y"].data, wanted)
    assert (params["ip"][1].data == 5).all()
