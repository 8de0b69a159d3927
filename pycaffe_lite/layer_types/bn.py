"""The two layers of forks that are named BN: normalisation, scale and shift in one."""

from __future__ import annotations

from typing import Any

from ..blob import Blob
from ..errors import ModelError
from ..layer import Layer
from ..proto import caffe_pb2
from .batch_norm import _centred_gradient

_SEGNET = ("scale_filler", "shift_filler", "bn_mode")
_PSPNET = ("slope_filler", "bias_filler", "momentum", "eps", "frozen", "engine")
_FCN = ("var_eps", "moving_average", "decay", "across_spatial")


class BN(Layer):
    """y = scale (x - mean) / sqrt(variance + eps) + shift for each channel (axis 1).

    Two layers have the name; the fields of `bn_param` tell which is meant, else the number of tops
    or of blobs that the model carries, else it is PSPNet's. SegNet's (scale_filler, shift_filler,
    bn_mode): 2 parameters, moments of the batch in both phases, eps 1e-9, and as more tops the mean
    and the variance (1, C, 1, 1), which have no gradient; `bn_mode: INFERENCE` is y = scale x +
    shift. PSPNet's (slope_filler, bias_filler, momentum, eps, frozen): 4 parameters, the third and
    fourth the stored mean and variance, which do not learn, whatever rates are given, and are used
    in phase TEST and where `frozen`; in TRAIN each becomes momentum (0.9) times itself plus the
    rest times that of the batch. eps is 1e-5, the first variance 0, or 1 where `frozen`, and then
    nothing learns. With stored moments dx = dy scale / sqrt(variance + eps) (PSPNet's own is that
    of TRAIN).

    Parameters have the shape (1, C, 1, 1); scales are filled with 1 where no filler is given. May
    run in place. ModelError for 1 axis, for another number of channels, for fields of both.
    """

    in_place = True
    tops = (1, 3)
    writes_params = False

    @classmethod
    def from_spec(cls, spec: Any) -> Layer:
        return (_SegNetBN if _is_segnets(spec) else _PSPNetBN)(spec)

    def setup(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self._check_axes(shape)
        self.channels = shape[1]
        self._add_params()
        self._normal, self._inverse = Blob(), Blob((self.channels,))

    def _add_params(self) -> None:
        raise NotImplementedError

    def _add_affine(self, scale: str, shift: str, *, learns: bool = True) -> None:
        """The two parameters that both have; fillers by the names of their fields."""
        given = self.param.HasField(scale)
        one = caffe_pb2.FillerParameter(type="constant", value=1)
        shape = (1, self.channels, 1, 1)
        self.add_param(shape, getattr(self.param, scale) if given else one, learns=learns)
        self.add_param(shape, getattr(self.param, shift), learns=learns)

    def _check_axes(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ModelError(f"the bottom must have at least 2 axes (N, C, ...), got {len(shape)}")

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        self._check_axes(shape)
        if shape[1] != self.channels:
            raise ModelError(
                f"the parameters are those of {self.channels} channels; the bottom has {shape[1]}"
            )
        top[0].reshape(shape)
        for moment in top[1:]:
            moment.reshape(1, self.channels, 1, 1)
        self._normal.reshape(shape)
        self.axes = (0, *range(2, len(shape)))
        self.wide = (self.channels, *[1] * (len(shape) - 2))

    uses_batch = True
    """Are the moments those of the batch?"""
    learns = True
    eps = 1e-9

    def forward(self, bottom: Any, top: Any) -> None:
        x, y = bottom[0].data, top[0].data
        if not bottom[0].count:
            for moment in top[1:]:
                moment.data[...] = 0
            return
        normal = self.state(self._normal) if self.needs_backward else y
        self._normalise(x, normal, top)
        self.xp.multiply(normal, self.params[0].data.reshape(self.wide), out=y)
        y += self.params[1].data.reshape(self.wide)

    def _normalise(self, x: Any, normal: Any, top: Any) -> None:
        """Write what is scaled and shifted; `normal` may be x."""
        mean = x.mean(axis=self.axes) if self.uses_batch else self.params[2].data.reshape(-1)
        self.xp.subtract(x, mean.reshape(self.wide), out=normal)
        if self.uses_batch:
            variance = (normal * normal).mean(axis=self.axes)
            self._saw(mean, variance, top)
        else:
            variance = self.params[3].data.reshape(-1)
        inverse = self.state(self._inverse)
        self.xp.divide(1, self.xp.sqrt(variance + self.eps), out=inverse)
        normal *= inverse.reshape(self.wide)

    def _saw(self, mean: Any, variance: Any, top: Any) -> None:
        """The moments (C) of the batch."""

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not bottom[0].count:
            return
        dy, normal = top[0].diff, self.state(self._normal)
        if self.learns and self.param_propagate_down[0]:
            dscale = self.params[0].diff
            dscale += (dy * normal).sum(axis=self.axes).reshape(dscale.shape)
        if self.learns and self.param_propagate_down[1]:
            dshift = self.params[1].diff
            dshift += dy.sum(axis=self.axes).reshape(dshift.shape)
        if propagate_down[0]:
            dx = bottom[0].diff
            if self.uses_batch:
                _centred_gradient(self.xp, normal, dy, self.axes, dx)
            else:
                dx[...] = dy
            dx *= self._slope().reshape(self.wide)

    def _slope(self) -> Any:
        """(C): dy / dx with the moments held."""
        return self.params[0].data.reshape(-1) * self.state(self._inverse)


class _SegNetBN(BN):
    def _add_params(self) -> None:
        self._add_affine("scale_filler", "shift_filler")
        self.is_merged = self.param.bn_mode == self.param.INFERENCE
        self.uses_batch = not self.is_merged

    def _normalise(self, x: Any, normal: Any, top: Any) -> None:
        if not self.is_merged:
            super()._normalise(x, normal, top)
            return
        if normal is not x:
            normal[...] = x
        for moment, value in zip(top[1:], (0, 1), strict=False):
            moment.data[...] = value

    def _saw(self, mean: Any, variance: Any, top: Any) -> None:
        for moment, value in zip(top[1:], (mean, variance), strict=False):
            moment.data[...] = value.reshape(moment.shape)

    def _slope(self) -> Any:
        return self.params[0].data.reshape(-1) if self.is_merged else super()._slope()


class _PSPNetBN(BN):
    tops = (1, 1)

    def _add_params(self) -> None:
        param = self.param
        self.learns, self.eps = not param.frozen, param.eps
        self._add_affine("slope_filler", "bias_filler", learns=self.learns)
        for first in (0, 1 if param.frozen else 0):
            filler = caffe_pb2.FillerParameter(type="constant", value=first)
            self.add_param((1, self.channels, 1, 1), filler, learns=False)
        for k in self.fixed_params.intersection(range(len(self.spec.param))):
            # Rates of a training prototxt would let weight decay at what must not learn.
            self.spec.param[k].lr_mult = self.spec.param[k].decay_mult = 0
        self.uses_batch = self.phase != self.TEST and not param.frozen
        self.writes_params = self.uses_batch  # type: ignore[misc]

    def _saw(self, mean: Any, variance: Any, top: Any) -> None:
        for param, value in zip(self.params[2:], (mean, variance), strict=True):
            stored = param.data
            stored *= self.param.momentum
            stored += (1 - self.param.momentum) * value.reshape(stored.shape)


def _is_segnets(spec: Any) -> bool:
    """Which of the two does a LayerParameter mean? ModelError where it has fields of both."""
    param = spec.bn_param
    given = [field.name for field, _ in param.ListFields()]
    segnet, pspnet, fcn = ([f for f in given if f in names] for names in (_SEGNET, _PSPNET, _FCN))
    if fcn:
        raise ModelError(f"{fcn[0]} of weiliu89/caffe's fcn branch is not read")
    if segnet and pspnet:
        raise ModelError(
            f"bn_param has fields of two forks: {segnet[0]} is SegNet's, {pspnet[0]} PSPNet's"
        )
    if segnet or pspnet:
        return bool(segnet)
    return len(spec.top) > 1 or len(spec.blobs) == 2
