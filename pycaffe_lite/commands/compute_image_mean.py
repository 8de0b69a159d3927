"""Compute the mean image of a database, and print its channels' means: INPUT_DB [OUTPUT_FILE].

OUTPUT_FILE is what `mean_file` of a net names: a binary BlobProto of 1 x channels x height x width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from . import show
from ._flags import FlagParser

if TYPE_CHECKING:
    import argparse

    import numpy as np

    from ..data.database import Database


def add_arguments(parser: FlagParser) -> None:
    """The arguments of `pycaffe-lite compute-image-mean`."""
    parser.usage = f"{parser.prog} [FLAGS] INPUT_DB [OUTPUT_FILE]"
    parser.add_flag("backend", "lmdb", "lmdb (default) or leveldb")
    parser.add_argument("database", metavar="INPUT_DB", help="images of one size")
    parser.add_argument("output", metavar="OUTPUT_FILE", nargs="?", help="the mean image")


def run(args: argparse.Namespace) -> int:
    """Read, write, print. Raises ModelError for images of several sizes or none."""
    from ..data.database import open_database
    from ..prototxt import write_binary
    from ..replacement import replacing

    with open_database(args.database, args.backend) as database:
        mean = mean_image(database)
    if args.output is not None:
        with replacing(args.output) as temporary:
            write_binary(temporary, _blob(mean))
    lines = [f"mean_value channel [{c}]: {mean[c].mean():.6g}" for c in range(len(mean))]
    show("\n".join(lines))
    return 0


def mean_image(database: Database) -> np.ndarray:
    """The mean (C, H, W), float64, of a database's images; encoded ones are decoded.

    Sums are float64, Caffe's float. Raises ModelError that names the first record whose image has
    another shape than those before it, or that holds none; also where there are no records.
    """
    import numpy as np

    from ..data.datum import read_datum
    from ..progress import progress

    total, count = np.empty(0), 0
    number = len(database) if database.backend == "LMDB" else None  # LevelDB would read them all
    with progress("images", number) as advance:
        for key, value in database.records():
            image, _ = read_datum(value, what=f"record {key!r} of {database.path}")
            if not count:
                total = np.zeros(image.shape)
            if image.shape != total.shape:
                raise ModelError(
                    f"record {key!r} of {database.path} has shape {image.shape} (channels, height,"
                    f" width), those before it {total.shape}; a mean needs images of one size"
                )
            total += image
            count += 1
            advance(1)
    if not count:
        raise ModelError(f"database {database.path} holds no records")
    return total / count


def _blob(mean: np.ndarray) -> Any:
    from ..proto import caffe_pb2

    channels, height, width = mean.shape
    blob = caffe_pb2.BlobProto(num=1, channels=channels, height=height, width=width)
    blob.data.extend(mean.ravel().tolist())
    return blob
