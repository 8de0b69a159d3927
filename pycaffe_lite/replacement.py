"""How does a file appear whole or not at all? Written beside its place, then renamed into it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What a full disk or a limit says; of which file, it does not."""


@contextmanager
def replacing(path: str | os.PathLike[str], durable: bool = False) -> Iterator[Path]:
    """A new file to write, which takes the place of `path` when the block ends without error.

    Links are followed; a file that was there keeps its mode; a device or pipe is written to, not
    replaced. With `durable` the new file is on the disk before the old one is gone, so that a power
    cut too leaves one of them whole. Raises OSError that names `path` where its folder cannot be
    written or the disk is full.
    """
    import shutil  # here: the two cost the package's import 4 ms
    import tempfile

    target = Path(os.path.realpath(path))
    known = target.stat().st_mode if target.exists() else None
    if known is not None and stat.S_ISDIR(known):
        raise IsADirectoryError(f"cannot write {os.fspath(path)}: it is a folder")
    plain = known is None or stat.S_ISREG(known)
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent if plain else None, prefix=f".{target.name}."
        )
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if plain:
            temporary.chmod(stat.S_IMODE(known) if known is not None else 0o666 & ~_umask())
            if durable:
                _synchronize(temporary)
            temporary.replace(target)
            if durable and hasattr(os, "O_DIRECTORY"):  # elsewhere folders cannot be opened
                _synchronize(target.parent)
        else:
            with temporary.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except OSError as error:
        if error.errno not in _FULL or error.filename:
            raise
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _synchronize(path: Path) -> None:
    """Return when the disk has what was written to the file, or the names in the folder."""
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
