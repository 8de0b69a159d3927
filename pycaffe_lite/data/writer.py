"""How are databases of images written? Beside their place, which they take when complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from ..errors import MissingFileError, ModelError
from .backend import failing, package_of

# Caffe's; they matter to reading, too: with a smaller buffer LevelDB cuts the log into many files.
LEVELDB_OPTIONS = {"block_size": 64 << 10, "write_buffer_size": 256 << 20, "max_open_files": 100}
# Bytes put and not committed, from which on the writer commits by itself.
_PENDING_LIMIT = 64 << 20


class DatabaseWriter(ABC):
    """A database being written, beside its place; a context manager.

    It takes its place when closed or when the `with` block ends; an error in the block removes it.
    """

    backend: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._target = Path(self.path)
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._parent: Path | None = None
        self._process = os.getpid()
        package_of(self.backend)
        self._check_free()
        parent = self._target.absolute().parent
        if not parent.is_dir():
            raise MissingFileError(f"cannot create database {self.path}: there is no {parent}")
        try:
            self._parent = Path(tempfile.mkdtemp(dir=parent, prefix=f".{self._target.name}."))
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.path) from None
        self._folder = self._parent / self._target.name  # inside: mkdtemp's own is closed to others
        try:
            self._folder.mkdir()
            with failing(self.path, self.backend, "cannot create"):
                self._open(str(self._folder))
        except BaseException:
            self.discard()
            raise

    def _check_free(self) -> None:
        if os.path.lexists(self._target):
            raise ModelError(f"cannot create database {self.path}: it exists already")

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record; it takes the place of an earlier one of the same key.

        Raises ModelError for a key that the database cannot hold.
        """
        self._check_open()
        self._check_key(key)
        self._pending.append((key, value))
        self._pending_bytes += len(key) + len(value)
        if self._pending_bytes > _PENDING_LIMIT:
            self.commit()

    def commit(self) -> None:
        """Write what was put since the last commit. Raises OSError where the disk is full."""
        self._check_open()
        with failing(self.path, self.backend, "failed to write"):
            self._write(self._pending)
        self._pending, self._pending_bytes = [], 0

    def close(self) -> None:
        """Commit, and put the database in its place. Closing again does nothing."""
        if self._parent is None:
            return
        try:
            self.commit()
            with failing(self.path, self.backend, "failed to write"):
                self._close()
            self._check_free()  # a rename would take the place of an empty folder
            self._folder.rename(self._target)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove all that was written and is not in its place; in a forked child, nothing."""
        parent, self._parent = self._parent, None
        if parent is not None and os.getpid() == self._process:
            with suppress(Exception):
                self._close()
            shutil.rmtree(parent, ignore_errors=True)

    def __enter__(self) -> DatabaseWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_parent", None) is not None:
            self.discard()

    def _check_open(self) -> None:
        if self._parent is None:
            raise ModelError(f"database {self.path} is closed")

    def _check_key(self, key: bytes) -> None:
        if not key:
            raise ModelError(f"database {self.path}: a key must not be empty")

    @abstractmethod
    def _open(self, folder: str) -> None: ...

    @abstractmethod
    def _write(self, records: Iterable[tuple[bytes, bytes]]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class LmdbWriter(DatabaseWriter):
    """Writes LMDB. The map, which limits its size, doubles whenever it is full, as Caffe's does."""

    backend = "LMDB"
    first_map_size = 16 << 20  # bytes

    def _open(self, folder: str) -> None:
        # No lock and no waiting for the disk: nobody else sees the folder before it is closed.
        self._env: Any = package_of("LMDB").open(
            folder, map_size=self.first_map_size, lock=False, sync=False, metasync=False
        )
        self._longest = self._env.max_key_size()

    def _check_key(self, key: bytes) -> None:
        super()._check_key(key)
        if len(key) > self._longest:
            raise ModelError(
                f"database {self.path}: LMDB holds keys of at most {self._longest} bytes, got"
                f" {len(key)} ({key[:60]!r}...); LevelDB takes longer ones"
            )

    def _write(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        full = package_of("LMDB").MapFullError
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except full:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _close(self) -> None:
        self._env.sync(True)
        self._env.close()


class LevelDbWriter(DatabaseWriter):
    """Writes LevelDB."""

    backend = "LEVELDB"

    def _open(self, folder: str) -> None:
        self._db: Any = package_of("LEVELDB").DB(
            folder, create_if_missing=True, error_if_exists=True, **LEVELDB_OPTIONS
        )

    def _write(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        with self._db.write_batch() as batch:
            for key, value in records:
                batch.put(key, value)

    def _close(self) -> None:
        self._db.close()
