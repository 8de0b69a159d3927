"""How long do whole nets take here, in OpenCV and in ONNX Runtime? Six image classifiers, forward.

    pip install '.[onnx,plot]' 'opencv-python-headless<5' onnxruntime
    python benchmarks/nets.py [--nets alexnet,vgg16] [--batch 1,16] [--threads 1,2] [--rounds 9]
        [--clock cpu] [--json FILE] [--plot FILE.png]

Random weights. In each round every engine has its block: 30 ms of sleep, one call to warm up, the
least of 3; engines called in turn would disturb each other, as their threads go on waiting busily.
A ratio is taken within a round, and given as median and quartiles of all rounds. Every combination
runs in a process of its own, and each engine's peak memory is that of one with this engine alone.
An engine that is not installed is left out. `--clock cpu` counts the process's processor time, for
one thread on a busy machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from six_nets import NETS

ENGINES = {"pycaffe_lite": "pycaffe_lite", "OpenCV": "cv2", "ONNX Runtime": "onnxruntime"}
"""Names, and the module that each needs."""

Row = dict[str, Any]


def build(name: str, batch: int, folder: Path) -> None:
    """model.prototxt, model.caffemodel and, for ONNX Runtime, model.onnx in `folder`."""
    from onnx_models import randomize

    import pycaffe_lite
    from pycaffe_lite.onnx import convert

    (folder / "model.prototxt").write_text(str(NETS[name](batch).to_proto()))
    net = pycaffe_lite.Net(folder / "model.prototxt", pycaffe_lite.TEST)
    randomize(net)
    net.save(folder / "model.caffemodel")
    np.save(folder / "data.npy", net.blobs["data"].data)
    if importlib.util.find_spec("onnxruntime"):
        convert(net, batch=batch).save(folder / "model.onnx")


def load(engine: str, folder: Path, threads: int) -> Callable[[], np.ndarray]:
    """A function that takes one forward and returns the probabilities."""
    x = np.load(folder / "data.npy")
    model, weights = str(folder / "model.prototxt"), str(folder / "model.caffemodel")
    if engine == "OpenCV":
        import cv2

        cv2.setNumThreads(threads)
        other = cv2.dnn.readNetFromCaffe(model, weights)

        def forward() -> np.ndarray:
            other.setInput(x)
            return other.forward()

        return forward
    if engine == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        return lambda: session.run(["prob"], {"data": x})[0]
    import pycaffe_lite

    net = pycaffe_lite.Net(model, pycaffe_lite.TEST, weights=weights)
    net.blobs["data"].data[...] = x
    return lambda: net.forward()["prob"]


def measure(
    engines: list[str], folder: Path, threads: int, rounds: int, clock: str
) -> dict[str, list[float]]:
    """Milliseconds of each engine in each round; raises where their results differ."""
    timer = time.process_time if clock == "cpu" else time.perf_counter
    calls = {engine: load(engine, folder, threads) for engine in engines}
    wanted = calls[engines[0]]().copy()
    for engine, call in calls.items():
        apart = float(abs(call().reshape(wanted.shape) - wanted).max() / wanted.max())
        if apart > 1e-3:
            raise AssertionError(f"{engine} differs by {apart:.1e} of the largest probability")
    taken: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine, call in calls.items():
            time.sleep(0.03)
            call()
            least = np.inf
            for _ in range(3):
                start = timer()
                call()
                least = min(least, timer() - start)
            taken[engine].append(1e3 * least)
    return taken


def peak_memory(engine: str, folder: Path, threads: int) -> float | None:
    """MB of this process after two forwards of that engine; None where Linux does not tell."""
    call = load(engine, folder, threads)
    call()
    call()
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))


def in_new_process(work: Callable[..., Any], *args: Any) -> Any:
    """work(*args) in a process of its own, whose peak memory is not ours."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args)


def run(name: str, batch: int, threads: int, rounds: int, clock: str, folder: Path) -> Row:
    """One line of the table."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    engines = [name for name, module in ENGINES.items() if importlib.util.find_spec(module)]
    taken = in_new_process(measure, engines, folder, threads, rounds, clock)
    row: Row = {"net": name, "batch": batch, "threads": threads, "ms": {}, "ratio": {}}
    row["memory MB"] = {e: in_new_process(peak_memory, e, folder, threads) for e in engines}
    ours = np.array(taken[engines[0]])
    for engine in engines:
        row["ms"][engine] = float(np.median(taken[engine]))
        row["ratio"][engine] = np.percentile(ours / taken[engine], [25, 50, 75]).tolist()
    return row


def heading(engines: list[str]) -> str:
    cells = ["net", "batch", "threads", *(f"{e} ms" for e in engines)]
    cells += [f"ours / {e}" for e in engines[1:]] + [f"{e} MB" for e in engines]
    return f"| {' | '.join(cells)} |\n{'|---' * len(cells)}|"


def line(row: Row) -> str:
    cells = [row["net"], str(row["batch"]), str(row["threads"])]
    cells += [f"{ms:.1f}" for ms in row["ms"].values()]
    for low, middle, high in list(row["ratio"].values())[1:]:
        cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f})")
    cells += ["-" if mb is None else f"{mb:.0f}" for mb in row["memory MB"].values()]
    return f"| {' | '.join(cells)} |"


def plot(rows: list[Row], file: Path) -> None:
    """A group of bars for each net, batch and number of threads: engines' times over ours."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    engines = list(rows[0]["ms"])
    figure, axes = plt.subplots(figsize=(2 + 1.1 * len(rows), 4.5), layout="constrained")
    at, width = np.arange(len(rows)), 0.8 / len(engines)
    for i, engine in enumerate(engines):
        heights = [row["ms"][engine] / row["ms"][engines[0]] for row in rows]
        axes.bar(at + (i - (len(engines) - 1) / 2) * width, heights, width, label=engine)
    labels = [f"{row['net']}\n{row['batch']} im., {row['threads']} thr." for row in rows]
    axes.set_xticks(at, labels, fontsize=8)
    axes.set_ylabel(f"time / {engines[0]}'s (lower is faster)")
    axes.legend()
    figure.savefig(file, dpi=120)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", type=lambda text: text.split(","), default=list(NETS))
    parser.add_argument("--batch", type=numbers, default=[1, 16])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.nets:
        for batch in args.batch:
            with tempfile.TemporaryDirectory() as made:
                in_new_process(build, name, batch, Path(made))
                for threads in args.threads:
                    row = run(name, batch, threads, args.rounds, args.clock, Path(made))
                    if not rows:
                        print(heading(list(row["ms"])))
                    rows.append(row)
                    print(line(row), flush=True)
                    if args.json:
                        args.json.write_text(json.dumps(rows, indent=1))
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
