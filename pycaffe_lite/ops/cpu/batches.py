"""Convolution of a batch of small images: the images are the innermost axis of everything.

Rows of a few positions are gathered in runs as short, and multiplied image by image in products as
small. Here a block of images is transposed to (C, *S, images) first: the columns of one row of
positions then are runs of positions x images, and one product takes several rows. Transposing, here
and back, moves a hundredth of what the columns hold. Two threads, ms before and after:

    images, outputs, kernel           forward         weights         data
    64 x (20, 12, 12), 50, 5         3.4 to 1.8      4.1 to 2.3      5.4 to 2.4
    64 x (64, 8, 8), 64, 3           4.3 to 2.6      5.4 to 3.6      6.6 to 2.8
    100 x (32, 16, 16), 32, 5       21.0 to 12.8    25.0 to 16.3    34.5 to 18.9

Each task has its own images, or rows of the column matrix, and adds in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..window import Window
from .columns import Box, boxes, lengths, span
from .convolution import PRODUCT, Array, Scratch, Sizes
from .pool import run
from .threads import limited

# Bytes of scratch a thread, together with what the other kernels keep below 8 MiB.
COLUMNS = 2 << 20
IMAGES = 1 << 20
OUTPUTS = 1 << 19

MOST = 64
"""Images of a block: of more, the transposed copies leave the cache."""

Part = tuple[Any, ...]
"""An index."""


def applies(conv: Sizes, widest: int) -> bool:
    """True where rows of at most `widest` positions, and a block of 8 images, make this faster.

    With below 128 rows in the column matrix the transposing counts (32 rows a matrix: 0.5 of the
    speed), with a stride the runs are of one position; a batch of 8 (20, 12, 12) is too little work
    for two threads.
    """
    return (
        len(conv.window.kernel) > 0
        and conv.cols[-1] <= widest
        and conv.window.stride[-1] == 1
        and conv.depth >= 128
        and conv.work >= 20_000_000
        and not conv.window.is_pointwise
        and images_at_once(conv, 2) >= 8
    )


def images_at_once(conv: Sizes, count: int) -> int:
    """Images of a block: what the scratch holds, in as many blocks for each thread; 0: not one."""
    n, itemsize = conv.cols[0], conv.x.itemsize
    most = min(
        IMAGES // (conv.rows[0] * prod(_padded(conv)) * itemsize),
        COLUMNS // (conv.depth * itemsize),
        OUTPUTS // (conv.w.shape[1] * itemsize),
        MOST,
    )
    if most < 1:
        return 0
    blocks = -(-n // (most * count)) * count
    return -(-n // blocks)


def forward(conv: Sizes, b: Array | None, scratch: Scratch) -> None:
    """y = w * x + b, a task for each block of images and group."""
    bias = None if b is None else b.reshape(conv.w.shape[0], -1, 1)
    _run_by_images(conv, partial(_forward, conv, bias, scratch))


def backward_data(conv: Sizes, scratch: Scratch) -> None:
    """conv.x = dx, the transpose of the convolution applied to conv.y = dy; tasks likewise."""
    _run_by_images(conv, partial(_data, conv, scratch))


def backward_weights(conv: Sizes, scratch: Scratch) -> None:
    """conv.w += dw, the sum of conv.y = dy times the columns; a task for each range of rows."""
    with limited() as count:
        group, outputs = conv.w.shape[:2]
        share = -(-conv.depth * group // count)
        most = max(1, min(PRODUCT // conv.x.itemsize // outputs, share))
        tasks = [(g, rows) for g in range(group) for rows in boxes(conv.rows, most)]
        run(lambda task: partial(_weights, conv, scratch, *task), tasks, count)


def _run_by_images(conv: Sizes, work: Callable[[range, int], None]) -> None:
    with limited() as count:
        n, group = conv.x.shape[:2]
        step = images_at_once(conv, count)
        blocks = [range(i, min(i + step, n)) for i in range(0, n, step)]
        tasks = [(images, g) for images in blocks for g in range(group)]
        run(lambda task: partial(work, *task), tasks, count)


def _forward(conv: Sizes, bias: Array | None, scratch: Scratch, images: range, g: int) -> None:
    x = _images(conv, scratch, images, g, conv.rows[0])
    n, outputs = len(images), conv.w.shape[1]
    w = conv.w[g].reshape(outputs, -1)
    target = conv.y[images.start : images.stop, g].reshape(n, outputs, -1)
    rows = tuple(range(k) for k in conv.rows)
    for cols in _chunks(conv, conv.depth, n):
        col = _columns(x, conv.window, rows, cols, scratch)
        y = scratch("outputs", (outputs, col.shape[1]), x.dtype)
        np.matmul(w, col, out=y)
        if bias is not None:
            y += bias[g]
        target[..., span(cols, conv.cols[1:])] = np.moveaxis(y.reshape(outputs, -1, n), -1, 0)


def _data(conv: Sizes, scratch: Scratch, images: range, g: int) -> None:
    n, w = len(images), conv.w[g].reshape(conv.w.shape[1], -1).T
    dx = scratch("phases", (conv.rows[0], *_padded(conv), n), conv.x.dtype)
    dx[...] = 0
    for cols in _chunks(conv, conv.depth, n):
        dy = _outputs(conv, scratch, images, g, cols)
        col = scratch("columns", (conv.depth, dy.shape[1]), dy.dtype)
        np.matmul(w, dy, out=col)
        col = col.reshape(*conv.rows, *lengths(cols), n)
        for target, source in _sums(conv.window, cols):
            part = dx[target]
            part += col[source]
    conv.x[images.start : images.stop, g] = np.moveaxis(dx[_inside(conv)], -1, 0)


def _weights(conv: Sizes, scratch: Scratch, g: int, rows: Box) -> None:
    """dw of some rows of the column matrix, added into conv.w."""
    dw = conv.w[g].reshape(conv.w.shape[1], -1)[:, span(rows, conv.rows)]
    product = scratch("product", dw.shape, dw.dtype)
    total = scratch("total", dw.shape, dw.dtype)
    total[...] = 0
    step, n = images_at_once(conv, 1), conv.cols[0]
    inner = (range(len(rows[0])), *rows[1:])
    for start in range(0, n, step):
        images = range(start, min(start + step, n))
        x = _images(conv, scratch, images, g, len(rows[0]), rows[0].start)
        for cols in _chunks(conv, dw.shape[1], len(images)):
            col = _columns(x, conv.window, inner, cols, scratch)
            np.matmul(_outputs(conv, scratch, images, g, cols), col.T, out=product)
            total += product
    dw += total


# ---- blocks --------------------------------------------------------------------------------------


def _padded(conv: Sizes) -> tuple[int, ...]:
    """Spatial size of an image with its pad."""
    return tuple(s + 2 * p for s, p in zip(conv.x.shape[3:], conv.window.pad, strict=True))


def _inside(conv: Sizes) -> Part:
    """Where an image lies in (C, *S with its pad, images)."""
    spatial = zip(conv.window.pad, conv.x.shape[3:], strict=True)
    return (slice(None), *(slice(p, p + s) for p, s in spatial))


def _chunks(conv: Sizes, depth: int, images: int) -> list[Box]:
    """Positions that one product takes: `depth` rows of columns of that many images."""
    one = images * conv.x.itemsize
    most = min(COLUMNS // (one * depth), OUTPUTS // (one * conv.w.shape[1]))
    return list(boxes(conv.cols[1:], max(most, 1)))


def _images(
    conv: Sizes, scratch: Scratch, images: range, g: int, channels: int, first: int = 0
) -> Array:
    """(channels, *S with its pad, images) of conv.x."""
    part = conv.x[images.start : images.stop, g, first : first + channels]
    x = scratch("phases", (channels, *_padded(conv), len(images)), part.dtype)
    if any(conv.window.pad):
        x[...] = 0
    x[_inside(conv)] = np.moveaxis(part, 0, -1)
    return x


def _outputs(conv: Sizes, scratch: Scratch, images: range, g: int, cols: Box) -> Array:
    """(O, cols x images) of conv.y."""
    part = conv.y[images.start : images.stop, g].reshape(len(images), conv.w.shape[1], -1)
    source = np.moveaxis(part[..., span(cols, conv.cols[1:])], 0, -1)
    out = scratch("outputs", source.shape, source.dtype)
    np.copyto(out, source)
    return out.reshape(len(out), -1)


def _columns(x: Array, window: Window, rows: Box, cols: Box, scratch: Scratch) -> Array:
    """x (C, *S with its pad, images) -> (rows, cols x images)."""
    shape = (*lengths(rows), *lengths(cols), x.shape[-1])
    out = scratch("columns", shape, x.dtype)
    axes = zip(rows[1:], cols, window.dilation, window.stride, strict=True)
    first = tuple(slice(k.start * d + p.start * s, None) for k, p, d, s in axes)
    inner = x.strides[1:-1]
    strides = (
        x.strides[0],
        *(n * d for n, d in zip(inner, window.dilation, strict=True)),
        *(n * s for n, s in zip(inner, window.stride, strict=True)),
        x.strides[-1],
    )
    corner = (slice(rows[0].start, None), *first)
    np.copyto(out, as_strided(x[corner], shape, strides))
    return out.reshape(prod(lengths(rows)), -1)


@lru_cache(maxsize=256)
def _sums(window: Window, cols: Box) -> list[tuple[Part, Part]]:
    """Where in the padded images each part of the columns is added; in a part no place is twice.

    A part is one tap, but of axes along which there is only one position all taps.
    """
    alone = 0
    while alone < len(cols) - 1 and len(cols[alone]) == 1:
        alone += 1
    axes = list(zip(cols, window.stride, window.dilation, window.kernel, strict=True))
    first = [slice(p.start * s, p.start * s + d * (k - 1) + 1, d) for p, s, d, k in axes[:alone]]
    parts = []
    for tap in np.ndindex(*window.kernel[alone:]):
        rest = [
            slice(p.start * s + t * d, (p.stop - 1) * s + t * d + 1, s)
            for t, (p, s, d, _) in zip(tap, axes[alone:], strict=True)
        ]
        source = (*(slice(None),) * (1 + alone), *tap, *(0,) * alone)
        parts.append(((slice(None), *first, *rest), source))
    return parts
