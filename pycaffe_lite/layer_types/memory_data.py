"""Data that the user hands over as arrays, of any number of batches."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ..errors import ModelError
from ..layer import Layer

log = logging.getLogger("pycaffe_lite")


class MemoryData(Layer):
    """Two tops, data (batch_size, channels, height, width) and labels, from the user's arrays.

    `Net.set_input_arrays` gives the arrays. They are kept, not copied: each forward reads the next
    batch from them, after the last the first again, so what is written into them between forwards
    counts. The labels' top has shape (batch_size), and (batch_size, 1, 1, 1) from the first forward
    on, as in Caffe. A transform_param is not applied, as in Caffe.
    """

    bottoms = 0
    tops = 2
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self._shape = (param.batch_size, param.channels, param.height, param.width)
        if min(self._shape) < 1:
            raise ModelError(
                "batch_size, channels, height and width must be specified and positive in"
                f" memory_data_param, got {', '.join(map(str, self._shape))}"
            )
        self._dtype = top[0].dtype
        self._label_shape: tuple[int, ...] = self._shape[:1]
        self._arrays: tuple[np.ndarray, np.ndarray] | None = None
        self._position = 0  # in images
        self._next_position = 0  # where the next arrays begin

    def reset(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Read batches from these arrays from now on, beginning with the first.

        `data` is (n, channels, height, width), `labels` (n,) or (n, 1, 1, 1), n a positive multiple
        of batch_size; float32, C contiguous (labels of one axis need not be). Raises ModelError for
        others; the arrays from before then stay. Where a state has been restored before the first
        arrays came, these begin there.
        """
        batch = self._shape[0]
        self._check("data", data, self._shape[1:])
        if isinstance(labels, np.ndarray) and labels.ndim == 1:
            labels = labels[:, None, None, None]
            self._check("labels", labels, (1, 1, 1), contiguous=False)
        else:
            self._check("labels", labels, (1, 1, 1))
        if len(data) != len(labels):
            raise ModelError(
                f"data and labels must have the same first dimension: {len(data)} vs. {len(labels)}"
            )
        if not len(data) or len(data) % batch:
            raise ModelError(
                "first dimensions of input arrays must be a multiple of batch size:"
                f" {len(data)} vs. {batch}"
            )
        if self.spec.HasField("transform_param"):
            log.warning("layer %r (MemoryData) does not transform arrays", self.name)
        self._arrays, self._position = (data, labels), self._next_position % len(data)
        self._next_position = 0

    def data_state(self) -> dict[str, int]:
        """Where the next batch begins, for `restore_data_state`; the arrays are the user's."""
        return {"position": self._position}

    def restore_data_state(self, state: dict[str, int]) -> None:
        """Go on as the layer did whose `data_state()` this is, in arrays like its own, which may
        come later."""
        if self._arrays is None:
            self._next_position = state["position"]
        else:
            self._position = state["position"] % len(self._arrays[0])

    def _check(
        self, what: str, array: Any, image: tuple[int, ...], contiguous: bool = True
    ) -> None:
        if not isinstance(array, np.ndarray):
            raise ModelError(f"{what} array must be a NumPy array, not {type(array).__name__}")
        if array.dtype != self._dtype:
            raise ModelError(f"{what} array must be {self._dtype}, not {array.dtype}")
        if contiguous and not array.flags.c_contiguous:
            raise ModelError(f"{what} array must be C contiguous: use numpy.ascontiguousarray")
        if array.ndim != 4:
            raise ModelError(f"{what} array must be 4-d, not {array.ndim}-d {array.shape}")
        names = ("channels", "height", "width")
        for name, got, wanted in zip(names, array.shape[1:], image, strict=True):
            if got != wanted:
                raise ModelError(f"{what} array has wrong {name}: {got} vs. {wanted}")

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(self._shape)
        top[1].reshape(self._label_shape)

    def forward(self, bottom: Any, top: Any) -> None:
        if self._arrays is None:
            raise ModelError(
                "MemoryDataLayer needs to be initialized by calling Reset: give it arrays by"
                " net.set_input_arrays(data, labels)"
            )
        batch = self._shape[0]
        self._label_shape = (batch, 1, 1, 1)
        self.reshape(bottom, top)
        for blob, array in zip(top, self._arrays, strict=True):
            blob.data[...] = array[self._position : self._position + batch]
        self._position = (self._position + batch) % len(self._arrays[0])
