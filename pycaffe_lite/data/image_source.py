"""How do images and labels become batches? Each is transformed into its place in the batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from ..blob import describe
from ..errors import ModelError
from .prefetch import Batch, Source
from .transformer import DataTransformer


class Item(NamedTuple):
    """An image (C, H, W), its label, and how errors name it."""

    image: np.ndarray
    label: float
    name: str


class ImageSource(Source):
    """Batches of images (batch_size, C, h, w), and with `labelled` of labels (batch_size,).

    Both are of `dtype`. The first image of a batch decides on the shape; ModelError where one after
    it would become another.
    """

    def __init__(
        self, transformer: DataTransformer, batch_size: int, labelled: bool, dtype: Any, seed: int
    ) -> None:
        if batch_size < 1:
            raise ModelError(f"batch_size must be positive, got {batch_size}")
        super().__init__(seed)
        self.transformer = transformer
        self._batch_size, self._labelled, self._dtype = batch_size, labelled, dtype

    @abstractmethod
    def item(self) -> Item:
        """The item that the cursor stands on; asking again gives the same."""

    @abstractmethod
    def advance(self) -> None:
        """Move the cursor to the next item, after the last to the first."""

    def shapes(self) -> list[tuple[int, ...]]:
        item = self.item()
        shapes = [(self._batch_size, *self._shape_of(item)), (self._batch_size,)]
        return shapes if self._labelled else shapes[:1]

    def read(self) -> Batch:
        first = self.item()
        images = np.empty((self._batch_size, *self._shape_of(first)), dtype=self._dtype)
        labels = np.empty(self._batch_size, dtype=self._dtype)
        for k in range(self._batch_size):
            item = first if k == 0 else self.item()
            if self._shape_of(item) != images.shape[1:]:
                raise ModelError(
                    f"{item.name}: the image has shape `{describe(self._shape_of(item))}`, the"
                    f" first of its batch, {first.name}, `{describe(images.shape[1:])}`; images of"
                    " several sizes need crop_size or batch_size 1"
                )
            self.transformer(item.image, images[k], self.rng)
            labels[k] = item.label
            self.advance()
        return [images, labels] if self._labelled else [images]

    def _shape_of(self, item: Item) -> tuple[int, ...]:
        try:
            return self.transformer.output_shape(item.image.shape)
        except ModelError as error:
            raise ModelError(f"{item.name}: {error}") from error
