"""Which commands are there? One module a command: its name, `add_arguments(parser)`, `run(args)`.

The first line of a module's docstring is its help; a name with a leading underscore is no command.
The modules are imported at every start of the command line: heavy imports belong into `run`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType


def find() -> dict[str, ModuleType]:
    """Command name -> module, sorted; a module `a_b` is the command `a-b`."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}") for name in names}


def show(text: str) -> None:
    """Print a result; on a terminal, and where rich is installed, with its figures in colour."""
    if sys.stdout is None or not sys.stdout.isatty():
        print(text)
        return
    try:
        from rich.console import Console
    except ImportError:
        print(text)
        return
    Console(soft_wrap=True).print(text, markup=False, emoji=False)
