"""Where a net's data enters."""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..layer import Layer


class Input(Layer):
    """Tops that the user fills: `shape` is given once, once per top, or not at all.

    The tops are the net's inputs. A shape that the user gives a top later stays.
    """

    bottoms = 0
    tops = (1, None)

    def setup(self, bottom: Any, top: Any) -> None:
        shapes = self.param.shape
        if len(shapes) not in (0, 1, len(top)):
            raise ModelError(
                "must specify 'shape' once, once per top blob, or not at all:"
                f" {len(top)} tops vs. {len(shapes)} shapes"
            )
        for k, blob in enumerate(top):
            if len(shapes):
                blob.reshape(*shapes[k if len(shapes) > 1 else 0].dim)

    def forward(self, bottom: Any, top: Any) -> None:
        """Nothing: the tops hold what the user wrote."""
