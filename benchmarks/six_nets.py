"""Six well-known image classifiers, written down with NetSpec for `nets.py` to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycaffe_lite.net_spec import NetSpec
from pycaffe_lite.net_spec import layers as L  # noqa: N812 - as in pycaffe
from pycaffe_lite.net_spec import params as P  # noqa: N812

MAX, AVE = P.Pooling.MAX, P.Pooling.AVE


def _input(batch: int, size: int) -> NetSpec:
    n = NetSpec()
    n.data = L.Input(input_param={"shape": {"dim": [batch, 3, size, size]}})
    return n


def _conv_relu(n: NetSpec, name: str, x: Any, outputs: int, kernel: int, **more: Any) -> Any:
    """Convolution and, in place, ReLU."""
    n[name] = L.Convolution(x, num_output=outputs, kernel_size=kernel, **more)
    n[f"{name}_relu"] = L.ReLU(n[name], in_place=True)
    return n[f"{name}_relu"]


def _conv_bn(
    n: NetSpec, name: str, x: Any, outputs: int, kernel: int, relu: bool = True, **more: Any
) -> Any:
    """Convolution without bias and, in place, BatchNorm, Scale and ReLU."""
    more = {"bias_term": False, **more}
    y = n[name] = L.Convolution(x, num_output=outputs, kernel_size=kernel, **more)
    y = n[f"{name}_bn"] = L.BatchNorm(y, use_global_stats=True, in_place=True)
    y = n[f"{name}_scale"] = L.Scale(y, bias_term=True, in_place=True)
    if relu:
        y = n[f"{name}_relu"] = L.ReLU(y, in_place=True)
    return y


def _fully_connected(n: NetSpec, x: Any, names: tuple[str, str]) -> None:
    """Two layers of 4096 with ReLU and dropout, one of 1000, softmax."""
    for name in names:
        x = n[name] = L.InnerProduct(x, num_output=4096)
        x = n[f"{name}_relu"] = L.ReLU(x, in_place=True)
        x = n[f"{name}_drop"] = L.Dropout(x, dropout_ratio=0.5, in_place=True)
    n.fc8 = L.InnerProduct(x, num_output=1000)
    n.prob = L.Softmax(n.fc8)


def alexnet(batch: int) -> NetSpec:
    """Krizhevsky et al. 2012 as in Caffe's model zoo."""
    n = _input(batch, 227)
    x: Any = n.data
    convolutions: list[tuple[int, int, dict[str, int]]] = [
        (96, 11, {"stride": 4}),
        (256, 5, {"pad": 2, "group": 2}),
        (384, 3, {"pad": 1}),
        (384, 3, {"pad": 1, "group": 2}),
        (256, 3, {"pad": 1, "group": 2}),
    ]
    for i, (outputs, kernel, more) in enumerate(convolutions, start=1):
        x = _conv_relu(n, f"conv{i}", x, outputs, kernel, **more)
        if i < 3:
            x = n[f"norm{i}"] = L.LRN(x, local_size=5, alpha=1e-4, beta=0.75)
        if i in (1, 2, 5):
            x = n[f"pool{i}"] = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    _fully_connected(n, x, ("fc6", "fc7"))
    return n


def vgg16(batch: int) -> NetSpec:
    """Simonyan and Zisserman 2014, configuration D."""
    n = _input(batch, 224)
    x: Any = n.data
    for stage, (times, outputs) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]):
        for i in range(times):
            x = _conv_relu(n, f"conv{stage + 1}_{i + 1}", x, outputs, 3, pad=1)
        x = n[f"pool{stage + 1}"] = L.Pooling(x, pool=MAX, kernel_size=2, stride=2)
    _fully_connected(n, x, ("fc6", "fc7"))
    return n


# Outputs of an inception module: 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, after the pooling.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(batch: int) -> NetSpec:
    """Szegedy et al. 2014, without the classifiers that only training has."""
    n = _input(batch, 224)
    x = _conv_relu(n, "conv1", n.data, 64, 7, stride=2, pad=3)
    x = n.pool1 = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    x = n.norm1 = L.LRN(x, local_size=5, alpha=1e-4, beta=0.75)
    x = _conv_relu(n, "conv2_reduce", x, 64, 1)
    x = _conv_relu(n, "conv2", x, 192, 3, pad=1)
    x = n.norm2 = L.LRN(x, local_size=5, alpha=1e-4, beta=0.75)
    x = n.pool2 = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    for name, outputs in INCEPTIONS.items():
        x = _inception(n, f"inception_{name}", x, *outputs)
        if name in ("3b", "4e"):
            x = n[f"pool{name[0]}"] = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    x = n.pool5 = L.Pooling(x, pool=AVE, kernel_size=7, stride=1)
    x = n.pool5_drop = L.Dropout(x, dropout_ratio=0.4, in_place=True)
    n.classifier = L.InnerProduct(x, num_output=1000)
    n.prob = L.Softmax(n.classifier)
    return n


