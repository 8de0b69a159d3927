"""From how much work on does the CPU backend's pool pay? The figures behind `SMALL`.

Each line is one layer; each round times the pool with BLAS at one thread and the calling thread
with BLAS's own threads one after the other, and the ratios are medians over the rounds with their
quartiles. Above 1: the pool is faster.

    python benchmarks/conv_thresholds.py [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from pycaffe_lite.ops.cpu import CpuOps, convolution
from pycaffe_lite.ops.window import Window

Layer = tuple[int, int, int, int, int, int]
"""channels, size, outputs, kernel, stride, pad"""

NEVER = 1 << 60
LAYERS: list[Layer] = [
    (16, 28, 32, 3, 1, 1),
    (64, 14, 64, 3, 1, 1),
    (1, 227, 96, 11, 4, 0),
    (64, 28, 96, 3, 1, 1),
    (1, 227, 96, 11, 3, 0),
    (3, 224, 64, 3, 1, 1),
    (3, 227, 96, 11, 4, 0),
    (64, 56, 64, 3, 1, 1),
    (3, 224, 64, 7, 2, 3),
    (1, 227, 96, 11, 2, 0),
    (64, 56, 192, 3, 1, 1),
    (1, 227, 96, 11, 1, 0),
    (64, 224, 64, 3, 1, 1),
]


def layer_call(layer: Layer) -> tuple[Callable[[], object], int]:
    """One forward of the layer, in a scope of its own, and its multiplications."""
    channels, size, outputs, kernel, stride, pad = layer
    rng, ops = np.random.default_rng(0), CpuOps()
    window = Window((kernel, kernel), (stride, stride), (pad, pad))
    x = rng.standard_normal((1, channels, size, size), dtype=np.float32)
    w = rng.standard_normal((outputs, channels, kernel, kernel), dtype=np.float32)
    b = rng.standard_normal(outputs, dtype=np.float32)
    out = np.empty((1, outputs, *window.conv_shape((size, size))), np.float32)

    def call() -> None:
        with ops.running():
            ops.conv_forward(x, w, b, window, 1, out)

    return call, out.size * channels * kernel * kernel


def seconds(call: Callable[[], object], **constants: object) -> float:
    """Median of ten calls, with constants of the kernels set; BLAS's threads asleep before."""
    with mock.patch.multiple(convolution, **constants):
        time.sleep(0.12)
        call()
        call()
        times = []
        for _ in range(10):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    print("layer: multiplications, pool ms, alone ms, alone / pool (quartiles)")
    for layer in LAYERS:
        call, work = layer_call(layer)
        times = [(seconds(call, SMALL=0), seconds(call, SMALL=NEVER)) for _ in range(args.rounds)]
        pool, alone = np.array(times).T
        low, mid, high = np.percentile(alone / pool, [25, 50, 75])
        print(
            f"C{layer[0]} {layer[1]}x{layer[1]} O{layer[2]} k{layer[3]} s{layer[4]} p{layer[5]}:"
            f" {work / 1e6:.0f}M  {np.median(pool) * 1e3:.2f}  {np.median(alone) * 1e3:.2f}"
            f"  {mid:.2f} ({low:.2f}-{high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
