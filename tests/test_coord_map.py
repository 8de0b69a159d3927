"""Are crops where the pixels are? Figures counted by hand, and nets that are run."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_lite import TEST, Net, NetSpec
from pycaffe_lite import layers as L
from pycaffe_lite.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    coord_map,
    coord_map_from_to,
    crop,
    inverse,
)
from pycaffe_lite.prototxt import parse_net


def upsampling(pool=2, conv_pad=0, deconv=2, deconv_pad=0, **conv):
    """data -> 3x3 convolution -> pooling -> deconvolution; kernel 2 * stride, as for bilinear."""
    n = NetSpec()
    n.data = L.Input(shape={"dim": [1, 2, 13, 17]})
    conv = {"kernel_size": 3, "num_output": 3, "pad": conv_pad} | conv
    n.conv = L.Convolution(n.data, **conv)
    n.pool = L.Pooling(n.conv, kernel_size=pool, stride=pool)
    up = {"kernel_size": 2 * deconv, "stride": deconv, "num_output": 3, "pad": deconv_pad}
    n.deconv = L.Deconvolution(n.pool, convolution_param=up)
    return n


def map_of(n):
    axis, a, b = coord_map_from_to(n.deconv, n.data)
    return axis, np.asarray(a).tolist(), np.asarray(b).tolist()


@pytest.mark.parametrize(
    ("sizes", "shift"),
    [
        ({}, 0),
        ({"pool": 4, "deconv": 4}, -1),
        ({"conv_pad": 3}, -3),
        ({"deconv_pad": 2}, 2),
        ({"conv_pad": 2, "deconv_pad": 2}, 0),
        ({"kernel_size": 1}, -1),
        ({"dilation": 3}, 2),
    ],
    ids=str,
)
def test_maps(sizes, shift):
    assert map_of(upsampling(**sizes)) == (1, [1], [shift])


def test_layers_that_change_nothing():
    n = upsampling()
    wanted = map_of(n)
    n.relu = L.ReLU(n.deconv)
    n.one = L.Convolution(n.relu, kernel_size=1, num_output=3)
    for top in (n.relu, n.one):
        assert coord_map_from_to(top, n.data) == wanted


def test_only_such_layers_between():
    x = L.Input(shape={"dim": [2, 3, 5, 7]})
    assert coord_map_from_to(L.ReLU(x), L.Eltwise(x, L.TanH(x))) == (None, 1, 0)
    cut = crop(L.ReLU(x), x).to_proto().layer[-1]
    assert (cut.crop_param.axis, list(cut.crop_param.offset)) == (2, [0])


def test_each_top_of_several_bottoms_has_the_same_map():
    n = upsampling()
    n.other = L.Input(shape={"dim": [1, 2, 13, 17]})
    tops = L.Convolution(n.data, n.other, kernel_size=5, num_output=3, ntop=2)
    for top, source in zip(tops, (n.data, n.other), strict=True):
        axis, a, b = coord_map_from_to(top, source)
        assert (axis, a, b) == (1, 1, 2)


def test_lists_are_one_value_an_axis():
    axis, a, b = map_of(upsampling(conv_pad=[1, 4], kernel_size=[3, 5]))
    assert (axis, a, b) == (1, [1], [-1, -3])


def test_three_axes():
    n = NetSpec()
    n.data = L.Input(shape={"dim": [1, 2, 9, 10, 11]})
    n.conv = L.Convolution(n.data, kernel_size=[3, 3, 3], pad=[0, 1, 2], num_output=4)
    axis, _, b = coord_map_from_to(n.conv, n.data)
    assert axis == 1
    assert b.tolist() == [1, 0, -1]


def test_a_crop_between_shifts_and_hides_its_second_bottom():
    n = upsampling()
    n.crop = L.Crop(n.deconv, n.data, axis=2, offset=5)
    n.size = L.Input(shape={"dim": [1, 2, 3, 4]})
    n.also = L.Crop(n.deconv, n.size, crop_param={"offset": [3, 4]})
    _, _, base = coord_map_from_to(n.deconv, n.data)
    assert (coord_map_from_to(n.crop, n.data)[2] - base).tolist() == [5]
    assert (coord_map_from_to(n.also, n.data)[2] - base).tolist() == [3, 4]
    with pytest.raises(RuntimeError, match="could not compute map between tops"):
        coord_map_from_to(n.also, n.size)


@pytest.mark.parametrize("stride", [3, 7, 49])
def test_rounding_of_fractions_does_not_matter(stride):
    n = upsampling(conv_pad=stride)
    n.small = L.Convolution(n.data, kernel_size=stride, stride=stride, num_output=3)
    up = {"kernel_size": stride, "stride": stride, "num_output": 3}
    n.large = L.Deconvolution(n.small, convolution_param=up)
    assert crop(n.large, n.data).fn.params["crop_param"]["offset"] == [0]


# ---- crop --------------------------------------------------------------------------------------


def test_crop_as_prototxt():
    n = upsampling(conv_pad=[4, 3])
    n.crop = crop(n.deconv, n.data)
    assert (
        n.to_proto().layer[-1]
        == parse_net("""
        layer { name: "crop" type: "Crop" bottom: "deconv" bottom: "data" top: "crop"
          crop_param { axis: 2 offset: 4 offset: 3 } }""").layer[0]
    )


def test_a_pixel_comes_out_where_it_went_in():
    """Kernels with a one in the middle, far apart in the input: what is cropped lies over it."""
    n = NetSpec()
    n.data = L.Input(shape={"dim": [1, 1, 13, 17]})
    n.conv = L.Convolution(n.data, kernel_size=3, pad=[4, 3], num_output=1, bias_term=False)
    n.crop = crop(n.conv, n.data)
    net = Net(n.to_proto(), TEST)
    net.params["conv"][0].data[0, 0] = [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    x = np.random.default_rng(1).standard_normal((1, 1, 13, 17)).astype(np.float32)
    np.testing.assert_allclose(net.forward(data=x)["crop"], x)


def test_crops_that_cannot_be():
    wrong = upsampling(pool=3)
    with pytest.raises(AssertionError, match=r"scale mismatch on crop \(a = \[1\.5\]\)"):
        crop(wrong.deconv, wrong.data)
    padded = upsampling(deconv_pad=10)
    with pytest.raises(AssertionError, match=r"cannot crop negative offset \(b = \[10\.\]\)"):
        crop(padded.deconv, padded.data)
    even = upsampling(kernel_size=2, conv_pad=1)
    with pytest.raises(AssertionError, match=r"cannot crop noninteger offset \(b = \[-1\.5\]\)"):
        crop(even.deconv, even.data)


def test_no_way_between():
    n = upsampling()
    n.ip = L.InnerProduct(n.deconv, num_output=10)
    n.other = L.Input(shape={"dim": [2, 3]})
    for top, source in ((n.ip, n.data), (n.data, n.ip), (n.deconv, n.other)):
        with pytest.raises(RuntimeError, match="connected by spatial layers"):
            coord_map_from_to(top, source)


def test_layers_without_a_map():
    x = L.Input(shape={"dim": [2, 3, 5, 7]})
    with pytest.raises(UndefinedMapException, match="InnerProduct"):
        coord_map(L.InnerProduct(x, num_output=3).fn)
    with pytest.raises(UndefinedMapException, match="kernel_size"):
        coord_map(L.Pooling(x, global_pooling=True).fn)
    with pytest.raises(
        AssertionError, match=r"legacy _h/_w params \(Pooling has kernel_h, kernel_w\)"
    ):
        coord_map(L.Pooling(x, kernel_h=3, kernel_w=5).fn)
    with pytest.raises(AssertionError, match="pad_w"):
        coord_map(L.Im2col(x, convolution_param={"pad_w": 1, "kernel_size": 3}).fn)


def test_a_message_as_a_dict_is_read_too():
    x = L.Input(shape={"dim": [2, 3, 5, 7]})
    assert coord_map(L.Pooling(x, pooling_param={"kernel_size": 2, "stride": 2}).fn) == (
        1, 0.5, -0.25,
    )  # fmt: skip


# ---- maps alone --------------------------------------------------------------------------------


def test_composing():
    assert compose((1, 2, 3), (None, 5, 7)) == (1, 10, 17)
    assert compose((None, 2, 3), (2, 5, 7)) == (2, 10, 17)
    assert compose((1, 2, 3), inverse((1, 2, 3))) == (1, 1, 0)
    with pytest.raises(AxisMismatchException, match="1, 2"):
        compose((1, 2, 3), (2, 5, 7))


def test_ways_along_different_axes():
    x = L.Input(shape={"dim": [2, 3, 5, 7]})
    y = L.Convolution(L.Convolution(x, kernel_size=3, axis=2), kernel_size=3)
    with pytest.raises(AxisMismatchException):
        coord_map_from_to(y, x)
