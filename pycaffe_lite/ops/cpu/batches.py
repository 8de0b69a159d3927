"""Convolution of a batch of small images: the images are the innermost axis of everything.

Rows of a few positions are gathered in runs as short, and multiplied image by image in products as
small. Here a block of images is transposed to (rows, C, columns, images) first. For each tap of the
last axes its columns are then copied in runs of positions x images: (rows, taps, C, positions x
images), the *strips*. In them the column matrix of one row of positions is a view, the strips of as
many rows as the kernel has: no column is copied once for each row of the kernel, and one product
takes a row of positions of all images. Gradients of the image are added to strips likewise.
Transposing, here and back, moves a hundredth of what the columns hold. For 64 images of (20, 12,
12), 50 outputs and a kernel of 5 that is 0.9 of the time of gathering whole columns so, which was
half of that with the images outermost; what remains is the products'.

Each task has its own images and adds in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .convolution import Array, Scratch, Sizes
from .pool import run
from .threads import limited

# Bytes of scratch a thread, together with what the other kernels keep below 8 MiB.
STRIPS = 2 << 20
IMAGES = 1 << 20
OUTPUTS = 1 << 20

MOST = 64
"""Images of a block: of more, the transposed copies leave the cache."""


def applies(conv: Sizes, widest: int) -> bool:
    """True where rows of at most `widest` positions, and a block of 8 images, make this faster.

    With below 128 rows in the column matrix the transposing counts (32 rows a matrix: 0.5 of the
    speed), with a stride the runs are of one position; a batch of 8 (20, 12, 12) is too little work
    for two threads.
    """
    return (
        len(conv.window.kernel) > 1
        and conv.cols[-1] <= widest
        and conv.window.stride[-1] == 1
        and conv.depth >= 128
        and conv.work >= 20_000_000
        and not conv.window.is_pointwise
        and images_at_once(conv, 2) >= 8
    )


def images_at_once(conv: Sizes, count: int) -> int:
    """Images of a block: what the scratch holds, in as many blocks for each thread; 0: not one.

    0, too, where strips are no columns: with one axis, or rows of the kernel that lie apart.
    """
    if len(conv.window.kernel) < 2 or conv.window.dilation[0] > 1:
        return 0
    n, itemsize = conv.cols[0], conv.x.itemsize
    most = min(
        IMAGES // (conv.rows[0] * prod(_padded(conv)) * itemsize),
        STRIPS // (prod(_strips(conv)) * itemsize),
        OUTPUTS // (conv.w.shape[1] * prod(conv.cols[1:]) * itemsize),
        MOST,
    )
    if most < 1:
        return 0
    blocks = -(-n // (most * count)) * count
    return -(-n // blocks)


def forward(conv: Sizes, b: Array | None, scratch: Scratch) -> None:
    """y = w * x + b, a task for each block of images and group."""
    bias = None if b is None else b.reshape(conv.w.shape[0], -1, 1)
    _run_by_images(conv, partial(_forward, conv, _by_taps(conv.w), bias, scratch))


def backward_data(conv: Sizes, scratch: Scratch) -> None:
    """conv.x = dx, the transpose of the convolution applied to conv.y = dy; tasks likewise."""
    _run_by_images(conv, partial(_data, conv, _by_taps(conv.w), scratch))


def backward_weights(conv: Sizes, scratch: Scratch) -> None:
    """conv.w += dw, the sum of conv.y = dy times the columns; tasks likewise, added in order."""
    group, outputs, channels, *kernel = conv.w.shape
    parts: dict[tuple[int, int], Array] = {}
    _run_by_images(conv, partial(_weights, conv, parts, scratch))
    for start, g in sorted(parts):
        dw = parts[start, g].reshape(outputs, *kernel, channels)
        conv.w[g] += np.moveaxis(dw, -1, 1)


def _run_by_images(conv: Sizes, work: Callable[[range, int], None]) -> None:
    with limited() as count:
        n, group = conv.x.shape[:2]
        step = images_at_once(conv, count)
        blocks = [range(i, min(i + step, n)) for i in range(0, n, step)]
        tasks = [(images, g) for images in blocks for g in range(group)]
        run(lambda task: partial(work, *task), tasks, count)


def _forward(
    conv: Sizes, weights: Array, bias: Array | None, scratch: Scratch, images: range, g: int
) -> None:
    strips, w = _gathered(conv, scratch, images, g), weights[g]
    y = scratch("outputs", (len(w), *conv.cols[1:], len(images)), w.dtype)
    for row in range(conv.cols[1]):
        np.matmul(w, _view(conv, strips, row), out=y[:, row].reshape(len(w), -1))
    if bias is not None:
        y.reshape(len(w), -1)[...] += bias[g]
    conv.y[images.start : images.stop, g] = np.moveaxis(y, -1, 0)


def _data(conv: Sizes, weights: Array, scratch: Scratch, images: range, g: int) -> None:
    w, dy = weights[g].T, _outputs(conv, scratch, images, g)
    strips = scratch("columns", (*_strips(conv), len(images)), w.dtype)
    strips[...] = 0
    for row in range(conv.cols[1]):
        part = _view(conv, strips, row)
        part += np.matmul(w, dy[row], out=scratch("product", part.shape, w.dtype))
    dx = scratch("phases", _block(conv, images), w.dtype)
    dx[...] = 0
    for tap in np.ndindex(*conv.rows[2:]):
        target, source = dx[_columns(conv, tap)], (slice(None), *tap)
        target += strips[source]
    conv.x[images.start : images.stop, g] = dx[_inside(conv)].transpose(_to_images(dx.ndim))


def _weights(
    conv: Sizes, parts: dict[tuple[int, int], Array], scratch: Scratch, images: range, g: int
) -> None:
    """dw of some images, kept in `parts`: (O, taps x C)."""
    strips, dy = _gathered(conv, scratch, images, g), _outputs(conv, scratch, images, g)
    total = np.empty((conv.w.shape[1], conv.depth), dy.dtype)
    product = scratch("product", total.shape, dy.dtype)
    for row in range(conv.cols[1]):
        np.matmul(dy[row], _view(conv, strips, row).T, out=product if row else total)
        if row:
            total += product
    parts[images.start, g] = total


# ---- blocks of images ----------------------------------------------------------------------------


def _by_taps(w: Array) -> Array:
    """(G, O/G, C/G, *K) -> (G, O/G, taps x C/G), the order of the strips' rows."""
    return np.ascontiguousarray(np.moveaxis(w, 2, -1)).reshape(*w.shape[:2], -1)


