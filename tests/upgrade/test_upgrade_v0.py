"""Do nets of the first generation become today's? Padding layers, fields, types."""

from __future__ import annotations

import pytest
from old_nets import layer, upgraded, v0_layer

from pycaffe_lite import ModelError, graph
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net
from pycaffe_lite.upgrade import v1


def error_of(text):
    with pytest.raises(ModelError) as caught:
        graph.upgrade(parse_net(text))
    return caught.value


# ---- the first generation: padding -------------------------------------------------------------


DATA = v0_layer("name: 'data' type: 'data'", bottom="", top="data label")
PAD = v0_layer("name: 'pad' type: 'padding' pad: 2", top="padded")


def conv(name, bottom="padded", more="num_output: 7 kernelsize: 3"):
    return v0_layer(f"name: '{name}' type: 'conv' {more}", bottom=bottom, top=name)


def test_a_padding_layer_becomes_the_pad_of_a_convolution():
    new = upgraded(DATA + PAD + conv("c"))
    assert [entry.name for entry in new.layer] == ["data", "c"]
    assert list(new.layer[1].bottom) == ["data"]
    assert list(new.layer[1].convolution_param.pad) == [2]


def test_all_readers_of_a_padding_layer_pad():
    new = upgraded(
        DATA
        + PAD
        + conv("a")
        + conv("b")
        + conv("unpadded", bottom="data")
        + v0_layer("name: 'p' type: 'pool' kernelsize: 3", bottom="padded", top="p")
    )
    assert [entry.name for entry in new.layer] == ["data", "a", "b", "unpadded", "p"]
    assert all(list(entry.bottom) == ["data"] for entry in new.layer[1:])
    pads = [list(entry.convolution_param.pad) for entry in new.layer[1:4]]
    assert pads == [[2], [2], []]
    assert new.layer[4].pooling_param.pad == 2


def test_padding_in_place_ends_where_the_blob_is_made_anew():
    new = upgraded(
        "input: 'data' input_dim: [2, 3, 5, 7]"
        + v0_layer("name: 'pad' type: 'padding' pad: 2", top="data")
        + v0_layer("name: 'c' type: 'conv' num_output: 3 kernelsize: 1", top="data")
        + v0_layer("name: 'r' type: 'relu'", top="data")
    )
    assert [entry.name for entry in new.layer] == ["input", "c", "r"]
    assert list(new.layer[1].convolution_param.pad) == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PAD + v0_layer("name: 'r' type: 'relu'", bottom="padded", top="r"),
            r"layer 'r' \(relu\) reads padding layer 'pad', which only conv and pool may",
        ),
        (
            PAD + conv("c", more="num_output: 7 kernelsize: 3 pad: 1"),
            r"layer 'c' \(conv\) has pad 1 and reads padding layer 'pad' of pad 2",
        ),
        (
            PAD + conv("c", bottom="padded data"),
            r"layer 'c' \(conv\) takes a single bottom blob, got 2",
        ),
        (
            v0_layer("name: 'pad' type: 'padding'", bottom="", top="padded"),
            r"layer 'pad' \(padding\) takes a single bottom blob, got 0",
        ),
        (
            v0_layer("name: 'pad' type: 'padding'", top="padded more"),
            r"layer 'pad' \(padding\) takes a single top blob, got 2",
        ),
    ],
    ids=["relu", "two pads", "two bottoms", "no bottom", "two tops"],
)
def test_padding_that_has_no_single_meaning(text, message):
    with pytest.raises(ModelError, match=message):
        graph.upgrade(parse_net(DATA + text))


# ---- the first generation: fields --------------------------------------------------------------

