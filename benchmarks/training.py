"""How long does one LeNet training step take, against its matrix products alone?

    python benchmarks/training.py [--runs 15] [--steps 10]

A step is `solver.step(1)`: forward, backward, momentum, weight decay, update; batch 64, from arrays
in memory. The floor is what Caffe would spend in BLAS: the same matrix products, one after the
other for each image as Caffe takes them, by np.matmul into preallocated arrays.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pycaffe_lite as caffe

BATCH = 64
PAUSE = 0.15  # seconds
LENET = """
name: "LeNet"
layer { name: "mnist" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 64 channels: 1 height: 28 width: 28 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 50 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 500 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = """
train_net: "lenet.prototxt" base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005
lr_policy: "inv" gamma: 0.0001 power: 0.75 max_iter: 100000 random_seed: 1701
"""

# (times, m, k, n): products (m, k) @ (k, n) of a step. Convolutions have one an image and pass:
# forward, gradient of the weights, gradient of the input, which the first layer needs not.
PRODUCTS = [
    (BATCH, 20, 25, 576),
    (BATCH, 20, 576, 25),
    (BATCH, 50, 500, 64),
    (BATCH, 50, 64, 500),
    (BATCH, 500, 50, 64),
    (1, BATCH, 800, 500),
    (1, 500, BATCH, 800),
    (1, BATCH, 500, 800),
    (1, BATCH, 500, 10),
    (1, 10, BATCH, 500),
    (1, BATCH, 10, 500),
]


def products() -> Callable[[], None]:
    """A function that takes the matrix products of one step."""
    rng = np.random.default_rng(1701)
    cases = [
        (
            times,
            rng.standard_normal((m, k), dtype=np.float32),
            rng.standard_normal((k, n), dtype=np.float32),
            np.empty((m, n), np.float32),
        )
        for times, m, k, n in PRODUCTS
    ]

    def run() -> None:
        for times, a, b, out in cases:
            for _ in range(times):
                np.matmul(a, b, out=out)

    return run


def solver(folder: Path) -> caffe.SGDSolver:
    (folder / "lenet.prototxt").write_text(LENET)
    text = SOLVER.replace("lenet.prototxt", str(folder / "lenet.prototxt"))
    (folder / "solver.prototxt").write_text(text)
    made = caffe.SGDSolver(folder / "solver.prototxt")
    rng = np.random.default_rng(1701)
    images = rng.random((4 * BATCH, 1, 28, 28), dtype=np.float32)
    labels = rng.integers(0, 10, 4 * BATCH).astype(np.float32)
    made.net.set_input_arrays(images, labels)
    return made


def milliseconds(work: Callable[[], object], times: int) -> float:
    """The median of `times` calls, after a pause and one call that is not counted.

    BLAS's threads wait busily for 0.1 s after a product and would slow whatever comes next.
    """
    time.sleep(PAUSE)
    work()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return 1e3 * float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps in a run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, floor = solver(Path(folder)), products()
        one.step(3)
        floor()
        rows = np.array(
            [
                (milliseconds(lambda: one.step(1), args.steps), milliseconds(floor, args.steps))
                for _ in range(args.runs)
            ]
        )
    step, products_alone = np.median(rows, axis=0)
    low, middle, high = np.percentile(rows[:, 0] / rows[:, 1], [25, 50, 75])
    print(f"step {step:.2f} ms, its matrix products alone {products_alone:.2f} ms")
    print(f"ratio {middle:.2f}, quartiles {low:.2f}-{high:.2f} of {args.runs} runs")


if __name__ == "__main__":
    main()
