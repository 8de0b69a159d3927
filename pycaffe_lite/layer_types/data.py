"""Where a net's data enters, made up or learned where it does not come from the user."""

from __future__ import annotations

from typing import Any

from .. import filler
from ..errors import ModelError
from ..layer import Layer
from ..proto import caffe_pb2


class Input(Layer):
    """Tops that the user fills: `shape` is given once, once per top, or not at all.

    The tops are the net's inputs. A shape that the user gives a top later stays.
    """

    bottoms = 0
    tops = (1, None)

    def setup(self, bottom: Any, top: Any) -> None:
        shapes = self.param.shape
        if len(shapes) not in (0, 1, len(top)):
            raise ModelError(
                "must specify 'shape' once, once per top blob, or not at all:"
                f" {len(top)} tops vs. {len(shapes)} shapes"
            )
        for k, blob in enumerate(top):
            if len(shapes):
                blob.reshape(*shapes[k if len(shapes) > 1 else 0].dim)

    def forward(self, bottom: Any, top: Any) -> None:
        """Nothing: the tops hold what the user wrote."""


class Parameter(Layer):
    """The top is a parameter that learns, of shape `parameter_param { shape }`, zeros at first.

    Its gradient is added to (Caffe overwrites it, which loses all but the last of several
    backwards). The top is a copy, so that a layer working in place on it leaves the parameter.
    """

    bottoms = 0
    writes_params = False

    def setup(self, bottom: Any, top: Any) -> None:
        self.add_param(self.param.shape.dim, caffe_pb2.FillerParameter())

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(self.blobs[0].shape)

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = self.params[0].data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if self.param_propagate_down[0]:
            dw = self.params[0].diff
            dw += top[0].diff


class DummyData(Layer):
    """Tops of given shapes, filled by `data_filler` (given not at all, once or once per top).

    A constant (0 without filler) is written once, when the net is built, and again where the user
    has given the top another shape; what the user writes into it stays. Any other filler draws new
    numbers at every forward, over whatever is there, and not before. Shapes are `shape` or, of
    4 axes, `num`, `channels`, `height` and `width`, each once or once per top.
    """

    bottoms = 0
    tops = (1, None)
    host_only = True  # fillers draw on the host

    def setup(self, bottom: Any, top: Any) -> None:
        fillers = list(self.param.data_filler) or [caffe_pb2.FillerParameter()]
        if len(fillers) not in (1, len(top)):
            raise ModelError(
                "number of data fillers must be 0, 1 or equal to the number of tops:"
                f" {len(fillers)} vs. {len(top)}"
            )
        self.fillers = _per_top(fillers, len(top))
        for spec in self.fillers:
            filler.check(spec)
        for y, shape in zip(top, self._shapes(len(top)), strict=True):
            y.reshape(shape)
        self._new = list(top)  # until they are filled, when memory has been checked
        self._filled: list[tuple[int, ...] | None] = [None] * len(top)

    def _shapes(self, count: int) -> list[Any]:
        param = self.param
        old = [param.num, param.channels, param.height, param.width]
        if not any(map(len, old)):
            if len(param.shape) not in (1, count):
                raise ModelError(
                    f"must specify 'shape' once or once per top blob: {count} tops vs."
                    f" {len(param.shape)} shapes"
                )
            return _per_top([shape.dim for shape in param.shape], count)
        if len(param.shape):
            raise ModelError("specify either shape or num, channels, height, width; not both")
        for name, values in zip(("num", "channels", "height", "width"), old, strict=True):
            if len(values) not in (1, count):
                raise ModelError(
                    f"must specify {name!r} once or once per top blob: {count} tops vs."
                    f" {len(values)} values"
                )
        return list(zip(*(_per_top(list(values), count) for values in old), strict=True))

    def fill_params(self, shared: Any) -> None:
        super().fill_params(shared)
        self._fill_constants(self._new)
        self._new = []

    def forward(self, bottom: Any, top: Any) -> None:
        self._fill_constants(top)
        for spec, y in zip(self.fillers, top, strict=True):
            if spec.type != "constant" and y.count:
                filler.fill(spec, y.data, self.rng)

    def _fill_constants(self, top: Any) -> None:
        for k, (spec, y) in enumerate(zip(self.fillers, top, strict=True)):
            if spec.type == "constant" and self._filled[k] != y.shape:
                self._filled[k] = y.shape
                if y.count:
                    filler.fill(spec, y.data, self.rng)


def _per_top(values: list[Any], count: int) -> list[Any]:
    """One value a top, where one may stand for all."""
    return values if len(values) == count else values * count
