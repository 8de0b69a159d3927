"""Flags as gflags reads them."""

from __future__ import annotations

import pytest

from pycaffe_lite.commands._flags import FlagParser


@pytest.fixture
def parse():
    """The values of a command line, or the exit status."""
    parser = FlagParser(prog="tool", usage="tool [FLAGS] A B")
    parser.add_flag("gray", False, "one channel")
    parser.add_flag("shown", True, "in order")
    parser.add_flag("resize_width", 0, "pixels")
    parser.add_flag("rate", 0.5, "a number")
    parser.add_flag("backend", "lmdb", "lmdb or leveldb")
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("-v", "--verbose", action="store_true")

    def run(text):
        found = vars(parser.parse_args(text.split(" ")))
        assert not found.pop("logtostderr")
        assert not found.pop("alsologtostderr")
        return found

    run.parser = parser
    return run


DEFAULTS = {
    "gray": False, "shown": True, "resize_width": 0, "rate": 0.5, "backend": "lmdb",
    "a": "in/", "b": "out", "verbose": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("in/ out", {}),
        ("-gray in/ out", {"gray": True}),
        ("--gray in/ out", {"gray": True}),
        ("in/ --gray out", {"gray": True}),
        ("in/ out --gray", {"gray": True}),
        ("--gray=true in/ out", {"gray": True}),
        ("-gray=T in/ out", {"gray": True}),
        ("--gray=1 in/ out", {"gray": True}),
        ("--gray=false in/ out", {}),
        ("--gray --nogray in/ out", {}),
        ("-noshown in/ out", {"shown": False}),
        ("--shown=no in/ out", {"shown": False}),
        ("-resize_width 5 in/ out", {"resize_width": 5}),
        ("--resize_width 5 in/ out", {"resize_width": 5}),
        ("--resize_width=5 in/ out", {"resize_width": 5}),
        ("-resize_width=5 in/ out", {"resize_width": 5}),
        ("--resize-width=5 in/ out", {"resize_width": 5}),
        ("in/ -resize_width -5 out", {"resize_width": -5}),
        ("-rate 1e-3 in/ out", {"rate": 1e-3}),
        ("-backend=a=b in/ out", {"backend": "a=b"}),
        ("-backend= in/ out", {"backend": ""}),
        ("-backend leveldb in/ -- -out", {"backend": "leveldb", "b": "-out"}),
        ("- out", {"a": "-"}),
        ("-v in/ out", {"verbose": True}),
    ],
)
def test_spellings(parse, text, changed):
    assert parse(text) == DEFAULTS | changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-grey in/ out", "unknown flag: -grey; did you mean 'gray'?"),
        ("--nobackend in/ out", "unknown flag: --nobackend"),
        ("--nogray=true in/ out", "unknown flag: --nogray=true"),
        ("--resize in/ out", "unknown flag: --resize"),
        ("in/ out -backend", "the flag -backend needs a value"),
        ("--gray=maybe in/ out", "'maybe' is neither true nor false"),
        ("-resize_width wide in/ out", "invalid int value: 'wide'"),
        ("--gray true in/ out", "unrecognized arguments: out"),
        ("in/", "required: b"),
    ],
)
def test_what_is_wrong_ends_with_1(parse, text, message, capsys):
    with pytest.raises(SystemExit) as raised:
        parse(text)
    assert raised.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("usage: tool [FLAGS] A B\n")
    assert message in error


def test_flags_of_the_log_are_known(parse):
    found = vars(parse.parser.parse_args(["--logtostderr=1", "-alsologtostderr", "in/", "out"]))
    assert found["logtostderr"]
    assert found["alsologtostderr"]
    assert "logtostderr" not in parse.parser.format_help()


def test_without_flags_it_is_argparse(capsys):
    parser = FlagParser(prog="tool")
    parser.add_argument("--device")
    assert parser.parse_args(["--dev", "cpu"]).device == "cpu"
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(["--swim"])
    assert raised.value.code == 2
