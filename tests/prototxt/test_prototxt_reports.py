"""Prototxts that people could not read, or that were read wrongly, as nets from files."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from old_nets import v0_layer

from pycaffe_lite import TEST, TRAIN, ModelError, Net
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import read_net

INPUT = "input: 'x' input_dim: [2, 3, 5, 4]\n"
CONV = "layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c' convolution_param { %s } }"


# https://github.com/BVLC/caffe/issues/5271, https://github.com/BVLC/caffe/issues/5472
def test_a_quoted_type_in_a_block_of_the_second_generation(model):
    path = model('layers {\n  name: "d" type: "Input" top: "d" }')
    with pytest.raises(ModelError, match=rf"{path}:2:19: layer 'd' .*enum such as CONVOLUTION"):
        Net(path, TEST)


# https://github.com/BVLC/caffe/issues/3381, https://github.com/BVLC/caffe/pull/3755
def test_layer_and_layers_in_one_net(model):
    path = model(
        INPUT + "layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'a' }\n"
        "layers { name: 'b' type: RELU bottom: 'a' top: 'b' }"
    )
    with pytest.raises(ModelError, match=rf"{path}:3: both `layer` and `layers` are there"):
        Net(path, TEST)


# https://github.com/szagoruyko/loadcaffe/issues/9
# https://github.com/facebookarchive/caffe2/issues/823
# https://github.com/jolibrain/deepdetect/pull/634
@pytest.mark.parametrize("generation", [0, 1])
def test_binary_nets_of_older_generations_have_layers(generation, tmp_path):
    spec = caffe_pb2.NetParameter(input=["x"], input_dim=[2, 3, 5, 4])
    layer = spec.layers.add(bottom=["x"], top=["f"])
    if generation:
        layer.name, layer.type = "f", layer.INNER_PRODUCT
        layer.inner_product_param.num_output = 6
    else:
        layer.layer.name, layer.layer.type, layer.layer.num_output = "f", "innerproduct", 6
    holder = layer if generation else layer.layer
    values = np.arange(6 * 60, dtype="f4")
    holder.blobs.add(num=1, channels=1, height=6, width=60, data=values)
    holder.blobs.add(num=1, channels=1, height=1, width=6, data=range(6))
    path = tmp_path / "old.caffemodel"
    path.write_bytes(spec.SerializeToString())
    net = Net(spec, TEST, weights=path)
    assert_array_equal(net.params["f"][0].data, values.reshape(6, 60))
    assert_array_equal(net.params["f"][1].data, np.arange(6))


# https://github.com/qxcv/caffe2keras/issues/7, https://github.com/MarcBS/keras/issues/34
# https://github.com/opencv/opencv_contrib/issues/658
# https://github.com/NHZlX/Merge_bn_Caffe/issues/2
@pytest.mark.parametrize(
    "text",
    [
        "input: 'b' input_dim: 2 input_dim: 3 input_dim: 4 input_dim: 5\n"
        "input: 'a' input_dim: 6 input_dim: 7 input_dim: 8 input_dim: 9",
        "input: 'b' input_shape { dim: 2 dim: 3 dim: 4 dim: 5 }\n"
        "input: 'a' input_shape { dim: 6 dim: 7 dim: 8 dim: 9 }",
        "layer { name: 'b' type: 'Input' top: 'b' input_param { shape { dim: [2, 3, 4, 5] } } }\n"
        "layer { name: 'a' type: 'Input' top: 'a' input_param { shape { dim: [6, 7, 8, 9] } } }",
    ],
    ids=["input_dim", "input_shape", "layers"],
)
def test_inputs_in_every_form(text, model):
    net = Net(model(text), TEST)
    assert net.inputs == ["b", "a"]
    assert [net.blobs[name].shape for name in "ba"] == [(2, 3, 4, 5), (6, 7, 8, 9)]


# https://github.com/shicai/MobileNet-Caffe/issues/48, https://github.com/shimat/opencvsharp/pull/621
# https://github.com/BVLC/caffe/issues/6184
def test_a_file_from_windows(tmp_path):
    text = INPUT + CONV % "\tnum_output: 7 # caf\u00e9\n kernel_size: 3"
    path = tmp_path / "n.prototxt"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert Net(path, TEST).blobs["c"].shape == (2, 7, 3, 2)
    path.write_bytes(text.encode("latin-1"))
    assert Net(path, TEST).blobs["c"].shape == (2, 7, 3, 2)


# https://github.com/BVLC/caffe/issues/6594
def test_a_path_of_windows_in_a_string(model):
    path = model(
        INPUT + r"layer { name: 'd' type: 'HDF5Data' hdf5_data_param { source: 'C:\Users' } }"
    )
    with pytest.raises(ModelError, match=rf"{path}:2:65: layer 'd' .*write paths with '/'"):
        Net(path, TEST)


# https://github.com/zhixuhao/unet/issues/198, https://github.com/TheLegendAli/DeepLab-Context/issues/34
# https://github.com/jimeiyang/objectContourDetector/issues/8
@pytest.mark.parametrize("value", ["UNPOOLING", "IMAGE_SEG_DATA", "MULTI_STAGE_MEANFIELD", "NEW"])
def test_an_unknown_type_of_the_second_generation(value, model):
    path = model(f"layers {{ bottom: 'x'\n type: {value} name: 'it' }}")
    with pytest.raises(ModelError, match=rf"{path}:2:8: layer 'it' .*unknown value {value}"):
        Net(path, TEST)


def test_crop_of_the_second_generation(model):
    text = INPUT + "layers { name: 'c' type: CROP bottom: 'x' bottom: 'x' top: 'c' }"
    assert Net(model(text), TEST).layer_dict["c"].type == "Crop"


# https://github.com/lutzroeder/netron/issues/276
def test_liberties_of_real_files(model):
    text = """input: "x"; input_dim: [2, 3, 5, 4], # the input
