"""Do nets and weight files of older forms work? Values, lines in errors."""

from __future__ import annotations

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal
from old_nets import v0_layer

from pycaffe_lite import TEST, TRAIN, ModelError, Net, WeightsError
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net

INPUT = "input: 'x' input_dim: [2, 3, 5, 4]\n"
TODAY = (
    INPUT
    + """
layer { name: 'c' type: 'Convolution' bottom: 'x' top: 'c'
  convolution_param { num_output: 7 kernel_size: 3 pad: 1 } }
layer { name: 'f' type: 'InnerProduct' bottom: 'c' top: 'f'
  inner_product_param { num_output: 6 } }"""
)
V1 = (
    INPUT
    + """
layers { name: 'c' type: CONVOLUTION bottom: 'x' top: 'c'
  convolution_param { num_output: 7 kernel_size: 3 pad: 1 } }
layers { name: 'f' type: INNER_PRODUCT bottom: 'c' top: 'f'
  inner_product_param { num_output: 6 } }"""
)
V0 = (
    INPUT
    + v0_layer("name: 'p' type: 'padding' pad: 1", bottom="x", top="p")
    + v0_layer("name: 'c' type: 'conv' num_output: 7 kernelsize: 3", bottom="p", top="c")
    + v0_layer("name: 'f' type: 'innerproduct' num_output: 6", bottom="c", top="f")
)


def filled(net):
    draw = np.random.default_rng(5)
    for blob in (blob for blobs in net.params.values() for blob in blobs):
        blob.data[...] = draw.normal(size=blob.shape)
    return net


def weights_of(net, text, *, legacy):
    """The net's values in a message of the form of `text`, with four dimensions or a shape."""
    spec = parse_net(text)
    for entry in [*spec.layers, *spec.layer]:
        holder = entry.layer if text is V0 else entry
        for blob in net.params.get(holder.name, ()):
            proto = holder.blobs.add(data=blob.data.ravel())
            if legacy:
                shape = (1,) * (4 - len(blob.shape)) + blob.shape
                proto.num, proto.channels, proto.height, proto.width = shape
            else:
                proto.shape.dim.extend(blob.shape)
    return spec


@pytest.mark.parametrize("legacy", [True, False], ids=["4-D", "shape"])
@pytest.mark.parametrize("form", [V0, V1, TODAY], ids=["V0", "V1", "today"])
def test_binary_weights_of_every_generation(form, legacy, tmp_path):
    """https://github.com/szagoruyko/loadcaffe/issues/9"""
    net = filled(make_net(TODAY))
    path = tmp_path / "w.caffemodel"
    path.write_bytes(weights_of(net, form, legacy=legacy).SerializeToString())
    model = tmp_path / "net.prototxt"
    model.write_text(form)
    x = np.random.default_rng(6).normal(size=(2, 3, 5, 4))
    for other in (Net(model, TEST, weights=path), make_net(TODAY)):
        other.copy_from(path)
        for name, blobs in net.params.items():
            for k, blob in enumerate(blobs):
                assert_array_equal(other.params[name][k].data, blob.data)
        assert_array_equal(other.forward(x=x)["f"], net.forward(x=x)["f"])


def test_values_in_a_model_of_the_second_generation():
    """A net built from a message that carries its parameters."""
    net = filled(make_net(TODAY))
    other = Net(weights_of(net, V1, legacy=False), TEST)
    assert_array_equal(other.params["c"][1].data, net.params["c"][1].data)


def test_a_saved_net_is_of_todays_form(tmp_path):
    net = filled(make_net(V0))
    net.save(tmp_path / "w.caffemodel")
    spec = caffe_pb2.NetParameter.FromString((tmp_path / "w.caffemodel").read_bytes())
    assert [entry.type for entry in spec.layer] == ["Input", "Convolution", "InnerProduct"]
    assert not spec.layers


def test_weights_of_a_type_that_is_not_known(tmp_path):
    """The number of another fork's type is no reason to lose the values of a layer."""
    net = filled(make_net(TODAY))
    spec = weights_of(net, V1, legacy=True)
    spec.layers[0].ClearField("type")
    spec.layers[0].MergeFromString(bytes([5 << 3, 99]))  # field 5, `type`, is 99
    assert not spec.layers[0].HasField("type")
    path = tmp_path / "w.caffemodel"
    path.write_bytes(spec.SerializeToString())
    other = make_net(TODAY)
    other.copy_from(path)
    assert_array_equal(other.params["c"][0].data, net.params["c"][0].data)


def test_weights_with_both_layer_and_layers(tmp_path):
    path = tmp_path / "w.caffemodel"
    path.write_bytes(parse_net("layer { name: 'c' } layers { name: 'f' }").SerializeToString())
    with pytest.raises(WeightsError, match="both `layer` and `layers` are there"):
        make_net(TODAY).copy_from(path)


def test_two_layers_of_one_name_in_different_phases():
    """https://github.com/NVIDIA/DIGITS/issues/2196"""
    text = "".join(
        f"layers {{ name: 'a' type: {word} bottom: 'x' top: 'a' include {{ phase: {phase} }} }}"
        for word, phase in [("RELU", "TRAIN"), ("TANH", "TEST")]
    )
    for phase, kind in [(TRAIN, "ReLU"), (TEST, "TanH")]:
        net = make_net(INPUT + text, phase)
        assert [net.layers[1].type, len(net.layers)] == [kind, 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["layers { layer {", "name: 'bad' type: 'relu' group: 2 } bottom: 'x' }"], "field group"),
        (["layers { bottom: 'x' layer { name: 'bad' type: 'nope' }", "}"], "unknown V0 layer type"),
        (["layers { layer { name: 'bad' type: 'relu' } bottom: 'y' }"], "unknown bottom blob 'y'"),
        (["layers { name: 'bad' type: RELU bottom: 'y' }"], "unknown bottom blob 'y'"),
        (["layers { name: 'bad' type: RELU }", "layer { name: 'a' type: 'ReLU' }"], "both `layer`"),
    ],
)
def test_errors_say_the_line_of_older_layers(lines, message, tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text("\n".join([INPUT, "# a comment", *lines]))
    with pytest.raises(ModelError, match=message) as caught:
        Net(path, TEST)
    assert f"{path}:4: " in str(caught.value)


@pytest.mark.parametrize("word", ["UNPOOLING", "IMAGE_SEG_DATA", "MULTI_STAGE_MEANFIELD"])
def test_types_that_no_form_has_are_named_with_their_layer(word):
    """https://github.com/jimeiyang/objectContourDetector/issues/8"""
    with pytest.raises(ModelError, match=rf"layer 'it'.*{word}"):
        parse_net(f"layers {{ name: 'it' type: {word} }}")


def test_a_quoted_type_in_the_second_generation():
    """https://github.com/BVLC/caffe/issues/5271"""
    with pytest.raises(ModelError, match="1:26: layer 'd' .*enum such as CONVOLUTION"):
        parse_net("layers { name: 'd' type: 'Input' top: 'd' }")
