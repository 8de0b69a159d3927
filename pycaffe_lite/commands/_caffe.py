"""What do Caffe's train, test and time share? Their flags, the log, the device, the net."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ._flags import FlagParser

if TYPE_CHECKING:
    from ..net import Net

log = logging.getLogger("pycaffe_lite")

_FLAGS: dict[str, tuple[Any, str]] = {
    "model": ("", "the net's prototxt (required)"),
    "weights": ("", "a .caffemodel or .caffemodel.h5"),
    "gpu": ("", "number of the GPU, or all; default: the CPU"),
    "phase": ("", "TRAIN or TEST"),
    "level": (0, "level of the net's state, for layers' include and exclude rules; default: 0"),
    "stage": ("", "stages of the net's state, with commas between"),
    "iterations": (50, "how many batches; default: 50"),
}


def add_flags(parser: FlagParser, *names: str, **helps: str) -> None:
    """Add those of the shared flags; `helps` says what another help than the usual is."""
    for name in names:
        default, text = _FLAGS[name]
        parser.add_flag(name, default, helps.get(name, text))
    parser.add_flag("minloglevel", -1, argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.usage = f"{parser.prog} [FLAGS]"
    parser.set_defaults(refuse=parser.error)


def no_arguments(args: argparse.Namespace) -> None:
    """Usage and status 1 where the command line has more than flags."""
    if args.rest:
        args.refuse(f"only flags are taken, not {' '.join(args.rest)!r}")


def require(args: argparse.Namespace, name: str, what: str) -> str:
    """The value of a flag that must be given; else usage and status 1."""
    no_arguments(args)
    value: str = getattr(args, name)
    if not value:
        args.refuse(f"{what} is needed: -{name} FILE")
    return value


def iterations(args: argparse.Namespace) -> int:
    """-iterations, at least 1; else usage and status 1."""
    if args.iterations < 1:
        args.refuse(f"-iterations must be at least 1, got {args.iterations}")
    return int(args.iterations)


def phase(args: argparse.Namespace) -> int:
    """-phase as a number, TRAIN unless given; usage and status 1 for another name."""
    from ..net import TEST, TRAIN

    known = {"": TRAIN, "TRAIN": TRAIN, "TEST": TEST}
    if args.phase not in known:
        args.refuse(f"unknown phase: {args.phase!r} must be TRAIN or TEST")
    return known[args.phase]


def stages(args: argparse.Namespace) -> list[str]:
    """The names in -stage; without any, one empty name as in Caffe."""
    return [name.strip() for name in args.stage.split(",")]


# ---- the log ------------------------------------------------------------------------------------


@contextmanager
def glog(args: argparse.Namespace) -> Iterator[None]:
    """Inside, the log goes to standard error in glog's form.

    From -minloglevel (or the environment's GLOG_minloglevel, as for Caffe's own tools) on, which
    is 0, all, unless given.
    """
    from .. import process

    before = log.level
    level = args.minloglevel
    if level < 0:
        text = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112  (glog's own name)
        level = int(text) if text.isdigit() else 0
    process.init_log(min(level, 3), stderr=True)
    try:
        yield
    finally:
        process.init_log()
        log.setLevel(before)


# ---- the device ---------------------------------------------------------------------------------


def gpu_ids(args: argparse.Namespace) -> list[int]:
    """The GPUs of -gpu, none for the CPU; usage and status 1 for what is no list of numbers.

    Raises RuntimeError where there is no GPU, or none of that number.
    """
    from ..ops import gpu

    if not args.gpu:
        return []
    names = [] if args.gpu == "all" else [name.strip() for name in args.gpu.split(",")]
    if not all(name.isascii() and name.isdigit() for name in names):
        args.refuse(f"-gpu takes numbers with commas between, or all, not {args.gpu!r}")
    missing = gpu.missing()
    if missing:
        raise RuntimeError(f"cannot use GPU: {missing}")
    count = cuda_runtime().getDeviceCount()
    ids = [int(name) for name in names] or list(range(count))
    for each in ids:
        if each >= count:
            raise RuntimeError(f"cannot use GPU {each}: there are {count}, numbered from 0 on")
    return ids


def cuda_runtime() -> Any:
    """CuPy's module of CUDA runtime calls; only where `gpu.missing()` says that nothing is."""
    return importlib.import_module("cupy").cuda.runtime


def gpu_name(device_id: int) -> str:
    """The name of a GPU that is there."""
    name = cuda_runtime().getDeviceProperties(device_id)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def choose_device(args: argparse.Namespace) -> None:
    """Switch to the first GPU of -gpu, or to the CPU, and log which. Raises as `gpu_ids` does."""
    from .. import device

    ids = gpu_ids(args)
    if not ids:
        log.info("Use CPU.")
        device.set_mode_cpu()
        return
    log.info("Use GPU with device ID %d", ids[0])
    log.info("GPU device name: %s", gpu_name(ids[0]))
    device.set_device(ids[0])
    device.set_mode_gpu()


# ---- the net ------------------------------------------------------------------------------------


def build_net(args: argparse.Namespace, phase: int) -> Net:
    """The net of -model, -level and -stage. Raises as Net does."""
    from ..net import Net

    return Net(args.model, phase, level=args.level, stages=stages(args))
