"""Which positions does a sliding window take? All size arithmetic of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window over the spatial axes, an entry each: kernel, stride, pad (both sides), dilation.

    Unset stride, pad and dilation are 1, 0 and 1 on every axis. Raises ValueError where a kernel,
    stride or dilation entry is below 1, a pad below 0, or the entries differ in number.
    """

    kernel: Shape
    stride: Shape = ()
    pad: Shape = ()
    dilation: Shape = ()
    extent: Shape = field(init=False, compare=False)
    """Input positions that one window spans: dilation * (kernel - 1) + 1."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.kernel)
        for name, fill, least in (("stride", 1, 1), ("pad", 0, 0), ("dilation", 1, 1)):
            value = tuple(getattr(self, name)) or (fill,) * n
            object.__setattr__(self, name, value)
            if len(value) != n:
                raise ValueError(f"{name} {value} has {len(value)} entries for {n} spatial axes")
            if min(value, default=least) < least:
                raise ValueError(f"{name} dimensions must be at least {least}, got {value}")
        if min(self.kernel, default=1) < 1:
            raise ValueError(f"filter dimensions must be nonzero, got {self.kernel}")
        extent = tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        object.__setattr__(self, "extent", extent)
        # Kept, since windows are keys of caches that every convolution asks several times.
        key = (self.kernel, self.stride, self.pad, self.dilation)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    @property
    def taps(self) -> int:
        """Positions in one window, the product of the kernel."""
        return prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """True where the window is one position that visits every input position once."""
        ones = (1,) * len(self.kernel)
        return self.kernel == ones and self.stride == ones and not any(self.pad)

    def conv_shape(self, spatial: Sequence[int]) -> Shape:
        """Spatial size of a convolution's output: (in + 2 pad - extent) // stride + 1.

        Raises ValueError where the window does not fit into the padded input. (Caffe truncates
        towards zero there and computes one position from outside the image.)
        """
        for size, extent, pad in zip(spatial, self.extent, self.pad, strict=True):
            if extent > size + 2 * pad:
                raise ValueError(
                    f"convolution kernel extent {extent} is larger than the padded input"
                    f" {size + 2 * pad} (size {size}, pad {pad}; kernel {self.kernel},"
                    f" dilation {self.dilation})"
                )
        return tuple(
            (size + 2 * pad - extent) // stride + 1
            for size, extent, pad, stride in zip(
                spatial, self.extent, self.pad, self.stride, strict=True
            )
        )

    def deconv_shape(self, spatial: Sequence[int]) -> Shape:
        """Spatial size of a deconvolution's output: stride * (in - 1) + extent - 2 pad.

        Raises ValueError where that is below 1.
        """
        shape = tuple(
            stride * (size - 1) + extent - 2 * pad
            for size, extent, pad, stride in zip(
                spatial, self.extent, self.pad, self.stride, strict=True
            )
        )
        if min(shape, default=1) < 1:
            raise ValueError(f"deconvolution output {shape} is below 1 (input {tuple(spatial)})")
        return shape

    def pool_shape(self, spatial: Sequence[int], round_up: bool = True) -> Shape:
        """Spatial size of a pooling's output, as Caffe rounds and clips it.

        (in + 2 pad - kernel) / stride rounded up (or down) + 1; where any pad is set, a last window
        that would start past the image and its leading pad is dropped, on every axis. Raises
        ValueError where a pooled size is below 1.
        """
        shape = []
        for size, k, s, p in zip(spatial, self.kernel, self.stride, self.pad, strict=True):
            room = size + 2 * p - k
            pooled = (-(-room // s) if round_up else room // s) + 1
            if any(self.pad) and (pooled - 1) * s >= size + p:
                pooled -= 1
            if pooled < 1 or room < 0 and not round_up:
                raise ValueError(
                    f"pooled size {pooled} is below 1: kernel {k}, stride {s}, pad {p}"
                    f" on an input of {size}"
                )
            shape.append(pooled)
        return tuple(shape)
