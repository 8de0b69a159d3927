"""How did models look before? Passes from older forms of a net to today's.

`layers { layer { } }` (V0) becomes `layers { }` (V1) becomes `layer { }`; then come two habits of
today's form: `input` fields, and learning rates for the statistics of BatchNorm. Each pass takes
a NetParameter, as text or binary files hold it, leaves it alone and gives a new one, or the same
where it has nothing to do. `graph.upgrade` runs them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import current, v0, v1

__all__ = ["PASSES", "needs_upgrade"]

PASSES: list[tuple[str, Callable[[Any], Any]]] = [
    ("V0 layers", v0.to_v1),
    ("data transformation fields", v1.move_transformations),
    ("V1 layers", v1.to_current),
    ("input fields", current.inputs_to_layer),
    ("BatchNorm parameters", current.still_statistics),
]
"""What is upgraded, in words, and by what; in this order."""


def needs_upgrade(spec: Any) -> bool:
    """Would any pass change the net?"""
    return bool(spec.layers or spec.input) or current.has_learning_statistics(spec)
