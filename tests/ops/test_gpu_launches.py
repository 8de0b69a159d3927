"""What does a convolution cost on the GPU? Launches, counted on the pretend device."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeGpuOps

from pycaffe_lite.ops.gpu import cuda
from pycaffe_lite.ops.window import Window


def _launches(images=4, channels=6, outputs=8, group=1, window=None, bias=True, workspace=2**29):
    """What forward, backward to the data and backward to the weights launch."""
    window = window or Window((3, 2), (1, 2), (1, 0))
    ops, spatial = FakeGpuOps(), (7, 9)
    ops.workspace = workspace
    x = ops.from_host(np.ones((images, channels, *spatial), np.float32))
    w = ops.from_host(np.ones((outputs, channels // group, *window.kernel), np.float32))
    b = ops.from_host(np.ones(outputs, np.float32)) if bias else None
    y = ops.from_host(np.ones((images, outputs, *window.conv_shape(spatial)), np.float32))
    calls = []
    for kernel, *args in (
        ("conv_forward", x, w, b, window, group, y),
        ("conv_backward_data", y, w, window, group, x),
        ("conv_backward_weights", x, y, window, group, w),
    ):
        before = len(ops.calls)
        ops.counters.reset()
        getattr(ops, kernel)(*args)
        calls.append(ops.calls[before:])
        # Nothing reaches the device but by these calls: no hidden fill, copy or sync.
        assert ops.counters.launches == len(calls[-1])
        assert ops.counters.uploads == ops.counters.downloads == ops.counters.syncs == 0
    return calls


def test_launches_are_few():
    assert _launches() == [
        ["im2col", "gemm", "swap"],
        ["swap", "gemm", "col2im"],
        ["im2col", "swap", "gemm"],
    ]
    assert _launches(images=1) == [
        ["im2col", "gemm", "bias"],
        ["gemm", "col2im"],
        ["im2col", "gemm"],
    ]
    assert _launches(images=1, bias=False)[0] == ["im2col", "gemm"]
    assert _launches(window=Window((1, 1))) == [
        ["gemm", "bias"],
        ["gemm"],
        ["im2col", "swap", "gemm"],
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"images": 2},
        {"images": 31},
        {"channels": 24},
        {"outputs": 64},
        {"channels": 2, "outputs": 2},
        {"group": 2},
        {"channels": 8, "group": 8},
        {"bias": False},
        {"window": Window((5, 4), (1, 1), (2, 2))},
    ],
)
def test_launches_depend_on_no_size(change):
    assert _launches(**change) == _launches()


@pytest.mark.parametrize("images", [4, 5, 7, 8, 13])
def test_launches_grow_with_what_does_not_fit(images):
    # 6 channels of 6 taps and 8 outputs, at 7 * 4 positions of 4 bytes: three images a go.
    calls = _launches(images=images, workspace=3 * (6 * 6 + 8) * 7 * 4 * 4 + 5)
    assert [c.count("gemm") for c in calls] == [-(-images // 3)] * 3


def test_pooling_takes_one_launch(rng):
    ops, window = FakeGpuOps(), Window((3, 2), (2, 2))
    x, out = (ops.from_host(np.ones(s, np.float32)) for s in ((2, 3, 7, 8), (2, 3, 3, 4)))
    mask = ops.from_host(np.zeros((2, 3, 3, 4), np.int32))
    ops.counters.reset()
    ops.pool_max(x, window, out, mask)
    ops.pool_ave(x, window, out)
    ops.pool_ave_backward(out, window, x)
    ops.pool_max_backward(out, mask, window, x)
    assert ops.counters.launches == 4


@pytest.mark.parametrize("images", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("workspace", [1, 40, 100, 1000])
def test_fitting_parts_the_images(images, workspace):
    parts = cuda.fitting(images, elements=5, itemsize=4, workspace=workspace)
    assert [i for part in parts for i in range(images)[part]] == list(range(images))
    sizes = [part.stop - part.start for part in parts]
    assert all(size == 1 or size * 20 <= workspace for size in sizes)
    assert len(parts) == -(-images // max(workspace // 20, 1))
