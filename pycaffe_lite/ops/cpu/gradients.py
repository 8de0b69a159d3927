"""Gradients of a convolution without the whole column matrix, by tasks that share no output.

Both cut the column matrix's *rows*: a block of channels of dx, or of columns of dw, belongs to one
task, which walks over all positions in order. So nothing is added from two threads, and the result
does not depend on who did what.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from .columns import Box, boxes, gather, lengths, span, tap_slices
from .convolution import COLUMNS, PRODUCT, Array, Scratch, Sizes, forward, is_flat
from .pool import run
from .threads import limited

DataTask = tuple[int, int, range]
"""image, group, channels"""

WeightsTask = tuple[int, Box]
"""group, rows of the column matrix"""


LARGE = 1 << 20
"""Bytes of one image's columns from which tiles are worth their Python: with smaller images, 64 of
(20, 12, 12) for one, the generic kernels on a few images at a time are three times as fast."""

SOME = 16 << 20
"""Bytes of columns for the generic kernels at once. Half of it where the images are large: for
3 x 3, tiles are 1.5 times as fast on 8 images of (64, 28, 28), 0.85 times on one (64, 56, 56)."""


DEPTHWISE = 64 << 20
"""Bytes of one image's columns up to which channels by themselves stay with the generic kernels: a
tap of all channels is one addition there, one a channel here (bilinear upsampling of (21, 32, 40)
by 8: 70 against 125 ms)."""


def images_at_once(conv: Sizes) -> int:
    """Images whose columns the generic kernels may hold together; 0 where tiles are faster."""
    columns = conv.x.shape[1] * conv.depth * prod(conv.cols[1:]) * conv.x.itemsize
    if LARGE and conv.x.shape[1] > 1 == conv.x.shape[2] and columns <= DEPTHWISE:
        return max(1, SOME // columns)
    if columns >= LARGE and columns * conv.x.shape[0] >= SOME // 2:
        return 0
    return max(1, SOME // columns)


def backward_data(conv: Sizes, scratch: Scratch) -> None:
    """conv.x = dx, the transpose of the convolution applied to conv.y = dy."""
    if conv.window.is_pointwise:
        forward(Sizes(conv.y, conv.w.swapaxes(1, 2), conv.x, conv.window), None, scratch)
        return
    with limited() as count:
        n, group, channels = conv.x.shape[:3]
        block = max(1, -(-channels * n * group // (4 * count)))
        tasks = [
            (i, g, c)
            for i in range(n)
            for g in range(group)
            for (c,) in boxes((channels,), min(block, _most_channels(conv)))
        ]
        run(lambda task: partial(_data, conv, scratch, *task), tasks, count)


def _most_channels(conv: Sizes) -> int:
    """Channels of which the columns of 64 positions fit into the scratch."""
    return max(1, COLUMNS // conv.x.itemsize // (64 * prod(conv.rows[1:])))


def _data(conv: Sizes, scratch: Scratch, image: int, g: int, channels: range) -> None:
    """dx of some channels of one image: for each block of positions w.T @ dy, added tap by tap."""
    dx = conv.x[image, g, channels.start : channels.stop]
    w, dy = conv.w[g].reshape(conv.w.shape[1], -1), conv.y[image, g]
    positions, spatial = dy.shape[1:], dx.shape[1:]
    dy = dy.reshape(dy.shape[0], -1)
    dx[...] = 0
    # Several boxes only where one channel's taps alone are too many.
    for rows in boxes((len(channels), *conv.rows[1:]), COLUMNS // conv.x.itemsize):
        rows = (range(rows[0].start + channels.start, rows[0].stop + channels.start), *rows[1:])
        part = w[:, span(rows, conv.rows)].T
        for cols in boxes(positions, COLUMNS // conv.x.itemsize // part.shape[0]):
            shape = (*lengths(rows), *lengths(cols))
            col = scratch("columns", shape, dx.dtype)
            np.matmul(part, dy[:, span(cols, positions)], out=col.reshape(part.shape[0], -1))
            for tap, image_at, inside, _ in tap_slices(conv.window, rows[1:], cols, spatial):
                at, held = (slice(None), *image_at), (slice(None), *tap, *inside)
                dx[at] += col[held]


def backward_weights(conv: Sizes, scratch: Scratch) -> None:
    """conv.w += dw, the sum over images and positions of conv.y = dy times the column matrix."""
    with limited() as count:
        group, outputs = conv.w.shape[:2]
        share = -(-conv.depth * group // (2 * count)) if count > 1 else conv.depth
        most = max(1, min(PRODUCT // conv.x.itemsize // outputs, share))
        tasks = [(g, rows) for g in range(group) for rows in boxes(conv.rows, most)]
        run(lambda task: partial(_weights, conv, scratch, *task), tasks, count)


def _weights(conv: Sizes, scratch: Scratch, g: int, rows: Box) -> None:
    """dw of some rows of the column matrix, added into conv.w."""
    depth = prod(lengths(rows))
    dw = conv.w[g].reshape(conv.w.shape[1], -1)[:, span(rows, conv.rows)]
    product = scratch("product", dw.shape, dw.dtype)
    total = scratch("total", dw.shape, dw.dtype)
    total[...] = 0
    for images, *positions in boxes(conv.cols, max(1, COLUMNS // conv.x.itemsize // depth)):
        cols = tuple(positions)
        for image in images:
            dy = conv.y[image, g].reshape(dw.shape[0], -1)[:, span(cols, conv.cols[1:])]
            np.matmul(dy, _columns(conv, scratch, image, g, rows, cols).T, out=product)
            total += product
    dw += total


def takes_images_apart(conv: Sizes) -> bool:
    """True for a batch of images with columns of a few megabytes, in few groups.

    In one thread `weights_by_images` takes 0.75 to 1.0 of the generic kernel's time on a few images
    at a time: 100 x (3, 32, 32) with 32 outputs 5 x 5 from 14.5 to 12.2 ms, 64 x (1, 28, 28) with
    20 from 0.70 to 0.65; and it has a part for each thread.
    """
    columns = conv.depth * prod(conv.cols[1:]) * conv.x.itemsize
    return (
        conv.is_batch
        and columns <= COLUMNS
        and conv.w[0].nbytes <= PRODUCT // 4
        and conv.x.shape[1] <= 4
    )


def weights_by_images(conv: Sizes, scratch: Scratch) -> None:
    """conv.w += dw, each thread for its own images; the parts are added in their order."""
    with limited() as count:
        (n, group), outputs = conv.x.shape[:2], conv.w.shape[1]
        size = -(-n // count)
        blocks = [range(i, min(i + size, n)) for i in range(0, n, size)]
        tasks = [(g, images) for g in range(group) for images in blocks]
        parts = np.zeros((len(tasks), outputs, conv.depth), conv.w.dtype)
        numbers = range(len(tasks))
        run(lambda k: partial(_weights_of, conv, scratch, parts[k], *tasks[k]), numbers, count)
        for (g, _), part in zip(tasks, parts, strict=True):
            dw = conv.w[g]
            dw += part.reshape(dw.shape)


def _weights_of(conv: Sizes, scratch: Scratch, dw: Array, g: int, images: range) -> None:
    """dw (O/G, C/G * taps) of some images, added into `dw`."""
    positions, itemsize = conv.cols[1:], conv.x.itemsize
    rows, cols = (tuple(range(n) for n in axes) for axes in (conv.rows, positions))
    most = min(COLUMNS // (conv.depth * prod(positions) * itemsize), PRODUCT // dw.nbytes)
    for start in range(images.start, images.stop, max(most, 1)):
        part = slice(start, min(start + max(most, 1), images.stop))
        x = conv.x[part, g]
        dy = conv.y[part, g].reshape(len(x), dw.shape[0], -1)
        col = scratch("columns", (len(x), *conv.rows, *positions), x.dtype)
        gather(x, conv.window, rows, cols, col, scratch)
        product = scratch("product", (len(x), *dw.shape), dw.dtype)
        np.matmul(dy, col.reshape(len(x), conv.depth, -1).swapaxes(1, 2), out=product)
        dw += product.sum(axis=0)


def _columns(conv: Sizes, scratch: Scratch, image: int, g: int, rows: Box, cols: Box) -> Array:
    """(rows, cols) of one image's column matrix: a view where the window is a point."""
    x = conv.x[image : image + 1, g]
    if conv.window.is_pointwise and is_flat(conv.x):
        flat = x.reshape(x.shape[1], -1)
        return flat[rows[0].start : rows[0].stop, span(cols, conv.cols[1:])]
    col = scratch("columns", (1, *lengths(rows), *lengths(cols)), x.dtype)
    gather(x, conv.window, rows, cols, col, scratch)
    return col.reshape(prod(lengths(rows)), -1)
