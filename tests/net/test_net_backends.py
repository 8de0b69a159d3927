"""Does a net give the same numbers on every backend, and every time?"""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_allclose, assert_array_equal
from small_nets import fill

from pycaffe_lite import TEST, TRAIN, device
from pycaffe_lite.ops.base import Ops

NET = """
    force_backward: true
    input: 'x' input_shape { dim: [2, 3, 17, 14] } input: 'label' input_shape { dim: 2 }
    layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
            convolution_param { num_output: 64 kernel_size: 5 stride: 2 pad: 1 } }
    layer { name: 'r' type: 'ReLU' bottom: 'c' top: 'c' }
    layer { name: 'n' type: 'LRN' bottom: 'c' top: 'n' }
    layer { name: 'p' type: 'Pooling' bottom: 'n' top: 'p'
            pooling_param { kernel_size: 3 stride: 2 } }
    layer { name: 'g' type: 'Convolution' bottom: 'p' top: 'g'
            convolution_param { num_output: 6 kernel_size: 2 group: 2 } }
    layer { name: 'bn' type: 'BatchNorm' bottom: 'g' top: 'bn' }
    layer { name: 's' type: 'Sigmoid' bottom: 'bn' top: 'bn' }
    layer { name: 'ip' type: 'InnerProduct' bottom: 'bn' top: 'y'
            inner_product_param { num_output: 5 } }
    layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'y' bottom: 'label' top: 'loss' }
"""


def everything(phase):
    """All blobs and gradients of one forward and backward, by name."""
    net = fill(make_net(NET, phase))
    for blob in net.params["bn"]:
        blob.data[...] = 1
    x = np.random.default_rng(5).normal(size=(2, 3, 17, 14))
    net.forward(x=x, label=[4, 0])
    net.backward()
    found = {name: blob.data.copy() for name, blob in net.blobs.items()}
    found["dx"] = net.blobs["x"].diff.copy()
    for name, blobs in net.params.items():
        found |= {f"{name} {k}": blob.diff.copy() for k, blob in enumerate(blobs)}
    return found


# https://github.com/BVLC/caffe/issues/2624
# https://github.com/BVLC/caffe/issues/6991
# https://github.com/chuckcho/video-caffe/issues/65
@pytest.mark.parametrize("phase", [TRAIN, TEST], ids=["TRAIN", "TEST"])
def test_backends_agree(ops, phase):
    with device.pretend(Ops()):
        wanted = everything(phase)
    with device.pretend(ops):
        got = everything(phase)
    assert list(got) == list(wanted)
    for name, value in got.items():
        assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (wanted["c"].max(axis=(0, 2, 3)) > 0).all(), "no map is empty"


# https://github.com/BVLC/caffe/issues/2645
def test_one_run_is_like_another(on_ops):
    first = everything(TRAIN)
    for _ in range(3):
        for name, value in everything(TRAIN).items():
            assert_array_equal(value, first[name], err_msg=name)
