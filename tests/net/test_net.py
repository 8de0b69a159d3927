"""Building nets: constructors, choice of layers, and what a net shows of itself."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import small_layers  # noqa: F401  (defines SquaredGap)
from harness import make_net
from numpy.testing import assert_array_equal

import pycaffe_lite
from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError, Net, prototxt

INPUT = "input: 'data' input_shape { dim: [2, 3] }\n"
IP = "inner_product_param { num_output: 4 }"
SMALL = INPUT + f"layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'y' {IP} }}\n"


@pytest.fixture
def small(model, tmp_path):
    """The paths of a net and of weights for it, all ones."""
    path, weights = model(SMALL), tmp_path / "ones.caffemodel"
    net = Net(path, TEST)
    for blob in net.params["ip"]:
        blob.data[...] = 1
    net.save(weights)
    return path, weights


def weight_of(net):
    return net.params["ip"][0].data


# ---- constructors ------------------------------------------------------------------------------


def test_a_path_and_a_phase(small):
    path, _ = small
    for given in (path, str(path)):
        net = Net(given, TRAIN)
        assert net.phase == TRAIN
        assert not weight_of(net).any()


def test_weights_by_keyword(small):
    path, weights = small
    for given in (weights, str(weights)):
        assert (weight_of(Net(path, TEST, weights=given)) == 1).all()


def test_all_keywords(small):
    path, weights = small
    net = Net(network_file=str(path), phase=TEST, level=0, stages=["a"], weights=str(weights))
    assert (weight_of(net) == 1).all()
    assert list(net.spec.state.stage) == ["a"]


def test_the_old_order_works_and_warns(small, caplog):
    path, weights = small
    net = Net(str(path), str(weights), TRAIN)
    assert net.phase == TRAIN
    assert (weight_of(net) == 1).all()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "deprecated" in caplog.text
    assert "weights=" in caplog.text


def test_the_order_of_today_does_not_warn(small, caplog):
    path, weights = small
    Net(path, TEST, weights=weights)
    assert not caplog.records


def test_two_paths_without_a_phase(small):
    """Not quietly a net in phase TRAIN."""
    with pytest.raises(TypeError, match="phase"):
        Net(*map(str, small))


@pytest.mark.parametrize("phase", [2, -1, None, 0.5])
def test_a_phase_that_is_none(small, phase):
    with pytest.raises(ModelError, match=r"phase must be TRAIN \(0\) or TEST \(1\)"):
        Net(small[0], phase)


def test_a_message_instead_of_a_path():
    spec = prototxt.parse_net(SMALL)
    before = spec.SerializeToString()
    net = Net(spec, TEST)
    assert net.blobs["y"].shape == (2, 4)
    assert spec.SerializeToString() == before, "the message stays the caller's"


def test_a_missing_model(tmp_path):
    path = tmp_path / "none.prototxt"
    with pytest.raises(MissingFileError, match="Could not open file .*none.prototxt") as error:
        Net(path, TEST)
    assert isinstance(error.value, RuntimeError)
    assert isinstance(error.value, FileNotFoundError)


# https://github.com/opencv/opencv/issues/25227
def test_missing_weights(small, tmp_path):
    with pytest.raises(RuntimeError, match="Could not open file .*none.caffemodel"):
        Net(small[0], TEST, weights=tmp_path / "none.caffemodel")
    with pytest.raises(RuntimeError, match="Could not open file .*none.caffemodel"):
        Net(str(small[0]), str(tmp_path / "none.caffemodel"), TEST)


def test_phase_names_have_caffes_numbers():
    assert (pycaffe_lite.TRAIN, pycaffe_lite.TEST) == (0, 1)


# ---- which layers ------------------------------------------------------------------------------


def names(text, phase=TEST, **kwargs):
    net = Net(prototxt.parse_net(text), phase, **kwargs)
    return list(net.blobs)


def ruled(**rules):
    return "\n".join(
        f"layer {{ name: '{name}' type: 'Input' top: '{name}' {rule} }}"
        for name, rule in rules.items()
    )


LEVELS = ruled(
    NoLevel="",
    Level0Only="include { min_level: 0 max_level: 0 }",
    Level1Only="include { min_level: 1 max_level: 1 }",
    From0="include { min_level: 0 }",
    From1="include { min_level: 1 }",
)
STAGES = ruled(
    A="include { stage: 'A' }",
    B="include { stage: 'B' }",
    AorB="include { stage: 'A' } include { stage: 'B' }",
    AandB="include { stage: 'A' stage: 'B' }",
    NotB="include { stage: 'A' not_stage: 'B' }",
)


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        (0, ["NoLevel", "Level0Only", "From0"]),
        (1, ["NoLevel", "Level1Only", "From0", "From1"]),
    ],
)
def test_levels(level, kept):
    assert names(LEVELS, level=level) == kept


# https://github.com/BVLC/caffe/issues/3864
@pytest.mark.parametrize(
    ("stages", "kept"),
    [
        (["A"], ["A", "AorB", "NotB"]),
        (("B",), ["B", "AorB"]),
        (["A", "B"], ["A", "B", "AorB", "AandB"]),
        ([], []),
        (None, []),
    ],
)
def test_stages(stages, kept):
    assert names(STAGES, stages=stages) == kept


def test_stages_given_as_one_string():
    """It is a sequence of letters, none of which is a stage."""
    with pytest.raises(ModelError, match=r"stages must be a list of names.*\['AB'\]"):
        names(STAGES, stages="AB")


def test_weights_given_in_the_place_of_the_level(tmp_path):
    with pytest.raises(TypeError, match=r"level is a number, got 'w'; .* weights='w'"):
        Net(tmp_path / "n.prototxt", TEST, "w")


# https://github.com/NVIDIA/DIGITS/issues/2196
def test_two_layers_of_one_name_in_different_phases():
    text = (
        "layer { name: 'data' type: 'Input' top: 'data' include { phase: TRAIN }"
        " input_param { shape { dim: [5, 3] } } }"
        "layer { name: 'data' type: 'Input' top: 'data' include { phase: TEST }"
        " input_param { shape { dim: [2, 3] } } }"
    )
    for phase, rows in ((TRAIN, 5), (TEST, 2)):
        assert Net(prototxt.parse_net(text), phase).blobs["data"].shape == (rows, 3)
    with pytest.raises(ModelError, match="top blob 'data' produced by multiple sources"):
        make_net(text.replace("include { phase: TRAIN }", ""))


def test_one_file_for_training_and_use():
    text = INPUT + (
        "layer { name: 'label' type: 'Input' top: 'label' input_param { shape { dim: [2, 3] } }"
        " exclude { stage: 'deploy' } }"
        "layer { name: 'pred' type: 'TanH' bottom: 'data' top: 'pred' }"
        "layer { name: 'loss' type: 'SquaredGap' bottom: 'pred' bottom: 'label' top: 'loss'"
        " include { phase: TRAIN not_stage: 'deploy' } }"
        "layer { name: 'val' type: 'SquaredGap' bottom: 'pred' bottom: 'label' top: 'val'"
        " include { phase: TEST stage: 'val' } }"
    )
    spec = prototxt.parse_net(text)
    assert Net(spec, TRAIN).outputs == ["loss"]
    assert Net(spec, TEST, stages=["val"]).outputs == ["val"]
    assert Net(spec, TEST, stages=["deploy"]).outputs == ["pred"]


def test_layers_have_the_nets_phase_unless_they_name_their_own():
    net = make_net(
        INPUT + "layer { name: 'a' type: 'Dropout' bottom: 'data' top: 'a' }"
        "layer { name: 'b' type: 'Dropout' bottom: 'a' top: 'b' phase: TEST }",
        TRAIN,
    )
    assert [net.layer_dict[name].phase for name in "ab"] == [TRAIN, TEST]


# ---- three ways to declare inputs --------------------------------------------------------------


# https://github.com/qxcv/caffe2keras/issues/7
# https://github.com/opencv/opencv_contrib/issues/658
@pytest.mark.parametrize(
    "head",
    [
        "input: 'b' input: 'a' input_dim: [2, 3, 4, 5, 6, 7, 8, 9]",
        "input: 'b' input: 'a' input_shape { dim: [2, 3, 4, 5] } input_shape { dim: [6, 7, 8, 9] }",
        "layer { name: 'input' type: 'Input' top: 'b' top: 'a' input_param {"
        " shape { dim: [2, 3, 4, 5] } shape { dim: [6, 7, 8, 9] } } }",
    ],
    ids=["input_dim", "input_shape", "layer"],
)
def test_the_same_inputs_in_three_forms(head):
    net = make_net(head)
    assert net.inputs == ["b", "a"], "in the file's order"
    assert net.blobs["b"].shape == (2, 3, 4, 5)
    assert net.blobs["a"].shape == (6, 7, 8, 9)
    assert list(net._layer_names) == ["input"]
    assert net.layer_dict["input"].type == "Input"
    assert net.top_names == {"input": ["b", "a"]}
    assert net.outputs == ["a", "b"]


# ---- what is in it -----------------------------------------------------------------------------

BRANCHES = (
    "name: 'branches' "
    + INPUT
    + f"""layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'y' {IP} }}
    layer {{ name: 'relu' type: 'ReLU' bottom: 'y' top: 'y' }}
    layer {{ name: 'b' type: 'TanH' bottom: 'y' top: 'b' }}
    layer {{ name: 'Z' type: 'Sigmoid' bottom: 'y' top: 'Z0' loss_weight: 3 }}
    """
)
SPLIT = "y_relu_0_split"


def test_names_and_order():
    net = make_net(BRANCHES)
    assert net.name == "branches"
    assert list(net._layer_names) == ["input", "ip", "relu", SPLIT, "b", "Z"]
    assert list(net._blob_names) == ["data", "y", f"{SPLIT}_0", f"{SPLIT}_1", "b", "Z0"]
    assert list(net.blobs) == list(net._blob_names)
    assert list(net.layer_dict) == list(net._layer_names)
    assert [layer.type for layer in net.layers] == [
        "Input", "InnerProduct", "ReLU", "Split", "TanH", "Sigmoid",
    ]  # fmt: skip
    assert net.inputs == ["data"]
    assert net.outputs == ["Z0", "b"], "in ASCII order: capitals first"


def test_names_of_tops_and_bottoms():
    net = make_net(BRANCHES)
    assert net.top_names == {
        "input": ["data"],
        "ip": ["y"],
        "relu": ["y"],
        SPLIT: [f"{SPLIT}_0", f"{SPLIT}_1"],
        "b": ["b"],
        "Z": ["Z0"],
    }
    assert net.bottom_names == {
        "input": [],
        "ip": ["data"],
        "relu": ["y"],
        SPLIT: ["y"],
        "b": [f"{SPLIT}_0"],
        "Z": [f"{SPLIT}_1"],
    }


OF_THE_MODULE = (
    "Net Blob Layer TRAIN TEST __version__ set_mode_cpu set_mode_gpu set_device set_random_seed"
    " layer_type_list"
)
OF_A_NET = (
    "blobs params layers layer_dict inputs outputs top_names bottom_names blob_loss_weights name"
    " forward backward forward_all forward_backward_all reshape clear_param_diffs copy_from"
    " share_with save save_hdf5 load_hdf5 before_forward after_forward before_backward"
    " after_backward _layer_names _blob_names _blobs _inputs _outputs _top_ids _bottom_ids"
    " _forward _backward"
)
OF_A_BLOB = "data diff shape count num channels height width reshape"


# https://github.com/AlfredXiangWu/face_verification_experiment/issues/70
@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (lambda net: pycaffe_lite, OF_THE_MODULE),
        (lambda net: net, OF_A_NET),
        (lambda net: net.blobs["y"], OF_A_BLOB),
        (lambda net: net.params["ip"][0], OF_A_BLOB),
        (lambda net: net.layers[1], "type blobs"),
    ],
    ids=["module", "net", "blob", "parameter", "layer"],
)
def test_names_that_scripts_use(thing, names):
    found = thing(make_net(BRANCHES))
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_indices():
    net = make_net(BRANCHES)
    assert [list(net._top_ids(k)) for k in range(6)] == [[0], [1], [1], [2, 3], [4], [5]]
    assert [list(net._bottom_ids(k)) for k in range(6)] == [[], [0], [1], [1], [2], [3]]
    assert list(net._inputs) == [0]
    assert list(net._outputs) == [5, 4]
    assert [b is net.blobs[n] for n, b in zip(net._blob_names, net._blobs, strict=True)] == [
        True
    ] * 6


def test_params_are_those_of_layers_that_have_any():
    net = make_net(BRANCHES)
    assert list(net.params) == ["ip"]
    assert [b.shape for b in net.params["ip"]] == [(4, 3), (4,)]
    assert net.params["ip"] is net.layer_dict["ip"].blobs


def test_loss_weights_of_all_blobs():
    net = make_net(BRANCHES)
    wanted = dict.fromkeys(net.blobs, 0.0) | {"Z0": 3.0}
    assert net.blob_loss_weights == wanted
    assert list(net._blob_loss_weights) == list(wanted.values())


def test_dictionaries_are_made_once():
    net = make_net(BRANCHES)
    for name in ("blobs", "params", "layer_dict", "inputs", "outputs", "top_names"):
        assert getattr(net, name) is getattr(net, name)


def test_of_two_layers_of_one_name_dictionaries_have_the_last():
    net = make_net(
        INPUT + f"layer {{ name: 'a' type: 'InnerProduct' bottom: 'data' top: 'x' {IP} }}"
        "layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'y'"
        " inner_product_param { num_output: 5 } }"
    )
    assert list(net._layer_names) == ["input", "a", "a"]
    assert net.layer_dict["a"] is net.layers[2]
    assert net.params["a"][0].shape == (5, 4)
    assert net.top_names["a"] == ["y"]


# ---- tops that nobody named --------------------------------------------------------------------

PAIR = (
    "input: 'a' input: 'b' input_shape { dim: [2, 3] } input_shape { dim: [2, 3] }"
    "layer { name: 'gap' type: 'SquaredGap' bottom: 'a' bottom: 'b' %s }"
)


def test_a_loss_gets_the_top_that_it_lacks():
    net = make_net(PAIR % "")
    assert list(net.blobs) == ["a", "b", "(automatic)"]
    assert net.top_names["gap"] == ["(automatic)"]
    assert net.outputs == [], "nobody can ask for it"
    assert net.blob_loss_weights["(automatic)"] == 1
    assert net.forward(a=np.ones((2, 3)), b=np.zeros((2, 3))) == {}
    assert net.blobs["(automatic)"].data == 3
    assert net._forward(0, 1) == 3


def test_two_losses_without_names():
    net = make_net(
        PAIR % "" + " layer { name: 'r' type: 'ReLU' bottom: 'a' top: 'r' }"
        "layer { name: 'gap2' type: 'SquaredGap' bottom: 'r' bottom: 'b' }"
    )
    assert list(net._blob_names).count("(automatic)") == 2
    assert net._forward(0, len(net.layers) - 1) == 0


def test_no_top_beyond_those_needed():
    assert list(make_net(PAIR % "top: 'l'").blobs) == ["a", "b", "l"]
    assert list(make_net(PAIR % "top: 'l' top: 'gap'").blobs) == ["a", "b", "l", "gap"]


def test_values_in_the_model_itself_go_before_the_filler():
    blobs = (
        "blobs { shape { dim: [4, 3] } data: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }"
        " blobs { shape { dim: 4 } double_data: [1, 2, 3, 4] }"
    )
    text = SMALL.replace("top: 'y'", f"top: 'y' {blobs}")
    net = make_net(text)
    assert_array_equal(weight_of(net), np.arange(1, 13).reshape(4, 3))
    assert_array_equal(net.params["ip"][1].data, [1, 2, 3, 4])
    with pytest.raises(pycaffe_lite.WeightsError, match=r"`5 3 \(15\)`|12 data values"):
        make_net(text.replace("dim: [4, 3]", "dim: [5, 3]"))


def test_an_empty_net_builds_and_runs():
    net = make_net("name: 'empty'")
    assert net.forward() == {}
    assert net._forward(0, -1) == 0
    assert net.backward() == {}
    net.reshape()
    net.clear_param_diffs()
    assert (net.inputs, net.outputs, dict(net.blobs), dict(net.params)) == ([], [], {}, {})
