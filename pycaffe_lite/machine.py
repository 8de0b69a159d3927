"""Which machine and which libraries is this measured on? For the head of tables and JSON files."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .ops.base import Ops
from .version import __version__


def describe() -> dict[str, Any]:
    """CPU model, cores, system, versions and the BLAS libraries loaded with their threads now."""
    from threadpoolctl import threadpool_info

    blas = [
        {
            "name": library["internal_api"],
            "version": library["version"],
            "threads": library["num_threads"],
            "kernels": library.get("architecture"),
        }
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"pycaffe-lite": __version__} | _versions("numpy", "scipy", "protobuf"),
        "blas": blas,
    }


def device_name(ops: Ops) -> str | None:
    """The name of the GPU that a backend works on, where its array module tells; None for a CPU."""
    if ops.kind != "gpu":
        return None
    runtime = getattr(getattr(ops.xp, "cuda", None), "runtime", None)
    if runtime is None:
        return ops.place
    name = runtime.getDeviceProperties(int(ops.place.partition(":")[2] or 0))["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor() or platform.machine())


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _versions(*packages: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
