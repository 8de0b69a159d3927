"""How far is net.forward() from its matrix product alone? The stride experiment against targets.

    python benchmarks/stride.py [--runs 30] [--threads N]

Both are measured by `pycaffe_lite.stride`, interleaved in the same runs: the ratio is taken within
a run, and shown as its median and quartiles. The targets are for two threads on a quiet machine.
"""

from __future__ import annotations

import argparse

from pycaffe_lite import stride

TARGETS = {1: 1.25, 2: 1.4, 3: 1.5, 4: 1.6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    report = stride.measure("cpu", args.runs, args.threads)
    device = report.devices[0]
    print(f"{report.machine['cpu']}, {device.threads} threads, {args.runs} runs")
    print("stride  forward ms  matmul ms  ratio  quartiles    target")
    for figures in device.strides:
        ratio, target = figures.ratio, TARGETS[figures.stride]
        print(
            f"{figures.stride:6d} {figures.forward.median:11.3f} {figures.sgemm.median:10.3f}"
            f" {ratio.median:6.2f}  {ratio.low:.2f}-{ratio.high:.2f} {target:11.2f}"
            f"  {'met' if ratio.median <= target else 'missed'}"
        )


if __name__ == "__main__":
    main()
