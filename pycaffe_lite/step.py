"""What is one step of a net? A layer with its blobs: binds arrays, reshapes, runs a verb.

A Step knows its layer and its blobs and nothing of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import device
from .blob import Blob, View
from .errors import MissingFileError, ModelError
from .layer import Layer, is_built_in
from .ops.base import Ops

_HOST = Ops()


class Step:
    """A layer, its bottom and top blobs, and what of it takes part in backward.

    `propagate_down[i]`: bottom i gets a gradient. `needs_backward`: the layer runs in backward at
    all. `loss_weights[k]`: the weight of top k in the net's loss.
    """

    def __init__(
        self,
        layer: Layer,
        bottom: Sequence[Blob],
        top: Sequence[Blob],
        locate: Callable[[str], str] = lambda name: "",
    ) -> None:
        self.layer, self.bottom, self.top = layer, list(bottom), list(top)
        self.propagate_down = [False] * len(self.bottom)
        self.needs_backward = False
        self.loss_weights = [0.0] * len(self.top)
        self.shares_diff = [False] * len(self.top)  # does another layer's backward write it?
        self._locate = locate
        self._pairs: dict[Blob, Blob] = {}  # saved values beside the blob's own gradient
        self._ops: Ops | None = None
        self._seen: list[tuple[int, ...]] | None = None
        self._seeded: list[tuple[int, ...] | None] = [None] * len(self.top)

    # ---- the verbs -----------------------------------------------------------------------------

    def setup(self) -> None:
        """Set the layer up and shape its tops for the first time."""
        self._bind(device.current())
        self.run(self.layer.setup, self._read_bottom, self._write_top)
        self.reshape()

    def reshape(self) -> None:
        """Let the layer shape its tops. Allocates nothing; `seed` is due before the next verb."""
        self._bind(device.current())
        self.run(self.layer.reshape, self._read_bottom, self._write_top)
        self._seen = self._shapes()

    def seed(self) -> None:
        """Write a weighted top's weight into its gradient where its shape is new."""
        for k, weight in enumerate(self.loss_weights):
            if weight and self._seeded[k] != self.top[k].shape:
                self._seed(k)

    def reshape_if_needed(self, ops: Ops) -> bool:
        """Reshape where a shape is not the one seen last; True where one has changed."""
        self._bind(ops)
        before = self._seen
        if self.layer.reshapes_every_time or self._shapes() != before:
            self.reshape()
        return self._seen != before

    def forward(self) -> None:
        """Compute the tops, and keep what backward reads and a later step overwrites.

        `reshape_if_needed` comes first: it hands the backend over.
        """
        self.run(self.layer.check_params)
        self.run(self.layer.forward, self._read_bottom, self._write_top)
        for blob, pair in self._pairs.items():
            pair.reshape(*blob.shape)
            ops = self.layer.ops
            pair.array(ops, read=False)[...] = blob.array(ops, write=False)

    def backward(self, ops: Ops) -> None:
        """Compute the gradients of bottoms and parameters from those of the tops."""
        self._bind(ops)
        for k, weight in enumerate(self.loss_weights):
            if weight and self._is_in_place(k):
                self._seed(k)  # the bottom's gradient, one storage with it, has overwritten it
            elif weight and self.shares_diff[k]:
                diff = self.top[k].array(self.layer.ops, diff=True)
                diff += weight  # beside what the consumer of the loss has written
        self.run(self.layer.backward, self._late_top, list(self.propagate_down), self._write_bottom)

    def loss(self) -> Any:
        """The weighted sum of this step's loss tops, a 0-d array of the backend, or 0.0.

        The weights are those in the tops' diffs, which the user may change; a top in place, or
        one whose gradient another layer writes, has no diff of its own to change.
        """
        total: Any = 0.0
        for k, weight in enumerate(self.loss_weights):
            if weight:
                top, ops = self.top[k], self.layer.ops
                scale = weight
                if not (self._is_in_place(k) or self.shares_diff[k]):
                    scale = top.array(ops, diff=True, write=False)
                total = total + (top.array(ops, write=False) * scale).sum()
        return total

    # ---- values that later steps overwrite -----------------------------------------------------

    def backward_reads(self) -> list[Blob]:
        """The blobs whose values the layer's backward needs as this step leaves them.

        In place, what is read as the bottom is the top. A user's layer that does not say what it
        reads is taken to read everything.
        """
        if not self.needs_backward:
            return []
        bottoms = self.bottom if self._declares("keeps_bottom") else []
        return [*bottoms, *(self.top if self._declares("keeps_top") else [])]

    def _declares(self, keeps: str) -> bool:
        says = is_built_in(self.layer) or any(
            keeps in vars(c) for c in type(self.layer).__mro__ if c is not Layer
        )
        return bool(getattr(self.layer, keeps)) if says else True

    def keep(self, blobs: Sequence[Blob]) -> None:
        """Save the values of these after each forward, and let backward read the saved ones."""
        for blob in blobs:
            pair = Blob(blob.shape, blob.dtype)
            pair.share_diff(blob)
            self._pairs[blob] = pair
        self._ops = None

    @property
    def kept(self) -> list[Blob]:
        """The saved values."""
        return list(self._pairs.values())

    # ---- arrays --------------------------------------------------------------------------------

    def _bind(self, ops: Ops) -> None:
        """Hand the layer the backend, and make the views of its blobs that the verbs get."""
        if ops is self._ops and self.layer.has_bound_blobs():
            return
        self._ops = ops
        late_bottom = [self._pairs.get(b, b) for b in self.bottom]
        late_top = [self._pairs.get(t, t) for t in self.top]
        if self.layer.host_only:
            self.layer.bind(_HOST)
            self._read_bottom: list[Any] = self.bottom
            self._write_top: list[Any] = self.top
            self._late_top: list[Any] = late_top
            self._write_bottom: list[Any] = late_bottom
            return
        if wants_definition(self.layer):
            ops = device.generic()
        self.layer.bind(ops)
        self._read_bottom = [View(b, ops, "r", "r") for b in self.bottom]
        self._write_top = [View(t, ops, "rw" if t in self.bottom else "w", "r") for t in self.top]
        self._late_top = [View(t, ops, "r", "r") for t in late_top]
        self._write_bottom = [
            View(b, ops, "r", "rw" if b in late_top else "w") for b in late_bottom
        ]

    def _shapes(self) -> list[tuple[int, ...]]:
        return [b.shape for b in self.bottom] + [t.shape for t in self.top]

    def _is_in_place(self, k: int) -> bool:
        return self.top[k] in self.bottom

    def _seed(self, k: int) -> None:
        self.top[k].array(_HOST, diff=True, read=False)[...] = self.loss_weights[k]
        self._seeded[k] = self.top[k].shape

    # ---- errors --------------------------------------------------------------------------------

    def run(self, verb: Callable[..., None], *args: Any) -> None:
        """Call a verb; an error of a built-in layer's gets the layer's place in front."""
        try:
            verb(*args)
        except (ValueError, ArithmeticError, MemoryError, MissingFileError) as error:
            if not is_built_in(self.layer):
                raise  # a user's exception stays the user's own
            raise self.located(error) from error

    def located(self, error: Exception) -> Exception:
        """The same complaint with the layer's place, name and type in front."""
        kind = type(error) if isinstance(error, ModelError | MissingFileError) else ModelError
        text = str(error) or type(error).__name__
        return kind(f"{self._locate(self.layer.name)}{describe(self.layer)}: {text}")


def describe(layer: Layer) -> str:
    """How errors name a layer: layer 'conv1' (Convolution)."""
    return f"layer {layer.name!r} ({layer.type})"


def wants_definition(layer: Layer) -> bool:
    """True where the prototxt says `engine: CAFFE`: plain im2col and matrix product, always."""
    engine = getattr(layer.param, "engine", None)
    return engine is not None and engine == getattr(layer.param, "CAFFE", 1)
