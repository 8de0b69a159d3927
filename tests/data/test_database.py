"""LMDB and LevelDB: read and written, against the packages' own calls."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import lmdb
import pytest

from pycaffe_lite import MissingFileError, ModelError
from pycaffe_lite.data import database
from pycaffe_lite.data import writer as database_writer
from pycaffe_lite.data.database import create_database, open_database

RECORDED = Path(__file__).parents[3] / "shared" / "golden" / "data"
needs_leveldb = pytest.mark.skipif(find_spec("plyvel") is None, reason="no LevelDB package here")
LEVELDB = pytest.param("LEVELDB", marks=needs_leveldb)


@pytest.fixture(params=["LMDB", LEVELDB])
def backend(request):
    return request.param


def records(count, size=11):
    return [(b"%08d_a name" % k, bytes([k % 251]) * (size + k)) for k in range(count)]


def raw_write(path, backend, pairs):
    """A database written by the package itself."""
    if backend == "LMDB":
        with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value)
        return
    import plyvel

    db = plyvel.DB(str(path), create_if_missing=True)
    for key, value in pairs:
        db.put(key, value)
    db.close()


def raw_read(path, backend):
    if backend == "LMDB":
        with lmdb.open(str(path), readonly=True) as env, env.begin() as transaction:
            return list(transaction.cursor())
    import plyvel

    db = plyvel.DB(str(path))
    found = list(db)
    db.close()
    return found


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path, pattern, change):
    (file,) = path.glob(pattern)
    file.write_bytes(change(file.read_bytes()))


# ---- reading -----------------------------------------------------------------------------------


def test_records_in_key_order(tmp_path, backend):
    raw_write(tmp_path / "db", backend, reversed(records(7)))
    with open_database(tmp_path / "db", backend.lower()) as db:
        assert len(db) == 7
        assert list(db.records()) == records(7)
        assert list(db.records()) == records(7), "again from the start"


def test_records_from_a_key_on(tmp_path, backend):
    raw_write(tmp_path / "db", backend, records(7))
    with open_database(tmp_path / "db", backend) as db:
        assert list(db.records(b"00000003_a name")) == records(7)[3:]
        assert list(db.records(b"00000003_b")) == records(7)[4:], "the next one"
        assert list(db.records(b"1")) == []


def test_an_empty_database(tmp_path, backend):
    raw_write(tmp_path / "db", backend, [])
    with open_database(tmp_path / "db", backend) as db:
        assert len(db) == 0
        assert list(db.records()) == []


def test_opening_twice(tmp_path, backend, monkeypatch):
    """As a train and a test net do; under another name, too."""
    raw_write(tmp_path / "db", backend, records(5))
    monkeypatch.chdir(tmp_path)
    first, second = open_database("db", backend), open_database(tmp_path / "db", backend)
    begun = second.records()
    assert next(begun) == records(5)[0]
    first.close()
    first.close()
    assert [*begun] == records(5)[1:], "closing one leaves the other"
    second.close()
    assert raw_read("db", backend) == records(5), "all is released: the package can open it"
    with pytest.raises(ModelError, match="is closed"):
        next(first.records())


def test_a_database_that_the_script_has_open(tmp_path, backend):
    path = tmp_path / "db"
    raw_write(path, backend, records(2))
    if backend == "LMDB":
        own = lmdb.open(str(path))
    else:
        import plyvel

        own = plyvel.DB(str(path))
    with pytest.raises((ModelError, OSError), match="already .*; close what else has it open"):
        open_database(path, backend)
    own.close()
    with open_database(path, backend) as db:
        assert len(db) == 2


def test_a_database_that_is_dropped_is_closed(tmp_path, backend):
    raw_write(tmp_path / "db", backend, records(2))
    open_database(tmp_path / "db", backend)
    gc.collect()
    assert raw_read(tmp_path / "db", backend) == records(2)


def test_two_threads(tmp_path, backend):
    raw_write(tmp_path / "db", backend, records(300))
    found = {}
    meet = threading.Barrier(2)

    def read(name):
        meet.wait()
        with open_database(tmp_path / "db", backend) as db:
            found[name] = list(db.records())

    threads = [threading.Thread(target=read, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: records(300), 1: records(300)}
    assert not database._Shared._all


def test_an_lmdb_by_its_file_and_without_write_permission(tmp_path):
    raw_write(tmp_path / "db", "LMDB", records(5))
    (tmp_path / "db" / "lock.mdb").unlink()
    (tmp_path / "db" / "data.mdb").chmod(0o444)
    (tmp_path / "db").chmod(0o555)
    for path in (tmp_path / "db", tmp_path / "db" / "data.mdb"):
        with open_database(path, "LMDB") as db:
            assert list(db.records()) == records(5)
    assert names(tmp_path / "db") == ["data.mdb"]
    (tmp_path / "db").chmod(0o755)


@needs_leveldb
def test_a_leveldb_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    raw_write(tmp_path / "db", "LEVELDB", records(5))
    before = {p.name: p.read_bytes() for p in (tmp_path / "db").iterdir()}
    monkeypatch.setattr(database, "_may_write", lambda folder: False)  # the tests may be root's
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with (
        open_database(tmp_path / "db", "LEVELDB") as db,
        open_database(tmp_path / "db", "LEVELDB") as again,
    ):
        assert list(db.records()) == list(again.records()) == records(5)
    assert {p.name: p.read_bytes() for p in (tmp_path / "db").iterdir()} == before
    assert names(tmp_path / "tmp") == []

    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(PermissionError, match="which LevelDB does even to read.*no links here"):
        open_database(tmp_path / "db", "LEVELDB")
    assert names(tmp_path / "tmp") == []


@needs_leveldb
def test_a_leveldb_that_another_opened(tmp_path):
    import plyvel

    raw_write(tmp_path / "db", "LEVELDB", records(2))
    other = plyvel.DB(str(tmp_path / "db"))
    with pytest.raises(OSError, match=r"failed to open database .*db \(LEVELDB\).*lock"):
        open_database(tmp_path / "db", "LEVELDB")
    other.close()
    with open_database(tmp_path / "db", "LEVELDB") as db:
        assert len(db) == 2


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of forking with threads, in newer Pythons
from pycaffe_lite.data import database
from pycaffe_lite.data.database import create_database, open_database
database._may_write = lambda folder: False
db = open_database("db", "LEVELDB")
records = db.records()
first = next(records)
writer = create_database("new", sys.argv[1])
if os.fork():
    os.wait()
    print(len([first, *records]), len(db))
    writer.put(b"k", b"v")
    writer.close()
else:
    db.close()
    writer.discard()
    del writer, db
"""


