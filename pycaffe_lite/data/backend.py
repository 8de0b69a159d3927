"""Which package reads and writes which database, and what do its errors become?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import ModelError, did_you_mean

BACKENDS = ("LMDB", "LEVELDB")
_HELD = ("already open in this process", "already held by process")
_PACKAGES = {"LMDB": "lmdb", "LEVELDB": "plyvel"}


def backend_named(name: str) -> str:
    """ "LMDB" or "LEVELDB", whatever the case of `name`. Raises ModelError for another."""
    if name.upper() not in BACKENDS:
        raise ModelError(
            f"unknown backend: {name} (known: LMDB, LEVELDB){did_you_mean(name, BACKENDS)}"
        )
    return name.upper()


def package_of(backend: str) -> Any:
    """The package for a backend, imported. Raises RuntimeError that says how to install it."""
    name = _PACKAGES[backend]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = ""
        if backend == "LEVELDB" and sys.version_info >= (3, 13):
            hint = (
                "; there is no ready build of it for this Python: use Python 3.12, or build plyvel"
                " with LevelDB's headers"
            )
        raise RuntimeError(
            f"{backend} databases need {name}: pip install 'pycaffe-lite[data]'{hint}"
        ) from error


@contextmanager
def failing(
    path: str, backend: str, doing: str, where: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Errors of the package become ModelError; of the disk, OSError. They name `path`.

    `doing` is what failed ("failed to open"), `where` says how far it came.
    """
    errors = package_of(backend).Error  # here: at the process's end the package may be empty
    try:
        yield
    except errors as error:
        reason = error.args[0] if error.args else error  # plyvel's are bytes
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        text = f"{doing} database {path} ({backend}){where()}: {reason}"
        if any(sign in text for sign in _HELD):
            text += "; close what else has it open first"
        if _is_of_the_system(error, text):
            raise OSError(text) from error
        raise ModelError(text) from error


def _is_of_the_system(error: Exception, text: str) -> bool:
    """True for a full disk, a lock, missing permissions; False for what the database is."""
    return type(error).__name__ in ("DiskError", "LockError", "ReadonlyError") or any(
        sign in text for sign in ("/LOCK", "ermission denied", "o space left")
    )
