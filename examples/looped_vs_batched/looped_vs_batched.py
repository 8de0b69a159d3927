"""A convolution as loops over 2-D convolutions, against one batched layer: same numbers, new cost.

    python looped_vs_batched.py [--device cpu|gpu|both] [--sizes 227 113 57 28]
        [--activation relu|sigmoid] [--images 2] [--filters 16] [--channels 3] [--kernel 5]

Raises where the two results differ. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pycaffe_lite as caffe

MODEL = """
input: "data"
input_dim: {images}
input_dim: {channels}
input_dim: {size}
input_dim: {size}
layer {{
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: {filters} kernel_size: {kernel} }}
}}
layer {{ name: "activation" type: "{activation}" bottom: "conv" top: "conv" }}
"""


@dataclass(frozen=True)
class Task:
    """Square images, filters and the function behind them."""

    size: int
    images: int
    channels: int
    filters: int
    kernel: int
    activation: str

    @property
    def calls(self) -> int:
        """2-D convolutions that the loops make."""
        return self.images * self.filters * self.channels

    @property
    def work(self) -> int:
        """Multiplications of one 2-D convolution."""
        return (self.size - self.kernel + 1) ** 2 * self.kernel**2


@dataclass(frozen=True)
class Figures:
    """What one task took on one device; times in milliseconds."""

    task: Task
    looped: float
    batched: float
    layer_calls: int
    floor: float
    """One 2-D convolution with a single position of output: what any call costs."""

    @property
    def ratio(self) -> float:
        return self.looped / self.batched


def looped(x: Any, w: Any, b: Any, task: Task, xp: Any, convolve2d: Callable[..., Any]) -> Any:
    """(N, C, H, W) images, (O, C, K, K) filters, (O) bias -> (N, O, H - K + 1, W - K + 1)."""
    side = task.size - task.kernel + 1
    y = xp.zeros((task.images, task.filters, side, side), dtype=x.dtype)
    for image in range(task.images):
        for filter_ in range(task.filters):
            for channel in range(task.channels):
                # A layer correlates; a true convolution does that with the kernel turned around.
                turned = xp.rot90(w[filter_, channel], 2)
                y[image, filter_] += convolve2d(x[image, channel], turned, mode="valid")
            y[image, filter_] += b[filter_]
    return xp.maximum(y, 0) if task.activation == "relu" else 1 / (1 + xp.exp(-y))


def batched_net(task: Task) -> caffe.Net:
    """The same as two layers, in the mode that is set."""
    names = {"relu": "ReLU", "sigmoid": "Sigmoid"}
    text = MODEL.format(**{**vars(task), "activation": names[task.activation]})
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "layer.prototxt")
        model.write_text(text)
        return caffe.Net(str(model), caffe.TEST)


def median_ms(call: Callable[[], object], runs: int) -> float:
    """The median of `runs` times after an uncounted call; `call` ends when its work is done."""
    call()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)) * 1e3


def backend(kind: str) -> tuple[Any, Callable[..., Any], Callable[[], None]]:
    """Set the mode; the array module, its 2-D convolution, and a function that waits for it."""
    if kind == "cpu":
        from scipy.signal import convolve2d

        caffe.set_mode_cpu()
        return np, convolve2d, lambda: None
    caffe.set_device(0)
    caffe.set_mode_gpu()
    import cupy
    from cupyx.scipy.signal import convolve2d

    return cupy, convolve2d, cupy.cuda.Device().synchronize


def measure(task: Task, kind: str, runs: int) -> Figures:
    """Check that both ways agree, then time them with their arrays on the device already."""
    xp, convolve2d, wait = backend(kind)
    rng = np.random.default_rng(0)
    shape = (task.images, task.channels, task.size, task.size)
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal((task.filters, task.channels, task.kernel, task.kernel))
    b = rng.standard_normal(task.filters)
    net = batched_net(task)
    net.params["conv"][0].data[...] = w
    net.params["conv"][1].data[...] = b
    there = [xp.asarray(array, dtype=np.float32) for array in (x, w, b)]

    def loops() -> Any:
        y = looped(*there, task, xp, convolve2d)
        wait()
        return y

    def layers() -> None:
        net._forward(0, len(net.layers) - 1)  # as in pycaffe: runs, and copies nothing to the host
        wait()

    mine = loops()
    np.testing.assert_allclose(
        net.forward(data=x)["conv"],
        mine if xp is np else mine.get(),
        rtol=1e-4,
        atol=1e-4 * task.kernel * task.channels**0.5,
        err_msg="looped and batched convolution give different numbers",
    )

    def one_position() -> None:
        convolve2d(there[0][0, 0, : task.kernel, : task.kernel], there[1][0, 0], mode="valid")
        wait()

    return Figures(
        task=task,
        looped=median_ms(loops, runs),
        batched=median_ms(layers, 3 * runs),
        layer_calls=sum(layer.type != "Input" for layer in net.layers),
        floor=median_ms(one_position, 10 * runs),
    )


def table(figures: list[Figures]) -> str:
    rows = [["image", "2-D convolutions", "looped ms", "layer calls", "batched ms", "ratio"]]
    rows += [
        [
            f"{f.task.size} x {f.task.size}",
            str(f.task.calls),
            f"{f.looped:.2f}",
            str(f.layer_calls),
            f"{f.batched:.3f}",
            f"{f.ratio:.1f}",
        ]
        for f in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def explain(figures: Figures, kind: str) -> str:
    """Why the loops cost what they do, from the figures."""
    task, call = figures.task, figures.looped / figures.task.calls
    share = figures.floor / call
    rates = [task.calls * task.work / ms / 1e6 for ms in (figures.looped, figures.batched)]
    text = (
        f"{kind.upper()}, {task.size} x {task.size}: the loops make {task.calls} calls of"
        f" {task.work / 1e6:.3g} million multiplications, {call:.3g} ms each; a call with almost"
        f" no work takes {figures.floor:.3g} ms, {share * 100:.2g} % of that. "
    )
    if share > 0.5:
        text += "Most of the time goes into calling, not into arithmetic. "
    elif share > 0.15:
        text += "Calling is a visible part, the rest is arithmetic. "
    else:
        text += "Nearly all of it is inside the calls. "
    text += (
        f"Looped, {rates[0]:.3g} x 10^9 multiplications are done a second; the batched layer, with"
        f" everything in {figures.layer_calls} calls, does {rates[1]:.3g} x 10^9"
    )
    if figures.ratio > 1:
        return text + f": {figures.ratio:.1f} times as many."
    return text + ": no more than the loops here."


def compare(cpu: list[Figures], gpu: list[Figures]) -> str:
    """Who suffers on the GPU? CPU time over GPU time, each way, at each size."""
    lines = []
    for c, g in zip(cpu, gpu, strict=True):
        loops, layers = c.looped / g.looped, c.batched / g.batched
        lines.append(
            f"{c.task.size} x {c.task.size}: on the GPU the loops run {_speed(loops)}, the batched"
            f" layer {_speed(layers)}."
        )
    return "\n".join(lines)


def _speed(ratio: float) -> str:
    return f"{ratio:.1f} times faster" if ratio >= 1 else f"{1 / ratio:.1f} times slower"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu", "both"], default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[227, 113, 57, 28])
    parser.add_argument("--activation", choices=["relu", "sigmoid"], default="relu")
    for name, value in (("images", 2), ("filters", 16), ("channels", 3), ("kernel", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    if min(args.images, args.filters, args.channels, args.kernel, args.runs) < 1:
        parser.error("images, filters, channels, kernel and runs must be at least 1")
    if min(args.sizes) < args.kernel:
        parser.error(f"a kernel of {args.kernel} does not fit into {min(args.sizes)}")
    return args


def main() -> None:
    args = arguments()
    shape = (args.images, args.channels, args.filters, args.kernel, args.activation)
    tasks = [Task(size, *shape) for size in args.sizes]
    results = {}
    if args.device != "cpu":
        caffe.set_mode_gpu()  # find out before measuring that there is none
    for kind in ["cpu", "gpu"] if args.device == "both" else [args.device]:
        results[kind] = [measure(task, kind, args.runs) for task in tasks]
        print(f"{kind.upper()}, both ways give the same numbers\n{table(results[kind])}\n")
    for kind, figures in results.items():
        for each in (figures[0], figures[-1])[: len(figures)]:
            print(textwrap.fill(explain(each, kind), 100))
    if len(results) == 2:
        print(compare(results["cpu"], results["gpu"]))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:  # no GPU
        raise SystemExit(f"error: {error}") from None