@needs_leveldb
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_a_forked_child_removes_nothing(tmp_path, backend):
    """What its parent has open, read through links or written, stays the parent's."""
    raw_write(tmp_path / "db", "LEVELDB", records(5))
    (tmp_path / "tmp").mkdir()
    place = str(Path(database.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", FORKED, backend],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": place, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("5 5\n", "")
    assert raw_read(tmp_path / "new", backend) == [(b"k", b"v")]
    assert names(tmp_path / "tmp") == []


# ---- what is no database, or damaged -----------------------------------------------------------


def test_a_missing_folder(tmp_path, backend):
    with pytest.raises(MissingFileError, match=rf"failed to open database .*none \({backend}\)"):
        open_database(tmp_path / "none", backend)
    (tmp_path / "none").mkdir()
    with pytest.raises(MissingFileError, match="it holds no file"):
        open_database(tmp_path / "none", backend)
    assert names(tmp_path / "none") == []


@needs_leveldb
def test_the_other_kind_of_database(tmp_path):
    for own, other in (("LMDB", "LEVELDB"), ("LEVELDB", "LMDB")):
        raw_write(tmp_path / own, own, records(2))
        with pytest.raises(MissingFileError, match=f"set backend: {own}"):
            open_database(tmp_path / own, other)


def test_an_unknown_backend(tmp_path):
    for act in (open_database, create_database):
        with pytest.raises(ModelError, match="unknown backend: lmbd .*did you mean 'LMDB'"):
            act(tmp_path / "db", "lmbd")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "data.mdb is empty"),
        (lambda content: content[:100], "failed to open database"),
        (lambda content: bytes(len(content)), "failed to open database"),
        (lambda content: content[:-4096], r"cut off at \d+ of \d+ bytes"),
        (lambda content: content[:8192] + bytes(len(content) - 8192), "failed to read database"),
    ],
    ids=["empty", "head only", "zeros", "cut off", "zeros behind the head"],
)
def test_a_damaged_lmdb(tmp_path, change, message):
    raw_write(tmp_path / "db", "LMDB", records(300))
    damage(tmp_path / "db", "data.mdb", change)
    with pytest.raises(ModelError, match=message), open_database(tmp_path / "db", "LMDB") as db:
        list(db.records())
    assert not database._Shared._all


def test_a_folder_that_cannot_be_written(tmp_path, backend, monkeypatch):
    def refused(**kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", "/some/temporary/folder")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*/db'"):
        create_database(tmp_path / "db", backend)
    assert names(tmp_path) == []


@needs_leveldb
@pytest.mark.parametrize(
    ("pattern", "change", "message"),
    [
        ("CURRENT", lambda content: b"x", "failed to open database"),
        ("MANIFEST*", lambda content: content[:-9], "failed to open database"),
        ("*.log", lambda content: content[:99] + b"xyz" + content[102:], "checksum"),
        ("*.ldb", lambda content: content[:40_000] + b"xyz" + content[40_003:], "after key b'0"),
        ("*.ldb", lambda content: content[:20_000], "failed to read database"),
    ],
    ids=["CURRENT", "manifest", "log", "table", "table cut off"],
)
def test_a_damaged_leveldb(tmp_path, pattern, change, message):
    pairs = [(b"%08d" % k, os.urandom(1000)) for k in range(60)]
    raw_write(tmp_path / "db", "LEVELDB", pairs)
    if pattern == "*.ldb":
        plyvel = pytest.importorskip("plyvel")
        plyvel.DB(str(tmp_path / "db"), block_size=1000).close()  # turns the log into a table
    damage(tmp_path / "db", pattern, change)
    with pytest.raises(ModelError, match=message), open_database(tmp_path / "db", "LEVELDB") as db:
        list(db.records())


