"""Padding, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net

from pycaffe_lite import ModelError

WIDTHS = [(1, 2, 3, 0), (0, 0, 0, 1), (3, 2, 4, 4)]  # above, below, left, right


def fields(widths):
    names = ("pad_u", "pad_d", "pad_l", "pad_r")
    return " ".join(f"{name}: {n}" for name, n in zip(names, widths, strict=True))


def spans(widths):
    return [(0, 0), (0, 0), widths[:2], widths[2:]]


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_constant(ops, widths):
    check_layer(
        ops,
        f"type: 'Pad' pad_param {{ {fields(widths)} pad_value: 0.5 }}",
        [(2, 3, 4, 5)],
        lambda x: np.pad(x, spans(widths), constant_values=0.5),
    )


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_reflection(ops, widths):
    check_layer(
        ops,
        f"type: 'Pad' pad_param {{ pad_type: REFLECT {fields(widths)} }}",
        [(2, 3, 4, 5)],
        lambda x: np.pad(x, spans(widths), mode="reflect"),
    )


def net_of(shape, param):
    return make_net(
        f"force_backward: true input: 'x' input_shape {{ dim: {list(shape)} }} layer {{ name: 'it'"
        f" type: 'Pad' bottom: 'x' top: 'y' pad_param {{ {param} }} }}"
    )


@pytest.mark.parametrize(
    ("shape", "param", "text"),
    [
        ((2, 3, 4), "", "4 axes, got 3"),
        (
            (2, 3, 4, 5),
            "pad_type: REFLECT pad_d: 4",
            "pad 4 must be less than the size 4 of axis 2",
        ),
        (
            (2, 3, 4, 5),
            "pad_type: REFLECT pad_l: 7",
            "pad 7 must be less than the size 5 of axis 3",
        ),
    ],
)
def test_errors_name_the_layer_and_both_numbers(shape, param, text):
    with pytest.raises(ModelError, match=rf"layer 'it' \(Pad\): .*{text}"):
        net_of(shape, param)


@pytest.mark.parametrize("kind", ["CONSTANT", "REFLECT"])
def test_an_empty_batch(on_ops, kind):
    net = net_of((0, 3, 4, 5), f"pad_type: {kind} pad_u: 2 pad_l: 1")
    assert net.forward()["y"].shape == (0, 3, 6, 6)
    assert net.backward()["x"].shape == (0, 3, 4, 5)
