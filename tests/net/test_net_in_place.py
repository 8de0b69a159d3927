"""In-place layers give the gradients of the same net out of place, whatever they overwrite."""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import TRAIN, Layer
from pycaffe_lite.blob import precision

SHAPE = (2, 3, 5)
INPUT = "force_backward: true input: 'x' input_shape { dim: [2, 3, 5] }"


class Alias(Layer):
    """y = x in the storage of x, as layers that only change a shape do it."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)
        top[0].share_data(bottom[0])

    def forward(self, bottom, top):
        pass

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff


class Square(Layer):
    """y = x^2, and it does not say that its backward reads the bottom."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = 2 * bottom[0].data * top[0].diff


class HostSquare(Square):
    host_only = True


class Shift(Layer):
    """y = x - 0.3, in place or not: signs change."""

    in_place = True
    keeps_bottom = keeps_top = False

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data - 0.3

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff


def chain(types: list[str], in_place: list[bool]) -> str:
    text, at = INPUT, "x"
    for k, name in enumerate(types):
        top = at if in_place[k] else f"y{k}"
        text += f" layer {{ name: 'l{k}' type: '{name}' bottom: '{at}' top: '{top}' }}"
        at = top
    return text


def gradient(net, x, dy, rounds=1):
    for _ in range(rounds):
        net.forward(x=x)
        net.backward(**{net.outputs[0]: dy})
    return net.blobs["x"].diff.copy()


CHAINS = [
    ["Sigmoid", "ReLU"],
    ["Sigmoid", "Shift", "ReLU"],
    ["TanH", "TanH", "Sigmoid"],
    ["ReLU", "Shift"],
    ["Shift", "ReLU", "Shift", "Shift"],
    ["Softmax", "Shift", "TanH"],
    ["TanH", "Alias", "Shift", "ReLU"],
    ["Square", "Alias", "Shift"],
    ["Alias", "Square", "Alias", "TanH"],
    ["HostSquare", "Shift", "Sigmoid"],
    ["Dropout", "Shift", "ReLU"],
]


@pytest.mark.parametrize("types", CHAINS, ids=" ".join)
def test_gradients_are_those_out_of_place(types, on_ops, rng):
    x, dy = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    with precision(np.float64):
        plain = make_net(chain(types, [False] * len(types)))
        wanted = gradient(plain, x, dy)
        assert not any(step.kept for step in plain._steps if "Alias" not in types)
        for first in (1, 0):
            places = [
                k >= first and t in ("ReLU", "Sigmoid", "TanH", "Shift", "Softmax", "Dropout")
                for k, t in enumerate(types)
            ]
            net = make_net(chain(types, places))
            assert_allclose(gradient(net, x, dy, rounds=2)[...], wanted, rtol=1e-12)


def test_values_that_nothing_overwrites_are_not_copied():
    net = make_net(chain(["Sigmoid", "TanH", "ReLU"], [False, False, True]), TRAIN)
    assert [len(step.kept) for step in net._steps] == [0, 0, 1, 0]  # TanH's top, under ReLU
    net = make_net(
        chain(["Sigmoid", "TanH", "ReLU"], [False, False, True]).replace(
            "force_backward: true", ""
        ),
        TRAIN,
    )
    assert not any(step.kept for step in net._steps)  # no backward, no copy


def test_kept_values_follow_a_reshape(on_ops, rng):
    net = make_net(chain(["TanH", "Shift"], [False, True]))
    for batch in (2, 4, 1):
        x, dy = (rng.normal(size=(batch, 3, 5)).astype(np.float32) for _ in range(2))
        net.blobs["x"].reshape(batch, 3, 5)
        dx = gradient(net, x, dy)
        assert_allclose(dx, dy * (1 - np.tanh(x) ** 2), rtol=1e-4, atol=1e-6)


FORK = """
  layer { name: 's' type: 'Split' bottom: 'x' top: 'a' top: 'b' }
  layer { name: 'ra' type: 'ReLU' bottom: 'a' top: 'a' }
  layer { name: 'tb' type: 'TanH' bottom: 'b' top: 'tb' }"""

HIDDEN_FORK = """
  layer { name: 'c' type: 'Alias' bottom: 'x' top: 'a' }
  layer { name: 'ra' type: 'ReLU' bottom: 'a' top: 'a' }
  layer { name: 'tb' type: 'TanH' bottom: 'x' top: 'tb' }"""


@pytest.mark.parametrize("fork", [FORK, HIDDEN_FORK])
def test_what_one_branch_overwrites_the_other_still_reads(fork, on_ops, rng):
    net = make_net(INPUT + fork)
    x = rng.normal(size=SHAPE).astype(np.float32)
    for _ in range(2):
        out = net.forward(x=x)
        assert_array_equal(out["a"], np.maximum(x, 0))
        assert_allclose(out["tb"], np.tanh(x), rtol=1e-5, atol=1e-7)
        da, db = rng.normal(size=(2, *SHAPE)).astype(np.float32)
        dx = net.backward(a=da, tb=db)["x"]
        assert_allclose(dx, da * (x > 0) + db * (1 - np.tanh(x) ** 2), rtol=1e-4, atol=1e-6)
    assert_array_equal(net.blobs["x"].data, x)


NESTED = """
  layer { name: 'o' type: 'TanH' bottom: 'x' top: 'o' }
  layer { name: 'f' type: 'Flatten' bottom: 'x' top: 'f' }
  layer { name: 'g' type: 'Flatten' bottom: 'f' top: 'g' }
  layer { name: 'r' type: 'ReLU' bottom: 'g' top: 'g' }
  layer { name: 'h' type: 'TanH' bottom: 'f' top: 'h' }"""

NESTED_SPLITS = """
  layer { name: 's' type: 'Split' bottom: 'x' top: 'p' top: 'q' }
  layer { name: 'r' type: 'ReLU' bottom: 'p' top: 'p' }
  layer { name: 't' type: 'TanH' bottom: 'x' top: 'h' }"""


@pytest.mark.parametrize("fork", [NESTED, NESTED_SPLITS])
def test_splits_behind_splits_keep_their_values(fork, on_ops):
    net = make_net(INPUT.replace("[2, 3, 5]", "[1, 3]") + fork)
    x = np.float32([[-1, 2, -3]])
    for _ in range(2):
        out = net.forward(x=x)
        assert_allclose(out["h"], np.tanh(x), rtol=1e-6)
        assert_array_equal(net.blobs["x"].data, x)
        assert_array_equal(out["g" if "g" in out else "p"], [[0, 2, 0]])
        if "q" in out:
            assert_array_equal(out["q"], x)


@pytest.mark.parametrize("fork", [FORK, HIDDEN_FORK])
def test_a_branch_that_nothing_overwrites_sees_an_edited_blob(fork, on_ops):
    """Only the overwritten top is a copy: a start behind the split finds what was written."""
    net = make_net(INPUT + fork)
    net.forward(x=np.ones(SHAPE))
    net.blobs["x"].data[...] = 2
    assert_allclose(net.forward(start="tb")["tb"], np.tanh(2), rtol=1e-6)
