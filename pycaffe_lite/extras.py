"""Packages that only some uses need: imported when they are, and named with their extra if not."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, what: str, install: str) -> Any:
    """The module of an optional package.

    Raises RuntimeError where it is missing: "`what`: pip install `install`".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(f"{what}: pip install {install}") from error


def h5py() -> Any:
    """For HDF5 files."""
    return require("h5py", "HDF5 files need h5py", "'pycaffe-lite[data]' or h5py")


def matplotlib() -> Any:
    """For plots."""
    return require("matplotlib.figure", "plots need matplotlib", "'pycaffe-lite[plot]'")


def opencv() -> Any:
    """For image files."""
    install = "'pycaffe-lite[image]' (opencv-python-headless)"
    return require("cv2", "images need OpenCV", install)
