"""How are Caffe's flags read? As gflags does, so that command lines written for its tools work."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from ..errors import did_you_mean

_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")


class FlagParser(argparse.ArgumentParser):
    """A command's parser. One with flags takes those in gflags' spellings, anywhere in the line.

    `-x v`, `--x v`, `-x=v`, `--x=v`; a flag that is true or false `-x`, `--x`, `--nox`,
    `--x=false`; all behind a `--` is arguments. What is wrong ends with status 1, as in Caffe's
    tools. Before `use_flags` or `add_flag` it is argparse's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flags: dict[str, bool] = {}  # name: is it true or false?

    def use_flags(self) -> None:
        """Read the command line as gflags does. Scripts' flags for the log are taken, unheard."""
        if not self._flags:
            for name in ("logtostderr", "alsologtostderr"):  # it goes there anyway
                self._add(name, False, argparse.SUPPRESS)

    def add_flag(self, name: str, default: bool | int | float | str, help: str) -> None:
        """A flag, `args.<name>`, of its default's type; `help` should say the default."""
        self.use_flags()
        self._add(name, default, help)

    def _add(self, name: str, default: bool | int | float | str, help: str) -> None:
        self._flags[name] = isinstance(default, bool)
        kind = _boolean if isinstance(default, bool) else type(default)
        metavar = "" if kind is _boolean else name.rpartition("_")[2].upper()
        self.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=help)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; called by its parser of all commands."""
        if self._flags and args is not None:
            args = self._canonical(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with the usage and `message`."""
        if not self._flags:
            super().error(message)
        self.exit(1, f"{self.format_usage()}{self.prog}: error: {message}\n")

    def _canonical(self, args: Iterable[str]) -> list[str]:
        """The same in the one spelling that argparse takes for sure: flags first, each `--x=v`."""
        flags: list[str] = []
        arguments: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                arguments += rest
            elif arg[:1] != "-" or arg == "-":
                arguments.append(arg)
            elif arg in ("-h", "--help", "-v", "--verbose"):
                flags.append(arg)
            else:
                flags.append(self._flag(arg, rest))
        return [*flags, "--", *arguments]

    def _flag(self, arg: str, rest: Iterator[str]) -> str:
        name, equals, value = arg.removeprefix("-").removeprefix("-").partition("=")
        name = name.replace("-", "_")
        if name not in self._flags:
            if not equals and self._flags.get(name.removeprefix("no")):
                return f"--{name.removeprefix('no')}=false"
            self.error(f"unknown flag: {arg}{did_you_mean(name, self._shown())}")
        if not equals:
            value = "true" if self._flags[name] else next(rest, "")
            if not value:
                self.error(f"the flag {arg} needs a value")
        return f"--{name}={value}"

    def _shown(self) -> list[str]:
        return [name for name in self._flags if not name.endswith("logtostderr")]


def _boolean(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in _TRUE