IMAGENET_V0 = """
name: "old"
layers {
  layer {
    name: "data" type: "data" source: "train_db" meanfile: "mean.binaryproto"
    batchsize: 6 cropsize: 31 mirror: true scale: 0.5 rand_skip: 11
  }
  top: "data" top: "label"
}
layers {
  layer {
    name: "conv1" type: "conv" num_output: 12 kernelsize: 11 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0.25 }
    blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0
  }
  bottom: "data" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers {
  layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 }
  bottom: "conv1" top: "pool1"
}
layers {
  layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.0001 beta: 0.5 k: 2 }
  bottom: "pool1" top: "norm1"
}
layers { layer { name: "pad2" type: "padding" pad: 2 } bottom: "norm1" top: "pad2" }
layers {
  layer {
    name: "conv2" type: "conv" num_output: 8 group: 2 kernelsize: 5 biasterm: false
  }
  bottom: "pad2" top: "conv2"
}
layers {
  layer {
    name: "fc" type: "innerproduct" num_output: 10 biasterm: true
    weight_filler { type: "xavier" } bias_filler { value: 0.1 }
  }
  bottom: "conv2" top: "fc"
}
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.75 } bottom: "fc" top: "fc" }
layers {
  layer { name: "loss" type: "softmax_loss" } bottom: "fc" bottom: "label"
}
"""

IMAGENET_TODAY = """
name: "old"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "train_db" batch_size: 6 rand_skip: 11 }
  transform_param { mean_file: "mean.binaryproto" crop_size: 31 mirror: true scale: 0.5 }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param {
    num_output: 12 kernel_size: 11 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0.25 }
  }
}
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 }
}
layer {
  name: "norm1" type: "LRN" bottom: "pool1" top: "norm1"
  lrn_param { local_size: 3 alpha: 0.0001 beta: 0.5 k: 2 }
}
layer {
  name: "conv2" type: "Convolution" bottom: "norm1" top: "conv2"
  convolution_param { num_output: 8 group: 2 kernel_size: 5 pad: 2 bias_term: false }
}
layer {
  name: "fc" type: "InnerProduct" bottom: "conv2" top: "fc"
  inner_product_param {
    num_output: 10 bias_term: true
    weight_filler { type: "xavier" } bias_filler { value: 0.1 }
  }
}
layer {
  name: "drop" type: "Dropout" bottom: "fc" top: "fc" dropout_param { dropout_ratio: 0.75 }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" }
"""


def test_a_whole_net_of_the_first_generation():
    assert upgraded(IMAGENET_V0) == parse_net(IMAGENET_TODAY)


WINDOWS = """
    det_fg_threshold: 0.6 det_bg_threshold: 0.4 det_fg_fraction: 0.3 det_context_pad: 16
    det_crop_mode: 'square'"""
V0_LAYERS = {
    "images": (
        "source: 's' batchsize: 5 rand_skip: 3 shuffle_images: true new_height: 40 new_width: 30"
        " mirror: true",
        """type: 'ImageData' transform_param { mirror: true } image_data_param {
        source: 's' batch_size: 5 rand_skip: 3 shuffle: true new_height: 40 new_width: 30 }""",
    ),
    "window_data": (
        "source: 's' batchsize: 5 cropsize: 227 meanfile: 'm'" + WINDOWS,
        """type: 'WindowData' transform_param { crop_size: 227 mean_file: 'm' }
        window_data_param { source: 's' batch_size: 5 """
        + WINDOWS.replace("det_", "")
        + "}",
    ),
    "hdf5_data": (
        "source: 's' batchsize: 5",
        "type: 'HDF5Data' hdf5_data_param { source: 's' batch_size: 5 }",
    ),
    "hdf5_output": (
        "hdf5_output_param { file_name: 'f' }",
        "type: 'HDF5Output' hdf5_output_param { file_name: 'f' }",
    ),
    "infogain_loss": ("source: 's'", "type: 'InfogainLoss' infogain_loss_param { source: 's' }"),
    "concat": ("concat_dim: 0", "type: 'Concat' concat_param { concat_dim: 0 }"),
    "pool": (
        "pool: STOCHASTIC pad: 1 kernelsize: 3 stride: 2",
        """type: 'Pooling'
        pooling_param { pool: STOCHASTIC pad: 1 kernel_size: 3 stride: 2 }""",
    ),
    "accuracy": ("", "type: 'Accuracy'"),
    "bnll": ("", "type: 'BNLL'"),
    "euclidean_loss": ("", "type: 'EuclideanLoss'"),
    "flatten": ("", "type: 'Flatten'"),
    "im2col": ("", "type: 'Im2col'"),
    "multinomial_logistic_loss": ("", "type: 'MultinomialLogisticLoss'"),
    "sigmoid": ("", "type: 'Sigmoid'"),
    "softmax": ("", "type: 'Softmax'"),
    "split": ("", "type: 'Split'"),
    "tanh": ("scale: 3", "type: 'TanH' transform_param { scale: 3 }"),
}