@pytest.mark.parametrize(("name", "kind"), [("lmdb", "LMDB"), ("plyvel", "LEVELDB")])
def test_a_missing_package(tmp_path, monkeypatch, name, kind):
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / {"lmdb": "data.mdb", "plyvel": "CURRENT"}[name]).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match=r"pip install 'pycaffe-lite\[data\]'"):
        open_database(tmp_path / "db", kind)
    with pytest.raises(RuntimeError, match=r"pip install 'pycaffe-lite\[data\]'"):
        create_database(tmp_path / "new", kind)
    assert names(tmp_path) == ["db"]


# ---- writing -----------------------------------------------------------------------------------


def test_written_and_read_by_the_package(tmp_path, backend):
    with create_database(tmp_path / "db", backend) as db:
        for k, (key, value) in enumerate(reversed(records(50))):
            db.put(key, value)
            if k % 20 == 19:
                db.commit()
        assert not (tmp_path / "db").exists(), "it appears when complete"
    assert raw_read(tmp_path / "db", backend) == records(50)
    assert names(tmp_path) == ["db"]


def test_a_key_twice(tmp_path, backend):
    with create_database(tmp_path / "db", backend) as db:
        db.put(b"k", b"old")
        db.put(b"k", b"new")
    assert raw_read(tmp_path / "db", backend) == [(b"k", b"new")]


def test_the_map_of_an_lmdb_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(database_writer.LmdbWriter, "first_map_size", 1 << 15)
    monkeypatch.setattr(database_writer, "_PENDING_LIMIT", 1 << 18)
    with create_database(tmp_path / "db", "LMDB") as db:
        for key, value in records(400, size=2000):
            db.put(key, value)
    assert raw_read(tmp_path / "db", "LMDB") == records(400, size=2000)


def test_what_is_there_is_kept(tmp_path, backend):
    (tmp_path / "db").mkdir()
    with pytest.raises(ModelError, match="db: it exists already"):
        create_database(tmp_path / "db", backend)
    shutil.rmtree(tmp_path / "db")
    writer = create_database(tmp_path / "db", backend)
    (tmp_path / "db").mkdir()  # by somebody else, meanwhile
    with pytest.raises(ModelError, match="it exists already"):
        writer.close()
    assert [*tmp_path.rglob("*")] == [tmp_path / "db"]
    with pytest.raises(MissingFileError, match="there is no .*none"):
        create_database(tmp_path / "none" / "db", backend)


def test_nothing_half_written_is_left(tmp_path, backend):
    def fill(db):
        db.put(b"k", b"v")
        db.commit()
        db.put(b"l", b"w")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), create_database(tmp_path / "db", backend) as db:
        fill(db)
    assert names(tmp_path) == []
    with pytest.raises(ModelError, match="is closed"):
        db.put(b"m", b"x")
    dropped = create_database(tmp_path / "db", backend)
    dropped.put(b"k", b"v")
    del dropped
    gc.collect()
    assert names(tmp_path) == []


def test_keys_that_cannot_be(tmp_path, backend):
    with create_database(tmp_path / "db", backend) as db:
        with pytest.raises(ModelError, match="must not be empty"):
            db.put(b"", b"v")
        if backend == "LMDB":
            with pytest.raises(ModelError, match="at most 511 bytes, got 600"):
                db.put(b"k" * 600, b"v")
        db.put(b"k" * 500, b"v")
    assert raw_read(tmp_path / "db", backend) == [(b"k" * 500, b"v")]


# ---- databases of the original -----------------------------------------------------------------


@pytest.mark.skipif(not RECORDED.exists(), reason="recorded databases are not here")
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("data_lmdb_plain", "LMDB"),
        ("data_lmdb_encoded", "LMDB"),
        ("data_lmdb_gray", "LMDB"),
        pytest.param("data_leveldb", "LEVELDB", marks=LEVELDB.marks),
    ],
)
def test_a_database_of_the_original(tmp_path, case, kind):
    shutil.copytree(RECORDED / case / f"db_{kind.lower()}", tmp_path / "db")
    for path in [tmp_path / "db", *(tmp_path / "db").iterdir()]:
        path.chmod(0o755)
    listed = [line.split()[0] for line in (RECORDED / case / "list.txt").read_text().splitlines()]
    with open_database(tmp_path / "db", kind) as db:
        keys = [key for key, _ in db.records()]
        assert len(db) == len(listed)
    assert keys == [f"{k:08d}_{name}".encode() for k, name in enumerate(listed)]
