"""Nets written in Python: `n.conv1 = L.Convolution(n.data, ...)`, then `n.to_proto()`.

pycaffe's net_spec. Nothing is listed by hand: a layer of any type can be written down, and where
its parameters go is read from the fields of LayerParameter, those of Caffe's forks included.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from .errors import ModelError, did_you_mean
from .layer import Layer
from .proto import caffe_pb2

__all__ = [
    "Function",
    "Layers",
    "NetSpec",
    "Parameters",
    "Top",
    "UnknownTopError",
    "layers",
    "params",
    "to_proto",
]


class UnknownTopError(KeyError, AttributeError):
    """A NetSpec has nothing of that name. A KeyError as in pycaffe; hasattr works, too."""


class Top:
    """One output of a layer: top number `n` of the Function `fn`."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> Any:
        """The NetParameter of all layers that this top needs. Raises as to_proto."""
        return to_proto(self)


class Function:
    """A layer to be: its type, the Tops it reads (`inputs`), its keywords (`params`), its `tops`.

    `ntop` (1) and `in_place` (False) are taken out of the keywords; the others are looked at when
    the net is written, so `params` may be changed until then.

    Raises TypeError for an input that is no Top, ModelError for `top=` beside tops of its own and
    for in_place with fewer inputs than tops.
    """

    def __init__(self, type_name: str, inputs: tuple[Top, ...], params: dict[str, Any]) -> None:
        for index, given in enumerate(inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(given)})")
        self.type_name = type_name
        self.inputs = tuple(inputs)
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))
        self._check_tops()

    def to_proto(self) -> Any:
        """The NetParameter of this layer and all that it needs. Raises as to_proto."""
        return to_proto(self)

    def _check_tops(self) -> None:
        if "top" in self.params and (self.ntop or self.in_place):
            raise ModelError(
                f"{self.type_name}: top={self.params['top']!r} would come beside the {self.ntop}"
                f" top(s) of its own; tops have the names they are assigned to, as in"
                f" `n.data, n.label = L.{self.type_name}(..., ntop=2)`"
            )
        if self.in_place and self.ntop > len(self.inputs):
            raise ModelError(
                f"{self.type_name}: in_place gives the inputs as tops; there are"
                f" {len(self.inputs)} input(s) for {self.ntop} top(s)"
            )


Output = Top | Function
"""What a net can be asked for: a blob, or a layer without tops."""


class NetSpec:
    """A net being written: what is assigned to its attributes (or items) gives the tops their name.

    `n = NetSpec(); n.data = L.Input(shape=dict(dim=[1, 3, 8, 8])); n.to_proto()`. Assigned are
    Tops, or Functions for layers without tops; a Top assigned twice has its last name. `tops` is
    the dict of all. Raises TypeError for anything else assigned, UnknownTopError (a KeyError) for
    a name that it has not.
    """

    tops: dict[str, Output]

    def __init__(self) -> None:
        super().__setattr__("tops", {})

    def __setattr__(self, name: str, value: Output) -> None:
        if not isinstance(value, Top | Function):
            raise TypeError(
                f"{name} is not a Top (type is {type(value)})"
                + (f"; assign its {len(value)} tops singly" if isinstance(value, tuple) else "")
            )
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        tops = self.__dict__.get("tops", {})  # a copy being made has none yet
        if name not in tops:
            raise UnknownTopError(f"no top named {name!r}{did_you_mean(name, list(tops))}")
        return tops[name]

    def __setitem__(self, name: str, value: Output) -> None:
        self.__setattr__(name, value)

    def __getitem__(self, name: str) -> Any:
        return self.__getattr__(name)

    def to_proto(self) -> Any:
        """The NetParameter: bottoms' layers first, else in order of assignment. Raises as to_proto.

        A layer has the name of its first top (its own, where it is assigned without tops). Tops
        that nobody named are <Type>1, <Type>2, ... by type.
        """
        return _net(list(self.tops.values()), {top: name for name, top in self.tops.items()})


def to_proto(*tops: Output) -> Any:
    """The NetParameter of all layers that these tops need, named <Type>1, <Type>2, ... by type.

    Raises AttributeError for a keyword or key that neither the layer's own parameter message nor
    LayerParameter has, TypeError or ModelError for a value that its field does not take, IndexError
    for an empty list; each names the layer and the key.
    """
    return _net(list(tops), {})


# ---- writing the net ---------------------------------------------------------------------------


def _net(outputs: list[Output], names: dict[Output, str]) -> Any:
    net = caffe_pb2.NetParameter()
    autonames: Counter[str] = Counter()
    written: dict[Function, Any] = {}
    for fn in _in_order(outputs):
        written[fn] = spec = net.layer.add()
        spec.type = fn.type_name
        spec.bottom.extend(written[top.fn].top[top.n] for top in fn.inputs)
        if fn.in_place:
            spec.top.extend(spec.bottom)
        else:
            spec.top.extend(_name(top, fn, names, autonames) for top in fn.tops)
        first = fn.tops[0] if fn.tops and fn not in names else fn
        spec.name = _name(first, fn, names, autonames)
        for key in sorted(fn.params, key="name".__ne__):  # first the name, for errors
            _assign_keyword(spec, key, fn.params[key])
    return net


