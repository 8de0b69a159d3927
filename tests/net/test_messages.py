"""The words by which people find help: whole phrases, as the original's messages have them."""

from __future__ import annotations

import pytest
from harness import make_net

from pycaffe_lite import ModelError

INPUTS = (
    "input: 'x' input_shape { dim: [2, 6, 5, 7] } input: 'y' input_shape { dim: [3, 1, 4, 8] }"
    " input: 'labels' input_shape { dim: [2, 1, 4, 8] }"
)
PHRASES = {
    "type: 'LRN' bottom: 'x' lrn_param { local_size: 4 }":
        "LRN only supports odd values for local_size",
    "type: 'SoftmaxWithLoss' bottom: 'x' bottom: 'labels'":
        "number of labels must match number of predictions; e.g., if softmax axis == 1",
    "type: 'HingeLoss' bottom: 'x' bottom: 'y'":
        "data and label should have the same first dimension",
    "type: 'Concat' bottom: 'x' bottom: 'y'":
        "all inputs must have the same shape, except at concat_axis",
    "type: 'Convolution' bottom: 'x' convolution_param { num_output: 4 group: 3 kernel_size: 1 }":
        "number of output should be multiples of group",
    "type: 'Convolution' bottom: 'x' convolution_param { num_output: 4 kernel_size: 0 }":
        "filter dimensions must be nonzero",
    "type: 'Convolution' bottom: 'x' convolution_param { num_output: 4 kernel_size: 3 stride: 0 }":
        "stride dimensions must be nonzero",
    "type: 'Pooling' bottom: 'x' pooling_param { global_pooling: true kernel_size: 3 }":
        "with global_pooling: true filter size cannot be specified",
    "type: 'Pooling' bottom: 'x' pooling_param { kernel_size: 3 pad: 3 }":
        "pad_h < kernel_h",
    "type: 'Reshape' bottom: 'x' reshape_param { shape { dim: [0, 50] } }":
        "output count must match input count (100 vs. 420)",
    "type: 'Slice' bottom: 'x' top: 'b' top: 'c' top: 'd'":
        "number of top blobs (4) should evenly divide input slice axis (6)",
    "type: 'Accuracy' bottom: 'x' bottom: 'y' accuracy_param { top_k: 9 }":
        "top_k must be less than or equal to the number of classes",
}  # fmt: skip


@pytest.mark.parametrize("text", PHRASES)
def test_a_phrase_that_people_search_for(text):
    with pytest.raises(ModelError) as error:
        make_net(f"{INPUTS} layer {{ name: 'it' {text} top: 'a' }}")
    assert PHRASES[text] in str(error.value)
    assert "layer 'it'" in str(error.value)


def test_weights_of_an_input_of_another_size():
    net = make_net(
        f"{INPUTS} layer {{ name: 'it' type: 'InnerProduct' bottom: 'x' top: 'a'"
        " inner_product_param { num_output: 3 } }"
    )
    net.blobs["x"].reshape(2, 6, 5, 8)
    with pytest.raises(ModelError, match="input size incompatible with inner product parameters"):
        net.reshape()


def test_filters_of_an_input_of_other_channels():
    net = make_net(
        f"{INPUTS} layer {{ name: 'it' type: 'Convolution' bottom: 'x' top: 'a'"
        " convolution_param { num_output: 3 kernel_size: 2 } }"
    )
    net.blobs["x"].reshape(2, 4, 5, 7)
    with pytest.raises(ModelError, match="input size incompatible with convolution kernel"):
        net.reshape()