def _padded(conv: Sizes) -> tuple[int, ...]:
    """Spatial size of an image with its pad."""
    return tuple(s + 2 * p for s, p in zip(conv.x.shape[3:], conv.window.pad, strict=True))


def _strips(conv: Sizes) -> tuple[int, ...]:
    """(rows, *K, C, *P): the strips of one image; K and P without their first axis."""
    return (_padded(conv)[0], *conv.rows[2:], conv.rows[0], *conv.cols[2:])


def _block(conv: Sizes, images: range) -> tuple[int, ...]:
    """(rows, C, *columns, images) with the pad."""
    rows, *columns = _padded(conv)
    return (rows, conv.rows[0], *columns, len(images))


def _inside(conv: Sizes) -> tuple[slice, ...]:
    """Where an image lies in a block."""
    spatial = zip(conv.window.pad, conv.x.shape[3:], strict=True)
    rows, *columns = (slice(p, p + s) for p, s in spatial)
    return (rows, slice(None), *columns)


def _to_images(axes: int) -> tuple[int, ...]:
    """From (rows, C, *columns, images) to (images, C, rows, *columns)."""
    return (axes - 1, 1, 0, *range(2, axes - 1))


def _gathered(conv: Sizes, scratch: Scratch, images: range, g: int) -> Array:
    """The strips of some images of conv.x: (rows, *K, C, *P, images)."""
    part = conv.x[images.start : images.stop, g]
    x = scratch("phases", _block(conv, images), part.dtype)
    if any(conv.window.pad):
        x[...] = 0
    x[_inside(conv)] = part.transpose(2, 1, *range(3, part.ndim), 0)
    strips = scratch("columns", (*_strips(conv), len(images)), x.dtype)
    inner = x.strides[2:-1]
    taps = [n * d for n, d in zip(inner, conv.window.dilation[1:], strict=True)]
    steps = [n * s for n, s in zip(inner, conv.window.stride[1:], strict=True)]
    strides = (x.strides[0], *taps, x.strides[1], *steps, x.strides[-1])
    np.copyto(strips, as_strided(x, strips.shape, strides))
    return strips


def _columns(conv: Sizes, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """Where in a block the positions of a tap of the last axes lie."""
    window = conv.window
    axes = zip(tap, conv.cols[2:], window.stride[1:], window.dilation[1:], strict=True)
    return (
        slice(None),
        slice(None),
        *(slice(t * d, t * d + (p - 1) * s + 1, s) for t, p, s, d in axes),
    )


def _view(conv: Sizes, strips: Array, row: int) -> Array:
    """(taps x C, positions x images): the columns of one row of positions."""
    first = row * conv.window.stride[0]
    rows = strips[first : first + conv.rows[1]]
    return rows.reshape(conv.depth, -1)


def _outputs(conv: Sizes, scratch: Scratch, images: range, g: int) -> Array:
    """(rows of positions, O, positions x images) of conv.y."""
    part = conv.y[images.start : images.stop, g]
    order = (2, 1, *range(3, part.ndim), 0)
    out = scratch("outputs", tuple(part.shape[k] for k in order), part.dtype)
    np.copyto(out, part.transpose(order))
    return out.reshape(*out.shape[:2], -1)
