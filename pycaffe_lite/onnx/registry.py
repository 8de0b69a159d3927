"""Who says a layer type in ONNX? One function a type, which registers by its decorator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .writer import LayerWriter

Exporter = Callable[["LayerWriter"], None]

_exporters: dict[str, Exporter] = {}


def exports(*types: str) -> Callable[[Exporter], Exporter]:
    """Register a function for these layer types: it adds the nodes that make the layer's tops."""

    def register(function: Exporter) -> Exporter:
        for name in types:
            _exporters[name] = function
        return function

    return register


def exporter(layer_type: str) -> Exporter | None:
    """The function for a layer type, or None where ONNX cannot say it."""
    _load()
    return _exporters.get(layer_type)


def exported_types() -> list[str]:
    """All layer types that have one, sorted."""
    _load()
    return sorted(_exporters)


def _load() -> None:
    """Import all modules of `layers/`, once."""
    from . import layers

    for module in pkgutil.iter_modules(layers.__path__):
        importlib.import_module(f"{layers.__name__}.{module.name}")
