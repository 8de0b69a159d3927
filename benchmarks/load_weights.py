"""How long does loading a large .caffemodel take, against reading its bytes, and how much memory?

    python benchmarks/load_weights.py [--mib 500] [--runs 5]

Writes a net of inner products of that size into a temporary folder, then times in turn: reading
the file's bytes; loading it into the net; loading it by the full schema, with np.array of every
repeated float; saving the net. What the full schema costs depends on protobuf: 4.25 makes a Python
float of each value, 7.36 lets NumPy copy them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google.protobuf
import numpy as np

from pycaffe_lite import TEST, Net
from pycaffe_lite.proto import caffe_pb2

LAYERS, WIDTH = 8, 4096
MIB = 1 << 20


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def model(mib: int) -> str:
    """LAYERS inner products of WIDTH inputs, whose parameters are `mib` MiB together."""
    outputs = mib * MIB // (4 * LAYERS * WIDTH)
    layers = [
        f"layer {{ name: 'ip{k}' type: 'InnerProduct' bottom: 'x' top: 'y{k}'"
        f" inner_product_param {{ num_output: {outputs} bias_term: false }} }}"
        for k in range(LAYERS)
    ]
    return f"input: 'x' input_shape {{ dim: [1, {WIDTH}] }} " + " ".join(layers)


def load_by_full_schema(net: Net, path: Path) -> None:
    """What `net.copy_from` does, without the small schema and without any checks."""
    spec = caffe_pb2.NetParameter.FromString(path.read_bytes())
    for layer in spec.layer:
        for target, source in zip(net.params.get(layer.name, ()), layer.blobs, strict=False):
            target.data[...] = np.array(source.data, np.float32).reshape(target.shape)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", help="where the file goes; the system's temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        prototxt, path = Path(folder, "net.prototxt"), Path(folder, "net.caffemodel")
        prototxt.write_text(model(args.mib))
        net = Net(prototxt, TEST)
        for blobs in net.params.values():
            blobs[0].data[...] = 0.5
        first = seconds(lambda: net.save(path))
        size, before = path.stat().st_size / MIB, peak_mib()
        works = [
            path.read_bytes,
            lambda: net.copy_from(path),
            lambda: load_by_full_schema(net, path),
            lambda: net.save(path),
        ]
        rows = np.array([[seconds(work) for work in works] for _ in range(args.runs)])
    read, load, _, save = np.median(rows, axis=0)
    print(f"protobuf {google.protobuf.__version__}; file of {size:.0f} MiB")
    print(
        f"first save {first:.2f} s, peak memory then {before:.0f} MiB, in the end {peak_mib():.0f}"
    )
    print(f"medians: read the bytes {read:.2f} s, load {load:.2f} s, save {save:.2f} s")
    for name, ratios in (
        ("load / read", rows[:, 1] / rows[:, 0]),
        ("by the full schema / load", rows[:, 2] / rows[:, 1]),
    ):
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        print(f"{name} {middle:.2f}, quartiles {low:.2f}-{high:.2f} of {args.runs} runs")


if __name__ == "__main__":
    main()
