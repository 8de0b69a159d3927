"""Which figures does the stride experiment give? The experiment, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PUBLISHED_MS = {"cpu": (49.77, 9.92, 4.50, 1.96), "gpu": (27.26, 14.27, 10.57, 7.45)}
"""What was published, strides 1 to 4: Caffe on a laptop with a GeForce GT 650M."""


@dataclass(frozen=True)
class Experiment:
    """One Convolution over a (1, 1, size, size) image, at several strides; as published."""

    size: int = 227
    kernel: int = 11
    outputs: int = 96
    strides: tuple[int, ...] = (1, 2, 3, 4)

    def prototxt(self, stride: int) -> str:
        """The net, in the form of its time: `input` and `input_dim` fields."""
        dims = "".join(f"input_dim: {d}\n" for d in (1, 1, self.size, self.size))
        return (
            f'name: "convolution"\ninput: "data"\n{dims}layer {{\n'
            '  name: "conv" type: "Convolution" bottom: "data" top: "conv"\n  convolution_param {'
            f" num_output: {self.outputs} kernel_size: {self.kernel} stride: {stride} }}\n}}\n"
        )


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of runs: milliseconds, or a ratio."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value a run."""
        low, median, high = (float(v) for v in np.percentile(values, [25, 50, 75]))
        return cls(median, low, high, len(values))


@dataclass(frozen=True)
class Stages:
    """Parts timed alone: the whole column matrix, one product, the bias, copies (GPU only)."""

    im2col: Spread
    gemm: Spread
    bias: Spread
    upload: Spread | None = None
    """Host to device: image and weights, what each run of the experiment writes anew."""
    download: Spread | None = None
    """Device to host: the output."""

    @property
    def sum(self) -> float:
        """Milliseconds of im2col, product and bias, medians."""
        return self.im2col.median + self.gemm.median + self.bias.median


@dataclass(frozen=True)
class Memory:
    """Bytes of each array; the column matrix is the extra one."""

    input: int
    weights: int
    columns: int
    output: int


@dataclass(frozen=True)
class StrideFigures:
    """What one stride took, in milliseconds."""

    stride: int
    side: int
    """Output positions along one axis."""
    flop: int
    """Additions and multiplications of the product."""
    memory: Memory
    first_three: tuple[float, ...]
    """The published way: a new net, three times fresh random values and one timed forward()."""
    forward: Spread
    """net.forward() after image and weights were written, outputs on the host."""
    kernels: Spread | None
    """GPU: the layers alone and a synchronize, everything on the device already."""
    stages: Stages
    sgemm: Spread
    """The product alone, (outputs, taps) @ (taps, positions) into a preallocated array."""
    ratio: Spread
    """forward (on a GPU: kernels) over sgemm, of the same run."""

    @property
    def positions(self) -> int:
        """Output positions: columns of the column matrix."""
        return self.side**2

    @property
    def published_way(self) -> float:
        """The mean of the three, as the original prints it."""
        return float(np.mean(self.first_three))

    @property
    def gflops(self) -> float:
        """10^9 operations a second in forward()."""
        return self.flop / self.forward.median / 1e6

    @property
    def sgemm_gflops(self) -> float:
        """10^9 operations a second in the product alone."""
        return self.flop / self.sgemm.median / 1e6


@dataclass(frozen=True)
class DeviceFigures:
    """All strides on one device; `floor`: forward() of the same layer with a single position."""

    kind: str
    backend: str
    name: str | None
    threads: int | None
    floor: Spread
    floor_kernels: Spread | None
    strides: tuple[StrideFigures, ...]


@dataclass(frozen=True)
class Report:
    """Everything measured; `no_gpu` says why there is no GPU, where there is none."""

    experiment: Experiment
    machine: dict[str, Any]
    devices: tuple[DeviceFigures, ...]
    no_gpu: str | None = None
