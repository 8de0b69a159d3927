"""How much faster than the generic kernel is the CPU backend's LRN?

Each line is one input; each round times both kernels one after the other, and the ratios are
medians over the rounds with their quartiles. Below 1: the CPU backend is faster.

    python benchmarks/lrn.py [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps

SHAPES = [(1, 96, 55, 55), (10, 96, 55, 55), (10, 256, 27, 27), (1, 64, 56, 56), (1, 16, 14, 14)]
PARAMS = (5, 1e-4, 0.75)


def calls(ops: Ops, shape: tuple[int, ...]) -> tuple[Callable[[], object], Callable[[], object]]:
    """One forward and one backward on an input of that shape."""
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    y, dx, scale = (np.ones_like(x) for _ in range(3))
    return (
        lambda: ops.lrn(x, *PARAMS, 1.0, y, scale),
        lambda: ops.lrn_backward(x, scale, y, *PARAMS, dx),
    )


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print("| input | verb | generic ms | ratio (quartiles) |\n|---|---|---|---|")
    for shape in SHAPES:
        pairs = zip(calls(Ops(), shape), calls(CpuOps(), shape), strict=True)
        for verb, (generic, cpu) in zip(("forward", "backward"), pairs, strict=True):
            times = np.array([(seconds(generic), seconds(cpu)) for _ in range(rounds + 1)][1:])
            low, middle, high = np.percentile(times[:, 1] / times[:, 0], (25, 50, 75))
            print(
                f"| {' x '.join(map(str, shape))} | {verb} | {np.median(times[:, 0]) * 1e3:.2f}"
                f" | {middle:.2f} ({low:.2f}-{high:.2f}) |"
            )


if __name__ == "__main__":
    main()
