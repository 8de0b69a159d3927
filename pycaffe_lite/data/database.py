"""How are databases of images read? LMDB and LevelDB as Caffe lays them out: bytes under bytes.

lmdb and plyvel are imported at the first use of their kind of database.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

from ..errors import MissingFileError, ModelError
from .backend import backend_named, failing, package_of
from .writer import LEVELDB_OPTIONS, DatabaseWriter, LevelDbWriter, LmdbWriter

PathLike = str | os.PathLike[str]


def open_database(source: PathLike, backend: str) -> Database:
    """A database to read; `backend` is "LMDB" or "LEVELDB" in any case.

    It may be opened as often as wanted in one process, and read in several threads. LevelDB writes
    into the folder of a database that it reads, and lets one process do so; where the folder cannot
    be written, it reads through a folder of links. Raises MissingFileError, ModelError for what is
    no database of that kind or is damaged, OSError, RuntimeError without the package.
    """
    return _LevelDb(source) if backend_named(backend) == "LEVELDB" else _Lmdb(source)


def create_database(path: PathLike, backend: str) -> DatabaseWriter:
    """A new database to write; its folder appears, whole, when the writer closes without error.

    Raises ModelError where something is at `path`, MissingFileError where its folder is not there,
    OSError where that cannot be written, RuntimeError without the package.
    """
    return LevelDbWriter(path) if backend_named(backend) == "LEVELDB" else LmdbWriter(path)


class Database(ABC):
    """The records of a database, in the order of their keys. A context manager that closes it."""

    backend: ClassVar[str]

    def __init__(self, source: PathLike) -> None:
        self.path = os.fspath(source)
        self._shared: _Shared | None = None
        if not Path(self.path).exists():
            raise MissingFileError(
                f"failed to open database {self.path} ({self.backend}): no such file or folder;"
                f" looked in {Path.cwd()}"
            )
        file = self._file().stat()
        identity = (self.backend, file.st_dev, file.st_ino)
        with failing(self.path, self.backend, "failed to open"):
            self._shared = _Shared.get(identity, self._open)

    def records(self, first: bytes | None = None) -> Generator[tuple[bytes, bytes], None, None]:
        """Key and value of each record once, in key order, from key `first` (or the next) on.

        Raises ModelError that names the last key read where the database is damaged behind it.
        """
        last: bytes | None = None

        def where() -> str:
            return "" if last is None else f" after key {last!r}"

        with failing(self.path, self.backend, "failed to read", where):
            for last, value in self._walk(first or b""):
                yield last, value

    @abstractmethod
    def __len__(self) -> int:
        """The number of records. LevelDB walks over all of them to count."""

    def close(self) -> None:
        """Release the database; nothing can be read then. Closing again does nothing."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.release()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_shared", None) is not None:
            self.close()

    def _handle(self) -> Any:
        """The package's object."""
        if self._shared is None:
            raise ModelError(f"database {self.path} is closed")
        return self._shared.handle

    @abstractmethod
    def _file(self) -> Path:
        """The file by which the database is known, however it is named; MissingFileError."""

    @abstractmethod
    def _open(self) -> tuple[Any, Callable[[], None]]:
        """The package's object, and what closes it."""

    @abstractmethod
    def _walk(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `records`; errors are the package's own."""

    def _missing(self, file: str, other: str, other_file: str) -> MissingFileError:
        hint = ""
        if (Path(self.path) / other_file).exists():
            hint = f"; it is a database of the other kind: set backend: {other}"
        return MissingFileError(
            f"failed to open database {self.path} ({self.backend}): it holds no file {file}{hint}"
        )


class _Shared:
    """One open database and how many use it: neither package opens one twice in a process."""

    _all: ClassVar[dict[tuple[Any, ...], _Shared]] = {}
    lock = threading.RLock()  # reentrant: a Database may be collected, and close, at any line

    def __init__(self, identity: tuple[Any, ...], handle: Any, close: Callable[[], None]) -> None:
        self.identity = identity
        self.handle = handle
        self.close = close
        self.count = 0

    @classmethod
    def get(
        cls, identity: tuple[Any, ...], open_it: Callable[[], tuple[Any, Callable[[], None]]]
    ) -> _Shared:
        """The open one, or a new one."""
        with cls.lock:
            shared = cls._all.get(identity)
            if shared is None:
                shared = cls._all[identity] = cls(identity, *open_it())
            shared.count += 1
            return shared

    def release(self) -> None:
        """One user less; the last one closes."""
        with self.lock:
            self.count -= 1
            if not self.count:
                del self._all[self.identity]
                self.close()


def _renew_lock() -> None:
    """In a forked child: the lock may have been another thread's."""
    _Shared.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class _Lmdb(Database):
    backend = "LMDB"

    def _file(self) -> Path:
        path = Path(self.path)
        file = path / "data.mdb" if path.is_dir() else path
        if not file.is_file():
            raise self._missing("data.mdb", "LEVELDB", "CURRENT")
        if not file.stat().st_size:
            raise ModelError(f"failed to open database {self.path} (LMDB): {file.name} is empty")
        return file

    def _open(self) -> tuple[Any, Callable[[], None]]:
        file = self._file()
        # Without a lock, which is a file beside the data: the folder may be read-only.
        env = package_of("LMDB").open(str(file), readonly=True, lock=False, subdir=False)
        needed = env.stat()["psize"] * (env.info()["last_pgno"] + 1)
        size = file.stat().st_size
        if size < needed:  # reading behind the end of a mapped file would end the interpreter
            env.close()
            raise ModelError(
                f"failed to open database {self.path} (LMDB): it is damaged, {file.name} is cut off"
                f" at {size} of {needed} bytes"
            )
        return env, env.close

    def __len__(self) -> int:
        entries: int = self._handle().stat()["entries"]
        return entries

    def _walk(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._handle().begin() as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(first) if first else cursor.first():
                yield from cursor


class _LevelDb(Database):
    backend = "LEVELDB"

    def _file(self) -> Path:
        file = Path(self.path) / "CURRENT"
        if not file.is_file():
            raise self._missing("CURRENT", "LMDB", "data.mdb")
        # LevelDB replaces CURRENT at each opening; the folder stays.
        return file.parent

    def _open(self) -> tuple[Any, Callable[[], None]]:
        folder = Path(self.path)
        if _may_write(folder):
            db = package_of("LEVELDB").DB(str(folder), paranoid_checks=True, **LEVELDB_OPTIONS)
            return db, db.close
        links = _Links(folder)
        try:
            db = package_of("LEVELDB").DB(
                str(links.folder), paranoid_checks=True, **LEVELDB_OPTIONS
            )
        except BaseException:
            links.remove()
            raise

        def close() -> None:
            db.close()
            links.remove()

        return db, close

    def __len__(self) -> int:
        with failing(self.path, self.backend, "failed to read"):
            return sum(1 for _ in self._positions(b""))

    def _walk(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        return (iterator.item() for iterator in self._positions(first))

    def _positions(self, first: bytes) -> Iterator[Any]:
        """The raw iterator, at each record: plyvel's own ends without error at a damaged block."""
        iterator = self._handle().raw_iterator(verify_checksums=True, fill_cache=False)
        try:
            iterator.seek(first)
            while iterator.valid():
                yield iterator
                iterator.next()
        finally:
            iterator.close()


def _may_write(folder: Path) -> bool:
    """Can files be made in it? Tried: permissions do not tell of a read-only file system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


class _Links:
    """A temporary folder with links to the files of a LevelDB, for it to write into.

    It is removed at the process's end at the latest; not by a forked child, whose parent reads on.
    """

    def __init__(self, source: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pycaffe_lite."))
        self._process = os.getpid()
        atexit.register(self.remove)
        try:
            for file in source.iterdir():
                if file.name != "LOCK":
                    (self.folder / file.name).symlink_to(file.resolve())
        except OSError as error:
            self.remove()
            raise PermissionError(
                f"failed to open database {source} (LEVELDB): its folder cannot be written, which"
                f" LevelDB does even to read, and no links to its files can be made: {error}"
            ) from None

    def remove(self) -> None:
        atexit.unregister(self.remove)
        if os.getpid() == self._process:
            shutil.rmtree(self.folder, ignore_errors=True)
