"""The layers. Every module of this folder is imported, and each class in it registers itself."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, __name__ + "."):
    importlib.import_module(_module.name)
