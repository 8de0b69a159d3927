"""How do parameters stand in a .caffemodel.h5? Reading and writing them. Needs h5py.

As in Caffe, /data/<layer>/<k> is parameter k of a layer, and Caffe reads what stands there. Its
layout has no place for some layers: earlier ones of a repeated name, those without a name, those
whose name starts with another layer's (`a/0` beside `a`) or has empty parts. They stand apart, in
/other_layers/<i>, with their name as an attribute; Caffe does not look there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..blob import Blob, describe
from ..errors import MissingFileError, WeightsError
from ..extras import h5py
from ..replacement import replacing
from .load_report import Copy, Found, by_count

if TYPE_CHECKING:
    from ..layer import Layer
    from ..net import Net

PathLike = str | os.PathLike[str]

_APART = "other_layers"
_NAME = "name"
_FOLLOWING = "following"  # how many layers of the same name come later in the net


@contextmanager
def find(net: Net, path: PathLike, permissive: bool = False) -> Iterator[Found]:
    """What the file has for the net's layers; inside, its values can be copied.

    Where `permissive`, a blob fits another of equal count. Where several layers have one name, what
    stands in /data is the last one's, as in Caffe. A dataset may be missing only for a parameter
    shared from another layer. Raises MissingFileError and WeightsError.
    """
    if not Path(path).exists():
        raise MissingFileError(f"Could not open file {os.fspath(path)} (file not found)")
    found = Found()
    with _hdf5_file(path) as file:
        if "data" not in file:
            raise WeightsError(
                f"failed to read HDF5 file {os.fspath(path)}: it has no group 'data', so it holds"
                f" no weights; it has {sorted(file)}"
            )
        groups = _groups(file)
        for layer, following in _with_following(net.layers):
            group = groups.pop((layer.name, following), None)
            if group is not None and layer.blobs:
                found.copies.extend(_copies(net, layer, group, path, permissive))
                found.layers.append(layer)
            elif group is not None and _parameters(group):
                raise WeightsError(_wrong_number(layer, len(_parameters(group)), path))
        found.ignored = [name for (name, _), group in groups.items() if _parameters(group)]
        yield found


def _groups(file: Any) -> dict[tuple[str, int], Any]:
    """(layer name, number of layers of that name behind it) -> the layer's group."""
    groups: dict[tuple[str, int], Any] = {}

    def add(name: str, item: Any) -> None:
        if _is_group(item):
            groups[name, 0] = item

    file["data"].visititems(add)
    for group in file[_APART].values() if _APART in file else ():
        groups[str(group.attrs[_NAME]), int(group.attrs[_FOLLOWING])] = group
    return groups


def _copies(net: Net, layer: Layer, group: Any, path: PathLike, permissive: bool) -> Iterator[Copy]:
    datasets = _parameters(group)
    if len(datasets) > len(layer.blobs):
        raise WeightsError(_wrong_number(layer, len(datasets), path))
    for k, blob in enumerate(layer.blobs):
        if str(k) in datasets:
            dataset = datasets[str(k)]
            _check(dataset, blob, f"layer {layer.name!r}, param {k}", permissive)
            yield Copy(blob, partial(_read, dataset))
        elif net.owns_param(layer, k):
            raise WeightsError(
                f"incompatible number of blobs for layer {layer.name}: no dataset {k} of"
                f" {len(layer.blobs)} in {os.fspath(path)}"
            )


def _check(dataset: Any, blob: Blob, where: str, permissive: bool) -> None:
    shape = dataset.shape or ()
    if shape != blob.shape and not (permissive and dataset.size == blob.count):
        raise WeightsError(
            f"cannot load blob from hdf5; shape mismatch. {where.capitalize()}: file"
            f" `{describe(shape)}`, net `{describe(blob.shape)}`{by_count(shape, blob.shape)}"
        )
    if not any(np.issubdtype(dataset.dtype, real) for real in (np.integer, np.floating)):
        raise WeightsError(f"{where}: {dataset.dtype} values, no real numbers")
    if dataset.chunks is not None:  # compressed or with checksums: damage shows when it is read,
        dataset[()]  # which has to be before the net changes


def _read(dataset: Any, out: np.ndarray) -> None:
    """The dataset's values into a host array of its count."""
    if dataset.size:
        dataset.read_direct(out.reshape(dataset.shape))


def _parameters(group: Any) -> dict[str, Any]:
    """The datasets of a layer's group; it may hold groups of layers with longer names, too."""
    return {name: item for name, item in group.items() if not _is_group(item)}


def _wrong_number(layer: Layer, count: int, path: PathLike) -> str:
    return (
        f"incompatible number of blobs for layer {layer.name}: {os.fspath(path)} has {count},"
        f" the net {len(layer.blobs)}"
    )


def save(net: Net, path: PathLike) -> None:
    """Write a .caffemodel.h5: the parameters that a layer owns; shared ones once. Needs h5py."""
    names = {layer.name for layer in net.layers}
    with replacing(path) as temporary, h5py().File(temporary, "w") as file:
        data = file.create_group("data")
        for i, (layer, following) in enumerate(_with_following(net.layers)):
            if following == 0 and _is_path(layer.name) and not _starts_with_one(layer.name, names):
                group = data.require_group(layer.name)
            else:
                group = file.require_group(_APART).create_group(str(i))
                group.attrs.update({_NAME: layer.name, _FOLLOWING: following})
            for k, blob in enumerate(layer.blobs):
                if net.owns_param(layer, k):
                    group.create_dataset(str(k), data=blob.data)


# ---- names -------------------------------------------------------------------------------------


def _with_following(layers: list[Layer]) -> list[tuple[Layer, int]]:
    """Each layer with the number of those behind it that have its name."""
    seen: dict[str, int] = {}
    pairs = []
    for layer in reversed(layers):
        pairs.append((layer, seen.get(layer.name, 0)))
        seen[layer.name] = pairs[-1][1] + 1
    return pairs[::-1]


def _is_path(name: str) -> bool:
    """True where HDF5 keeps a name as it is: not for "", "a//b", "/a" or "./a"."""
    return not {"", "."} & set(name.split("/"))


def _starts_with_one(name: str, names: set[str]) -> bool:
    """Is the name below another one of `names`, as a/b/c is below a and a/b?"""
    parts = name.split("/")
    return any("/".join(parts[:k]) in names for k in range(1, len(parts)))


# ---- files -------------------------------------------------------------------------------------


def _is_group(item: Any) -> bool:
    return isinstance(item, h5py().Group)


@contextmanager
def _hdf5_file(path: PathLike) -> Iterator[Any]:
    """The file open for reading; WeightsError where something in it cannot be read."""
    module = h5py()
    try:
        with module.File(path, "r") as file:
            yield file
    except WeightsError:
        raise
    except Exception as error:  # h5py has many, and a damaged file shows more of them
        raise WeightsError(f"failed to read HDF5 file {os.fspath(path)}: {error}") from error
