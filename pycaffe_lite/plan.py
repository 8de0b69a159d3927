"""Which steps can run as one? Convolutions with what follows in place, in a net that only tests.

Such a chain has no value between its layers that anybody can read after a whole forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .blob import Blob
from .layer_types.activation import Dropout, ReLU
from .layer_types.batch_norm import BatchNorm
from .layer_types.convolution import Convolution, ConvolutionDepthwise, DepthwiseConvolution
from .layer_types.scale import Scale
from .ops.base import Ops
from .step import Step, wants_definition

_HOST = Ops()
_CONVOLUTIONS = (Convolution, DepthwiseConvolution, ConvolutionDepthwise)


class ConvolutionChain:
    """A convolution and what follows it in place, as one step: `steps`, the first of them it.

    BatchNorm with stored moments and Scale go into a scaled copy of the weights, made anew where a
    parameter may have changed; Dropout does nothing in TEST; `has_relu`: a ReLU ends the chain.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.convolution = self.steps[0]
        self.loss_weights: list[float] = []
        self.has_relu = any(type(step.layer) is ReLU for step in steps)
        self._affine = [s for s in steps if type(s.layer) in (BatchNorm, Scale)]
        self._weights, self._bias = Blob(), Blob()
        self._seen: list[tuple[Any, int]] = []
        self._is_finite = False

    def reshape_if_needed(self, ops: Ops) -> bool:
        """Step's, for each of them; True where a shape has changed."""
        return any([step.reshape_if_needed(ops) for step in self.steps])

    def forward(self) -> None:
        """Compute the top, as the steps would do one after the other."""
        for step in self.steps:
            step.run(step.layer.check_params)
        if self._affine:
            self._fold()
            if not self._is_finite:  # infinity times a sum is not the sum of its products
                for step in self.steps:
                    step.forward()
                return
        self.convolution.run(self._compute)

    def loss(self) -> float:
        """No top of a chain has a weight in the net's loss."""
        return 0.0

    def factor_and_shift(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(C) each, float64: what BatchNorm and Scale make of y is y factor + shift.

        None where the chain has neither.
        """
        if not self._affine:
            return None
        factor, shift = np.ones(1), np.zeros(1)
        for step in self._affine:
            a, b = _factor_and_shift(step.layer)
            factor, shift = factor * a, shift * a + b
        return factor, shift

    def _compute(self) -> None:
        layer, ops = self.convolution.layer, self.convolution.layer.ops
        blobs = [self._weights, self._bias] if self._affine else layer.blobs
        w, *b = (blob.array(ops, write=False) for blob in blobs)
        x = self.convolution.bottom[0].array(ops, write=False)
        y = self.convolution.top[0].array(ops, read=False)
        ops.conv_forward(x, w, b[0] if b else None, layer.window, layer.group, y)  # type: ignore[attr-defined]
        if self.has_relu:
            ops.xp.maximum(y, 0, out=y)

    def _fold(self) -> None:
        """Bring the scaled weights and bias up to date."""
        steps = [self.convolution, *self._affine]
        storages = [blob.storages[0] for step in steps for blob in step.layer.blobs]
        seen = [(storage, storage.version) for storage in storages]
        # Into an array that the user holds values may come without a word.
        if seen == self._seen and not any(storage.is_exposed for storage in storages):
            return
        w, *b = (_values(blob) for blob in self.convolution.layer.blobs)
        factor, shift = self.factor_and_shift()  # type: ignore[misc]
        w = w * factor.reshape(-1, *[1] * (w.ndim - 1))
        results = (w, b[0] * factor + shift if b else shift)
        dtype = self.convolution.top[0].dtype
        self._is_finite = all(bool(np.isfinite(a.astype(dtype)).all()) for a in results)
        for blob, values in zip((self._weights, self._bias), results, strict=True):
            blob.reshape(values.shape)
            blob.array(_HOST, read=False)[...] = values
        self._seen = seen


Rule = Callable[[Sequence[Step]], ConvolutionChain | None]
_rules: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Register what makes one step of the first few of those given, or None."""
    _rules.append(function)
    return function


def optimize(steps: Sequence[Step]) -> list[Step | ConvolutionChain]:
    """The same work in fewer steps, for whole forwards of a net where nothing needs backward."""
    planned: list[Step | ConvolutionChain] = []
    i = 0
    while i < len(steps):
        fused = next(filter(None, (apply(steps[i:]) for apply in _rules)), None)
        planned.append(fused or steps[i])
        i += len(fused.steps) if fused else 1
    return planned


@rule
def convolution_chain(steps: Sequence[Step]) -> ConvolutionChain | None:
    """Convolution, then BatchNorm, Scale and Dropout in place, in any order, then ReLU."""
    if not _starts(steps[0]):
        return None
    count, has_relu = 1, False
    while count < len(steps) and _follows(steps[0], steps[count], has_relu):
        has_relu |= type(steps[count].layer) is ReLU
        count += 1
    return ConvolutionChain(steps[:count]) if count > 1 else None


def _starts(step: Step) -> bool:
    layer: Any = step.layer
    return (
        type(layer) in _CONVOLUTIONS
        and len(step.bottom) == len(step.top) == 1
        and layer.axis == 1
        and not wants_definition(layer)
        and not any(step.loss_weights)
    )


def _follows(first: Step, step: Step, has_relu: bool) -> bool:
    if step.bottom != first.top or step.top != first.top or any(step.loss_weights):
        return False
    layer: Any = step.layer
    if type(layer) is ReLU:
        return not layer.slope
    if type(layer) is Dropout:
        return not layer.draws and layer.factor == 1
    if has_relu:
        return False
    if type(layer) is BatchNorm:
        return bool(layer.is_global)
    wide = (first.layer.outputs, *[1] * (len(first.top[0].shape) - 2))  # type: ignore[attr-defined]
    return type(layer) is Scale and layer.has_param and layer.wide == wide


def _factor_and_shift(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    values = [_values(blob) for blob in layer.blobs]
    if type(layer) is Scale:
        return values[0], values[1] if len(values) > 1 else np.zeros(1)
    divisor = values[2]
    scale = 1 / divisor if divisor[0] else np.zeros(1)
    factor = 1 / np.sqrt(values[1] * scale + layer.eps)
    return factor, -values[0] * scale * factor


def _values(blob: Blob) -> np.ndarray:
    return blob.array(_HOST, write=False).astype(np.float64)
