"""Images and labels from a list of image files. Needs OpenCV, at the first layer built."""

from __future__ import annotations

import codecs
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import process
from ..data.image import read_image
from ..data.image_source import ImageSource, Item
from ..data.prefetch import Source
from ..data.transformer import DataTransformer
from ..errors import MissingFileError, ModelError
from ..proto import caffe_pb2
from .data_layer import PrefetchingData

log = logging.getLogger("pycaffe_lite")


class ImageData(PrefetchingData):
    """Two tops, images (batch_size, C, h, w) and labels (batch_size,), from listed image files.

    A line of `image_data_param { source }` is a file's name, a space, a whole number; the last
    space counts, so names may have spaces. `root_folder` is put before each name as it is: let it
    end with a slash. Images have three channels (blue, green, red), without `is_color` one; with
    `new_height` and `new_width` they are resized, then transformed as transform_param says.

    Lines come in their order, after the last the first again. With `shuffle` each round has an
    order of its own. With `rand_skip` the first round begins behind fewer than so many lines, by
    chance. The first image of a batch decides on the shape of the top.
    """

    tops = (2, 2)

    def make_source(self, top: Any, seed: int) -> Source:
        param = self.param
        if param.label_type != caffe_pb2.ImageDataParameter.IMAGE:
            raise ModelError("image_data_param { label_type } is not supported: labels are numbers")
        if bool(param.new_height) != bool(param.new_width):
            raise ModelError(
                "new_height and new_width must be set together or not at all, got"
                f" {param.new_height} and {param.new_width}"
            )
        several = self.phase == caffe_pb2.TRAIN and process.solver_count() > 1
        if several and not (param.shuffle or param.rand_skip):
            log.warning(
                "layer %r: solvers that train together read the same images in the same order; set"
                " shuffle or rand_skip",
                self.name,
            )
        transformer = DataTransformer(self.spec.transform_param, self.phase)
        return _ListedImages(param, transformer, top[0].dtype, seed)


class ListedImage(NamedTuple):
    """A line of a list: a file's name, its label, the line's number from 1."""

    name: str
    label: int
    line: int


def read_image_list(source: str | os.PathLike[str]) -> list[ListedImage]:
    """The lines "name label" of a list file, split at the last space; empty ones are left out.

    A tab is as good as the space, as in Caffe's first reader.

    Raises MissingFileError, and ModelError for a line without a label, or one whose label is no
    whole number (Caffe takes that for 0), and for a file without lines.
    """
    path = os.fspath(source)
    try:
        content = Path(source).read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        raise MissingFileError(f"failed to open source file: {path}: no such file") from None
    except OSError as error:
        raise ModelError(f"failed to open source file: {path}: {error.strerror}") from error
    found, text = [], content.decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):  # a name may hold other line ends
        if line.strip():
            match = re.fullmatch(r"(.+)[ \t]([+-]?[0-9]{1,9})", line.rstrip(), re.DOTALL)
            if match is None:
                raise ModelError(
                    f"{path} line {number}: expected a file name, a space and a whole number as"
                    f" label, got {line.rstrip()!r}"
                )
            found.append(ListedImage(match[1], int(match[2]), number))
    if not found:
        raise ModelError(f"source file {path} is empty: it lists no image")
    return found


class _ListedImages(ImageSource):
    def __init__(self, param: Any, transformer: DataTransformer, dtype: Any, seed: int) -> None:
        super().__init__(transformer, param.batch_size, True, dtype, seed)
        self._source = param.source
        self._list = read_image_list(param.source)
        self._color: bool = param.is_color
        self._size = (param.new_height, param.new_width) if param.new_height else None
        self._root: str = param.root_folder
        self._folder = Path.cwd()  # a thread reads later, when it may be another
        self._order: np.ndarray | None = None  # of this round
        self._order_drawn_from: Any = None  # the generator's state before
        self._next = 0
        if param.shuffle:
            self._shuffle()
        if param.rand_skip:
            if param.rand_skip > len(self._list):
                raise ModelError(
                    f"not enough points to skip: rand_skip {param.rand_skip}, and {self._source}"
                    f" lists {len(self._list)} images"
                )
            self._next = int(self.rng.integers(param.rand_skip))

    def item(self) -> Item:
        index = self._next if self._order is None else int(self._order[self._next])
        name, label, line = self._list[index]
        what = f"{self._source} line {line}"
        try:
            # As text: a root folder without a slash at its end is the beginning of a name.
            image = read_image(self._folder / (self._root + name), self._color, self._size)
        except (ModelError, MissingFileError) as error:
            raise type(error)(f"{what}: {error}") from error
        return Item(image, label, what)

    def advance(self) -> None:
        self._next += 1
        if self._next == len(self._list):
            self._next = 0
            if self._order is not None:
                self._shuffle()

    def _shuffle(self) -> None:
        self._order_drawn_from = self.rng.bit_generator.state
        self._order = self.rng.permutation(len(self._list))

    def position(self) -> dict[str, Any]:
        return {
            "next": self._next,
            "images": len(self._list),
            "order_drawn_from": self._order_drawn_from,
        }

    def seek(self, position: dict[str, Any]) -> None:
        if position["images"] != len(self._list):
            raise ModelError(
                f"{self._source} lists {len(self._list)} images; when the state was kept there were"
                f" {position['images']}"
            )
        drawn_from = position["order_drawn_from"]
        if (drawn_from is None) != (self._order is None):
            raise ModelError("the state was kept with another value of shuffle")
        if drawn_from is not None:
            self.rng.bit_generator.state = drawn_from
            self._shuffle()
        self._next = position["next"]
