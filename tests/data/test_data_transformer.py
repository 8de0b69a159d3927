"""DataTransformer: crop, mirror, mean and scale of one image, against loops over its pixels."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pycaffe_lite import TEST, TRAIN, MissingFileError, ModelError
from pycaffe_lite.data.transformer import DataTransformer
from pycaffe_lite.io import array_to_blobproto
from pycaffe_lite.proto import caffe_pb2

SHAPE = (3, 4, 5)
IMAGE = np.arange(60, dtype=np.uint8).reshape(SHAPE)


def transformer(phase=TEST, **fields):
    return DataTransformer(caffe_pb2.TransformationParameter(**fields), phase)


def run(made, image=IMAGE, rng=None):
    out = np.full(made.output_shape(image.shape), np.nan, np.float32)
    made(image, out, rng or np.random.default_rng(5))
    return out


def mean_file(folder, mean, legacy=False):
    blob = array_to_blobproto(mean)
    if legacy:
        del blob.shape.dim[:]
        blob.num, blob.channels, blob.height, blob.width = 1, *mean.shape
    path = folder / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    return str(path)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_nothing_asked_for(dtype, phase):
    assert_array_equal(run(transformer(phase), IMAGE.astype(dtype)), IMAGE)


def test_a_crop_in_the_middle():
    """The upper left one of two where there are two."""
    got = run(transformer(crop_size=2))
    assert_array_equal(got, IMAGE[:, 1:3, 1:3])
    assert_array_equal(run(transformer(crop_size=3)), IMAGE[:, 0:3, 1:4])


def place(crop):
    """Row and column of the crop in IMAGE."""
    first = int(crop[0, 0, 0])
    return first // 5, first % 5


def test_crops_in_training_are_everywhere_and_repeat_with_the_generator():
    made = transformer(TRAIN, crop_size=2)

    def crops(seed):
        rng = np.random.default_rng(seed)
        return [run(made, rng=rng) for _ in range(200)]

    got = crops(3)
    for crop in got:
        row, column = place(crop)
        assert_array_equal(crop, IMAGE[:, row : row + 2, column : column + 2])
    assert {place(crop) for crop in got} == {(r, c) for r in range(3) for c in range(4)}
    assert_array_equal(crops(3), got)
    assert not (np.array(crops(4)) == got).all()


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_mirrored_in_every_phase_about_half_of_the_time(phase):
    made, rng = transformer(phase, mirror=True), np.random.default_rng(2)
    flipped = 0
    for _ in range(400):
        got = run(made, rng=rng)
        is_flipped = got[0, 0, 0] != 0
        assert_array_equal(got, IMAGE[:, :, ::-1] if is_flipped else IMAGE)
        flipped += is_flipped
    assert 150 < flipped < 250


def test_one_mean_value_and_one_a_channel():
    assert_array_equal(run(transformer(mean_value=[2])), IMAGE.astype("f4") - 2)
    got = run(transformer(mean_value=[0, 1, 2], scale=0.5))
    for c in range(3):
        assert_array_equal(got[c], (IMAGE[c].astype("f4") - c) * 0.5)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_mean_file_as_large_as_the_image(tmp_path, legacy):
    path = mean_file(tmp_path, IMAGE[::-1].astype("f4"), legacy)
    got = run(transformer(mean_file=path))
    assert_array_equal(got, IMAGE.astype("f4") - IMAGE[::-1])


def test_the_mean_is_that_of_the_pixel_before_cropping_and_mirroring(tmp_path):
    """Pixel by pixel, for every place and both directions."""
    mean = np.random.default_rng(1).normal(size=SHAPE).astype("f4")
    path = mean_file(tmp_path, mean)
    made = transformer(TRAIN, mean_file=path, crop_size=3, mirror=True, scale=0.25)
    rng, seen = np.random.default_rng(7), set()
    for _ in range(60):
        got = run(made, rng=rng)
        whole = (IMAGE - mean) * np.float32(0.25)
        matches = [
            (r, c, flipped)
            for r in range(2)
            for c in range(3)
            for flipped in (False, True)
            if all(
                got[k, i, j] == whole[k, r + i, c + (2 - j if flipped else j)]
                for k in range(3)
                for i in range(3)
                for j in range(3)
            )
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) == 12


def test_a_floating_image_is_not_written():
    image = IMAGE.astype("f4")
    run(transformer(mean_value=[5], scale=3), image)
    assert_array_equal(image, IMAGE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_size": 5}, "crop_size 5 is larger than the image: height 4, width 5"),
        ({"mean_value": [1, 2]}, "either 1 or as many as channels: 2 values vs. 3 channels"),
    ],
)
def test_what_does_not_fit_the_image(fields, message):
    made = transformer(**fields)
    with pytest.raises(ModelError, match=message):
        made.output_shape(SHAPE)
    with pytest.raises(ModelError, match=message):
        made(IMAGE, np.zeros((3, 5, 5), "f4"), np.random.default_rng(1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean_value": [1], "mean_file": "m"}, "cannot specify mean_file and mean_value"),
        ({"force_color": True, "force_gray": True}, "cannot set both force_color and force_gray"),
        ({"vertical_mirror": True}, r"transform_param \{ vertical_mirror \} is not supported"),
    ],
)
def test_what_it_refuses(fields, message):
    with pytest.raises(ModelError, match=message):
        transformer(**fields)


def test_mean_files_that_are_wrong(tmp_path):
    path = tmp_path / "mean.binaryproto"
    with pytest.raises(MissingFileError, match=r"could not open mean_file .*mean.binaryproto"):
        transformer(mean_file=str(path))
    path.write_bytes(b"\xff\xff nothing")
    with pytest.raises(ModelError, match=r"failed to parse mean_file .*mean.binaryproto"):
        transformer(mean_file=str(path))
    mean_file(tmp_path, np.zeros((5, 4), "f4"))
    with pytest.raises(ModelError, match=r"must hold one image of 3 axes, not `5 4 \(20\)`"):
        transformer(mean_file=str(path))
    mean_file(tmp_path, np.zeros((3, 5, 4), "f4"))
    with pytest.raises(ModelError, match=r"has shape `3 5 4 \(60\)`, the image `3 4 5 \(60\)`"):
        transformer(mean_file=str(path)).output_shape(SHAPE)
