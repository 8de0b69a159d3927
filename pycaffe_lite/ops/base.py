"""What does each kernel compute? The definition of every one, over any array module `xp`.

A backend overrides some of these methods with faster ones; the versions here are the oracle that
those are tested against and the fallback where one does not apply. Every kernel takes arrays and a
`Window`, writes `out`, returns `out` and keeps no state.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import numpy as np

from .window import Window

Array = Any
"""An array of the backend's own kind: numpy.ndarray, cupy.ndarray."""


class Ops:
    """The generic backend: plain formulas over `xp`; with NumPy it runs everywhere.

    `kind` is "cpu" or "gpu", `place` names where its arrays live ("cpu", "gpu:0"): backends of one
    place share arrays. The available class of highest `priority` is used for its kind.
    """

    name = "generic"
    kind = "cpu"
    priority = 0

    def __init__(self, xp: Any = np, place: str = "cpu") -> None:
        self.xp = xp
        self.place = place
        self._local = threading.local()

    @classmethod
    def available(cls) -> bool:
        """True where this backend can run here."""
        return True

    # ---- arrays -------------------------------------------------------------------------------

    def allocate(self, count: int, dtype: Any) -> Array:
        """A 1-D array of `count` zeros, 64-byte aligned, with 64 elements of slack behind it."""
        size = np.dtype(dtype).itemsize
        raw = np.zeros(count * size + 64 * (size + 1), dtype=np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + count * size].view(dtype)

    def upload(self, source: np.ndarray, out: Array) -> Array:
        """Host array -> `out` of this backend, same shape and dtype."""
        out[...] = source
        return out

    def download(self, source: Array, out: np.ndarray) -> np.ndarray:
        """Array of this backend -> host array `out`; complete when the call returns."""
        out[...] = source
        return out

    def to_host(self, array: Array) -> np.ndarray:
        """The array as a NumPy array, complete when the call returns (may be the same memory)."""
        return np.asarray(array)

    def from_host(self, array: np.ndarray) -> Array:
        """A NumPy array as an array of this backend (may be the same memory)."""
        return array

    def synchronize(self) -> None:
        """Return when all work handed to the backend is done."""

    def first_outside(
        self, array: Array, low: int, high: int, also: int | None = None
    ) -> float | None:
        """The first value that, its fraction cut off, is neither in [low, high) nor `also`.

        None where there is no such value; NaN is one. For labels and indices, which a GPU would
        wrap around silently: the one question that layers ask a device and wait for.
        """
        whole = self.xp.trunc(array)
        inside = (whole >= low) & (whole < high)
        if also is not None:
            inside = inside | (whole == also)
        if self.to_host(inside.all()):
            return None
        return float(self.to_host(array)[~self.to_host(inside)][0])

    def running(self) -> AbstractContextManager[Any]:
        """Entered once around each forward or backward of a net, never per layer."""
        return nullcontext()

    def scratch(self, tag: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array of this thread, kept by `tag` and grown when too small.

        Its values last until the next call with the same tag in the same thread.
        """
        buffers = self._local.__dict__.setdefault("buffers", {})
        count = prod(shape)
        key = (tag, np.dtype(dtype))
        if key not in buffers or buffers[key].size < count:
            buffers[key] = self.allocate(count, dtype)
        return buffers[key][:count].reshape(shape)

    def rng(self, seed: int) -> Any:
        """A random generator with NumPy's Generator methods, drawing arrays of this backend."""
        return self.xp.random.default_rng(seed)

    # ---- convolution --------------------------------------------------------------------------

    def im2col(self, x: Array, window: Window, out: Array) -> Array:
        """(N, C, *S) -> out (N, C, *K, *P): every window's values, zeros where it leaves the image.

        out[n, c, k, p] = xpad[n, c, p * stride + k * dilation].
        """
        positions = out.shape[2 + len(window.kernel) :]
        x = self._pad(x, window.pad, window.pad, 0)
        for tap in _offsets(window.kernel):
            out[_every(tap)] = x[_tap_slices(window, tap, positions)]
        return out

    def col2im(self, col: Array, window: Window, out: Array) -> Array:
        """(N, C, *K, *P) -> out (N, C, *S): the sum of what each window holds for a position.

        The transpose of im2col: values that windows hold outside the image are dropped.
        """
        positions = col.shape[2 + len(window.kernel) :]
        spatial = out.shape[2:]
        padded = self.xp.zeros(
            (*out.shape[:2], *(s + 2 * p for s, p in zip(spatial, window.pad, strict=True))),
            dtype=out.dtype,
        )
        for tap in _offsets(window.kernel):
            padded[_tap_slices(window, tap, positions)] += col[_every(tap)]
        out[...] = padded[_inner(window.pad, spatial)]
        return out

    def conv_forward(
        self, x: Array, w: Array, b: Array | None, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), w (O, C/G, *K), b (O) or None -> out (N, O, *P), cross-correlation.

        im2col, then one matrix product a group: (O/G, C/G * taps) @ (C/G * taps, positions).
        """
        n, outputs = out.shape[:2]
        w = w.reshape(group, outputs // group, -1)
        y = out.reshape(n, group, outputs // group, prod(out.shape[2:]))
        self.xp.matmul(w, self._columns(x, window, group, out.shape[2:]), out=y)
        if b is not None:
            y += b.reshape(group, -1, 1)
        return out

    def conv_backward_data(
        self, dy: Array, w: Array, window: Window, group: int, out: Array
    ) -> Array:
        """dy (N, O, *P), w (O, C/G, *K) -> out (N, C, *S): the convolution's transpose."""
        n, outputs = dy.shape[:2]
        w = w.reshape(group, outputs // group, -1)
        dy4 = dy.reshape(n, group, outputs // group, prod(dy.shape[2:]))
        col = self.xp.matmul(w.swapaxes(1, 2), dy4)
        if window.is_pointwise:
            out[...] = col.reshape(out.shape)
            return out
        return self.col2im(col.reshape(n, out.shape[1], *window.kernel, *dy.shape[2:]), window, out)

    def conv_backward_weights(
        self, x: Array, dy: Array, window: Window, group: int, out: Array
    ) -> Array:
        """x (N, C, *S), dy (N, O, *P) -> out (O, C/G, *K), **added into** what it holds."""
        n, outputs = dy.shape[:2]
        dy4 = dy.reshape(n, group, outputs // group, prod(dy.shape[2:]))
        col = self._columns(x, window, group, dy.shape[2:])
        out += self.xp.matmul(dy4, col.swapaxes(2, 3)).sum(axis=0).reshape(out.shape)
        return out

    def _columns(self, x: Array, window: Window, group: int, positions: tuple[int, ...]) -> Array:
        """(N, C, *S) -> (N, G, C/G * taps, positions), a view of x where the window is a point."""
        n, channels = x.shape[:2]
        if not window.is_pointwise:
            col = self.xp.empty((n, channels, *window.kernel, *positions), dtype=x.dtype)
            x = self.im2col(x, window, col)
        return x.reshape(n, group, channels // group * window.taps, prod(positions))

    # ---- pooling ------------------------------------------------------------------------------

    def pool_max(self, x: Array, window: Window, out: Array, mask: Array | None) -> Array:
        """(N, C, *S) -> out (N, C, *P), mask int32 (N, C, *P) or None.

        Caffe's rule: the running maximum starts at the lowest finite number and only a greater
        value replaces it, so the first of equal values wins and NaN is never taken. The mask is the
        winner's index in its plane, -1 where there is none.
        """
        xp, lowest = self.xp, float(np.finfo(x.dtype).min)
        padded = self._pad(x, window.pad, _tail(window, x.shape[2:], out.shape[2:]), lowest)
        out[...] = lowest
        if mask is not None:
            mask[...] = -1
        for tap in _offsets(window.kernel):
            value = padded[_tap_slices(window, tap, out.shape[2:])]
            greater = value > out
            xp.copyto(out, value, where=greater)
            if mask is not None:
                index = self._plane_index(window, tap, x.shape[2:], out.shape[2:])
                xp.copyto(mask, index, where=greater)
        return out

    def pool_max_backward(self, dy: Array, mask: Array, window: Window, out: Array) -> Array:
        """dy, mask (N, C, *P) -> out (N, C, *S): dy added where the mask of pool_max points."""
        xp = self.xp
        planes = dy.shape[0] * dy.shape[1]
        size = prod(out.shape[2:])
        taken = mask.reshape(planes, prod(mask.shape[2:]))
        # One bin a plane more takes what has no winner: no data-dependent shape, hence no sync.
        at = xp.where(taken < 0, size, taken) + xp.arange(planes).reshape(-1, 1) * (size + 1)
        total = xp.zeros(planes * (size + 1), dtype=out.dtype)
        xp.add.at(total, at.reshape(-1), dy.reshape(-1))
        out[...] = total.reshape(planes, size + 1)[:, :size].reshape(out.shape)
        return out

    def pool_ave(self, x: Array, window: Window, out: Array) -> Array:
        """(N, C, *S) -> out (N, C, *P): the window's sum over Caffe's divisor.

        The divisor counts positions in the image and its pad, not those past the trailing pad.
        """
        if window.kernel == x.shape[2:] and not any(window.pad):
            # One window: tap after tap 129 x 129 equal values would lose 4 digits.
            self.xp.sum(x, axis=tuple(range(2, x.ndim)), keepdims=True, out=out)
            out /= window.taps
            return out
        padded = self._pad(x, window.pad, _tail(window, x.shape[2:], out.shape[2:]), 0)
        out[...] = 0
        for tap in _offsets(window.kernel):
            out += padded[_tap_slices(window, tap, out.shape[2:])]
        out /= self._divisor(window, x.shape[2:], out.shape[2:], x.dtype)
        return out

    def pool_ave_backward(self, dy: Array, window: Window, out: Array) -> Array:
        """dy (N, C, *P) -> out (N, C, *S): each window's dy / divisor given to its positions."""
        spatial, pooled = out.shape[2:], dy.shape[2:]
        share = dy / self._divisor(window, spatial, pooled, dy.dtype)
        tail = _tail(window, spatial, pooled)
        size = tuple(p + s + t for p, s, t in zip(window.pad, spatial, tail, strict=True))
        padded = self.xp.zeros((*out.shape[:2], *size), dtype=out.dtype)
        if set(pooled) == {1}:  # global pooling: a loop over its taps would be one over the image
            padded[_every(tuple(slice(k) for k in window.kernel))] = share
        else:
            for tap in _offsets(window.kernel):
                padded[_tap_slices(window, tap, pooled)] += share
        out[...] = padded[_inner(window.pad, spatial)]
        return out

    def _divisor(
        self, window: Window, spatial: tuple[int, ...], pooled: tuple[int, ...], dtype: Any
    ) -> Array:
        """(*P): positions of each window inside the image and its pad, at least 1."""
        divisor = self.xp.ones((), dtype=dtype)
        for axis, (size, count) in enumerate(zip(spatial, pooled, strict=True)):
            k, s, p = window.kernel[axis], window.stride[axis], window.pad[axis]
            start = self.xp.arange(count) * s - p
            span = self.xp.maximum(self.xp.minimum(start + k, size + p) - start, 1)
            divisor = divisor[..., None] * span.astype(dtype)
        return divisor

    def _plane_index(
        self,
        window: Window,
        tap: tuple[int, ...],
        spatial: tuple[int, ...],
        pooled: tuple[int, ...],
    ) -> Array:
        """int32 (*P): where in its plane each window's `tap` lies."""
        index = self.xp.zeros((), dtype=np.int32)
        for axis, (size, count) in enumerate(zip(spatial, pooled, strict=True)):
            at = self.xp.arange(count, dtype=np.int32) * window.stride[axis]
            index = index[..., None] * size + (at + (tap[axis] - window.pad[axis]))
        return index.astype(np.int32)

    def _pad(
        self, x: Array, before: tuple[int, ...], after: tuple[int, ...], value: float
    ) -> Array:
        """x (N, C, *S) with `value` around its spatial axes; x itself where nothing is added."""
        if not any(before) and not any(after):
            return x
        size = tuple(b + s + a for b, s, a in zip(before, x.shape[2:], after, strict=True))
        padded = self.xp.full((*x.shape[:2], *size), value, dtype=x.dtype)
        padded[_inner(before, x.shape[2:])] = x
        return padded

    # ---- local response normalisation ----------------------------------------------------------

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
        """x (N, C, *S) -> out = x scale^-beta; scale, or None, same shape; out may be x.

        scale = k + alpha / size * (sum of x^2 over the `size` channels around each).
        """
        scale = self.xp.empty_like(x) if scale is None else scale
        self._channel_sum(x * x, size, scale)
        scale *= alpha / size
        scale += k
        return self.xp.multiply(x, scale**-beta, out=out)

    def lrn_backward(
        self, x: Array, scale: Array, dy: Array, size: int, alpha: float, beta: float, out: Array
    ) -> Array:
        """x, scale of `lrn`, dy (N, C, *S) -> out, same shape; out may be dy.

        out = dy scale^-beta - 2 alpha beta / size x (sum of dy y / scale over the channels around).
        """
        factor = scale**-beta
        share = dy * x
        share *= factor
        share /= scale
        total = self._channel_sum(share, size, self.xp.empty_like(x))
        total *= x
        total *= 2 * alpha * beta / size
        self.xp.multiply(dy, factor, out=out)
        out -= total
        return out

    def _channel_sum(self, values: Array, size: int, out: Array) -> Array:
        """out[:, c]: the sum of values[:, c - size // 2 .. c + size // 2], as far as they exist."""
        out[...] = values
        for d in range(1, min(size // 2 + 1, values.shape[1])):
            out[:, d:] += values[:, :-d]
            out[:, :-d] += values[:, d:]
        return out

    # ---- products -----------------------------------------------------------------------------

    def matmul(self, a: Array, b: Array, out: Array) -> Array:
        """a (M, K), b (K, N) -> out (M, N)."""
        return self.xp.matmul(a, b, out=out)

    # ---- softmax ------------------------------------------------------------------------------

    def softmax(self, x: Array, axis: int, out: Array) -> Array:
        """exp(x - max) / sum over `axis` -> out, same shape; out may be x."""
        if not out.size:
            return out  # nothing has no maximum
        self.xp.subtract(x, x.max(axis=axis, keepdims=True), out=out)
        self.xp.exp(out, out=out)
        out /= out.sum(axis=axis, keepdims=True)
        return out

    def softmax_backward(self, y: Array, dy: Array, axis: int, out: Array) -> Array:
        """y * (dy - sum(dy * y)) over `axis` -> out, same shape; out may be dy."""
        inner = (dy * y).sum(axis=axis, keepdims=True)
        self.xp.subtract(dy, inner, out=out)
        out *= y
        return out


def _offsets(kernel: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The taps of a kernel in row-major order."""
    return itertools.product(*(range(k) for k in kernel))


def _every(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index of the axes behind the first two, for all of those."""
    return (slice(None), slice(None), *index)


def _inner(before: tuple[int, ...], spatial: tuple[int, ...]) -> tuple[Any, ...]:
    """Where an image lies in its padded copy (N, C, *S)."""
    return _every(tuple(slice(b, b + s) for b, s in zip(before, spatial, strict=True)))


def _tap_slices(
    window: Window, tap: tuple[int, ...], positions: tuple[int, ...]
) -> tuple[Any, ...]:
    """What one tap of every window reads of a padded (N, C, *S) array."""
    spatial = (
        slice(t * d, t * d + (count - 1) * s + 1, s)
        for t, d, s, count in zip(tap, window.dilation, window.stride, positions, strict=True)
    )
    return _every(tuple(spatial))


def _tail(window: Window, spatial: tuple[int, ...], pooled: tuple[int, ...]) -> tuple[int, ...]:
    """Positions needed behind each axis so that the last pooling window has all its taps."""
    return tuple(
        max((count - 1) * s + k - size - p, 0)
        for count, s, k, size, p in zip(
            pooled, window.stride, window.kernel, spatial, window.pad, strict=True
        )
    )
