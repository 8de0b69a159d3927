"""Net.set_input_arrays: which arrays it takes, and how long it holds them."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import TEST, ModelError, Net

NET = (
    "layer { name: 'm' type: 'MemoryData' top: 'data' top: 'label'"
    " memory_data_param { batch_size: 2 channels: 3 height: 5 width: 4 } }\n"
)
DATA = np.arange(6 * 60, dtype="f4").reshape(6, 3, 5, 4)
LABELS = np.arange(6, dtype="f4")


@pytest.mark.parametrize(
    "labels",
    [LABELS, LABELS.reshape(6, 1, 1, 1), np.stack([LABELS, -LABELS], axis=1)[:, 0]],
    ids=["1-d", "4-d", "1-d, of another array"],
)
def test_labels_of_one_axis_or_four(labels):
    net = make_net(NET)
    net.set_input_arrays(DATA, labels)
    net.forward()
    assert_array_equal(net.forward()["label"], np.float32([2, 3]).reshape(2, 1, 1, 1))


def test_arrays_are_not_copied():
    net = make_net(NET)
    data, labels = DATA.copy(), LABELS.copy()
    net.set_input_arrays(data, labels)
    net.forward()
    data[2:4] = -1
    labels[2:4] = [8, 9]
    out = net.forward()
    assert (out["data"] == -1).all()
    assert_array_equal(out["label"].ravel(), [8, 9])


def test_arrays_live_as_long_as_they_are_read():
    net = make_net(NET)
    data, labels = DATA.copy(), LABELS.copy()
    held = [weakref.ref(data), weakref.ref(labels)]
    net.set_input_arrays(data, labels)
    del data, labels
    assert_array_equal(net.forward()["data"], DATA[:2])
    assert all(ref() is not None for ref in held)
    net.set_input_arrays(DATA, LABELS)
    assert [ref() for ref in held] == [None, None]


def strided(array):
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (DATA.astype("f8"), LABELS, "data array must be float32, not float64"),
        (DATA, LABELS.astype(int), "labels array must be float32, not int64"),
        (strided(DATA), LABELS, "data array must be C contiguous"),
        (DATA, np.repeat(LABELS, 2).reshape(-1, 1, 1, 1)[::2], "labels array must be C contiguous"),
        (DATA[0], LABELS, "data array must be 4-d, not 3-d"),
        (DATA, LABELS.reshape(6, 1), "labels array must be 4-d, not 2-d"),
        (DATA.reshape(6, 5, 3, 4), LABELS, "data array has wrong channels: 5 vs. 3"),
        (DATA.reshape(6, 3, 4, 5), LABELS, "data array has wrong height: 4 vs. 5"),
        (DATA.reshape(4, 3, 5, 6), LABELS, "data array has wrong width: 6 vs. 4"),
        (DATA, LABELS.reshape(2, 3, 1, 1), "labels array has wrong channels: 3 vs. 1"),
        (DATA, LABELS[:4], "data and labels must have the same first dimension: 6 vs. 4"),
        (DATA[:5], LABELS[:5], "must be a multiple of batch size: 5 vs. 2"),
        (DATA[:0], LABELS[:0], "must be a multiple of batch size: 0 vs. 2"),
        (DATA.tolist(), LABELS, "data array must be a NumPy array, not list"),
        (DATA, 3, "labels array must be a NumPy array, not int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_do_not_fit(data, labels, message, tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text("# a comment\n" + NET)
    net = Net(path, TEST)
    net.set_input_arrays(DATA, LABELS)
    net.forward()
    with pytest.raises(ModelError) as raised:
        net.set_input_arrays(data, labels)
    assert message in str(raised.value)
    assert f"{path}:2: layer 'm' (MemoryData): " in str(raised.value)
    assert_array_equal(net.forward()["data"], DATA[2:4], "the arrays from before are read on")


@pytest.mark.parametrize(
    ("text", "found"), [("input: 'x' input_dim: [2, 3, 5, 4]", "Input"), ("", "nothing")]
)
def test_the_first_layer_must_be_memory_data(text, found):
    net = make_net(text)
    with pytest.raises(RuntimeError, match=f"first layer is MemoryData, not .*{found}"):
        net.set_input_arrays(DATA, LABELS)
