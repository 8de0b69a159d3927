"""Write the images of a list into a new database, LMDB or LevelDB: ROOTFOLDER/ LISTFILE DB_NAME.

Each line of LISTFILE is a file's name, a space and a label; ROOTFOLDER is put before the name as it
is. Images that cannot be read are left out, with a warning. The database appears when complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import MissingFileError, ModelError
from . import show
from ._flags import FlagParser

if TYPE_CHECKING:
    import argparse

    from ..layer_types.image_data import ListedImage

_AT_ONCE = 128  # images decoded and held together
_COMMIT_EVERY = 1000  # records, as Caffe


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite convert-imageset`."""
    parser.usage = f"{parser.prog} [FLAGS] ROOTFOLDER/ LISTFILE DB_NAME"
    parser.add_flag("gray", False, "one channel; else three: blue, green, red")
    parser.add_flag("shuffle", False, "in an order by chance")
    parser.add_flag("backend", "lmdb", "lmdb (default) or leveldb")
    parser.add_flag("resize_width", 0, "pixels; goes with resize_height")
    parser.add_flag("resize_height", 0, "pixels; 0 (default): as they are")
    parser.add_flag("check_size", False, "images of unequal size are an error")
    parser.add_flag("encoded", False, "store image files, not pixels; of the kind the names say")
    parser.add_flag("encode_type", "", "store image files of this kind: png, jpg ...")
    parser.add_argument("root", metavar="ROOTFOLDER/", help="put before each name of the list")
    parser.add_argument("list", metavar="LISTFILE", help='lines "name label"')
    parser.add_argument("database", metavar="DB_NAME", help="the new database; nothing is there")


def run(args: argparse.Namespace) -> int:
    """Read, convert, write. Raises ModelError, MissingFileError, OSError; no database is left."""
    from ..data.database import create_database
    from ..extras import opencv
    from ..layer_types.image_data import read_image_list
    from ..progress import progress

    opencv()
    form = _form(args)
    images = read_image_list(args.list)
    if args.shuffle:
        _shuffle(images)
    done = 0
    shape: tuple[int, ...] | None = None
    with (
        create_database(args.database, args.backend) as database,
        progress("images", len(images)) as advance,
    ):
        for k, (image, record) in enumerate(_records(form, args.root, images)):
            advance(1)
            if isinstance(record, str):
                logging.getLogger("pycaffe_lite").warning("skipped: %s", record)
                continue
            shape = shape or record.shape
            if args.check_size and record.shape != shape:
                raise ModelError(
                    f"check_size: {image.name} is {record.shape} (channels, height, width), the"
                    f" images before it are {shape}"
                )
            database.put(b"%08d_%s" % (k, os.fsencode(image.name)), record.value)
            done += 1
            if done % _COMMIT_EVERY == 0:
                database.commit()
        if not done:
            raise ModelError(f"none of {len(images)} images could be read{_hint(args.root)}")
    skipped = f"; {len(images) - done} could not be read and were skipped"
    show(f"{args.database}: {done} images{skipped if done < len(images) else ''}")
    return 0


def _hint(root: str) -> str:
    if Path(root).is_dir() and not root.endswith(("/", os.sep)):
        return f"; the root folder is put before each name as it is: give {root}/"
    return ""


def _shuffle(images: list[ListedImage]) -> None:
    import random

    random.shuffle(images)


class _Record(NamedTuple):
    """A serialized Datum, and the (channels, height, width) of its image."""

    value: bytes
    shape: tuple[int, ...]


class _Form(NamedTuple):
    """What becomes of an image."""

    color: bool
    size: tuple[int, int] | None
    encoded: bool
    encode_type: str


def _form(args: argparse.Namespace) -> _Form:
    size = (args.resize_height, args.resize_width)
    if min(size) < 0 or (min(size) == 0 < max(size)):
        raise ModelError(
            f"resize_height and resize_width must be positive, both or neither: got {size[0]} and"
            f" {size[1]}"
        )
    encoded = args.encoded or bool(args.encode_type)
    return _Form(not args.gray, size if size[0] else None, encoded, args.encode_type)


def _records(
    form: _Form, root: str, images: list[ListedImage]
) -> Iterator[tuple[ListedImage, _Record | str]]:
    """Each image with its record, or with why it cannot be read; in several threads, in order."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images), _AT_ONCE):
            some = images[start : start + _AT_ONCE]
            records = pool.map(partial(_record, form, root), some)
            yield from zip(some, records, strict=True)


def _record(form: _Form, root: str, image: ListedImage) -> _Record | str:
    from ..data.datum import write_datum, write_encoded_datum
    from ..data.image import decode_pixels, encode_image, read_content, resize_pixels

    path = root + image.name
    kind = _kind(form, image.name)
    try:
        content = read_content(path)
        shape = _kept_shape(form, kind, path, content)
        if shape is not None:
            return _Record(write_encoded_datum(content, image.label), shape)
        pixels = decode_pixels(content, form.color, path)
    except (ModelError, MissingFileError) as error:
        return str(error)
    if form.size is not None:
        pixels = resize_pixels(pixels, form.size)
    planes = pixels.transpose(2, 0, 1)
    if kind:
        value = write_encoded_datum(encode_image(planes, kind), image.label)
        return _Record(value, planes.shape)
    return _Record(write_datum(planes, image.label), planes.shape)


def _kind(form: _Form, name: str) -> str:
    """The kind of image file to store, without a dot; "" for pixels."""
    if not form.encoded or form.encode_type:
        return form.encode_type.removeprefix(".").lower()
    kind = Path(name).suffix[1:].lower()
    if not kind:
        raise ModelError(f"failed to guess the encoding of {name!r}: give -encode_type")
    return kind


def _kept_shape(form: _Form, kind: str, path: str, content: bytes) -> tuple[int, ...] | None:
    """The image's shape where the file is stored as it is: the kind, size and channels asked for.

    Caffe looks at the image with the channels asked for, not the file's: with -gray it stores
    coloured files.
    """
    from ..data.image import decode_image

    if not kind or form.size is not None:
        return None
    own = Path(path).suffix[1:].lower()
    if own.replace("jpeg", "jpg") != kind.replace("jpeg", "jpg"):
        return None
    try:
        shape = decode_image(content).shape
    except ModelError:  # of 16 bits, say: written anew
        return None
    return shape if shape[0] == (3 if form.color else 1) else None
