"""Where do the CPU backend's convolution paths cross? The figures behind its constants.

Each line is one layer; each round times the alternatives one after the other, and the ratios are
medians over the rounds with their quartiles. Above 1: the first named is faster.

* small: the calling thread with BLAS's own threads against the pool with BLAS at one thread
  (`SMALL`, `SMALL_BANDS`, in multiplications)
* bands: bands against blocks (`BAND`, in positions of an output row)
* step: products of a few columns that OpenBLAS does not pack, against whole rows (`SMALL_PRODUCT`)

    python benchmarks/conv_thresholds.py [small] [bands] [step] [--rounds 30]
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
SMALL_LAYERS: list[Layer] = [
    (3, 28, 16, 3, 1, 1),
    (1, 28, 20, 5, 1, 0),
    (16, 28, 32, 3, 1, 1),
    (64, 14, 64, 3, 1, 1),
    (3, 64, 32, 5, 2, 2),
    (48, 28, 64, 3, 1, 1),
    (64, 28, 96, 3, 1, 1),
    (1, 227, 96, 11, 4, 0),
    (64, 56, 64, 3, 1, 1),
    (3, 227, 96, 11, 4, 0),
]
BAND_LAYERS: list[Layer] = [
    (64, 14, 96, 3, 1, 1),
    (64, 18, 96, 3, 1, 1),
    (16, 28, 32, 5, 1, 2),
    (96, 28, 128, 3, 1, 1),
    (32, 40, 64, 3, 1, 1),
    (64, 56, 64, 3, 1, 1),
    (3, 224, 64, 7, 2, 3),
    (3, 227, 96, 11, 4, 0),
]
STEP_LAYERS: list[Layer] = [
    (1, 227, 96, 11, 1, 0),
    (1, 227, 96, 11, 2, 0),
    (1, 227, 96, 11, 3, 0),
    (3, 224, 64, 7, 2, 3),
    (3, 224, 64, 3, 1, 1),
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


def compare(title: str, layers: list[Layer], rounds: int, first: dict, second: dict) -> None:
    """One line a layer: medians of both and of the ratio second / first."""
    print(title)
    calls = [layer_call(layer) for layer in layers]
    taken: list[list[tuple[float, float]]] = [[] for _ in layers]
    for _ in range(rounds):
        for (call, _), times in zip(calls, taken, strict=True):
            times.append((seconds(call, **first), seconds(call, **second)))
    for layer, (_, work), times in zip(layers, calls, taken, strict=True):
        one, other = np.array(times).T
        low, mid, high = np.percentile(other / one, [25, 50, 75])
        print(
            f"  C{layer[0]} {layer[1]}x{layer[1]} O{layer[2]} k{layer[3]} s{layer[4]} p{layer[5]}:"
            f" {work / 1e6:.1f}M  {np.median(one) * 1e3:.3f} {np.median(other) * 1e3:.3f} ms"
            f"  {mid:.2f} ({low:.2f}-{high:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", default=["small", "bands", "step"])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    for which in args.which:
        if which == "small":
            pool = {"SMALL": 0, "SMALL_BANDS": 0}
            alone = {"SMALL": NEVER, "SMALL_BANDS": NEVER}
            compare("pool against calling thread", SMALL_LAYERS, args.rounds, pool, alone)
        elif which == "bands":
            bands = {"BAND": 1, "SMALL": 0, "SMALL_BANDS": 0}
            blocks = {**bands, "BAND": NEVER}
            compare("bands against blocks", BAND_LAYERS, args.rounds, bands, blocks)
        else:
            steps, rows = {"SMALL_BANDS": 0}, {"SMALL_BANDS": 0, "_step": lambda conv: NEVER}
            compare("steps against whole rows", STEP_LAYERS, args.rounds, steps, rows)


if __name__ == "__main__":
    main()
