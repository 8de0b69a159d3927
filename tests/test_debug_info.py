"""The log lines of a net's debug_info: wording, which blobs, and their means."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from harness import make_net
from small_nets import CHAIN, DZ, INPUT, X, by_hand, fill, ip

NUMBER = re.compile(r"(.*: )(\S+)")


@pytest.fixture
def lines(caplog):
    """The lines logged since it was last asked."""
    caplog.set_level(logging.INFO, "pycaffe_lite")

    def take():
        found = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
        caplog.clear()
        return [line for line in found if line.startswith("    [")]

    return take


def check(found, expected):
    """Each line in order, its number to C++'s 6 digits."""
    assert [NUMBER.fullmatch(line)[1] for line in found] == [text for text, _ in expected]
    for line, (text, value) in zip(found, expected, strict=True):
        number = NUMBER.fullmatch(line)[2]
        assert float(number) == pytest.approx(value, rel=1e-5), text
        assert len(number.replace(".", "").replace("-", "").lstrip("0")) <= 6


def mean(values):
    return np.abs(np.asarray(values, "f8")).mean()


def gradients(net):
    """Of z = W relu(V x + c) + b with dz = DZ: name -> value, in float64."""
    w1, w2 = (net.params[k][0].data.astype("f8") for k in "ab")
    linear, y, _ = by_hand(net, X)
    dy = DZ @ w2
    dl = dy * (linear > 0)
    return {
        "b0": DZ.T @ y, "b1": DZ.sum(axis=0), "y": dy, "relu": dl, "a0": dl.T @ X,
        "a1": dl.sum(axis=0), "x": dl @ w1, "w1": w1, "w2": w2,
    }  # fmt: skip


def test_lines_of_a_net(on_ops, lines):
    net = fill(make_net("debug_info: true force_backward: true " + CHAIN))
    assert net.debug_info
    (w1, b1), (w2, b2) = ([b.data.copy() for b in net.params[k]] for k in "ab")
    linear, y, z = by_hand(net, X)
    net.forward(x=X)
    forward = "    [Forward] Layer "
    check(
        lines(),
        [
            (forward + "input, top blob x data: ", mean(X)),
            (forward + "a, top blob y data: ", mean(linear)),
            (forward + "a, param blob 0 data: ", mean(w1)),
            (forward + "a, param blob 1 data: ", mean(b1)),
            (forward + "relu, top blob y data: ", mean(y)),
            (forward + "b, top blob z data: ", mean(z)),
            (forward + "b, param blob 0 data: ", mean(w2)),
            (forward + "b, param blob 1 data: ", mean(b2)),
        ],
    )
    net.backward(z=DZ, end="a")
    d, backward = gradients(net), "    [Backward] Layer "
    check(
        lines(),
        [
            (backward + "b, bottom blob y diff: ", mean(d["y"])),
            (backward + "b, param blob 0 diff: ", mean(d["b0"])),
            (backward + "b, param blob 1 diff: ", mean(d["b1"])),
            (backward + "relu, bottom blob y diff: ", mean(d["relu"])),
            (backward + "a, bottom blob x diff: ", mean(d["x"])),
            (backward + "a, param blob 0 diff: ", mean(d["a0"])),
            (backward + "a, param blob 1 diff: ", mean(d["a1"])),
        ],
    )


def test_norms_after_a_whole_backward(on_ops, lines):
    net = fill(make_net("debug_info: true force_backward: true " + CHAIN))
    net.forward(x=X)
    net.backward(z=DZ)
    params = [b.data.astype("f8") for blobs in net.params.values() for b in blobs]
    d = gradients(net)
    found = re.fullmatch(
        r"    \[Backward\] All net params \(data, diff\):"
        r" L1 norm = \((\S+), (\S+)\); L2 norm = \((\S+), (\S+)\)",
        lines()[-1],
    )
    diffs = [d[k] for k in ("a0", "a1", "b0", "b1")]
    expected = [sum(np.abs(p).sum() for p in group) for group in (params, diffs)]
    expected += [sum((p * p).sum() for p in group) ** 0.5 for group in (params, diffs)]
    assert [float(v) for v in found.groups()] == pytest.approx(expected, rel=1e-5)


def test_what_learns_nothing_has_no_backward_lines(lines):
    shared = ip("a", "x", "y", 3, "param { name: 'w' } param { name: 'c' lr_mult: 0 }")
    loss = "layer { name: 'l' type: 'Reduction' bottom: 'y' top: 'l' loss_weight: 2 }"
    net = fill(make_net("debug_info: true " + INPUT + shared + loss))
    net.forward(x=X)
    names = [re.findall(r"param blob (\w+) data", line) for line in lines()]
    assert [name for found in names for name in found] == ["w", "c"]
    net.backward()
    starts = [line.rpartition(":")[0] for line in lines()]
    assert starts[:-1] == [
        "    [Backward] Layer l, bottom blob y diff",
        "    [Backward] Layer a, param blob 0 diff",
    ]


def test_off_unless_asked_for(lines):
    net = fill(make_net("force_backward: true " + CHAIN))
    net.forward(x=X)
    net.backward(z=DZ)
    assert lines() == []
    net.debug_info = True
    net.forward(x=X)
    assert len(lines()) == 8


def test_nothing_is_computed_where_nobody_reads(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "pycaffe_lite")

    def refuse(*args, **kwargs):
        raise AssertionError("computed a mean for no one")

    monkeypatch.setattr("pycaffe_lite.debug_info._mean", refuse)
    net = fill(make_net("debug_info: true force_backward: true " + CHAIN))
    net.forward(x=X)
    net.backward(z=DZ)
