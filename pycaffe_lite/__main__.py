"""The command line: `pycaffe-lite COMMAND`, or `python -m pycaffe_lite COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import commands
from .alias import install_as_caffe
from .commands._flags import FlagParser
from .errors import ModelError
from .version import __version__

_UPGRADES = ("upgrade_net_proto_text", "upgrade_net_proto_binary", "upgrade_solver_proto_text")
"""Caffe's tools that are one command here, which looks into the file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; what is wrong with its input is 1 and one line.

    Without `argv` the process is the command line's own: there, Python layers that say
    `import caffe` get this package.
    """
    if argv is None:
        install_as_caffe()
    parser = _parser()
    args = parser.parse_args(_current(sys.argv[1:] if argv is None else argv))
    if args.run is None:
        parser.print_help()
        return 0
    try:
        status: int = args.run(args)
        if sys.stdout is not None:  # None: closed by the caller
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # `pycaffe-lite stride | head`: nobody reads on, nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.verbose or not _is_expected(error):
            raise
        print(f"pycaffe-lite: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pycaffe-lite",
        description="Caffe nets in plain Python.",
        allow_abbrev=False,  # it would look at what follows a command, too: `run x.py --ver`
    )
    parser.add_argument("--version", action="version", version=f"pycaffe-lite {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=None)
    group = parser.add_subparsers(metavar="COMMAND", parser_class=FlagParser)
    for name, module in commands.find().items():
        line = (module.__doc__ or "").strip().partition("\n")[0]
        command = group.add_parser(name, help=line, description=line)
        # Suppressed, since this default would overwrite a -v given before the command.
        command.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show tracebacks of errors",
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _current(argv: Sequence[str]) -> list[str]:
    """The same command line where the command has Caffe's name: `convert_imageset`."""
    args = list(argv)
    for k, arg in enumerate(args):
        if not arg.startswith("-"):
            name = "upgrade" if arg in _UPGRADES else arg.replace("_", "-")
            if name in commands.find():
                args[k] = name
            break
    return args


def _is_expected(error: Exception) -> bool:
    """True for what the user can mend: a model, a missing device or package, a file.

    Subclasses of RuntimeError that are not ours (RecursionError ...) are faults of the program.
    """
    return isinstance(error, ModelError | OSError) or type(error) is RuntimeError


if __name__ == "__main__":
    sys.exit(main())
