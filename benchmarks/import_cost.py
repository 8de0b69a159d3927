"""How long does `import pycaffe_lite` take, against what it cannot do without?

    python benchmarks/import_cost.py [--runs 30]

Each run starts two new Python processes, one after the other: one imports the package, one numpy
and the modules of google.protobuf that any generated message module needs. The processes time the
imports themselves, so the interpreter's own start does not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import numpy as np

NEEDED = (
    "numpy",
    "google.protobuf.message",
    "google.protobuf.descriptor_pool",
    "google.protobuf.message_factory",
)
TARGET = 1.5


def milliseconds(modules: tuple[str, ...]) -> float:
    """The time of the imports in a process of its own."""
    code = (
        "import time; start = time.perf_counter()\n"
        f"import {', '.join(modules)}\n"
        "print((time.perf_counter() - start) * 1e3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    args = parser.parse_args()
    milliseconds(("pycaffe_lite",))  # writes the .pyc files and fills the file cache
    milliseconds(NEEDED)
    pairs = [(milliseconds(("pycaffe_lite",)), milliseconds(NEEDED)) for _ in range(args.runs)]
    ours, needed = np.array(pairs).T
    low, middle, high = np.percentile(ours / needed, [25, 50, 75])
    print(f"pycaffe_lite: {np.median(ours):.1f} ms")
    print(f"{', '.join(NEEDED)}: {np.median(needed):.1f} ms")
    print(
        f"ratio {middle:.2f}, quartiles {low:.2f}-{high:.2f} of {args.runs} runs; target {TARGET}:"
        f" {'met' if middle <= TARGET else 'missed'}"
    )


if __name__ == "__main__":
    main()
