"""Show the properties of GPUs: `device_query -gpu 0,1`, or `-gpu all`.

Without -gpu nothing is shown, as with Caffe's.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from . import _caffe
from ._flags import FlagParser

log = logging.getLogger("pycaffe_lite")


def add_arguments(parser: FlagParser) -> None:
    """The flags of `pycaffe-lite device-query`."""
    _caffe.add_flags(parser, "gpu", gpu="numbers of GPUs with commas between, or all")


def run(args: argparse.Namespace) -> int:
    """Log a few lines for each GPU. Raises RuntimeError where there is none of that number."""
    _caffe.no_arguments(args)
    with _caffe.glog(args):
        ids = _caffe.gpu_ids(args)
        if ids:
            log.info("Querying GPUs %s", ",".join(map(str, ids)))
        for device_id in ids:
            properties = _caffe.cuda_runtime().getDeviceProperties(device_id)
            for what, value in _described(device_id, properties):
                log.info("%-31s%s", f"{what}:", value)
    return 0


def _described(device_id: int, p: dict[str, Any]) -> list[tuple[str, Any]]:
    name = p["name"]
    return [
        ("Device id", device_id),
        ("Name", name.decode() if isinstance(name, bytes) else name),
        ("Major revision number", p["major"]),
        ("Minor revision number", p["minor"]),
        ("Total global memory", p["totalGlobalMem"]),
        ("Total constant memory", p["totalConstMem"]),
        ("Total shared memory per block", p["sharedMemPerBlock"]),
        ("Total registers per block", p["regsPerBlock"]),
        ("Number of multiprocessors", p["multiProcessorCount"]),
        ("Warp size", p["warpSize"]),
        ("Maximum threads per block", p["maxThreadsPerBlock"]),
        ("Maximum dimension of block", ", ".join(map(str, p["maxThreadsDim"]))),
        ("Maximum dimension of grid", ", ".join(map(str, p["maxGridSize"]))),
    ]
