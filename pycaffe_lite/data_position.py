"""Where does training stand besides weights and history? Data layers and random generators.

Caffe's snapshots do not say: training resumed from one reads its data from the beginning. A layer
that takes part, a user's own too, has `data_state()`, which gives a dict that JSON can hold, and
`restore_data_state(dict)`.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np

from . import device
from .net import Net

log = logging.getLogger("pycaffe_lite")

_VERSION = 1


def capture(nets: list[Net]) -> bytes:
    """The position of all layers that have one in these nets, and of the random generators."""
    position = {
        "version": _VERSION,
        "random": device.random_state(),
        "nets": [
            [
                [k, layer.name, layer.data_state()]
                for k, layer in enumerate(net.layers)
                if hasattr(layer, "data_state")
            ]
            for net in nets
        ],
    }
    return json.dumps(position, default=_plain, separators=(",", ":")).encode()


def restore(nets: list[Net], content: bytes) -> None:
    """Go to where `capture` was called; warns of layers that have changed since, which stay."""
    position = json.loads(content)
    if position.get("version") != _VERSION:
        log.warning("the snapshot's data position is of another version: data starts anew")
        return
    for net, states in zip(nets, position["nets"], strict=False):
        for k, name, state in states:
            layer = net.layers[k] if k < len(net.layers) else None
            if layer is not None and layer.name == name and hasattr(layer, "restore_data_state"):
                layer.restore_data_state(state)
            else:
                log.warning(
                    "layer %r of the snapshot is not in net %r: data starts anew", name, net.name
                )
    device.set_random_state(position["random"])


def _plain(value: Any) -> Any:
    """What NumPy made, as JSON has it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a layer's data_state must be what JSON can hold, not {type(value).__name__}")
