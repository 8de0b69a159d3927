"""Classifier: resized, cropped and preprocessed as by hand, ten crops averaged."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from small_nets import fill, ip

import pycaffe_lite as caffe
from pycaffe_lite import MissingFileError, ModelError, Net

BATCH, CHANNELS, HEIGHT, WIDTH = 4, 3, 5, 6
SETTINGS = {
    "mean": np.array([20.0, 50.0, 30.0]),
    "input_scale": 0.017,
    "raw_scale": 255,
    "channel_swap": (2, 0, 1),
}
OUTPUTS = 7


def net_text(*dims):
    shape = " ".join(f"dim: {n}" for n in dims)
    return f"input: 'data' input_shape {{ {shape} }}\n" + ip("a", "data", "z", OUTPUTS)


NET = net_text(BATCH, CHANNELS, HEIGHT, WIDTH)


@pytest.fixture
def files(model, tmp_path):
    """Writes a net and random weights of it: (prototxt, caffemodel)."""

    def write(text=NET):
        path, weights = model(text), tmp_path / "x.caffemodel"
        fill(Net(path, caffe.TEST)).save(weights)
        return path, weights

    return write


def by_hand(net, crop):
    """The output for one crop (H, W, K), with SETTINGS, in float64."""
    x = crop.astype("f8").transpose(2, 0, 1)[list(SETTINGS["channel_swap"])]
    x = (x * SETTINGS["raw_scale"] - SETTINGS["mean"][:, None, None]) * SETTINGS["input_scale"]
    weights, bias = (blob.data.astype("f8") for blob in net.params["a"])
    return weights @ x.ravel() + bias


def crops_by_hand(image, height=HEIGHT, width=WIDTH):
    """Corners, centre, and their mirror images; each pixel by its place."""
    down, right = image.shape[0] - height, image.shape[1] - width
    corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    crops = []
    for mirror in (False, True):
        for top, left in corners:
            crop = np.empty((height, width, image.shape[2]))
            for y in range(height):
                for x in range(width):
                    crop[y, x] = image[top + y, left + (width - 1 - x if mirror else x)]
            crops.append(crop)
    return crops


def close(got, wanted):
    assert got.dtype == np.float32
    assert_allclose(got, np.array(wanted), rtol=1e-4, atol=1e-4)


def test_the_mean_of_ten_crops(files, rng):
    """https://github.com/BVLC/caffe/issues/3667: not what one forward gives."""
    net = caffe.Classifier(*files(), image_dims=(8, 11), **SETTINGS)
    images = rng.random((3, 8, 11, CHANNELS)).astype("f4")
    wanted = [np.mean([by_hand(net, c) for c in crops_by_hand(image)], axis=0) for image in images]
    close(net.predict(list(images)), wanted)
    close(net.predict(images), wanted)
    close(net.predict(images, True), wanted)
    close(net.predict(images[1]), wanted[1:2])


@pytest.mark.parametrize("size", [(8, 11), (9, 10), (5, 6)])
def test_the_centre(files, rng, size):
    net = caffe.Classifier(*files(), image_dims=list(size), **SETTINGS)
    images = rng.random((7, *size, CHANNELS)).astype("f4")
    wanted = [by_hand(net, crops_by_hand(image)[4]) for image in images]
    close(net.predict(list(images), oversample=False), wanted)
    close(net.predict(images[2], False), wanted[2:3])


def test_images_of_any_size(files, rng):
    """Each is resized to image_dims by itself; by default to the net's input."""
    images = [rng.random((h, w, CHANNELS)).astype("f4") for h, w in [(12, 7), (5, 6), (3, 9)]]
    for dims in None, (8, 11):
        net = caffe.Classifier(*files(), dims, **SETTINGS)
        resized = [caffe.io.resize_image(image, dims or (HEIGHT, WIDTH)) for image in images]
        close(net.predict(images, False), [by_hand(net, crops_by_hand(i)[4]) for i in resized])
        before = [image.copy() for image in images]
        net.predict(images)
        assert all(np.array_equal(a, b) for a, b in zip(images, before, strict=True))


def test_8_bit_images(files, rng):
    net = caffe.Classifier(*files(), **SETTINGS | {"raw_scale": 1})
    image = rng.integers(0, 256, (HEIGHT, WIDTH, CHANNELS), dtype=np.uint8)
    wanted = [by_hand(net, image / 255)]
    close(net.predict([image], oversample=False), wanted)


