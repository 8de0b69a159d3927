"""Multiply-adds and bytes of layers, against figures worked out by hand."""

from __future__ import annotations

import pytest
from harness import make_net

from pycaffe_lite import work


def found(text):
    """The work of a net's last layer."""
    step = make_net(text)._steps[-1]
    return work.of_layer(step.layer, step.bottom, step.top)


def with_inputs(text, *shapes):
    inputs = "".join(
        f"input: 'x{k}' input_shape {{ {' '.join(f'dim: {d}' for d in shape)} }}\n"
        for k, shape in enumerate(shapes)
    )
    bottoms = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    return found(f"{inputs} layer {{ name: 'l' {bottoms} {text} }}")


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        # 2 images, 8 outputs, 3 x 4 positions; 6 / 2 channels, 5 x 3 taps
        (
            "type: 'Convolution' top: 'y' convolution_param"
            " { num_output: 8 kernel_h: 5 kernel_w: 3 group: 2 }",
            [(2, 6, 7, 6)],
            2 * 8 * (3 * 4) * (3 * 5 * 3),
        ),
        (
            "type: 'Convolution' top: 'y' top: 'z' convolution_param"
            " { num_output: 8 kernel_size: 3 bias_term: false }",
            [(2, 6, 7, 5), (2, 6, 7, 5)],
            2 * (2 * 8 * (5 * 3) * (6 * 3 * 3)),
        ),
        # each of 2 x 6 x 7 x 5 values goes to 4 outputs, 3 x 3 taps
        (
            "type: 'Deconvolution' top: 'y' convolution_param"
            " { num_output: 8 kernel_size: 3 stride: 2 group: 2 }",
            [(2, 6, 7, 5)],
            2 * 6 * 7 * 5 * 4 * 9,
        ),
        (
            "type: 'InnerProduct' top: 'y' inner_product_param { num_output: 9 }",
            [(4, 3, 5, 2)],
            4 * 9 * 30,
        ),
        (
            "type: 'InnerProduct' top: 'y' inner_product_param"
            " { num_output: 9 axis: 2 transpose: true }",
            [(4, 3, 5, 2)],
            4 * 3 * 9 * 10,
        ),
        # 5 steps, 2 streams: x of 3 values and h of 4, four gates
        (
            "type: 'LSTM' top: 'y' recurrent_param { num_output: 4 }",
            [(5, 2, 3), (5, 2)],
            5 * 2 * 16 * (3 + 4),
        ),
        # the same and 7 values once a stream
        (
            "type: 'LSTM' top: 'y' recurrent_param { num_output: 4 }",
            [(5, 2, 3), (5, 2), (2, 7)],
            5 * 2 * 16 * (3 + 4) + 2 * 16 * 7,
        ),
        (
            "type: 'RNN' top: 'y' recurrent_param { num_output: 4 }",
            [(5, 2, 3), (5, 2)],
            5 * 2 * 4 * (3 + 4 + 4),
        ),
        # elements of the top: the rule for all others
        (
            "type: 'Pooling' top: 'y' pooling_param { kernel_size: 3 stride: 2 }",
            [(2, 3, 7, 5)],
            2 * 3 * 3 * 2,
        ),
    ],
)
def test_multiply_adds(text, shapes, expected):
    assert with_inputs(text, *shapes).multiply_adds == expected


def test_bytes():
    text = "type: 'InnerProduct' top: 'y' inner_product_param { num_output: 9 }"
    figures = with_inputs(text, (4, 3, 5))
    bottom, top, params = 4 * 60, 4 * 36, 4 * (9 * 15 + 9)
    assert figures == (4 * 9 * 15, bottom, top, params)
    assert figures.bytes == bottom + top + params


def test_a_layer_derived_from_a_built_in_counts_as_that():
    from pycaffe_lite.layer_types.inner_product import InnerProduct

    class Own(InnerProduct):
        pass

    step = make_net(
        "input: 'x' input_shape { dim: 2 dim: 5 } layer { name: 'l' type: 'InnerProduct'"
        " bottom: 'x' top: 'y' inner_product_param { num_output: 3 } }"
    )._steps[-1]
    step.layer.__class__ = Own
    assert work.multiply_adds(step.layer, step.bottom, step.top) == 2 * 5 * 3
