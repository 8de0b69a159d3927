"""What can a model have wrong? Errors with file, line, layer and what is wrong with it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import small_layers  # noqa: F401  (defines SquaredGap)
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, MissingFileError, ModelError, Net

INPUT = "input: 'data' input_shape { dim: [2, 3] }\n"
IP = "inner_product_param { num_output: 4 }"
SMALL = INPUT + f"layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'y' {IP} }}\n"


RELU = "layer { name: 'r' type: 'ReLU' bottom: 'data' %s }"
WRONG = {
    "unknown bottom": (
        "layer { name: 'a' type: 'ReLU' bottom: 'dat' top: 'y' }",
        r"2: unknown bottom blob 'dat' \(layer 'a', bottom index 0\); did you mean 'data'\?",
    ),
    "unknown type": (
        "layer { name: 'a' type: 'Relu' bottom: 'data' top: 'y' }",
        r"2: layer 'a' .*unknown layer type: Relu; did you mean 'ReLU'\? \(known types: .*Split, ",
    ),
    "type like no other": (
        "layer { name: 'a' type: '?!' bottom: 'data' top: 'y' }",
        r"2: .*unknown layer type: \?! \(known types: .*Convolution, ",
    ),
    "same top twice": (
        RELU % "top: 'y'" + "\nlayer { name: 'b' type: 'Input' top: 'y' }",
        r"3: layer 'b' \(Input\): top blob 'y' produced by multiple sources",
    ),
    "same top twice in one layer": (
        "layer { name: 's' type: 'Split' bottom: 'data' top: 'y' top: 'y' }",
        r"2: layer 's' \(Split\): top blob 'y' produced by multiple sources",
    ),
    "top of an earlier layer": (
        RELU % "top: 'y'" + "\nlayer { name: 'b' type: 'TanH' bottom: 'y' top: 'data' }",
        r"3: layer 'b' \(TanH\): top blob 'data' produced by multiple sources",
    ),
    "in place beside a reader": (
        RELU % "top: 'y'" + "\n" + "layer { name: 'b' type: 'TanH' bottom: 'data' top: 'data' }",
        r"3: top blob 'data' produced by multiple sources.*'b' works in place",
    ),
    "two includes of one kind": (
        RELU % "top: 'y' include { phase: TEST } exclude { phase: TRAIN }",
        r"2: layer 'r' .*include rules or exclude rules; not both",
    ),
    "no bottom": (
        "layer { name: 'r' type: 'ReLU' top: 'y' }",
        r"2: layer 'r' \(ReLU\): ReLU layer takes 1 bottom blob\(s\), got 0",
    ),
    "no top": (RELU % "", r"ReLU layer produces 1 top blob\(s\), got 0"),
    "too many tops": (RELU % "top: 'y' top: 'z'", r"ReLU layer produces 1 top blob\(s\), got 2"),
    "too few tops": (
        "layer { name: 's' type: 'Split' bottom: 'data' }",
        r"Split layer produces at least 1 top blob\(s\), got 0",
    ),
    "too many tops of several": (
        "layer { name: 'g' type: 'SquaredGap' bottom: 'data' bottom: 'data' top: 'x' top: 'y'"
        " top: 'z' }",
        r"SquaredGap layer produces at most 2 top blob\(s\), got 3",
    ),
    "too many weights": (
        RELU % "top: 'y' loss_weight: [1, 2]",
        r"2: layer 'r' \(ReLU\): loss_weight must be unspecified or specified once per top blob: 2",
    ),
    "propagate_down": (
        RELU % "top: 'y' propagate_down: [true, false]",
        r"propagate_down param must be specified either 0 or bottom_size times: 2 for 1",
    ),
    "too many params": (
        f"layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'y' {IP}"
        " param { } param { } param { } }",
        r"2: layer 'ip' .*too many params specified for layer ip: 3 for 2 blobs",
    ),
    "not in place": (
        "layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'data'"
        " inner_product_param { num_output: 3 } }",
        r"2: layer 'ip' .*InnerProduct does not allow in-place computation",
    ),
    "copy's name": (
        "layer { name: 'a' type: 'ReLU' bottom: 'data' top: 'data_input_0_split_0' }"
        + RELU % "top: 'y'",
        r"2: top blob 'data_input_0_split_0' produced by multiple sources.*rename",
    ),
    "unknown filler": (
        "layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'y'"
        " inner_product_param { num_output: 2 weight_filler { type: 'x' } } }",
        r"2: layer 'ip' \(InnerProduct\): unknown filler name: x",
    ),
    "a number no size can be": (
        "input: 'x' input_shape { dim: [2, 3, 5, 7] } layer { name: 'r' type: 'Resample'"
        " bottom: 'x' top: 'y' resample_param { factor: inf } }",
        r"2: layer 'r' \(Resample\): cannot convert float infinity to integer",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_model_can_have_wrong(model, case):
    text, message = WRONG[case]
    path = model(INPUT + text)
    with pytest.raises(ModelError, match=message) as error:
        Net(path, TEST)
    assert str(error.value).startswith(f"{path}:"), "file and line come first"


def test_without_a_file_the_layer_is_named_all_the_same():
    with pytest.raises(ModelError, match=r"^layer 'r' \(ReLU\): ReLU layer takes 1 bottom"):
        make_net("layer { name: 'r' type: 'ReLU' top: 'y' }")


def test_an_error_at_run_time_has_its_place_though_the_file_is_gone(model):
    """Lines are those of the file that the net was built from."""
    path = model(SMALL)
    net, changed = Net(path, TEST), Net(path, TEST)
    path.write_text("\n\n\n" + SMALL)
    changed.blobs["data"].reshape(2, 5)
    with pytest.raises(ModelError, match=r"net.prototxt:2: layer 'ip'.*parameters: 5 vs. 3"):
        changed.forward()
    path.unlink()
    net.blobs["data"].reshape(2, 5)
    with pytest.raises(ModelError, match=r"net.prototxt:2: layer 'ip'.*parameters: 5 vs. 3"):
        net.forward()


# https://github.com/BVLC/caffe/issues/3986
def test_memory_that_is_not_there_names_the_layer(monkeypatch):
    def forward(self, bottom, top):
        np.empty((2**40, 2**17))

    net = make_net(INPUT + RELU % "top: 'y'")
    monkeypatch.setattr(type(net.layers[-1]), "forward", forward)
    with pytest.raises(ModelError, match=r"^layer 'r' \(ReLU\): Unable to allocate"):
        net.forward()


def test_an_error_in_one_net_leaves_others_usable():
    net = make_net(SMALL)
    net.params["ip"][1].data[...] = 2
    with pytest.raises(ModelError):
        make_net(INPUT + "layer { name: 'a' type: 'Nope' bottom: 'data' top: 'y' }")
    other = make_net(SMALL)
    other.blobs["data"].reshape(7)
    with pytest.raises(ModelError):
        other.forward()
    assert_array_equal(net.forward(data=np.ones((2, 3)))["y"], np.full((2, 4), 2))
    other.blobs["data"].reshape(2, 3)
    assert other.forward(data=np.ones((2, 3)))["y"].shape == (2, 4)


def test_the_error_classes_survive_pickling():
    """As when a worker process hands one to its parent."""
    for error in (ModelError("m"), pycaffe_lite.WeightsError("w"), MissingFileError("f")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 2), (5, 7)])
def test_indices_that_no_layer_has(low, high):
    net = make_net(
        "input: 'x' input_shape { dim: 3 } layer { name: 'r' type: 'ReLU' bottom: 'x' top: 'y' }"
    )
    with pytest.raises(IndexError, match=r"no layer (-1|2|5): the net has 2"):
        net._forward(low, high)
    with pytest.raises(IndexError, match=r"no layer (-1|2|7): the net has 2"):
        net._backward(high, low)


def test_one_name_is_no_list_of_names():
    net = make_net("input: 'x' input_shape { dim: 3 }")
    for call in (net.forward, net.backward):
        with pytest.raises(TypeError, match="list of blob names"):
            call("x")


# https://github.com/fzliu/style-transfer/issues/4
def test_what_is_gone_says_what_to_write_now():
    net = make_net("input: 'x' input_shape { dim: 3 }")
    with pytest.raises(AttributeError, match=r"pycaffe_lite.set_mode_gpu\(\)"):
        net.set_mode_gpu()
    with pytest.raises(AttributeError, match=r"Net\(prototxt, pycaffe_lite.TEST\)"):
        net.set_phase_test()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = net.nothing
    with pytest.raises(AttributeError, match=r"Net\(prototxt, TEST\)"):
        _ = pycaffe_lite.set_phase_test


def test_a_layer_without_a_type():
    with pytest.raises(ModelError, match="layer 'a'.*unknown layer type: it has none"):
        make_net("layer { name: 'a' top: 'y' }")


def test_batches_of_a_net_without_samples():
    assert make_net("").forward_all() == {}
    net = make_net("input: 'x' input_shape { dim: [0, 3] }")
    with pytest.raises(ModelError, match="batch size is 0"):
        net.forward_all(x=np.zeros((4, 3)))
    net = make_net("input: 'x' input_shape { dim: [2, 3] }")
    with pytest.raises(ModelError, match="'x' is a scalar"):
        net.forward_all(x=1.0)
    assert net.forward_all(x=np.zeros((0, 3)))["x"].shape == (0, 3)
