"""Run a script that says `import caffe`, unedited, on this package.

What follows SCRIPT is the script's, options too.
"""

from __future__ import annotations

import argparse
import builtins
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pycaffe-lite run`."""
    parser.allow_abbrev = False  # the script's options are not to be taken for ours
    # PARSER: the first argument and all after it, a `--` too, which REMAINDER after it would lose.
    parser.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.PARSER, help="a Python file, and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Do what `python SCRIPT ARGS` does: its argv, path, exit status and traceback.

    The script is the module `__main__` until the process ends, for what it leaves to threads and
    exit functions. A file that cannot be read is status 2, as Python's is.
    """
    from ..alias import install_as_caffe

    path = Path(args.script[0]).absolute()
    loader = SourceFileLoader("__main__", str(path))
    try:
        source = loader.get_data(str(path))
    except OSError as error:
        print(f"pycaffe-lite run: can't open file {str(path)!r}: {error}", file=sys.stderr)
        return 2
    install_as_caffe()
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=str(path), __loader__=loader, __cached__=None, __builtins__=builtins
    )
    sys.modules["__main__"] = main
    sys.argv[:] = args.script
    if not getattr(sys.flags, "safe_path", False):  # -P: Python puts no folder there
        sys.path[0] = str(path.resolve().parent)
    try:
        exec(loader.source_to_code(source, str(path)), main.__dict__)
    except Exception as error:  # here, since the command line shortens what its user can mend
        trace = _from_script(error.__traceback__, str(path))
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _from_script(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The traceback without the calls above the script; None where it never started."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace
