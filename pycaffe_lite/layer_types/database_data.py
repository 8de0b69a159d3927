"""Images and labels from a database: LMDB or LevelDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..data.database import open_database
from ..data.datum import read_datum
from ..data.image_source import ImageSource, Item
from ..data.prefetch import Source
from ..data.transformer import DataTransformer
from ..errors import ModelError
from .data_layer import PrefetchingData, share_of_records

_READ = {
    "source", "batch_size", "backend", "rand_skip", "force_encoded_color", "prefetch",
    "disk_reader_threads", "huge_video_dataset", "verbose",  # a fork's, of speed and its log
}  # fmt: skip


class Data(PrefetchingData):
    """Tops (batch_size, C, h, w), images after transform_param, and if wanted (batch_size,) labels.

    The records of the database `source`, in the order of their keys, after the last the first
    again. The first image of each batch says what shape the batch has, the others must have it too
    (after cropping). Encoded images are decoded with the channels that they have, or as
    `force_color`, `force_gray` or the older `force_encoded_color` say. Up to `rand_skip` records,
    fewer than that by chance, are left out at the very start, as Caffe did as long as it had the
    field. Where several solvers train together (`set_solver_count`), a net in phase TRAIN takes
    every so many-th record only, its own.

    Raises MissingFileError for a database that is not there, ModelError for one that is empty or
    damaged, naming the record's key, RuntimeError where the package that reads it is missing.
    """

    def make_source(self, top: Any, seed: int) -> Source:
        self._check_fields()
        transformer = DataTransformer(self.spec.transform_param, self.phase)
        transformer.force_color |= self.param.force_encoded_color
        return _Records(self, transformer, labelled=len(top) > 1, dtype=top[0].dtype, seed=seed)

    def _check_fields(self) -> None:
        """Refuse fields that would change what is read."""
        for field, _ in self.param.ListFields():
            if field.name not in (*_READ, *self.moved_fields):
                raise ModelError(f"data_param {{ {field.name} }} is not supported")


class _Records(ImageSource):
    """A cursor in a database, and how many records it has passed."""

    def __init__(self, layer: Data, transformer: DataTransformer, **kwargs: Any) -> None:
        param = layer.param
        super().__init__(transformer, param.batch_size, **kwargs)
        self._path: str = param.source
        self._backend: str = type(param).DB.Name(param.backend)
        self._rank, self._count = share_of_records(layer.phase)
        self._offset = 0
        self._database = open_database(self._path, self._backend)
        self._begin()
        for _ in range(int(self.rng.integers(param.rand_skip)) if param.rand_skip else 0):
            self._next()

    # ---- the cursor ----------------------------------------------------------------------------

    def _begin(self, first: bytes | None = None) -> None:
        self._records: Iterator[tuple[bytes, bytes]] = self._database.records(first)
        self._next()

    def _next(self) -> None:
        """To the next record, around the end."""
        record = next(self._records, None)
        if record is None:
            self._records = self._database.records()
            record = next(self._records, None)
            if record is None:
                raise ModelError(f"database {self._path} ({self._backend}) is empty")
        self._key, self._value = record

    def item(self) -> Item:
        while self._offset % self._count != self._rank:
            self.advance()
        name = f"record {self._key.decode('ascii', 'backslashreplace')!r} of {self._path}"
        made = self.transformer
        image, label = read_datum(self._value, made.force_color, made.force_gray, name)
        return Item(image, label, name)

    def advance(self) -> None:
        self._next()
        self._offset += 1

    # ---- its place -----------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        return {"key": self._key.hex(), "offset": self._offset}

    def seek(self, position: dict[str, Any]) -> None:
        key = bytes.fromhex(position["key"])
        self._begin(key)
        if self._key != key:
            raise ModelError(f"database {self._path} ({self._backend}) has no record {key!r}")
        self._offset = position["offset"]

    def close(self) -> None:
        self._records = iter(())  # the one before reads in the database until it is dropped
        self._database.close()