def _in_order(outputs: list[Output]) -> Iterator[Function]:
    """All layers needed, each after those of its inputs. No recursion: nets can be deep."""
    done: set[Function] = set()
    stack = [out.fn if isinstance(out, Top) else out for out in reversed(outputs)]
    while stack:
        fn = stack[-1]
        missing = [top.fn for top in fn.inputs if top.fn not in done]
        if missing and fn not in done:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if fn not in done:
            done.add(fn)
            yield fn


def _name(output: Output, fn: Function, names: dict[Output, str], autonames: Counter[str]) -> str:
    if output not in names:
        autonames[fn.type_name] += 1
        names[output] = f"{fn.type_name}{autonames[fn.type_name]}"
    return names[output]


def _assign_keyword(spec: Any, key: str, value: Any) -> None:
    """A keyword goes to the layer's own message where that has it, else to the LayerParameter."""
    field = _own_fields().get(spec.type)
    target = spec
    if not key.endswith("param") and field and _has(getattr(spec, field), key):
        target = getattr(spec, field)
    elif not _has(spec, key):
        raise AttributeError(f"{_place(spec)} has no parameter {key!r}{_hint(spec, key)}")
    try:
        _assign(target, key, value, key)
    except ValueError as error:
        raise ModelError(f"{_place(spec)}: {error}") from error
    except (AttributeError, IndexError, TypeError) as error:
        raise type(error)(f"{_place(spec)}: {error}") from error


def _assign(message: Any, key: str, value: Any, path: str) -> None:
    """A dict fills a message; a list (and nothing else) is several values of a repeated field."""
    if not _has(message, key):
        known = list(message.DESCRIPTOR.fields_by_name)
        kind = message.DESCRIPTOR.name
        raise AttributeError(f"{path}: {kind} has no field {key!r}{did_you_mean(key, known)}")
    held = getattr(message, key)
    if hasattr(held, "extend"):
        _extend(held, value if isinstance(value, list) else [value], path)
    elif isinstance(value, dict):
        _fill(held, value, path)
    else:
        try:
            setattr(message, key, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise type(error)(f"{path}={value!r}: {error}") from error


def _extend(held: Any, values: list[Any], path: str) -> None:
    if not values:
        raise IndexError(f"{path}=[]: the list is empty; leave {path} out")
    if isinstance(values[0], dict):
        for index, value in enumerate(values):
            if not hasattr(held, "add"):
                raise TypeError(f"{path}={values!r}: takes plain values, not dicts")
            _fill(held.add(), value, f"{path}[{index}]")
        return
    try:
        held.extend(values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}={values!r}: {error}") from error


def _fill(message: Any, values: Any, path: str) -> None:
    if not isinstance(values, dict) or not hasattr(message, "DESCRIPTOR"):
        raise TypeError(f"{path}={values!r}: a dict is for a field with fields of its own")
    for key, value in values.items():
        _assign(message, key, value, f"{path}.{key}")


def _has(message: Any, key: str) -> bool:
    return key in message.DESCRIPTOR.fields_by_name


def _place(spec: Any) -> str:
    return f"layer {spec.name!r} ({spec.type})"


def _hint(spec: Any, key: str) -> str:
    """Where an unknown keyword may belong: some types keep theirs in another type's message."""
    own = _own_fields().get(spec.type)
    borrowed = getattr(Layer.registry.get(spec.type), "param_field", None)
    for field in filter(None, (own, borrowed)):
        if _has(getattr(spec, field), key):
            return f"; write {field}=dict({key}=...)"
    known = list(spec.DESCRIPTOR.fields_by_name)
    if own:
        known += getattr(spec, own).DESCRIPTOR.fields_by_name
    return did_you_mean(key, known)


@functools.cache
def _own_fields() -> dict[str, str]:
    """Layer type -> the field of LayerParameter whose message is <Type>Parameter."""
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields
    return {
        f.message_type.name.removesuffix("Parameter"): f.name
        for f in fields
        if f.name.endswith("_param")
    }


# ---- L and P -----------------------------------------------------------------------------------


class Layers:
    """pycaffe's `L`: `L.<Type>(*bottoms, **keywords)` writes down a layer of that type.

    Gives its Top, a tuple of Tops where `ntop` is above 1, the Function where it is 0. Keywords:
    `ntop`, `in_place`, `name` and all fields of LayerParameter and of the type's own message;
    dicts stand for messages and lists for repeated fields. Raises as Function.
    """

    def __getattr__(self, type_name: str) -> Callable[..., Any]:
        if type_name.startswith("_"):  # what copy, inspect and notebooks ask any object for
            raise AttributeError(f"no layer type {type_name!r}")

        def layer(*bottoms: Top, **keywords: Any) -> Any:
            fn = Function(type_name, bottoms, keywords)
            if fn.ntop == 0:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        layer.__name__ = layer.__qualname__ = type_name
        return layer

    def __dir__(self) -> list[str]:
        return sorted(Layer.registry)


class Parameters:
    """pycaffe's `P`: `P.Pooling.MAX` is the number of MAX among the enums of PoolingParameter.

    Raises AttributeError where there is no message <Name>Parameter, or no such value in it.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(caffe_pb2, f"{name}Parameter")


layers = Layers()
params = Parameters()