layer: { name: 'c', type: "Convolution"; bottom: 'x' top: 'c';
  convolution_param: { kernel_h: 3; kernel_w: 2, num_output: 7; engine: 1 } };
layer < name: 'p' type: 'Pooling' bottom: 'c' top: 'p'
  pooling_param: < pool: 1 kernel_size: 2 > >"""
    net = Net(model(text), TEST)
    assert net.blobs["c"].shape == (2, 7, 3, 3)
    assert net.blobs["p"].shape == (2, 7, 2, 2)
    path = model(text.replace("kernel_h: 3;", "kernel_h: 3; ;"))
    with pytest.raises(ModelError, match=rf"{path}:3:37: layer 'c'"):
        Net(path, TEST)


# https://github.com/NVIDIA/DIGITS/issues/2196, https://github.com/BVLC/caffe/issues/6184
def test_two_layers_of_one_name_for_two_phases(model):
    layers = "".join(
        f"layer {{ name: 'data' type: 'Input' top: 'data' include {{ phase: {phase} }}"
        f" input_param {{ shape {{ dim: [{rows}, 3] }} }} }}\n"
        for phase, rows in (("TRAIN", 5), ("TEST", 2))
    )
    path = model(layers)
    assert Net(path, TRAIN).blobs["data"].shape == (5, 3)
    assert Net(path, TEST).blobs["data"].shape == (2, 3)
    path = model(layers.replace("include { phase: TRAIN }", "").replace("phase: TEST", ""))
    with pytest.raises(ModelError, match="top blob 'data' produced by multiple sources"):
        Net(path, TEST)


RULED = "layer { name: '%s' type: 'Input' top: '%s' %s input_param { shape { dim: 2 } } }\n"
RULES = "".join(
    RULED % (name, name, rule)
    for name, rule in {
        "all": "",
        "deploy": "include { phase: TEST stage: 'deploy' }",
        "two": "include { stage: 'deploy' stage: 'fast' }",
        "not": "include { phase: TEST not_stage: 'deploy' }",
        "level": "include { min_level: 1 max_level: 2 }",
        "out": "exclude { stage: 'fast' }",
    }.items()
)


# https://github.com/BVLC/caffe/issues/3864, https://github.com/BVLC/caffe/pull/3863
# https://github.com/BVLC/caffe/issues/6192
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["all", "not", "out"]),
        ({"stages": ["deploy"]}, ["all", "deploy", "out"]),
        ({"stages": ("fast", "deploy")}, ["all", "deploy", "two"]),
        ({"level": 1}, ["all", "not", "level", "out"]),
        ({"level": 3}, ["all", "not", "out"]),
    ],
)
def test_stages_and_levels(options, names, model):
    assert Net(model(RULES), TEST, **options).inputs == names
    with pytest.raises(ModelError, match="include rules or exclude rules; not both"):
        Net(model(RULED % ("a", "a", "include { } exclude { phase: TRAIN }")), TEST)


# https://github.com/BVLC/caffe/issues/5369
def test_stages_of_the_prototxt_itself(model):
    path = model("state { stage: 'deploy' }\n" + RULES)
    assert Net(path, TEST).inputs == ["all", "deploy", "out"]
    assert Net(path, TEST, stages=["fast"]).inputs == ["all", "deploy", "two"]


# https://github.com/ZhaofanQiu/pseudo-3d-residual-networks/issues/19
# https://github.com/nshaud/DeepNetsForEO/issues/6
@pytest.mark.parametrize("times", [1, 2])
def test_rates_for_statistics(times, model):
    rates = "param { lr_mult: 1 } " * times
    path = model(INPUT + f"layer {{ name: 'bn' type: 'BatchNorm' bottom: 'x' top: 'y' {rates}}}")
    message = rf"{path}:2: layer 'bn' .*cannot configure batch normalization statistics as layer"
    with pytest.raises(ModelError, match=message):
        Net(path, TRAIN)


# https://github.com/rbgirshick/py-faster-rcnn/issues/32
# https://github.com/rbgirshick/py-faster-rcnn/issues/651
# https://github.com/playerkk/face-py-faster-rcnn/issues/22
def test_text_for_python_layers_stays_as_it_is(model):
    path = model(
        "layer { name: 'p' type: 'Python' python_param { module: 'm' layer: 'L'"
        """ param_str: "'feat_stride': 16" } }"""
    )
    assert read_net(path).layer[0].python_param.param_str == "'feat_stride': 16"


def test_old_padding_layers_are_read(model):
    text = (
        INPUT
        + v0_layer("name: 'p' type: 'padding' pad: 2", bottom="x", top="p")
        + v0_layer("name: 'c' type: 'conv' num_output: 7 kernelsize: 3", bottom="p", top="c")
    )
    assert Net(model(text), TEST).blobs["c"].shape == (2, 7, 7, 6)
