"""Data from HDF5 files, and blobs into one. Needs h5py, at the first layer built and not before."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..blob import describe
from ..errors import MissingFileError, ModelError
from ..extras import h5py
from ..layer import Layer
from ..replacement import replacing
from .data_layer import share_of_records


class HDF5Data(Layer):
    """A top for each dataset of its name, batch after batch over the rows of the listed files.

    `source` names a text file with the names of HDF5 files, between white space; both kinds of
    names are relative to the working directory. Datasets hold integers or floats and have as many
    rows (axis 0) as the others of their file; a top is (batch_size, *axes of a row). Rows come in
    order, file after file, then from the first file again; a batch may span files. With `shuffle`
    the order of the files is drawn anew at each round and that of a file's rows whenever it begins;
    set_random_seed makes them repeat (Caffe's seed does not reach its shuffling). A file is read
    whole, one at a time, and a single one only once. Where several solvers train together
    (`set_solver_count`), a net in phase TRAIN takes every so many-th row only, its own.
    """

    bottoms = 0
    tops = (1, None)
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        if self.spec.HasField("transform_param"):
            raise ModelError("HDF5Data does not transform data: leave out transform_param")
        if self.param.batch_size < 1:
            raise ModelError(f"batch_size must be positive, got {self.param.batch_size}")
        self._dtype = top[0].dtype
        self._rank, self._count = share_of_records(self.phase)
        self._offset = 0  # rows passed, modulo the count
        self._generator = self.ops.rng(int(self.rng.integers(2**63)))
        self._files = _listed(self.param.source)
        self._shapes: list[tuple[int, ...]] = []  # of a row of each top
        self._file = -1
        self._data: list[Any] = []
        self._next_file()
        self._shapes = [data.shape[1:] for data in self._data]

    def reshape(self, bottom: Any, top: Any) -> None:
        for y, shape in zip(top, self._shapes, strict=True):
            y.reshape(self.param.batch_size, *shape)

    def forward(self, bottom: Any, top: Any) -> None:
        done, batch = 0, self.param.batch_size
        while done < batch:
            length = len(self._data[0])
            start = self._row + (self._rank - self._offset) % self._count
            stop = min(start + (batch - done - 1) * self._count + 1, length)
            rows = slice(start, stop, self._count)
            count = len(range(start, stop, self._count))
            for y, data in zip(top, self._data, strict=True):
                picked = data[rows] if self._order is None else data[self._order[rows]]
                y.data[done : done + count] = picked
            done += count
            self._pass_rows((stop if done == batch else length) - self._row)

    def _pass_rows(self, count: int) -> None:
        self._row += count
        self._offset = (self._offset + count) % self._count
        if self._row == len(self._data[0]):
            self._next_file()

    def _next_file(self) -> None:
        """Go to the first row of the next file, in the order drawn."""
        self._file = (self._file + 1) % len(self._files)
        if self._file == 0 and self.param.shuffle:
            order = self._generator.permutation(len(self._files))
            self._files = [self._files[k] for k in order]
        self._begin_file()

    def _begin_file(self) -> None:
        if len(self._files) > 1 or not self._data:
            self._data = self._read(self._files[self._file])
        self._drawn_from = self._generator.bit_generator.state
        count = len(self._data[0])
        self._order = self._generator.permutation(count) if self.param.shuffle else None
        self._row = 0

    def data_state(self) -> dict[str, Any]:
        """Where the next forward stands in the data, in values that JSON can hold."""
        return {
            "files": list(self._files),
            "file": self._file,
            "row": self._row,
            "offset": self._offset,
            "generator": self._drawn_from,
        }

    def restore_data_state(self, state: dict[str, Any]) -> None:
        """Go on as the layer did whose `data_state()` this is: the same batches follow.

        Raises ModelError where the files are others, or the one it stands in has become shorter.
        """
        if sorted(state["files"]) != sorted(self._files):
            raise ModelError(
                f"the data's state is of the files {sorted(state['files'])}; {self.param.source}"
                f" lists {sorted(self._files)}"
            )
        self._files, self._file = list(state["files"]), state["file"]
        self._generator.bit_generator.state = state["generator"]
        self._begin_file()
        if state["row"] >= len(self._data[0]):
            raise ModelError(
                f"the data's state is at row {state['row']} of {self._files[self._file]}, which"
                f" has {len(self._data[0])} rows"
            )
        self._row, self._offset = state["row"], state["offset"]

    def _read(self, path: str) -> list[Any]:
        """Each top's dataset, whole, in the top's precision."""
        with _open(path) as file:
            found = [self._dataset(file, path, name) for name in self.spec.top]
            if len({len(data) for data in found}) > 1 or not len(found[0]):
                rows = ", ".join(f"{d.name} {len(d)}" for d in found)
                raise ModelError(f"datasets of {path} must have equally many rows, not 0: {rows}")
            for k, shape in enumerate(self._shapes):
                if found[k].shape[1:] != shape:
                    raise ModelError(
                        f"dataset {self.spec.top[k]!r} of {path} has rows of shape"
                        f" `{describe(found[k].shape[1:])}`, in the first file they are"
                        f" `{describe(shape)}`"
                    )
            return [data[()].astype(self._dtype, copy=False) for data in found]

    def _dataset(self, file: Any, path: str, name: str) -> Any:
        data = file.get(name)
        if not hasattr(data, "shape"):
            raise ModelError(
                f"failed to find HDF5 dataset: {name!r} in {path}, which has {sorted(file)}"
            )
        if not any(np.issubdtype(data.dtype, group) for group in (np.integer, np.floating)):
            raise ModelError(f"dataset {name!r} of {path} is of {data.dtype}, not int or float")
        if not data.shape:
            raise ModelError(f"dataset {name!r} of {path} must have at least 1 axis, got 0")
        return data


class HDF5Output(Layer):
    """Writes its two bottoms to a file at each forward: datasets "data" and "label", of four axes.

    The first forward writes a new file `hdf5_output_param { file_name }`, in the place of one that
    is there. Each later one adds its rows behind those of the last, where Caffe ends with an error
    since the datasets exist. The file is complete whenever forward has returned.
    """

    bottoms = 2
    tops = 0
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        self._path = Path(self.param.file_name)
        if not self.param.file_name:
            raise ModelError("hdf5_output_param must have a file_name")
        if not self._path.absolute().parent.is_dir():
            raise ModelError(f"failed to open HDF5 file: {self._path}: its folder does not exist")
        self._begun = False
        h5py()

    def reshape(self, bottom: Any, top: Any) -> None:
        if bottom[0].num != bottom[1].num:
            raise ModelError(
                "data and label should have the same first dimension:"
                f" {bottom[0].num} vs. {bottom[1].num}"
            )
        for x in bottom:
            _legacy(x)

    def forward(self, bottom: Any, top: Any) -> None:
        named = dict(zip(("data", "label"), bottom, strict=True))
        if self._begun:
            with _open(os.fspath(self._path), "r+") as file:
                self._add(file, named)
            return
        with replacing(self._path) as temporary, h5py().File(temporary, "w") as file:
            for name, x in named.items():
                shape = _legacy(x)
                limit = (None, *shape[1:])
                file.create_dataset(name, data=x.data.reshape(shape), maxshape=limit, chunks=True)
        self._begun = True

    def _add(self, file: Any, named: dict[str, Any]) -> None:
        for name, x in named.items():
            if file[name].shape[1:] != _legacy(x)[1:]:
                raise ModelError(
                    f"{name} has rows of shape `{describe(_legacy(x)[1:])}`, in {self._path} they"
                    f" are `{describe(file[name].shape[1:])}`"
                )
        for name, x in named.items():
            end = len(file[name])
            file[name].resize(end + x.num, axis=0)
            file[name][end:] = x.data.reshape(_legacy(x))

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for x, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                x.diff[...] = 0


def _legacy(x: Any) -> tuple[int, ...]:
    """The four axes of a blob; ModelError where it has more."""
    return (x.num, x.channels, x.height, x.width)


def _listed(source: str) -> list[str]:
    """The names in a list file."""
    try:
        content = Path(source).read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        raise MissingFileError(f"failed to open source file: {source}") from None
    except OSError as error:
        raise ModelError(f"failed to open source file: {source}: {error.strerror}") from error
    if content.startswith(b"\x89HDF"):
        raise ModelError(f"{source} is an HDF5 file; source names a text file that lists such")
    names = content.decode("utf-8", "surrogateescape").split()
    if not names:
        raise ModelError(f"must have at least 1 HDF5 filename listed in {source}")
    return names


@contextmanager
def _open(path: str, mode: str = "r") -> Iterator[Any]:
    """The HDF5 file; MissingFileError, or ModelError where something in it cannot be read."""
    if not Path(path).exists():
        raise MissingFileError(f"failed to open HDF5 file: {path}: no such file")
    module = h5py()
    try:
        with module.File(path, mode) as file:
            yield file
    except ModelError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:  # h5py: any of them
        verb = "read" if mode == "r" else "write"
        raise ModelError(f"failed to {verb} HDF5 file {path}: {error}") from error