def _inception(
    n: NetSpec, name: str, x: Any, one: int, small: int, three: int, tiny: int, five: int, rest: int
) -> Any:
    by_1 = _conv_relu(n, f"{name}_1x1", x, one, 1)
    y = _conv_relu(n, f"{name}_3x3_reduce", x, small, 1)
    by_3 = _conv_relu(n, f"{name}_3x3", y, three, 3, pad=1)
    y = _conv_relu(n, f"{name}_5x5_reduce", x, tiny, 1)
    by_5 = _conv_relu(n, f"{name}_5x5", y, five, 5, pad=2)
    y = n[f"{name}_pool"] = L.Pooling(x, pool=MAX, kernel_size=3, stride=1, pad=1)
    pooled = _conv_relu(n, f"{name}_pool_proj", y, rest, 1)
    n[name] = L.Concat(by_1, by_3, by_5, pooled)
    return n[name]


def resnet50(batch: int) -> NetSpec:
    """He et al. 2015; the stride is on the first 1x1 convolution of a stage."""
    n = _input(batch, 224)
    x = _conv_bn(n, "conv1", n.data, 64, 7, stride=2, pad=3, bias_term=True)
    x = n.pool1 = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=2):
        for block in range(blocks):
            stride = 2 if stage > 2 and block == 0 else 1
            x = _bottleneck(n, f"res{stage}{chr(ord('a') + block)}", x, width, stride, block == 0)
    x = n.pool5 = L.Pooling(x, pool=AVE, kernel_size=7, stride=1)
    n.fc1000 = L.InnerProduct(x, num_output=1000)
    n.prob = L.Softmax(n.fc1000)
    return n


def _bottleneck(n: NetSpec, name: str, x: Any, width: int, stride: int, projects: bool) -> Any:
    short = x
    if projects:
        short = _conv_bn(n, f"{name}_branch1", x, 4 * width, 1, relu=False, stride=stride)
    y = _conv_bn(n, f"{name}_branch2a", x, width, 1, stride=stride)
    y = _conv_bn(n, f"{name}_branch2b", y, width, 3, pad=1)
    y = _conv_bn(n, f"{name}_branch2c", y, 4 * width, 1, relu=False)
    n[name] = L.Eltwise(short, y)
    n[f"{name}_relu"] = L.ReLU(n[name], in_place=True)
    return n[f"{name}_relu"]


def squeezenet(batch: int) -> NetSpec:
    """Iandola et al. 2016, version 1.1."""
    n = _input(batch, 227)
    x = _conv_relu(n, "conv1", n.data, 64, 3, stride=2)
    x = n.pool1 = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    for fire, width in enumerate([16, 16, 32, 32, 48, 48, 64, 64], start=2):
        y = _conv_relu(n, f"fire{fire}_squeeze1x1", x, width, 1)
        one = _conv_relu(n, f"fire{fire}_expand1x1", y, 4 * width, 1)
        three = _conv_relu(n, f"fire{fire}_expand3x3", y, 4 * width, 3, pad=1)
        x = n[f"fire{fire}_concat"] = L.Concat(one, three)
        if fire in (3, 5):
            x = n[f"pool{fire}"] = L.Pooling(x, pool=MAX, kernel_size=3, stride=2)
    x = n.drop9 = L.Dropout(x, dropout_ratio=0.5, in_place=True)
    x = _conv_relu(n, "conv10", x, 1000, 1)
    n.pool10 = L.Pooling(x, pool=AVE, global_pooling=True)
    n.prob = L.Softmax(n.pool10)
    return n


def mobilenet(batch: int) -> NetSpec:
    """Howard et al. 2017, version 1 of width 1.0; depthwise layers are convolutions with groups."""
    n = _input(batch, 224)
    x = _conv_bn(n, "conv1", n.data, 32, 3, stride=2, pad=1)
    pairs = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    pairs += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    for i, (channels, outputs, stride) in enumerate(pairs, start=2):
        x = _conv_bn(n, f"conv{i}_dw", x, channels, 3, stride=stride, pad=1, group=channels)
        x = _conv_bn(n, f"conv{i}_sep", x, outputs, 1)
    x = n.pool6 = L.Pooling(x, pool=AVE, global_pooling=True)
    n.fc7 = L.Convolution(x, num_output=1000, kernel_size=1)
    n.prob = L.Softmax(n.fc7)
    return n


NETS: dict[str, Callable[[int], NetSpec]] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    "resnet50": resnet50,
    "vgg16": vgg16,
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
}
