"""How much does a layer compute, and how much memory does it touch? From shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from .blob import Blob
from .layer import Layer


class Work(NamedTuple):
    """One forward of a layer: multiply-adds, and bytes of its blobs at their shapes of now."""

    multiply_adds: int
    bottom_bytes: int
    top_bytes: int
    param_bytes: int

    @property
    def bytes(self) -> int:
        """What a forward reads and writes at least: bottoms, parameters and tops once each."""
        return self.bottom_bytes + self.top_bytes + self.param_bytes


def of_layer(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> Work:
    """The work of a layer whose net is built, given its bottoms and tops."""
    return Work(multiply_adds(layer, bottom, top), _bytes(bottom), _bytes(top), _bytes(layer.blobs))


def multiply_adds(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Multiplications with an addition each in one forward.

    Those of the matrix products in Convolution, Deconvolution, InnerProduct, LSTM and RNN (biases
    and what lies in the padding count as nothing special: the products are as large there). Every
    other layer counts as one operation for each element of its tops.
    """
    for cls in type(layer).__mro__:
        if cls.__name__ in _BY_TYPE:
            return _BY_TYPE[cls.__name__](layer, bottom, top)
    return sum(blob.count for blob in top)


def _convolution(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Weights (O, C / group, *kernel): each element of a top sums over all but the first axis."""
    return sum(y.count for y in top) * prod(layer.blobs[0].shape[1:])


def _deconvolution(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Weights (C, O / group, *kernel): each element of a bottom goes to all but the first axis."""
    return sum(x.count for x in bottom) * prod(layer.blobs[0].shape[1:])


def _inner_product(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Weights (num_output, K), or (K, num_output): K for each element of the top."""
    return top[0].count * layer.blobs[0].count // top[0].shape[-1]


def _recurrent(layer: Any, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """x (T, N, ...): each matrix once a step and stream, that of a static input once a stream."""
    steps, streams = bottom[0].shape[:2]
    matrices = [blob for blob in layer.blobs if len(blob.shape) == 2]
    static = layer.blobs[2].count if layer.has_static else 0
    return streams * (steps * (sum(b.count for b in matrices) - static) + static)


def _bytes(blobs: Sequence[Blob]) -> int:
    return sum(blob.count * blob.dtype.itemsize for blob in blobs)


_BY_TYPE: dict[str, Callable[[Any, Sequence[Blob], Sequence[Blob]], int]] = {
    "Convolution": _convolution,
    "ConvolutionDepthwise": _convolution,
    "DepthwiseConvolution": _convolution,
    "Deconvolution": _deconvolution,
    "InnerProduct": _inner_product,
    "LSTM": _recurrent,
    "RNN": _recurrent,
}
