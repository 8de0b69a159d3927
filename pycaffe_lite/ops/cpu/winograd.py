"""3 x 3 convolution with a quarter of the multiplications: Winograd's F(4 x 4, 3 x 3) by BLAS.

Tiles of 6 x 6 inputs and the 3 x 3 weights are mapped to 36 numbers each, so that a product of
those, summed over the channels, maps back to 4 x 4 outputs (Lavin and Gray, arXiv:1509.09308). Here
each map is one matrix product, (36, 36) and the like, and the sums are 36 products (outputs,
channels) @ (channels, tiles). Weights are mapped anew in each call, a fifth of the time at worst:
whoever changes them in between gets what they say.

The result is off by about 1e-5 of the blob's largest value, and a NaN or an infinity in the input
makes NaN of the whole of each tile that reads it. PYCAFFE_LITE_WINOGRAD=0 in the environment turns
this off, `engine: CAFFE` does for a layer. In one thread, ms before (tiles of columns) and after:

    channels, size, outputs      before  after      channels, size, outputs      before  after
    64, 224, 64                    46.2   31.4      512, 28, 512                   41.3   18.6
    128, 112, 128                  40.9   22.2      64, 56, 192                     7.2    4.2
    256, 56, 256                   40.4   19.7      128, 28, 128                    2.6    1.7
"""

from __future__ import annotations

import os
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .columns import boxes
from .convolution import Array, Scratch, Sizes
from .pool import run
from .threads import limited

# Numbers of scratch: a block's mapped tiles, of one block for several threads together or a thread;
# those that a thread gathers at once; its mapped weights and their products. About 12 MB in all.
IMAGE, BLOCK = 1 << 20, 5 << 17
GATHERED = 1 << 18
PRODUCT = 1 << 18

WORK = 80e6
"""Multiplications of the plain convolution from which this is faster on two threads, too."""

LEAST = 48
"""Channels and outputs of a group from which this is faster: with 32 of each it is not."""

TILES = 40
"""Tiles from which mapping the weights pays: 16, of a 14 x 14 image, take as long either way."""

