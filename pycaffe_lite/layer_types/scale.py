"""Products and sums with a smaller blob, which is repeated over the other axes."""

from __future__ import annotations

from typing import Any

from ..blob import canonical_axis, describe
from ..errors import ModelError
from ..proto import caffe_pb2
from .activation import _KeepsInput


class _Repeated(_KeepsInput):
    """x and a smaller blob, a parameter or the second bottom, whose axes lie at `axis` of x's."""

    bottoms = (1, 2)
    writes_params = False

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.has_param = len(bottom) == 1

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter over `num_axes` axes (-1: all from `axis` on; 0: one number)."""
        count = self.param.num_axes
        start = canonical_axis(self.param.axis, shape) if count else 0
        if count < -1:
            raise ModelError(f"num_axes must be >= 0, or -1 for all axes from axis on, got {count}")
        stop = len(shape) if count == -1 else start + count
        if stop > len(shape):
            raise ModelError(
                f"{self.type.lower()} blob's shape extends past bottom[0]'s shape when applied"
                f" starting with bottom[0] axis {start}: {count} axes of {len(shape)}"
            )
        return tuple(shape[start:stop])

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        small = self.blobs[0].shape if self.has_param else bottom[1].shape
        start = canonical_axis(self.param.axis, shape) if small else 0
        stop = start + len(small)
        if shape[start:stop] != small:
            raise ModelError(
                f"dimension mismatch between bottom[0]'s shape `{describe(shape)}` from axis"
                f" {start} on and the {self.type.lower()}'s `{describe(small)}`"
            )
        self.wide = (*small, *[1] * (len(shape) - stop))
        self.others = (*range(start), *range(stop, len(shape)))

    def small(self, bottom: Any) -> Any:
        """The smaller blob's values, in a shape that broadcasts against x."""
        values = self.params[0].data if self.has_param else bottom[1].data
        return values.reshape(self.wide)

    def add_up(self, array: Any) -> Any:
        """The sum of an array of x's shape over the axes that the smaller blob has not."""
        return array.sum(axis=self.others) if self.others else array


class Scale(_Repeated):
    """y = x s (+ b with `bias_term`): s has the axes of x from `axis` on, `num_axes` of them.

    s and b are parameters (s 1 unless `filler` says otherwise), or s is the second bottom, as many
    axes as it has, and b the only parameter. Defaults: axis 1, num_axes 1 (-1: all; 0: one number).
    ds adds up dy x, db dy (Caffe overwrites ds in some shapes). May run in place. ModelError for
    shapes that do not fit.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param, shape = self.param, bottom[1].shape if len(bottom) > 1 else ()
        if self.has_param:
            shape = self.own_shape(bottom[0].shape)
            one = caffe_pb2.FillerParameter(type="constant", value=1)
            self.add_param(shape, param.filler if param.HasField("filler") else one)
        if param.bias_term:
            self.add_param(shape, param.bias_filler)

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        if self.param.bias_term and not self.has_param and self.blobs[0].shape != bottom[1].shape:
            raise ModelError(
                f"the bias has shape `{describe(self.blobs[0].shape)}`, the second bottom"
                f" `{describe(bottom[1].shape)}`"
            )

    def forward(self, bottom: Any, top: Any) -> None:
        if not self.has_param or self.param_propagate_down[0]:
            self.keep(bottom)
        y = top[0].data
        self.xp.multiply(bottom[0].data, self.small(bottom), out=y)
        if self.param.bias_term:
            y += self.params[-1].data.reshape(self.wide)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        dy, wanted = top[0].diff, self.param_propagate_down
        if self.param.bias_term and wanted[-1]:
            db = self.params[-1].diff
            db += self.add_up(dy)
        if self.has_param and wanted[0]:
            ds = self.params[0].diff
            ds += self.add_up(dy * self.kept(bottom))
        if not self.has_param and propagate_down[1]:
            bottom[1].diff[...] = self.add_up(dy * self.kept(bottom))
        if propagate_down[0]:
            self.xp.multiply(dy, self.small(bottom), out=bottom[0].diff)


class Bias(_Repeated):
    """y = x + b: b has the axes of x from `axis` on, `num_axes` of them.

    b is the parameter, or the second bottom, as many axes as it has. Defaults: axis 1, num_axes 1
    (-1: all; 0: one number). db adds up dy. May run in place. ModelError for shapes that do not
    fit.
    """

    keeps_bottom = False

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        if self.has_param:
            self.add_param(self.own_shape(bottom[0].shape), self.param.filler)

    def forward(self, bottom: Any, top: Any) -> None:
        self.xp.add(bottom[0].data, self.small(bottom), out=top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        dy = top[0].diff
        if self.has_param and self.param_propagate_down[0]:
            db = self.params[0].diff
            db += self.add_up(dy)
        if not self.has_param and propagate_down[1]:
            bottom[1].diff[...] = self.add_up(dy)
        if propagate_down[0] and not self._in_place:
            bottom[0].diff[...] = dy
