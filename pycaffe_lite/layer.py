"""What is a layer? Four verbs over bottoms and tops, and a registry that fills itself.

`setup` once, `reshape` when a bottom's shape changed, `forward`, `backward`: pycaffe's contract,
for the package's own layers and for a user's alike. Defining a subclass registers it by its name.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from . import device, filler
from .blob import Blob, BlobVec, View, describe
from .errors import ModelError, WeightsError, did_you_mean
from .ops.base import Array, Ops
from .proto import caffe_pb2
from .prototxt.fork_fields import fork_of_type
from .weights.stored_blob import from_message

Arity = int | tuple[int, int | None]
"""How many blobs a layer takes or makes: a number, or (at least, at most or None)."""

_BUILT_IN = __name__.rpartition(".")[0] + ".layer_types."


class Layer:
    """Base class of all layers; subclass it and name the class in a prototxt's `type`.

    Available in every verb: `spec` (the whole LayerParameter), `param` (the type's own message or
    None), `name`, `phase` (0 TRAIN, 1 TEST), `blobs` (the parameters as Blobs) and, once the net
    has chosen a backend, `params` (the same as views of its arrays), `ops`, `xp`, `rng`.
    """

    registry: ClassVar[dict[str, type[Layer]]] = {}
    TEST: ClassVar[int] = caffe_pb2.TEST

    bottoms: ClassVar[Arity] = 1
    tops: ClassVar[Arity] = 1
    in_place: ClassVar[bool] = False
    """May a top be its bottom?"""
    loss: ClassVar[bool] = False
    """Is the first top a loss, with weight 1 unless the prototxt says otherwise?"""
    host_only: ClassVar[bool] = False
    """Do the verbs want Blobs with NumPy arrays, whatever the mode?"""
    reshapes_every_time: ClassVar[bool] = False
    """Is `reshape` to be called before every forward, not only where a shape changed?"""
    writes_params: ClassVar[bool] = True
    """May `forward` write its parameters? Where not, saying so saves copies between places."""
    keeps_bottom: ClassVar[bool] = False
    keeps_top: ClassVar[bool] = False
    """Does `backward` read the values of bottoms (of tops), not only diffs?"""
    param_field: ClassVar[str | None] = None
    """The LayerParameter field of `param`, where it is not the one of message <Type>Parameter."""

    abstract: ClassVar[bool] = False
    """A base of layers, none itself? Said by `class Base(Layer, abstract=True)`."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.abstract = abstract
        if abstract:
            return
        known = Layer.registry.get(cls.__name__)
        if cls.__name__.startswith("_") or (known and _is_built_in(known) and known is not cls):
            return  # a built-in is never replaced; the class stays reachable by type "Python"
        Layer.registry[cls.__name__] = cls

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.name: str = spec.name
        self.type: str = spec.type
        self.phase: int = spec.phase
        self.param_str: str = spec.python_param.param_str
        self.param_str_: str = self.param_str  # the name that layers of 2014 read
        self.param = self._own_message(spec)
        self.blobs = BlobVec()
        self.params: list[View] = []
        self.param_propagate_down: list[bool] = []
        self.fixed_params: set[int] = set()  # those that do not learn by their gradient
        self.needs_backward = True
        self._fillers: list[tuple[Blob, Any]] = []
        self._param_shapes: list[tuple[int, ...]] = []

    @classmethod
    def create(cls, spec: Any) -> Layer:
        """The layer object for a LayerParameter. ModelError for a type that nobody defined."""
        if not spec.type:
            raise ModelError('unknown layer type: it has none; write type: "Convolution", say')
        found = cls.registry.get(spec.type)
        if found is None:
            raise ModelError(_unknown_type(spec.type, sorted(cls.registry)))
        return found.from_spec(spec)

    @classmethod
    def from_spec(cls, spec: Any) -> Layer:
        """An object of this class; a class that stands for others may make one of those."""
        return cls(spec)

    # ---- the four verbs ------------------------------------------------------------------------

    def setup(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Once: read and check the parameters, `add_param`. Arrays have no values yet."""

    def reshape(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Give each top its shape from the bottoms' shapes; compute nothing."""

    def forward(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Write all of each top's data; do not write bottoms."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def backward(
        self, top: Sequence[Any], propagate_down: Sequence[bool], bottom: Sequence[Any]
    ) -> None:
        """Overwrite bottom[i].diff where propagate_down[i]; add into the parameters' diffs."""
        if any(propagate_down):
            raise NotImplementedError(f"{type(self).__name__} defines no backward")

    def allow_force_backward(self, index: int) -> bool:
        """May a net's `force_backward` ask for the gradient of bottom `index`?"""
        return True

    # ---- parameters ----------------------------------------------------------------------------

    def add_param(self, shape: Sequence[int], filler: Any, *, learns: bool = True) -> Blob:
        """Append a parameter of that shape; call it in `setup`.

        Its values come from the model's own `blobs` where it carries them, else from `filler`. One
        that does not learn by its gradient has lr_mult 0 where the prototxt gives none.
        """
        index = len(self.blobs)
        if not learns:
            self.fixed_params.add(index)
        blob = Blob(shape)
        self.blobs.append(blob)
        source = self.spec.blobs[index] if index < len(self.spec.blobs) else filler
        self._fillers.append((blob, source))
        self._param_shapes.append(blob.shape)
        return blob

    def check_params(self) -> None:
        """ModelError where a parameter no longer has the shape that `add_param` gave it."""
        for k, (blob, shape) in enumerate(zip(self.blobs, self._param_shapes, strict=False)):
            if blob.shape != shape:
                raise ModelError(
                    f"param {k} has been reshaped to `{describe(blob.shape)}`; the layer needs"
                    f" `{describe(shape)}`"
                )

    def fill_params(self, skip: Sequence[bool]) -> None:
        """Give the parameters their first values, once; `skip` those that have values already.

        Raises WeightsError where the model's own `blobs` are not as many as the parameters, or of
        other shapes.
        """
        carried = len(self.spec.blobs)
        if carried and self._fillers and carried != len(self._fillers):
            raise WeightsError(
                f"incompatible number of blobs for layer {self.name}: the model carries {carried},"
                f" the layer has {len(self._fillers)}"
            )
        for k, (blob, source) in enumerate(self._fillers):
            if not skip[k]:
                self._fill(blob, k, source)
            elif isinstance(source, caffe_pb2.FillerParameter):
                filler.check(source)
        self._fillers.clear()

    def _fill(self, blob: Blob, index: int, source: Any) -> None:
        if isinstance(source, caffe_pb2.FillerParameter):
            filler.fill(source, blob.data, device.rng(_HOST))
            return
        stored = from_message(source)
        if not stored.fits(blob):
            raise WeightsError(
                f"param {index}; shape mismatch. The model carries"
                f" `{describe(stored.shape)}`; the layer has `{describe(blob.shape)}`"
            )
        stored.values.write(blob.data)

    # ---- backends ------------------------------------------------------------------------------

    def bind(self, ops: Ops) -> None:
        """Work on that backend from now on: the one place that sets `ops`, `xp` and `params`."""
        self.ops, self.xp = ops, ops.xp
        data = "rw" if self.writes_params else "r"
        self.params = [View(blob, ops, data=data) for blob in self.blobs]

    def has_bound_blobs(self) -> bool:
        """True while `params` are views of the blobs in `blobs`, which the user may replace."""
        return self.blobs == [view.blob for view in self.params]

    @property
    def rng(self) -> Any:
        """The random generator of the current place."""
        return device.rng(self.ops)

    def state(self, blob: Blob) -> Array:
        """What a layer keeps for itself in a Blob (a mask, say), as an array of the backend."""
        return blob.array(self.ops)

    def _own_message(self, spec: Any) -> Any:
        known = (_param_fields().get(cls.__name__) for cls in type(self).__mro__)
        field = self.param_field or next(filter(None, known), None)
        return getattr(spec, field) if field else None


_HOST = Ops()


def is_built_in(layer: Layer) -> bool:
    """True for the package's own layers, False for a user's."""
    return _is_built_in(type(layer))


def _is_built_in(cls: type[Layer]) -> bool:
    return cls.__module__.startswith(_BUILT_IN)


@functools.cache
def _param_fields() -> dict[str, str]:
    """Layer type -> the field of LayerParameter whose message is <Type>Parameter."""
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields
    return {
        f.message_type.name.removesuffix("Parameter"): f.name
        for f in fields
        if f.message_type is not None and f.message_type.name.endswith("Parameter")
    }


def _unknown_type(name: str, known: list[str]) -> str:
    fork = fork_of_type(name)
    hint = f", which is of the fork {fork}" if fork else did_you_mean(name, known)
    return f"unknown layer type: {name}{hint} (known types: {', '.join(known)})"


def check_arity(kind: str, arity: Arity, count: int, type_name: str) -> None:
    """ModelError where `count` bottoms ("takes") or tops ("produces") are not what the type has."""
    low, high = (arity, arity) if isinstance(arity, int) else arity
    verb = "takes" if kind == "bottom" else "produces"
    if low == high and count != low:
        raise ModelError(f"{type_name} layer {verb} {low} {kind} blob(s), got {count}")
    if count < low:
        raise ModelError(f"{type_name} layer {verb} at least {low} {kind} blob(s), got {count}")
    if high is not None and count > high:
        raise ModelError(f"{type_name} layer {verb} at most {high} {kind} blob(s), got {count}")