def test_what_it_is_made_of(files):
    paths = files()
    net = caffe.Classifier(*paths, raw_scale=255)
    assert isinstance(net, Net)
    assert net.phase == caffe.TEST
    assert caffe.classifier.Classifier is caffe.Classifier
    assert net.crop_dims.tolist() == net.image_dims.tolist() == [HEIGHT, WIDTH]
    assert net.transformer.inputs == {"data": (BATCH, CHANNELS, HEIGHT, WIDTH)}
    assert net.transformer.transpose == {"data": (2, 0, 1)}
    assert net.transformer.raw_scale == {"data": 255}
    assert net.transformer.mean == net.transformer.channel_swap == net.transformer.input_scale == {}
    assert caffe.Classifier(*paths, image_dims=[8, 11]).image_dims.tolist() == [8, 11]


def test_settings_of_later(files, rng):
    net = caffe.Classifier(*files())
    for name, value in SETTINGS.items():
        getattr(net.transformer, f"set_{name}")("data", value)
    net.image_dims = (8, 11)
    image = rng.random((8, 11, CHANNELS)).astype("f4")
    close(net.predict([image], False), [by_hand(net, crops_by_hand(image)[4])])


def test_grey_images(files, rng):
    net = caffe.Classifier(*files(net_text(2, 1, HEIGHT, WIDTH)))
    image = rng.random((HEIGHT, WIDTH, 1)).astype("f4")
    weights, bias = (blob.data for blob in net.params["a"])
    close(net.predict([image], False), [weights @ image.ravel() + bias])


def test_outputs_with_more_axes(files, rng):
    """The first output is the one that comes first in ASCII order."""
    more = (
        "layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'Map'"
        " convolution_param { num_output: 2 kernel_size: 3 } }"
    )
    net = caffe.Classifier(*files(NET + more))
    images = rng.random((5, HEIGHT, WIDTH, CHANNELS)).astype("f4")
    centres = net.predict(images, oversample=False)
    assert centres.shape == (5, 2, 3, 4)
    assert net.predict(images).shape == (5, 2 * 3 * 4)
    last = net.forward(data=np.broadcast_to(images[4].transpose(2, 0, 1), (4, 3, 5, 6)))["Map"]
    assert_allclose(centres[4], last[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 8, 11, 3), "f4")])
def test_no_image(files, nothing):
    net = caffe.Classifier(*files())
    with pytest.raises(ModelError, match="at least one image"):
        net.predict(nothing)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([(8, 11)], r"images \(H, W, K\).*\(8, 11\)"),
        ([(8, 11, 3), (8, 11, 1)], r"one number of channels.*\(8, 11, 1\), \(8, 11, 3\)"),
        (
            [(8, 11, 1)],
            r"shape \(5, 6, 1\) becomes \(1, 5, 6\), and input 'data' is \(4,",
        ),
        ([(0, 11, 3)], r"cannot resize an image of shape \(0, 11, 3\)"),
    ],
)
def test_images_that_do_not_fit(files, shapes, text):
    net = caffe.Classifier(*files())
    for oversample in True, False:
        with pytest.raises(ModelError, match=text):
            net.predict([np.zeros(shape, "f4") for shape in shapes], oversample)


def test_images_smaller_than_the_input(files):
    net = caffe.Classifier(*files(), image_dims=(4, 11))
    for oversample in True, False:
        with pytest.raises(ModelError, match=r"cannot crop 5 x 6 out of images of"):
            net.predict([np.zeros((8, 9, 3), "f4")], oversample)


def test_nets_that_do_not_fit(files, tmp_path):
    with pytest.raises(ModelError, match=r"one input \(N, K, H, W\).*'data': \(4, 5\)"):
        caffe.Classifier(*files(net_text(4, 5)))
    two = "input: 'b' input_shape { dim: 2 }\n" + NET
    with pytest.raises(ModelError, match=r"one input \(N, K, H, W\).*'b': \(2,\)"):
        caffe.Classifier(*files(two))
    with pytest.raises(ModelError, match="Mean channels incompatible"):
        caffe.Classifier(*files(), mean=np.zeros(2))
    with pytest.raises(MissingFileError, match="none.caffemodel"):
        caffe.Classifier(files()[0], tmp_path / "none.caffemodel")


def test_a_result_that_is_none_of_a_sample(files):
    more = "layer { name: 'r' type: 'Reduction' bottom: 'z' top: 'r' }"
    net = caffe.Classifier(*files(NET + more))
    with pytest.raises(ModelError, match="output 'r' has 3 results for 10 samples"):
        net.predict(np.zeros((1, HEIGHT, WIDTH, CHANNELS)))
