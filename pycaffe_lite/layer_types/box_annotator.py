"""Which regions does a detector learn from? The hardest of each image."""

from __future__ import annotations

from math import prod
from typing import Any

from ..blob import describe
from ..boxes import best_first
from ..errors import ModelError
from ..layer import Layer


class BoxAnnotatorOHEM(Layer):
    """Labels and weights of the `roi_per_img` regions an image with the largest loss (R-FCN).

    Bottoms: regions (R, 5, ...), rows [batch index, ...]; the loss of each (R, 1, ...); labels like
    it; weights of the boxes (R, C, ...). The tops are labels and weights, those of all other
    regions `ignore_label` (-1) and 0. At equal losses the first counts. Works on the host: it sorts
    a few hundred numbers. No gradient: to ask for one is an error.
    """

    bottoms = 4
    tops = 2
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        if self.param.roi_per_img < 1:
            raise ModelError(f"roi_per_img must be > 0, got {self.param.roi_per_img}")

    def reshape(self, bottom: Any, top: Any) -> None:
        regions, losses, labels, weights = (b.shape for b in bottom)
        if len(weights) < 2:
            raise ModelError(f"weights must be (R, C, ...), got `{describe(weights)}`")
        places = prod(weights[2:])
        self.size = (weights[0], weights[1], places)
        wanted = {"regions": 5, "losses": 1, "labels": 1}
        for (what, each), shape in zip(wanted.items(), (regions, losses, labels), strict=True):
            if prod(shape) != weights[0] * each * places or shape[:1] != weights[:1]:
                raise ModelError(
                    f"{what} must be {each} for each of {weights[0]} x {places} weights' places,"
                    f" got `{describe(shape)}`"
                )
        top[0].reshape(labels)
        top[1].reshape(weights)

    def forward(self, bottom: Any, top: Any) -> None:
        count, channels, places = self.size
        regions, losses, labels, weights = (
            b.array(self.ops, write=False).reshape(count, each, places)
            for b, each in zip(bottom, (5, 1, 1, channels), strict=True)
        )
        chosen = self.xp.zeros((count, places), bool)
        left: dict[int, int] = {}
        for at in best_first(losses.reshape(-1)):
            row, place = divmod(int(at), max(places, 1))
            image = int(regions[row, 0, place])
            left.setdefault(image, self.param.roi_per_img)
            chosen[row, place] = left[image] > 0
            left[image] -= 1
        marked = self.xp.where(chosen[:, None], labels, self.param.ignore_label)
        top[0].data[...] = marked.reshape(top[0].shape)
        top[1].data[...] = (weights * chosen[:, None]).reshape(top[1].shape)

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if any(propagate_down):
            raise ModelError("the choice has no gradient; set propagate_down: false for all")
