"""Files appear whole or not at all, where links lead, with the mode they had."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from pycaffe_lite.replacement import replacing


def write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text("before")
    write(file, "after")
    assert file.read_text() == "after"

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(file, "never")
    assert file.read_text() == "after"
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    file = tmp_path / "a"
    file.write_text("before")

    def fail() -> None:
        with replacing(file) as temporary:
            temporary.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert file.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to("real")
    for text in ("new", "newer"):
        write(link, text)
        assert link.is_symlink()
        assert real.read_text() == text


def test_the_mode_stays(tmp_path):
    file = tmp_path / "secret"
    file.write_text("before")
    file.chmod(0o640)
    write(file, "after")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_mode(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    write(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_errors_name_the_path_that_was_asked_for(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}.*folder"):
        write(tmp_path, "")
    with pytest.raises(FileNotFoundError, match="missing/a'"):
        write(tmp_path / "missing" / "a", "")


def test_a_full_disk_names_the_path_that_was_asked_for(tmp_path):
    def fail(known: tuple[object, ...]) -> None:
        with replacing(tmp_path / "a.bin"):
            raise OSError(*known)

    with pytest.raises(OSError, match=r"space left on device: '.*/a\.bin'"):
        fail((errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match=r"space left on device: 'other'"):
        fail((errno.ENOSPC, "No space left on device", "other"))
    assert not list(tmp_path.iterdir())
