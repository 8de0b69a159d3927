"""How much does a convolution cost beyond its matrix product? Strides 1 to 4 of one 11 x 11 layer.

For x (1, 1, 227, 227) and w (96, 1, 11, 11) with bias, `conv_forward` is timed against one
`np.matmul` of the same size, (96, 121) @ (121, positions) into a preallocated array, with BLAS's
own threads. Each round times both, one after the other, each in a short loop as `net.forward()` in
a loop would run; the ratio is taken within the round. `--pause` sleeps before each loop: BLAS's
threads spin for 0.1 s after a product and would disturb whatever comes next.

    python benchmarks/conv_vs_gemm.py [--rounds 60] [--pause 0.15] [--loop 10] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from pycaffe_lite.ops.cpu import CpuOps
from pycaffe_lite.ops.cpu.threads import get_num_threads, set_num_threads
from pycaffe_lite.ops.window import Window

TARGETS = {1: 1.25, 2: 1.4, 3: 1.5, 4: 1.6}


def seconds(call: Callable[[], object], loop: int, pause: float) -> float:
    """Median time of one call in a loop, after one that is not counted."""
    time.sleep(pause)
    call()
    times = []
    for _ in range(loop):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def pair(stride: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The convolution, in the scope that a net opens, and its matrix product."""
    rng = np.random.default_rng(0)
    window = Window((11, 11), (stride, stride))
    x = rng.standard_normal((1, 1, 227, 227), dtype=np.float32)
    w = rng.standard_normal((96, 1, 11, 11), dtype=np.float32)
    b = rng.standard_normal(96, dtype=np.float32)
    out = np.empty((1, 96, *window.conv_shape((227, 227))), np.float32)
    col = rng.standard_normal((121, out[0, 0].size), dtype=np.float32)
    product = np.empty((96, out[0, 0].size), np.float32)
    flat, ops = w.reshape(96, 121), CpuOps()

    def conv() -> None:
        with ops.running():
            ops.conv_forward(x, w, b, window, 1, out)

    return conv, lambda: np.matmul(flat, col, out=product)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--loop", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.15)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    set_num_threads(args.threads)
    pairs = {stride: pair(stride) for stride in TARGETS}
    taken: dict[int, list[tuple[float, float]]] = {stride: [] for stride in TARGETS}
    for _ in range(args.rounds):
        for stride, calls in pairs.items():
            taken[stride].append(tuple(seconds(c, args.loop, args.pause) for c in calls))
    print(f"{get_num_threads()} threads, {args.rounds} rounds of {args.loop}, pause {args.pause} s")
    print("stride  conv ms  gemm ms  ratio: median  quartiles    target")
    for stride, target in TARGETS.items():
        conv, gemm = np.array(taken[stride]).T
        low, mid, high = np.percentile(conv / gemm, [25, 50, 75])
        print(
            f"{stride:6d} {np.median(conv) * 1e3:8.3f} {np.median(gemm) * 1e3:8.3f}"
            f" {mid:14.2f}  {low:.2f}-{high:.2f} {target:11.2f}"
        )


if __name__ == "__main__":
    main()
