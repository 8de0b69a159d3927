"""How does a script that says `import caffe` get this package?"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = __name__.rpartition(".")[0]


def install_as_caffe() -> None:
    """From now on `import caffe` gives this package, and `caffe.io` its module `io`, and so on.

    They are the same module objects under both names. `caffe.pycaffe` and `caffe._caffe`, pycaffe's
    inner parts, are the package itself. Doing it again changes nothing. It holds for this process
    only: a child that starts a new interpreter has to do it too. Raises ImportError where another
    module named caffe has been imported before.
    """
    package = sys.modules[_PACKAGE]
    other = sys.modules.get("caffe")
    if other is not None and other is not package:
        place = getattr(other, "__file__", None) or "an unknown place"
        raise ImportError(
            f"another module named 'caffe' is already imported, from {place}: call"
            " install_as_caffe() before anything says `import caffe`"
        )
    for name in ("pycaffe", "_caffe"):
        sys.modules[f"caffe.{name}"] = package
        setattr(package, name, package)
    sys.modules["caffe"] = package
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # the path finder would load our files a second time


class _Finder(MetaPathFinder):
    """Finds `caffe.x` where the package has an `x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, child = fullname.rpartition(".")
        if parent.partition(".")[0] != "caffe":
            return None
        real = f"{sys.modules[parent].__name__}.{child}"
        if importlib.util.find_spec(real) is None:
            return None
        return ModuleSpec(fullname, _Loader(real))


class _Loader(Loader):
    """Puts the module that goes by another name into the place of the new one.

    A loader that gives it as the new module would have its `__spec__` overwritten.
    """

    def __init__(self, real: str) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.real)
