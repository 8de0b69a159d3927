"""Layers whose tops come from somewhere outside, batch after batch, read ahead by a thread."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from ..data.prefetch import Prefetcher, Source
from ..errors import ModelError
from ..layer import Layer
from ..process import solver_count, solver_rank

log = logging.getLogger("pycaffe_lite")


class PrefetchingData(Layer, abstract=True):
    """Base of the layers that read their data: a type says only where its batches come from.

    As many batches as `data_param { prefetch }` (4) are read ahead, from the first forward on. All
    random choices come from a generator of the layer's own, seeded from `rng` at setup, so that
    after set_random_seed they repeat, whatever is read ahead. What goes wrong while a batch is read
    is raised by the forward that would have given it, and by every one after it.
    """

    bottoms = 0
    tops = (1, 2)
    host_only = True
    moved_fields: ClassVar[tuple[str, ...]] = ("scale", "mean_file", "crop_size", "mirror")
    """Fields of `param` that do nothing there: their place is transform_param since 2014."""

    def make_source(self, top: Any, seed: int) -> Source:
        """The source of the batches, one array a top; it holds neither the layer nor its blobs."""
        raise NotImplementedError(f"{type(self).__name__} defines no make_source")

    def setup(self, bottom: Any, top: Any) -> None:
        for name in self.moved_fields:
            if self.param.HasField(name):
                log.warning(
                    "layer %r (%s): %s belongs into transform_param; where it stands it is not"
                    " read, as in Caffe",
                    self.name, self.type, name,
                )  # fmt: skip
        source = self.make_source(top, int(self.rng.integers(2**63)))
        self._shapes = source.shapes()
        self._prefetcher = Prefetcher(source, self.spec.data_param.prefetch)

    def reshape(self, bottom: Any, top: Any) -> None:
        for y, shape in zip(top, self._shapes, strict=True):
            y.reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        batch = self._prefetcher.take()
        self._shapes = [array.shape for array in batch]
        self.reshape(bottom, top)
        for y, array in zip(top, batch, strict=True):
            y.data[...] = array

    def data_state(self) -> dict[str, Any]:
        """Where the next forward stands in the data, in values that JSON can hold."""
        return self._prefetcher.state()

    def restore_data_state(self, state: dict[str, Any]) -> None:
        """Go on as the layer did whose `data_state()` this is: the same batches follow.

        Raises ModelError where the data has changed so that there is no such place in it.
        """
        self._prefetcher.restore(state)


def share_of_records(phase: int) -> tuple[int, int]:
    """(rank, count): of the records counted on and on, a net takes those with k % count == rank.

    Those of its solver while training; all of them, (0, 1), in phase TEST. Raises ModelError where
    the rank is not below the count: no record would ever be its own.
    """
    rank, count = (0, 1) if phase == Layer.TEST else (solver_rank(), solver_count())
    if rank >= count:
        raise ModelError(f"solver_rank must be below solver_count: {rank} vs. {count}")
    return rank, count
