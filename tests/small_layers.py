"""Layers of the tests' own: what nets need that the layer at hand is not about."""

from __future__ import annotations

from pycaffe_lite import Layer


class SquaredGap(Layer):
    """A loss for tests: half the sum of (a - b)^2 and, if it is named, the gap itself."""

    bottoms, tops, loss = 2, (1, 2), True

    def reshape(self, bottom, top):
        top[0].reshape()
        if len(top) > 1:
            top[1].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        gap = bottom[0].data - bottom[1].data
        top[0].data[...] = (gap * gap).sum() / 2
        if len(top) > 1:
            top[1].data[...] = gap

    def backward(self, top, propagate_down, bottom):
        gap = (bottom[0].data - bottom[1].data) * top[0].diff
        for k, sign in ((0, 1), (1, -1)):
            if propagate_down[k]:
                bottom[k].diff[...] = sign * gap


class PlusBias(Layer):
    """y = x + b, b a parameter of the shape that each item has. May run in place."""

    in_place = True

    def setup(self, bottom, top):
        self.blobs.add_blob(*bottom[0].shape[1:])

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        self.xp.add(bottom[0].data, self.params[0].data, out=top[0].data)

    def backward(self, top, propagate_down, bottom):
        dy = top[0].diff
        if self.param_propagate_down[0]:
            db = self.params[0].diff
            db += dy.sum(axis=0)
        if propagate_down[0]:
            bottom[0].diff[...] = dy


class Sum(Layer):
    """y = the sum of the bottoms."""

    bottoms = (1, None)

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        y = top[0].data
        y[...] = bottom[0].data
        for x in bottom[1:]:
            y += x.data

    def backward(self, top, propagate_down, bottom):
        for x, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                x.diff[...] = top[0].diff
