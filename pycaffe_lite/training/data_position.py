"""Where does training stand besides weights and history? Data layers and random generators.

Caffe's snapshots do not say: training resumed from one reads its data from the beginning. A layer
that takes part, a user's own too, has `data_state()`, which gives a dict that JSON can hold, and
`restore_data_state(dict)`.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from typing import Any

import numpy as np

from .. import device
from ..errors import ModelError, WeightsError
from ..net import Net

log = logging.getLogger("pycaffe_lite")

_VERSION = 1

_CHECKSUM = re.compile(rb"#([0-9a-f]{8})$")
"""Behind the JSON: numbers that were damaged would be numbers still, and training go on wrongly."""


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
    content = json.dumps(position, default=_plain, separators=(",", ":")).encode()
    return content + b"#%08x" % zlib.crc32(content)


def parse(content: bytes) -> dict[str, Any] | None:
    """What `capture` gave, for `restore`; None for nothing, or what a later version has written.

    Raises WeightsError for anything else.
    """
    if not content:
        return None
    checksum = _CHECKSUM.search(content)
    text = content[: checksum.start()] if checksum else content
    try:
        position = json.loads(text)
        version = position["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"the position of the data is damaged: {error}") from error
    if version != _VERSION:
        log.warning("the position of the data is of version %s, not %s", version, _VERSION)
        return None
    if checksum and int(checksum[1], 16) != zlib.crc32(text):
        raise WeightsError("the position of the data is damaged: its checksum is another")
    return dict(position)


def restore(nets: list[Net], position: dict[str, Any]) -> None:
    """Go to where `capture` was called; a warning for each layer or data changed since then."""
    for net, states in zip(nets, position["nets"], strict=False):
        for k, name, state in states:
            _restore_layer(net, k, name, state)
    device.set_random_state(position["random"])


def _restore_layer(net: Net, index: int, name: str, state: dict[str, Any]) -> None:
    layer = net.layers[index] if index < len(net.layers) else None
    if layer is None or layer.name != name or not hasattr(layer, "restore_data_state"):
        log.warning("layer %r of the snapshot is not in net %r: data starts anew", name, net.name)
        return
    try:
        layer.restore_data_state(state)
    except ModelError as error:  # the data may have been moved or changed on purpose
        log.warning("layer %r does not go on where the snapshot was taken: %s", name, error)


def _plain(value: Any) -> Any:
    """What NumPy made, as JSON has it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a layer's data_state must be what JSON can hold, not {type(value).__name__}")
