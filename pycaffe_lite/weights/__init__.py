"""How do parameters get in and out? Weight files <-> parameter blobs, and nets that share them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..blob import Blob
from ..errors import MissingFileError, WeightsError
from . import caffemodel
from . import hdf5 as weights_hdf5
from .load_report import Found, check_number, finish, mismatch, report

if TYPE_CHECKING:
    from ..net import Net

__all__ = ["load", "load_hdf5", "save_binary", "save_hdf5", "share"]

PathLike = str | os.PathLike[str]

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

save_binary = caffemodel.save
save_hdf5 = weights_hdf5.save


def load(net: Net, path: PathLike, strict: bool = False, permissive: bool = False) -> None:
    """Copy the parameters of the file's layers into the net's layers of the same names.

    Binary NetParameter or HDF5, told apart by content. Layers that only one side has are left
    alone, or with `strict` an error; `net.load_report` lists them. Gradients in a binary file are
    copied too. With `permissive`, a blob fits one of another shape and the same count. Raises
    MissingFileError, and WeightsError where the file is damaged or something else, or blobs differ
    in number or shape; the net is then unchanged.
    """
    if Path(path).is_fifo():  # it would have to be read twice
        raise WeightsError(f"cannot read {os.fspath(path)}: a pipe, no file")
    try:
        with Path(path).open("rb") as file:
            is_hdf5 = file.read(8) == _HDF5_SIGNATURE
    except FileNotFoundError:
        raise MissingFileError(f"Could not open file {os.fspath(path)} (file not found)") from None
    except OSError as error:
        raise WeightsError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    if is_hdf5:
        load_hdf5(net, path, strict, permissive)
        return
    with caffemodel.find(net, path, permissive) as found:
        finish(net, found, os.fspath(path), strict)


def load_hdf5(net: Net, path: PathLike, strict: bool = False, permissive: bool = False) -> None:
    """Copy from a .caffemodel.h5: dataset /data/<layer>/<index> for each parameter; see `load`."""
    with weights_hdf5.find(net, path, permissive) as found:
        finish(net, found, os.fspath(path), strict)


def share(net: Net, other: Net) -> None:
    """Let the net's parameters be those of `other`'s layers of the same names, values only.

    Layers that only one of them has are left alone; `net.load_report` lists them. Raises
    WeightsError where blobs differ in number or shape; the net is then unchanged.
    """
    found, pairs = Found(), list[tuple[Blob, Blob]]()
    for source in other.layers:
        target = net.first_layer(source.name)
        if target is None:
            found.ignored += [source.name] if source.blobs else []
            continue
        check_number(source.name, len(source.blobs), len(target.blobs))
        for k, (theirs, ours) in enumerate(zip(source.blobs, target.blobs, strict=True)):
            if theirs.shape != ours.shape:
                raise WeightsError(mismatch(source.name, k, theirs.shape, ours.shape))
            pairs.append((ours, theirs))
        if source.blobs:
            found.layers.append(target)
    net.load_report = report(net, found, f"shared with net {other.name!r}")
    for ours, theirs in pairs:
        ours.share_data(theirs)