@pytest.mark.parametrize("kind", V0_LAYERS)
def test_a_layer_of_the_first_generation(kind):
    old, today = V0_LAYERS[kind]
    new = upgraded(v0_layer(f"name: 'it' type: '{kind}' {old}", bottom="b", top="t"))
    assert list(new.layer) == [layer(f"name: 'it' bottom: 'b' top: 't' {today}")]


def test_every_field_of_the_first_generation_is_in_these_tests():
    text = IMAGENET_V0 + " ".join(old for old, _ in V0_LAYERS.values()) + " blobs: "
    names = {field.name for field in caffe_pb2.V0LayerParameter.DESCRIPTOR.fields}
    unused = {name for name in names if f"{name}:" not in text and f"{name} {{" not in text}
    assert unused == {"new_num", "new_channels"}, "of a layer type that never was released"


@pytest.mark.parametrize(
    ("kind", "field", "belongs"),
    [
        ("relu", "num_output: 4", "field num_output is set, but it belongs to conv, innerproduct"),
        ("innerproduct", "kernelsize: 3", "field kernelsize is set, but it belongs to conv, pool"),
        ("pool", "group: 2", "field group is set, but it belongs to conv"),
        ("conv", "pool: AVE", "field pool is set, but it belongs to pool"),
        ("hdf5_data", "rand_skip: 1", "field rand_skip is set, but it belongs to data, images"),
        ("data", "hdf5_output_param {}", "hdf5_output_param is set, but it belongs to hdf5_output"),
        ("images", "new_num: 4", "field new_num is set, but no type of layer has it any more"),
    ],
)
def test_a_field_that_a_type_has_not_is_an_error(kind, field, belongs):
    error = error_of(v0_layer(f"name: 'it' type: '{kind}' {field}", bottom="b", top="t"))
    assert f"layer 'it' ({kind}): " in str(error)
    assert belongs in str(error)
    assert error.layer == "it"


def test_an_unknown_type_of_the_first_generation():
    error = error_of(v0_layer("name: 'it' type: 'inner_product'", top="t"))
    assert "layer 'it': unknown V0 layer type: inner_product; did you mean 'innerproduct'?" in str(
        error
    )
    assert "(known types: accuracy, bnll, " in str(error)


def test_fields_of_the_second_generation_next_to_a_layer_of_the_first():
    error = error_of(
        "layers { layer { name: 'it' type: 'relu' } type: RELU bottom: 'b' blobs_lr: 1 }"
    )
    assert "layer 'it' (relu) is a V0 layer inside a V1 layer" in str(error)
    assert "not type, blobs_lr" in str(error)
    with pytest.raises(ModelError, match=r"'it' \(relu\) is a V0 layer inside a V1 layer"):
        v1.to_current(parse_net("layers { layer { name: 'it' type: 'relu' } }"))


def test_layers_of_both_older_generations_side_by_side():
    new = upgraded(
        v0_layer("name: 'a' type: 'relu'", top="a") + "layers { name: 'b' type: TANH bottom: 'a' }"
    )
    assert [(entry.name, entry.type) for entry in new.layer] == [("a", "ReLU"), ("b", "TanH")]


def test_padding_in_front_of_the_second_generation():
    error = error_of(PAD + "layers { name: 'c' type: CONVOLUTION bottom: 'padded' }")
    assert "layer 'c' (V1) reads padding layer 'pad'" in str(error)
