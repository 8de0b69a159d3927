"""Run a net and store what its blobs hold: WEIGHTS PROTOTXT BLOBS DATASETS NUM_BATCHES DB_TYPE.

Each item of a blob becomes a record of its dataset, numbered from 0; DB_TYPE is lmdb or leveldb,
or npz or h5 for files with one array, named as the blob. The net is in phase TEST and brings its
own data. Datasets appear when complete.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..errors import ModelError, did_you_mean
from . import show
from ._flags import FlagParser

if TYPE_CHECKING:
    import argparse

    import numpy as np

    from ..blob import Blob
    from ..net import Net

_DB_TYPES = ("lmdb", "leveldb", "npz", "h5")


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite extract-features`."""
    parser.usage = (
        f"{parser.prog} [-h] [-v] WEIGHTS PROTOTXT BLOB1[,BLOB2] DB1[,DB2] NUM_BATCHES DB_TYPE"
        " [CPU|GPU] [DEVICE_ID]"
    )
    parser.use_flags()
    parser.add_argument("weights", metavar="WEIGHTS", help="a .caffemodel or HDF5 file")
    parser.add_argument("model", metavar="PROTOTXT", help="a net with layers that read data")
    parser.add_argument("blobs", metavar="BLOBS", help="names, with commas between")
    parser.add_argument("datasets", metavar="DATASETS", help="as many new databases or files")
    parser.add_argument("batches", metavar="NUM_BATCHES", type=int, help="forward passes")
    parser.add_argument("kind", metavar="DB_TYPE", help=", ".join(_DB_TYPES))
    parser.add_argument("mode", metavar="CPU|GPU", nargs="?", default="CPU", help="default: CPU")
    parser.add_argument(
        "device", metavar="DEVICE_ID", nargs="?", type=int, default=0, help="of the GPU; default: 0"
    )


def run(args: argparse.Namespace) -> int:
    """Build the net, run it, write. Raises ModelError, MissingFileError, RuntimeError, OSError."""
    from ..progress import progress

    blobs, datasets = args.blobs.split(","), args.datasets.split(",")
    kind = args.kind.lower()
    _check(args, blobs, datasets, kind)
    net = _net(args)
    for name in blobs:
        if name not in net.blobs:
            raise ModelError(f"unknown blob: {name!r}{did_you_mean(name, net.blobs)}")
    with ExitStack() as stack:
        outputs = [
            _OUTPUTS[kind](stack, path, name) for name, path in zip(blobs, datasets, strict=True)
        ]
        advance = stack.enter_context(progress("batches", args.batches))
        for _ in range(args.batches):
            net.forward()
            for output in outputs:
                output.add(net.blobs[output.name])
            advance(1)
    for output in outputs:
        show(f"{output.path}: {output.count} features of {output.name}")
    return 0


def _check(args: argparse.Namespace, blobs: list[str], datasets: list[str], kind: str) -> None:
    if len(blobs) != len(datasets):
        raise ModelError(
            "the number of blob names must equal that of dataset names:"
            f" {len(blobs)} vs. {len(datasets)}"
        )
    if len(set(datasets)) < len(datasets):
        raise ModelError(f"two datasets have one name: {args.datasets}")
    if kind not in _DB_TYPES:
        raise ModelError(
            f"unknown DB_TYPE: {args.kind} (known: {', '.join(_DB_TYPES)})"
            f"{did_you_mean(kind, _DB_TYPES)}"
        )
    if args.batches < 1:
        raise ModelError(f"NUM_BATCHES must be positive, got {args.batches}")
    if args.mode.upper() not in ("CPU", "GPU"):
        raise ModelError(f"the mode is CPU or GPU, got {args.mode}")


def _net(args: argparse.Namespace) -> Net:
    from .. import TEST, Net, set_device, set_mode_cpu, set_mode_gpu

    if args.mode.upper() == "GPU":
        set_device(args.device)
        set_mode_gpu()
    else:
        set_mode_cpu()
    return Net(args.model, TEST, weights=args.weights)


# ---- where features go ---------------------------------------------------------------------------


class _Output(ABC):
    """A dataset being written; it is complete when the stack that it was made with is left."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.count = 0  # items written

    def add(self, blob: Blob) -> None:
        """Write a batch: the items along the blob's first axis."""
        rows = blob.data.reshape(blob.data.shape or (1,))
        self._write(blob, rows)
        self.count += len(rows)

    @abstractmethod
    def _write(self, blob: Blob, rows: np.ndarray) -> None: ...


class _Records(_Output):
    """A database of Datum records, keys of ten digits."""

    backend = "lmdb"

    def __init__(self, stack: ExitStack, path: str, name: str) -> None:
        from ..data.database import create_database

        super().__init__(path, name)
        self._database = stack.enter_context(create_database(path, self.backend))

    def _write(self, blob: Blob, rows: np.ndarray) -> None:
        from ..data.datum import write_datum

        # Caffe's four axes; ModelError for a blob of more.
        items = rows.reshape(blob.num, blob.channels, blob.height, blob.width)
        for k, item in enumerate(items, self.count):
            self._database.put(b"%010d" % k, write_datum(item))


class _LevelDbRecords(_Records):
    backend = "leveldb"


class _Hdf5(_Output):
    """An HDF5 file with one dataset, which grows."""

    def __init__(self, stack: ExitStack, path: str, name: str) -> None:
        from ..extras import h5py
        from ..replacement import replacing

        super().__init__(path, name)
        module = h5py()
        temporary = stack.enter_context(replacing(path))
        self._file: Any = stack.enter_context(module.File(temporary, "w"))

    def _write(self, blob: Blob, rows: np.ndarray) -> None:
        if not self.count:
            limit = (None, *rows.shape[1:])
            self._file.create_dataset(self.name, data=rows, maxshape=limit, chunks=True)
            return
        data = self._file[self.name]
        _check_row(self, rows, data.shape)
        data.resize(self.count + len(rows), axis=0)
        data[self.count :] = rows


class _Npz(_Output):
    """A NumPy file; the features are held until the end."""

    def __init__(self, stack: ExitStack, path: str, name: str) -> None:
        from ..replacement import replacing

        super().__init__(path, name)
        self._temporary = stack.enter_context(replacing(path))
        self._batches: list[np.ndarray] = []
        stack.push(self._end)

    def _write(self, blob: Blob, rows: np.ndarray) -> None:
        if self._batches:
            _check_row(self, rows, self._batches[0].shape)
        self._batches.append(rows.copy())

    def _end(self, kind: Any, error: Any, trace: Any) -> None:
        import numpy as np

        if kind is None:  # not np.savez, whose own argument `file` no blob could be named
            with (
                zipfile.ZipFile(self._temporary, "w") as archive,
                archive.open(f"{self.name}.npy", "w", force_zip64=True) as member,
            ):
                np.lib.format.write_array(member, np.concatenate(self._batches))


def _check_row(output: _Output, rows: np.ndarray, first: tuple[int, ...]) -> None:
    if rows.shape[1:] != first[1:]:
        raise ModelError(
            f"blob {output.name!r} has items of shape {rows.shape[1:]}, in the first batch they"
            f" were {first[1:]}; one array cannot hold both"
        )


_OUTPUTS: dict[str, type[Any]] = {
    "lmdb": _Records,
    "leveldb": _LevelDbRecords,
    "npz": _Npz,
    "h5": _Hdf5,
}
