"""The CPU backend: NumPy and BLAS, by tiles that stay in the cache and on all cores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..base import Array, Ops, _tail
from ..window import Window
from . import (
    batches,
    convolution,
    depthwise,
    gradients,
    lrn,
    pooling,
    products,
    threads,
    winograd,
)


class CpuOps(Ops):
    """NumPy with the kernels below in place of the generic ones; needs nothing else."""

    name = "cpu"
    priority = 5

    def running(self) -> AbstractContextManager[Any]:
        """Scope in which BLAS, once limited to one thread by a large kernel, stays so."""
        return threads.running()

    def conv_forward(
        self, x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), w (O, C/G, *K), b (O) or None -> out (N, O, *P), by tiles of positions."""
        conv = convolution.sizes(x, w, out, window, group)
        if conv is None:
            return super().conv_forward(x, w, b, window, group, out)
        if depthwise.applies(conv):
            depthwise.forward(conv, b, self.scratch)
        elif winograd.applies(conv):
            winograd.forward(conv, b, self.scratch)
        elif batches.applies(conv, widest=16):
            batches.forward(conv, b, self.scratch)
        else:
            convolution.forward(conv, b, self.scratch)
        return out

    def conv_backward_data(
        self, dy: Array, w: Array, window: Window, group: int, out: Array
    ) -> Array:
        """dy (N, O, *P), w (O, C/G, *K) -> out (N, C, *S), by blocks of channels or of images."""
        conv = convolution.sizes(out, w, dy, window, group)
        if conv is None or not out.flags.c_contiguous:
            return super().conv_backward_data(dy, w, window, group, out)
        if batches.applies(conv, widest=32):
            batches.backward_data(conv, self.scratch)
            return out
        step = gradients.images_at_once(conv)
        if not step:
            gradients.backward_data(conv, self.scratch)
            return out
        for i in range(0, len(out), step):
            super().conv_backward_data(dy[i : i + step], w, window, group, out[i : i + step])
        return out

    def conv_backward_weights(
        self, x: Array, dy: Array, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), dy (N, O, *P) -> added into out (O, C/G, *K), likewise."""
        conv = convolution.sizes(x, out, dy, window, group)
        if conv is None or not out.flags.c_contiguous:
            return super().conv_backward_weights(x, dy, window, group, out)
        if batches.applies(conv, widest=32):
            batches.backward_weights(conv, self.scratch)
            return out
        step = gradients.images_at_once(conv)
        if step and gradients.takes_images_apart(conv):
            gradients.weights_by_images(conv, self.scratch)
            return out
        if not step:
            gradients.backward_weights(conv, self.scratch)
            return out
        for i in range(0, len(x), step):
            super().conv_backward_weights(x[i : i + step], dy[i : i + step], window, group, out)
        return out

    def matmul(self, a: Array, b: Array, out: Array) -> Array:
        """a (M, K), b (K, N) -> out (M, N), in parts on all threads."""
        return products.matmul(a, b, out)

    def pool_max(self, x: Array, window: Window, out: Array, mask: Array | None) -> Array:
        """(N, C, *S) -> out (N, C, *P), mask int32 (N, C, *P) or None; values as the generic."""
        spatial, pooled = x.shape[2:], out.shape[2:]
        if mask is not None and not pooling.counts_in_order(window, spatial):
            return super().pool_max(x, window, out, mask)
        lowest = float(np.finfo(x.dtype).min)
        tail = _tail(window, spatial, pooled)
        if mask is None:
            pad = partial(self._pad, before=window.pad, after=tail, value=lowest)
            pooling.largest_by_blocks(x, pad, window, out)
            return out
        first = self._plane_index(window, (0,) * len(spatial), spatial, pooled)

        def work(part: slice) -> None:
            padded = self._pad(x[part], window.pad, tail, lowest)
            pooling.largest_at(padded, window, spatial, out[part], mask[part])
            mask[part] += first
            mask[part][out[part] == lowest] = -1

        pooling.by_images(x, work)
        return out

    def pool_max_backward(self, dy: Array, mask: Array, window: Window, out: Array) -> Array:
        """dy, mask (N, C, *P) -> out (N, C, *S), straight into it where every window has a winner.

        Without the generic kernel's bin for those that have none: 0.58 to 0.38 ms for 2 x 2 of 64 x
        (20, 24, 24). The sums are the same, in the same order.
        """
        if mask.min(initial=0) < 0 or not out.flags.c_contiguous or out.dtype != dy.dtype:
            return super().pool_max_backward(dy, mask, window, out)
        planes, size = dy.shape[0] * dy.shape[1], prod(out.shape[2:])
        at = mask.reshape(planes, prod(mask.shape[2:])) + np.arange(planes).reshape(-1, 1) * size
        out[...] = 0
        np.add.at(out.reshape(-1), at.reshape(-1), dy.reshape(-1))
        return out

    def lrn(
        self,
        x: Array,
        size: int,
        alpha: float,
        beta: float,
        k: float,
        out: Array,
        scale: Array | None,
    ) -> Array:
        """x (N, C, *S) -> out, scale or None, same shape; out may be x. One image at a time."""
        for i in range(len(x)):
            image = x[i : i + 1]
            total = np.empty_like(image) if scale is None else scale[i : i + 1]
            self._channel_sum(image * image, size, total)
            lrn.forward(image, total, alpha / size, beta, k, out[i : i + 1])
        return out

    def lrn_backward(
        self, x: Array, scale: Array, dy: Array, size: int, alpha: float, beta: float, out: Array
    ) -> Array:
        """x, scale, dy (N, C, *S) -> out, same shape; out may be dy. One image at a time."""
        for i in range(len(x)):
            part = slice(i, i + 1)
            own, around = lrn.share(x[part], scale[part], dy[part], beta)
            total = self._channel_sum(around, size, np.empty_like(around))
            total *= x[part]
            total *= 2 * alpha * beta / size
            np.subtract(own, total, out=out[part])
        return out
