"""How much memory may a net take? Physical memory or the cgroup's limit, whichever is less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

from .blob import Blob, describe
from .errors import ModelError
from .ops.window import Window
from .storage import SyncedArray

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit() -> int | None:
    """Bytes that may be used: PYCAFFE_LITE_MEMORY ("512M", "8G", bytes), else what the machine has.

    None where nothing tells. Raises ModelError where the variable is no size.
    """
    wanted = os.environ.get("PYCAFFE_LITE_MEMORY")
    if wanted:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", wanted, re.IGNORECASE)
        if not found:
            raise ModelError(f"PYCAFFE_LITE_MEMORY={wanted!r} is no size; write 512M or 8G")
        return int(float(found[1]) * _UNITS[found[2].upper()])
    known = [size for size in (_physical(), *map(_cgroup, _LIMITS)) if size is not None]
    return min(known, default=None)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


def _cgroup(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def check(blobs: Iterable[tuple[str, Blob]], diffs: bool = False) -> None:
    """ModelError where the named blobs need more than `limit()`, naming the largest.

    Storage that several blobs share counts once; gradients only with `diffs`.
    """
    sizes: dict[SyncedArray, int] = {}
    largest: tuple[int, str, Blob] | None = None
    for name, blob in blobs:
        for storage in blob.storages[: 2 if diffs else 1]:
            sizes[storage] = storage.nbytes
        if largest is None or blob.storages[0].nbytes > largest[0]:
            largest = (blob.storages[0].nbytes, name, blob)
    total, most = sum(sizes.values()), limit()
    if largest is not None and most is not None and total > most:
        raise ModelError(
            f"the net's blobs need {_readable(total)} of memory but there are {_readable(most)}"
            f" (PYCAFFE_LITE_MEMORY overrides); the largest is {largest[1]!r} with"
            f" {_readable(largest[0])}, shape `{describe(largest[2].shape)}`"
        )


def check_padded(shape: Sequence[int], window: Window, positions: Sequence[int]) -> None:
    """ModelError where an image (N, C, *S) of float32 with its pad alone needs more than `limit()`.

    The pad reaches as far as the last of `positions` windows on each axis.
    """
    sizes = [
        max(size + p, (count - 1) * stride + extent)
        for size, p, count, stride, extent in zip(
            shape[2:], window.pad, positions, window.stride, window.extent, strict=True
        )
    ]
    padded = (*shape[:2], *sizes)
    if prod(padded) <= 4 * prod(shape):
        return  # as nearly always: the limit is read from a file
    needed, most = 4 * prod(padded), limit()
    if most is not None and needed > most:
        raise ModelError(
            f"the input with its pad, `{describe(padded)}`, needs {_readable(needed)} of memory but"
            f" there are {_readable(most)} (PYCAFFE_LITE_MEMORY overrides)"
        )


def _readable(size: int) -> str:
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    digits = {"bytes": 0, "KiB": 1, "MiB": 1}.get(unit, 2)
    return f"{value:.{digits}f} {unit}"
