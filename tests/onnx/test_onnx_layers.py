"""Does each layer's ONNX form compute what the layer does? Both run on random and edge inputs."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from harness import make_net
from onnx_cases import assert_same, fill, one_layer, ops_of

X = (2, 3, 5, 7)
RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

ACTIVATIONS = [
    "type: 'ReLU'",
    "type: 'ReLU' relu_param { negative_slope: 0.25 }",
    "type: 'ReLU6'",
    "type: 'ReLU6' relu6_param { negative_slope: 0.1 }",
    "type: 'NegReLU' relu_param { negative_slope: 0.2 }",
    "type: 'CReLU'",
    "type: 'HardSigmoid' hardsigmoid_param { alpha: 0.3 }",
    "type: 'HardSwish'",
    "type: 'PReLU'",
    "type: 'PReLU' prelu_param { channel_shared: true }",
    "type: 'ELU' elu_param { alpha: 0.7 }",
    "type: 'Sigmoid'",
    "type: 'TanH'",
    "type: 'AbsVal'",
    "type: 'BNLL'",
    "type: 'Threshold' threshold_param { threshold: 0.3 }",
    "type: 'Clip' clip_param { min: -0.5 max: 0.8 }",
    "type: 'Swish' swish_param { beta: 1.5 }",
    "type: 'Swish'",
    "type: 'Dropout'",
    "type: 'Dropout' dropout_param { dropout_ratio: 0.3 scale_train: false }",
    "type: 'Power' power_param { power: 2 scale: 0.5 shift: 1 }",
    "type: 'Power' power_param { scale: -3 }",
    "type: 'Power' power_param { power: 0 }",
    "type: 'Power' power_param { scale: 0 shift: 3 power: 2 }",
    "type: 'Power'",
    "type: 'Exp' exp_param { base: 2 scale: 0.05 shift: 0.5 }",
    "type: 'Exp' exp_param { scale: 0.1 }",
    "type: 'Log' log_param { base: 10 scale: 0.5 shift: 3 }",
    "type: 'Log'",
]


@pytest.mark.parametrize("snippet", ACTIVATIONS)
def test_activation(snippet: str) -> None:
    assert_same(one_layer(snippet, [X]))


def test_prelu_of_two_axes() -> None:
    assert_same(one_layer("type: 'PReLU'", [(4, 3)]))


FILTERS = [
    ("num_output: 4 kernel_size: 3", X),
    ("num_output: 4 kernel_size: 3 stride: 2 pad: 1 bias_term: false", X),
    ("num_output: 4 kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 2 stride_h: 2 stride_w: 1", X),
    ("num_output: 6 kernel_size: 3 dilation: 2 pad: 2 group: 3", X),
    ("num_output: 4 kernel_size: 3 pad: 1", (2, 3, 7)),
    ("num_output: 4 kernel_size: 2 kernel_size: 3 kernel_size: 1 stride: 2", (2, 3, 4, 5, 6)),
    ("num_output: 4 kernel_size: 2 axis: 2", X),
    ("num_output: 4 axis: 1", (5, 3)),
]


@pytest.mark.parametrize(("param", "shape"), FILTERS)
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_filters(kind: str, param: str, shape: tuple[int, ...]) -> None:
    assert_same(one_layer(f"type: '{kind}' convolution_param {{ {param} }}", [shape]))


@pytest.mark.parametrize("kind", ["DepthwiseConvolution", "ConvolutionDepthwise"])
def test_filters_of_each_channel(kind: str) -> None:
    param = "convolution_param { num_output: 3 group: 3 kernel_size: 3 pad: 1 }"
    assert_same(one_layer(f"type: '{kind}' {param}", [X]))


def test_several_bottoms_share_the_weights() -> None:
    net = one_layer(
        "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 2 }", [X, X], tops=2
    )
    model = assert_same(net)
    assert len(model.model.initializers) == 2


def test_windows_over_four_axes_are_refused() -> None:
    param = "convolution_param { num_output: 2 kernel_size: 1 }"
    net = one_layer(f"type: 'Convolution' {param}", [(2, 3, 2, 3, 4, 5)])
    with pytest.raises(ValueError, match="it.*Convolution.*1 to 3 axes.*--end x0"):
        assert_same(net)


def test_im2col() -> None:
    assert_same(
        one_layer("type: 'Im2col' convolution_param { kernel_size: 3 stride: 2 pad: 1 }", [X])
    )


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("num_output: 4", X),
        ("num_output: 4 bias_term: false transpose: true", X),
        ("num_output: 4", (5, 3)),
        ("num_output: 4 axis: 2", X),
        ("num_output: 4 axis: -1 transpose: true bias_term: false", X),
        ("num_output: 4 axis: 0", (2, 3, 5)),
    ],
)
def test_inner_product(param: str, shape: tuple[int, ...]) -> None:
    assert_same(one_layer(f"type: 'InnerProduct' inner_product_param {{ {param} }}", [shape]))


@pytest.mark.parametrize("bias", ["true", "false"])
def test_embed(bias: str) -> None:
    param = f"embed_param {{ input_dim: 6 num_output: 4 bias_term: {bias} }}"
    assert_same(one_layer(f"type: 'Embed' {param}", [(5, 3)]))


POOLINGS = [
    "kernel_size: 2 stride: 2",  # 5 x 7: a last window of one row
    "kernel_size: 3 stride: 2",
    "kernel_size: 3 stride: 2 pad: 1",
    "kernel_size: 2 stride: 2 pad: 1",  # what starts behind the image is dropped
    "kernel_size: 3 stride: 3 pad: 2",
    "kernel_size: 4 stride: 3 pad: 1",
    "kernel_size: 5 stride: 4 pad: 2",
    "kernel_h: 1 kernel_w: 3 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 1",
    "kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
    "global_pooling: true",
]


@pytest.mark.parametrize("param", POOLINGS)
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_pooling(pool: str, param: str) -> None:
    assert_same(one_layer(f"type: 'Pooling' pooling_param {{ pool: {pool} {param} }}", [X]))


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("kernel_size: 3 stride: 2 pad: 1", (2, 3, 8)),
        ("kernel_size: 2 stride: 2 pad: 1", (2, 3, 4, 5, 6)),
        ("global_pooling: true", (2, 3, 4, 5, 6)),
    ],
)
def test_pooling_over_other_axes(pool: str, param: str, shape: tuple[int, ...]) -> None:
    assert_same(one_layer(f"type: 'Pooling' pooling_param {{ pool: {pool} {param} }}", [shape]))


@pytest.mark.parametrize("size", [(4, 6), (5, 9), (8, 11), (12, 13), (3, 10)])
@pytest.mark.parametrize("param", ["kernel_size: 3 stride: 2 pad: 1", "kernel_size: 3 stride: 2"])
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_pooling_sizes(pool: str, param: str, size: tuple[int, int]) -> None:
    """As files have them; with sizes that are open ONNX rounds and counts by itself."""
    net = one_layer(f"type: 'Pooling' pooling_param {{ pool: {pool} {param} }}", [(1, 2, *size)])
    assert_same(net)
    if pool == "AVE" and "pad" in param and RUNTIME < (1, 24):
        pytest.skip("onnxruntime before 1.24 joins a Pad and an average rounded up wrongly")
    assert_same(net, sizes="dynamic")


@pytest.mark.parametrize("param", ["kernel_size: 3 stride: 2", "global_pooling: true"])
def test_pooling_by_chance(param: str) -> None:
    net = one_layer(f"type: 'Pooling' pooling_param {{ pool: STOCHASTIC {param} }}", [X])
    assert ops_of(assert_same(net, tolerance=1e9)) != []  # sums of any sign: see the next test


@pytest.mark.parametrize("param", ["kernel_size: 3 stride: 2 pad: 1", "global_pooling: true"])
def test_the_mask_counts_in_a_plane(param: str) -> None:
    net = one_layer(f"type: 'Pooling' pooling_param {{ pool: MAX {param} }}", [X], tops=2)
    assert_same(net)


def test_the_mask_of_images_of_any_size() -> None:
    param = "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"
    assert_same(one_layer(f"type: 'Pooling' {param}", [X], tops=2), sizes="dynamic")


def test_windows_without_values_are_refused() -> None:
    net = one_layer("type: 'Pooling' pooling_param { pool: MAX kernel_size: 1 stride: 3 }", [X])
    with pytest.raises(ValueError, match=r"it.*Pooling.*starts at 6 of 5"):
        assert_same(net)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("height", [1, 2, 3])
def test_pyramid(pool: str, height: int) -> None:
    param = f"spp_param {{ pyramid_height: {height} pool: {pool} }}"
    assert_same(one_layer(f"type: 'SPP' {param}", [(2, 3, 8, 9)]))


NORMALIZATIONS = [
    ("type: 'LRN' lrn_param { local_size: 3 alpha: 0.2 beta: 0.6 k: 2 }", X),
    ("type: 'LRN' lrn_param { local_size: 5 alpha: 0.1 }", (2, 4, 5, 7)),
    ("type: 'LRN' lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", X),
    ("type: 'BatchNorm'", X),
    ("type: 'BatchNorm' batch_norm_param { eps: 0.01 }", (4, 3)),
    ("type: 'MVN'", X),
    ("type: 'MVN' mvn_param { across_channels: true eps: 0.1 }", X),
    ("type: 'MVN' mvn_param { normalize_variance: false }", (2, 3, 5)),
    ("type: 'Normalize'", X),
    ("type: 'Normalize' norm_param { across_spatial: false channel_shared: false }", X),
    ("type: 'Softmax'", X),
    ("type: 'Softmax' softmax_param { axis: 2 }", X),
    ("type: 'Softmax' softmax_param { axis: -1 }", (4, 3)),
    ("type: 'ChannelNorm'", X),
    ("type: 'BN' bn_param { slope_filler { value: 1 } }", X),
    ("type: 'BN' bn_param { bn_mode: INFERENCE }", X),
    ("type: 'BN' bn_param { scale_filler { value: 1 } }", X),
]


@pytest.mark.parametrize(("snippet", "shape"), NORMALIZATIONS)
def test_normalization(snippet: str, shape: tuple[int, ...]) -> None:
    assert_same(one_layer(snippet, [shape]), tolerance=1e-5)


def test_batch_norm_divides_by_its_factor() -> None:
    net = one_layer("type: 'BatchNorm'", [X], params=[[1, 2, 3], [8, 18, 50], [2]])
    model = assert_same(net)
    assert ops_of(model) == ["BatchNormalization"]
    values = [v.tolist() for v in model.model.initializers.values()]
    assert [0.5, 1.0, 1.5] in values
    assert [4.0, 9.0, 25.0] in values


def test_batch_norm_without_a_factor_has_no_moments() -> None:
    net = one_layer("type: 'BatchNorm'", [X], params=[[1, 2, 3], [8, 18, 50], [0]])
    assert_same(net, tolerance=1e-5)


def test_bn_of_segnet_gives_its_moments() -> None:
    net = one_layer("type: 'BN' bn_param { scale_filler { value: 1 } }", [X], tops=3)
    assert_same(net, tolerance=1e-5)


ARITHMETIC = [
    ("type: 'Eltwise'", [X, X]),
    ("type: 'Eltwise'", [X, X, X]),
    ("type: 'Eltwise' eltwise_param { coeff: 2 coeff: -0.5 }", [X, X]),
    ("type: 'Eltwise' eltwise_param { operation: PROD }", [X, X, X]),
    ("type: 'Eltwise' eltwise_param { operation: MAX }", [X, X, X]),
    ("type: 'Scale' scale_param { bias_term: true }", [X]),
    ("type: 'Scale' scale_param { axis: 2 num_axes: -1 }", [X]),
    ("type: 'Scale' scale_param { num_axes: 0 bias_term: true }", [X]),
    ("type: 'Scale' scale_param { axis: 0 }", [X, (2, 3)]),
    ("type: 'Scale' scale_param { axis: 1 bias_term: true }", [X, (3, 5)]),
    ("type: 'Bias'", [X]),
    ("type: 'Bias' bias_param { axis: 0 }", [X, (2, 3)]),
    ("type: 'Axpy'", [(2, 3), X, X]),
    ("type: 'Axpy'", [(2, 3, 1, 1), X, X]),
    ("type: 'Mean' mean_param { operation: SUBTRACT value: 2 value: 3 input_scale: 0.5 }", [X]),
]


@pytest.mark.parametrize(("snippet", "shapes"), ARITHMETIC)
def test_arithmetic(snippet: str, shapes: list[tuple[int, ...]]) -> None:
    assert_same(one_layer(snippet, shapes))


SHAPES = [
    ("type: 'Concat'", [X, (2, 4, 5, 7)], 1),
    ("type: 'Concat' concat_param { axis: -1 }", [X, (2, 3, 5, 2)], 1),
    ("type: 'Concat'", [X], 1),
    ("type: 'Concat' concat_param { axis: 0 }", [X, X], 1),
    ("type: 'Slice' slice_param { slice_point: 1 }", [X], 2),
    ("type: 'Slice'", [(2, 6, 5)], 3),
    ("type: 'Slice' slice_param { axis: 2 slice_point: 2 slice_point: 3 }", [X], 3),
    ("type: 'Slice'", [X], 1),
    ("type: 'Split'", [X], 2),
    ("type: 'Tile' tile_param { axis: 2 tiles: 3 }", [X], 1),
    ("type: 'Flatten'", [X], 1),
    ("type: 'Flatten' flatten_param { axis: 2 }", [X], 1),
    ("type: 'Flatten' flatten_param { axis: 1 end_axis: 2 }", [X], 1),
    ("type: 'Flatten' flatten_param { axis: 0 end_axis: 1 }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: 0 dim: -1 } }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: 0 dim: 0 dim: 35 } }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: 1 } axis: 0 num_axes: 0 }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: 5 dim: -1 } axis: 1 num_axes: 2 }", [X], 1),
    ("type: 'Reshape' reshape_param { shape { dim: -1 dim: 7 } }", [X], 1),
    ("type: 'Permute' permute_param { order: 0 order: 2 order: 3 order: 1 }", [X], 1),
    ("type: 'ShuffleChannel' shuffle_channel_param { group: 3 }", [(2, 6, 5, 7)], 1),
    ("type: 'PixelShuffle' pixelshuffle_param { upscale_factor: 2 }", [(2, 12, 5, 7)], 1),
    ("type: 'Reorg'", [(2, 8, 4, 6)], 1),
    ("type: 'Reorg' reorg_param { reverse: true }", [(2, 8, 4, 6)], 1),
    ("type: 'Crop'", [X, (1, 1, 3, 4)], 1),
    ("type: 'Crop' crop_param { offset: 1 offset: 2 }", [X, (4, 1, 3, 4)], 1),
    ("type: 'Crop' crop_param { axis: 1 offset: 1 }", [X, (4, 2, 3, 4)], 1),
    ("type: 'CropCenter' crop_center_param { crop_size: 0 crop_size: 1 crop_size: 2 }", [X], 1),
    ("type: 'Pad' pad_param { pad_u: 1 pad_d: 2 pad_l: 3 pad_value: 0.5 }", [X], 1),
    ("type: 'Pad' pad_param { pad_u: 1 pad_r: 2 pad_type: REFLECT }", [X], 1),
    ("type: 'Unsqueeze' unsqueeze_param { dim: 2 }", [X], 1),
    ("type: 'BatchReindex'", [(4, 3, 5), (6,)], 1),
    ("type: 'Filter'", [(4, 3, 5), (4,)], 1),
    ("type: 'Reduction'", [X], 1),
    ("type: 'Reduction' reduction_param { operation: MEAN axis: 2 coeff: 3 }", [X], 1),
    ("type: 'Reduction' reduction_param { operation: ASUM axis: 1 }", [X], 1),
    ("type: 'Reduction' reduction_param { operation: SUMSQ axis: -1 coeff: -1 }", [X], 1),
    ("type: 'ArgMax'", [X], 1),
    ("type: 'ArgMax' argmax_param { top_k: 4 }", [X], 1),
    ("type: 'ArgMax' argmax_param { top_k: 3 out_max_val: true }", [X], 1),
    ("type: 'ArgMax' argmax_param { axis: 1 }", [X], 1),
    ("type: 'ArgMax' argmax_param { axis: 2 top_k: 2 out_max_val: true }", [X], 1),
    ("type: 'ArgMax' argmax_param { axis: 3 top_k: 7 }", [X], 1),
]


@pytest.mark.parametrize(("snippet", "shapes", "tops"), SHAPES)
def test_shape(snippet: str, shapes: list[tuple[int, ...]], tops: int) -> None:
    assert_same(one_layer(snippet, shapes, tops))


@pytest.mark.parametrize("snippet", ["type: 'Crop'", "type: 'Crop' crop_param { offset: 1 }"])
def test_crop_to_images_of_any_size(snippet: str) -> None:
    assert_same(one_layer(snippet, [X, (2, 4, 3, 4)]), sizes="dynamic")


def test_regions() -> None:
    param = "roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }"
    assert_same(one_layer(f"type: 'ROIPooling' {param}", [(2, 3, 8, 9), (6, 5)]))


def test_of_equal_values_the_later_is_the_largest() -> None:
    net = one_layer("type: 'ArgMax' argmax_param { top_k: 2 }", [(2, 3, 1, 1)])
    model = assert_same(net)
    proof = model.prove()
    assert "zeros" in proof.runs
    net.forward(x0=np.zeros((2, 3, 1, 1)))
    assert net.blobs["y0"].data[0].ravel().tolist() == [2, 1]


RECURRENT = [
    ("", [(5, 3, 4), (5, 3)], 0),
    ("", [(5, 3, 4, 2), (5, 3), (3, 6)], 0),
    ("expose_hidden: true", [(5, 3, 4), (5, 3)], 1),
    ("expose_hidden: true", [(5, 3, 4), (5, 3), (3, 2, 7)], 1),
]


@pytest.mark.parametrize(("param", "shapes", "exposed"), RECURRENT)
@pytest.mark.parametrize(("kind", "states"), [("LSTM", 2), ("RNN", 1)])
def test_recurrent(
    kind: str, states: int, param: str, shapes: list[tuple[int, ...]], exposed: int
) -> None:
    hidden = [(1, 3, 6)] * states * exposed
    snippet = f"type: '{kind}' recurrent_param {{ num_output: 6 {param} }}"
    model = assert_same(one_layer(snippet, shapes + hidden, tops=1 + states * exposed))
    assert any("each run of the model starts from zeros" in n for n in model.notes) != bool(exposed)


def test_lstm_unit() -> None:
    assert_same(one_layer("type: 'LSTMUnit'", [(1, 3, 4), (1, 3, 16), (1, 3)], tops=2))


RESIZINGS = [
    ("type: 'Interp' interp_param { height: 9 width: 4 }", [X]),
    ("type: 'Interp' interp_param { height: 1 width: 3 }", [X]),
    ("type: 'Interp' interp_param { zoom_factor: 3 }", [X]),
    ("type: 'Interp' interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -1 }", [X]),
    ("type: 'Interp' interp_param { shrink_factor: 2 zoom_factor: 3 pad_beg: -1 }", [X]),
    ("type: 'BilinearInterpolate' bilinear_interpolate_param { dst_h: 9 dst_w: 4 }", [X]),
    (
        "type: 'BilinearInterpolate' bilinear_interpolate_param { scale_factor: 2"
        " align_corners: false }",
        [X],
    ),
    ("type: 'Resample' resample_param { type: CUBIC width: 9 height: 4 }", [X]),
    ("type: 'Resample' resample_param { type: NEAREST factor: 2 }", [X]),
    ("type: 'Accum' accum_param { top_height: 8 top_width: 6 }", [X, (2, 2, 3, 4)]),
    ("type: 'Upsample' upsample_param { scale: 3 }", [X]),
    ("type: 'Upsample' upsample_param { upsample_h: 10 upsample_w: 21 }", [X]),
    ("type: 'Upsample' upsample_param { scale: 2 pad_out_h: true }", [X, X]),
    ("type: 'MaxUnPool' max_unpool_param { dst_h: 9 dst_w: 14 }", [X, X]),
]


@pytest.mark.parametrize(("snippet", "shapes"), RESIZINGS)
def test_resizing(snippet: str, shapes: list[tuple[int, ...]]) -> None:
    assert_same(one_layer(snippet, shapes))


@pytest.mark.parametrize(
    "snippet",
    [
        "type: 'Interp' interp_param { zoom_factor: 3 }",
        "type: 'Interp' interp_param { shrink_factor: 2 zoom_factor: 3 pad_beg: -1 }",
        "type: 'Interp' interp_param { height: 9 width: 4 }",
        "type: 'Upsample' upsample_param { scale: 3 }",
    ],
)
def test_resizing_images_of_any_size(snippet: str) -> None:
    model = assert_same(one_layer(snippet, [X]), tolerance=1e-5, sizes="dynamic")
    assert model.inputs == {"x0": ["N", 3, "H", "W"]}


def test_where_sequences_begin_is_a_constant() -> None:
    net = fill(
        make_net(
            "input: 'x' input_shape { dim: [4, 3, 5] }"
            "layer { name: 'cont' type: 'ContinuationIndicator' top: 'cont'"
            " continuation_indicator_param { time_step: 4 batch_size: 3 } }"
            "layer { name: 'it' type: 'LSTM' bottom: 'x' bottom: 'cont' top: 'y'"
            " recurrent_param { num_output: 6 } }"
        )
    )
    assert assert_same(net).inputs == {"x": [4, 3, 5]}
