"""Models that may be broken, built and run one after another, as a program: `hostile_worker.py`.

Each line of input names a prototxt, a phase and perhaps a weights file, as JSON; the answer is a
line too: "ran", "refused: ..." or "BROKE: ...". Who asks sees how long it takes and whether this
process lives; that it takes no more memory than it may is looked at here. PYCAFFE_LITE_MEMORY must
be set, in bytes.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import traceback

import numpy as np

import pycaffe_lite
from pycaffe_lite import MissingFileError, ModelError, work
from pycaffe_lite.ops.window import Window

LIMIT = int(os.environ["PYCAFFE_LITE_MEMORY"])
SCRATCH = 4
"""What layers take on the way may be this times the net's limit: copies, columns, both passes."""
MOST_TAPS, MOST_WORK = 20_000, 10**9
"""A kernel with more positions, or more multiplications, is real work: no time limit judges it."""


def peak() -> int:
    """Bytes of memory this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def is_long(net: pycaffe_lite.Net) -> bool:
    """Would a forward take long for a good reason?"""
    windows = [getattr(layer, "window", None) for layer in net.layers]
    total = 0
    for name, layer in zip(net._layer_names, net.layers, strict=True):
        ends = ([net.blobs[k] for k in names[name]] for names in (net.bottom_names, net.top_names))
        total += work.multiply_adds(layer, *ends)
    taps = max((w.taps for w in windows if isinstance(w, Window)), default=0)
    return taps > MOST_TAPS or total > MOST_WORK


def run(model: str, phase: int, weights: str | None) -> str:
    """What became of one model."""
    try:
        net = pycaffe_lite.Net(model, phase)
        if weights is not None:
            net.copy_from(weights)
        if is_long(net):
            return "ran: not, as it would take long"
        draw = np.random.default_rng(1)
        for name in net.inputs:
            blob = net.blobs[name]
            if blob.count:
                blob.data[...] = draw.standard_normal(blob.shape, dtype="f4")
        net.forward()
        net.backward()
    except (ModelError, MissingFileError) as error:
        return f"refused: {error}"
    except Exception:
        return f"BROKE: {traceback.format_exc()}"
    return "ran"


def main() -> None:
    """Answer each line. More memory than any net should need is not to be had."""
    logging.disable()
    allowed = peak() + SCRATCH * LIMIT
    resource.setrlimit(resource.RLIMIT_DATA, (4 * allowed,) * 2)
    for line in sys.stdin:
        result = run(**json.loads(line))
        if peak() > allowed:
            result = f"BROKE: {peak() - allowed} bytes of memory too many; else {result}"
            allowed = peak()  # each case for itself
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