INPUT = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
WEIGHTS = np.array(
    [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
) / np.array([[24]])
OUTPUT = np.array(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
)


class _Block(NamedTuple):
    """Some rows of tiles of some images, one group."""

    group: int
    images: range
    rows: range


@cache
def _maps(dtype: Any) -> tuple[Array, Array, Array]:
    """Of tiles (36, 36), weights (36, 9) and sums (16, 36), for both axes at once."""
    tiles, weights, sums = (np.kron(m, m).astype(dtype) for m in (INPUT, WEIGHTS, OUTPUT))
    return tiles, weights, sums


def _tiles(conv: Sizes) -> tuple[int, int]:
    """Rows and columns of tiles that cover an image's output."""
    height, width = conv.y.shape[3:]
    return -(-height // 4), -(-width // 4)


def applies(conv: Sizes) -> bool:
    """True for 3 x 3 at stride 1 where channels and positions make it faster; if not turned off."""
    window = conv.window
    return (
        window.kernel == (3, 3)
        and window.stride == window.dilation == (1, 1)
        and min(conv.w.shape[1:3]) >= LEAST
        and conv.work >= WORK
        and conv.cols[0] * prod(_tiles(conv)) >= TILES
        and 36 * conv.w.shape[2] * _tiles(conv)[1] <= IMAGE
        and os.environ.get("PYCAFFE_LITE_WINOGRAD", "1") != "0"
    )


def forward(conv: Sizes, b: Array | None, scratch: Scratch) -> None:
    """y = w * x + b; a task for each block, or where blocks are few for parts of each."""
    bias = None if b is None else b.reshape(conv.w.shape[0], -1, 1, 1)
    with limited() as count:
        blocks = _blocks(conv)
        apart = len(blocks) >= 2 * count
        work = partial(_block, conv, bias, scratch, 1 if apart else count)
        run(lambda block: partial(work, block), blocks, count if apart else 1)


def _blocks(conv: Sizes) -> list[_Block]:
    rows, columns = _tiles(conv)
    row = 36 * conv.w.shape[2] * columns
    most = (IMAGE if row * rows * conv.cols[0] <= IMAGE else BLOCK) // row
    cover = boxes((conv.cols[0], rows), max(most, 1))
    return [_Block(g, *box) for box in cover for g in range(conv.w.shape[0])]


def _block(conv: Sizes, bias: Array | None, scratch: Scratch, count: int, block: _Block) -> None:
    outputs, channels = conv.w.shape[1:3]
    tiles = len(block.images) * len(block.rows) * _tiles(conv)[1]
    mapped = scratch("tiles", (36, channels, tiles), conv.x.dtype)
    parts = _parts(channels, GATHERED // (36 * tiles), count)
    run(lambda part: partial(_map_tiles, conv, scratch, block, mapped, part), parts, count)
    parts = _parts(outputs, PRODUCT // (36 * max(tiles, channels // 2)), count)
    run(lambda part: partial(_multiply, conv, bias, scratch, block, mapped, part), parts, count)


def _parts(size: int, most: int, count: int) -> list[slice]:
    """Equal parts of at most `most` (or 8), and at least one for each thread."""
    number = max(-(-size // max(most, 8)), count)
    step = -(-size // number)
    return [slice(i, min(i + step, size)) for i in range(0, size, step)]


def _map_tiles(
    conv: Sizes, scratch: Scratch, block: _Block, mapped: Array, channels: slice
) -> None:
    """mapped[:, channels] = the map of the 6 x 6 inputs of each tile."""
    images, rows, columns = len(block.images), len(block.rows), _tiles(conv)[1]
    phases = _phases(conv, scratch, block, channels)
    size = phases.shape[1]
    tiles = scratch("columns", (6, 6, size, images, rows, columns), phases.dtype)
    step = phases.strides
    for j in range(6):
        corner = phases[j % 4, ..., j // 4 :]
        strides = (step[3], step[1], step[2], 4 * step[3], step[4])
        tiles[:, j] = as_strided(corner, (6, size, images, rows, columns), strides)
    product = scratch("product", (36, tiles.size // 36), tiles.dtype)
    np.matmul(_maps(tiles.dtype)[0], tiles.reshape(36, -1), out=product)
    mapped[:, channels] = product.reshape(36, size, -1)


def _phases(conv: Sizes, scratch: Scratch, block: _Block, channels: slice) -> Array:
    """(4, channels, images, rows of the image, columns of tiles + 1): every 4th column from each of
    the first four on, zeros outside of the image; all that a tile reads is contiguous then."""
    (above, before), (height, width) = conv.window.pad, conv.x.shape[3:]
    x = conv.x[block.images.start : block.images.stop, block.group, channels].swapaxes(0, 1)
    rows, columns = 4 * len(block.rows) + 2, _tiles(conv)[1] + 1
    phases = scratch("phases", (4, *x.shape[:2], rows, columns), x.dtype)
    phases[...] = 0
    top = 4 * block.rows.start - above
    inside = slice(max(top, 0), max(min(top + rows, height), 0))
    count = inside.stop - inside.start
    for phase in range(4):
        first = max(-((phase - before) // 4), 0)
        start = 4 * first + phase - before
        number = min(columns - first, -(-(width - start) // 4))
        if number > 0 and count > 0:
            target = phases[phase, :, :, inside.start - top :, first : first + number]
            target[:, :, :count] = x[:, :, inside, start : start + 4 * number - 3 : 4]
    return phases


def _multiply(
    conv: Sizes, bias: Array | None, scratch: Scratch, block: _Block, mapped: Array, outputs: slice
) -> None:
    """y of the block's tiles and some outputs."""
    _, weights_map, sums_map = _maps(mapped.dtype)
    w = conv.w[block.group, outputs].reshape(-1, 9)
    channels, tiles = mapped.shape[1:]
    count = len(w) // channels
    weights = scratch("columns", (36, count, channels), w.dtype)
    np.matmul(weights_map, w.T, out=weights.reshape(36, -1))
    sums = scratch("product", (36, count, tiles), w.dtype)
    np.matmul(weights, mapped, out=sums)
    result = scratch("outputs", (16, count * tiles), w.dtype)
    np.matmul(sums_map, sums.reshape(36, -1), out=result)
    rows = slice(4 * block.rows.start, min(4 * block.rows.stop, conv.y.shape[3]))
    y = conv.y[block.images.start : block.images.stop, block.group, outputs, rows]
    _place(result.reshape(4, 4, count, len(block.images), len(block.rows), -1), y)
    if bias is not None:
        y += bias[block.group, outputs]


def _place(result: Array, y: Array) -> None:
    """result (4, 4, outputs, images, rows, columns of tiles) -> y (images, outputs, *P)."""
    result = result.transpose(3, 2, 4, 0, 5, 1)
    images, outputs, rows, _, columns, _ = result.shape
    if y.shape[2:] == (4 * rows, 4 * columns):
        y.reshape(images, outputs, rows, 4, columns, 4)[...] = result
        return
    for i, j in np.ndindex(4, 4):
        part = y[:, :, i::4, j::4]
        part[...] = result[:, :, : part.shape[2], i, : part.shape[3], j]
