"""How long does loading VGG-16's weights (528 MiB) take, against OpenCV, and in how much memory?

    python benchmarks/load_weights.py [--runs 7] [--dir FOLDER]

Needs OpenCV 4, which reads Caffe's files: pip install 'opencv-python-headless<5'.
Writes VGG-16 with random weights into a temporary folder. Then each run times in turn, all from the
prototxt on: `Net(prototxt, TEST, weights=...)` here; OpenCV's readNetFromCaffe; reading the file's
bytes; saving the net. The peak memory of one load is that of a process of its own, less what the
process had before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_lite import TEST, Net

MIB = 1 << 20

PEAK = """
import re, sys
from pathlib import Path
import numpy, pycaffe_lite
def peak():  # getrusage would give the peak of the process that started this one, where larger
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
prototxt, weights = sys.argv[1:]
import pycaffe_lite.proto.caffe_pb2, google.protobuf.text_format
before = peak()
net = pycaffe_lite.Net(prototxt, pycaffe_lite.TEST, weights=weights)
print(before, peak())
"""


def vgg16() -> str:
    """The prototxt of VGG-16 without fillers, 138,357,544 parameters."""
    text = "name: 'vgg16' input: 'data' input_shape { dim: [1, 3, 224, 224] }\n"
    bottom = "data"
    for block, (count, outputs) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for k in range(1, count + 1):
            name = f"conv{block}_{k}"
            text += (
                f"layer {{ name: '{name}' type: 'Convolution' bottom: '{bottom}' top: '{name}'"
                f" convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 }} }}\n"
                f"layer {{ name: 'relu{name}' type: 'ReLU' bottom: '{name}' top: '{name}' }}\n"
            )
            bottom = name
        text += (
            f"layer {{ name: 'pool{block}' type: 'Pooling' bottom: '{bottom}' top: 'pool{block}'"
            " pooling_param { pool: MAX kernel_size: 2 stride: 2 } }\n"
        )
        bottom = f"pool{block}"
    for k, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        text += (
            f"layer {{ name: 'fc{k}' type: 'InnerProduct' bottom: '{bottom}' top: 'fc{k}'"
            f" inner_product_param {{ num_output: {outputs} }} }}\n"
        )
        bottom = f"fc{k}"
    return text


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = work()
    elapsed = time.perf_counter() - start
    del result  # what was loaded is let go outside the measured time
    return elapsed


def opencv() -> Any:
    try:
        import cv2
    except ImportError:
        cv2 = None
    if cv2 is None or not hasattr(cv2.dnn, "readNetFromCaffe"):
        raise SystemExit("OpenCV 4 is needed: pip install 'opencv-python-headless<5'")
    return cv2


def peak_mib(prototxt: Path, weights: Path) -> tuple[float, float]:
    """Peak memory of a process before and after it has loaded the weights; Linux only."""
    command = [sys.executable, "-c", PEAK, str(prototxt), str(weights)]
    before, after = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(before), float(after)


def quartiles(ratios: np.ndarray) -> str:
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return f"{middle:.2f}, quartiles {low:.2f}-{high:.2f} of {len(ratios)} runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--dir", help="where the files go; the system's temporary folder")
    args = parser.parse_args()
    cv2 = opencv()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        prototxt, path = Path(folder, "vgg16.prototxt"), Path(folder, "vgg16.caffemodel")
        prototxt.write_text(vgg16())
        net = Net(prototxt, TEST)
        draw = np.random.default_rng(1701)
        for blobs in net.params.values():
            for blob in blobs:
                draw.standard_normal(dtype=np.float32, out=blob.data)
        net.save(path)
        size = path.stat().st_size / MIB
        works: list[Callable[[], Any]] = [
            lambda: Net(prototxt, TEST, weights=path),
            lambda: cv2.dnn.readNetFromCaffe(str(prototxt), str(path)),
            path.read_bytes,
            lambda: net.save(path),
        ]
        rows = np.array([[seconds(work) for work in works] for _ in range(args.runs + 1)])[1:]
        before, after = peak_mib(prototxt, path)
    ours, theirs, read, save = np.median(rows, axis=0)
    print(f"file of {size:.0f} MiB; OpenCV {cv2.__version__}")
    print(
        f"medians: load {ours:.3f} s, OpenCV {theirs:.3f} s, read {read:.3f} s, save {save:.3f} s"
    )
    print(f"load / OpenCV {quartiles(rows[:, 0] / rows[:, 1])}")
    print(f"load / reading the bytes {quartiles(rows[:, 0] / rows[:, 2])}")
    print(
        f"a load raises a process's peak memory by {after - before:.0f} MiB (from {before:.0f}):"
        f" {(after - before) / size:.2f} times the file"
    )


if __name__ == "__main__":
    main()
