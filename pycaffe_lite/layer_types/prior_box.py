"""The boxes that detections are told relative to."""

from __future__ import annotations

from typing import Any

from ..blob import Blob, describe
from ..boxes import PriorRules, prior_boxes, prior_sizes
from ..errors import ModelError
from ..layer import Layer


class PriorBox(Layer):
    """Boxes around the centres of a feature map's cells, in [0, 1] of the image (SSD).

    Bottoms: the map (N, C, H, W) and the image (N, C, h, w), of which only sizes count. The top is
    (1, 2, H W P 4): in the first row boxes (xmin, ymin, xmax, ymax), cell by cell, in the second
    the `variance` (0.1) of each coordinate. P boxes a cell, for each `min_size` in turn: a square
    of it; where there is a `max_size`, a square of sqrt(min max); for each `aspect_ratio` and, with
    `flip` (true), its inverse, width min sqrt(ratio), height min / sqrt(ratio); a ratio of 1 and
    one given twice count once. Sizes are cut to whole pixels. Centres: (cell + `offset`) `step`,
    by default the image's size over the map's; `img_size`, `img_h`, `img_w` replace the image's.
    `clip` (false) keeps boxes inside the image. No gradient: zeros.
    """

    bottoms = 2

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.smallest, self.largest = list(param.min_size), list(param.max_size)
        if not self.smallest:
            raise ModelError("must provide min_size")
        if self.largest and len(self.largest) != len(self.smallest):
            raise ModelError(
                "there must be one max_size for each min_size, or none:"
                f" {len(self.largest)} for {len(self.smallest)}"
            )
        if min(self.smallest) <= 0:
            raise ModelError(f"min_size must be positive, got {min(self.smallest):g}")
        for low, high in zip(self.smallest, self.largest, strict=False):
            if high <= low:
                raise ModelError(
                    f"max_size must be greater than min_size, got {high:g} for {low:g}"
                )
        self.box_sizes = prior_sizes(self.smallest, self.largest, self._ratios())
        self.variances = self._variances()
        self.given_image = _pair(param, "img_size", "img_h", "img_w")
        self.given_distance = _pair(param, "step", "step_h", "step_w")
        self._boxes = Blob()
        self._made_for: tuple[Any, ...] = ()

    def _ratios(self) -> list[float]:
        known = [1.0]
        for ratio in self.param.aspect_ratio:
            if ratio <= 0:
                raise ModelError(f"aspect_ratio must be positive, got {ratio:g}")
            if all(abs(ratio - other) >= 1e-6 for other in known):
                known += [ratio, 1 / ratio] if self.param.flip else [ratio]
        return known

    def _variances(self) -> list[float]:
        given = list(self.param.variance) or [0.1]
        if len(given) not in (1, 4):
            raise ModelError(f"must provide 1 variance or exactly 4 variance, got {len(given)}")
        if min(given) <= 0:
            raise ModelError(f"variance must be positive, got {min(given):g}")
        return given * (4 // len(given))

    def reshape(self, bottom: Any, top: Any) -> None:
        for x in bottom:
            if len(x.shape) != 4:
                raise ModelError(f"must have 4 axes (N, C, H, W), got `{describe(x.shape)}`")
        (height, width), cells = bottom[0].shape[2:], len(self.box_sizes)
        top[0].reshape(1, 2, height * width * cells * 4)

    def forward(self, bottom: Any, top: Any) -> None:
        shapes = (bottom[0].shape[2:], bottom[1].shape[2:])
        if self._made_for != shapes:
            self._make(*shapes, top[0].shape)
            self._made_for = shapes
        top[0].data[...] = self.state(self._boxes)

    def _make(self, cells: Any, image: Any, shape: tuple[int, ...]) -> None:
        height, width = cells
        image = self.given_image or image
        distance = self.given_distance or tuple(
            i / max(c, 1) for i, c in zip(image, cells, strict=True)
        )
        rules = PriorRules(self.box_sizes, self.param.offset, distance, image, self.param.clip)
        self._boxes.reshape(shape)
        rows = self._boxes.data.reshape(2, -1, 4)
        rows[0] = prior_boxes(height, width, rules)
        rows[1] = self.variances

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for x, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                x.diff[...] = 0


def _pair(param: Any, both: str, height: str, width: str) -> tuple[float, float] | None:
    """(height, width) as two fields or one for both give it, None where none is set."""
    apart = [param.HasField(field) for field in (height, width)]
    if param.HasField(both) and any(apart):
        raise ModelError(f"either {both} or {height}/{width} should be specified; not both")
    if not (param.HasField(both) or any(apart)):
        return None
    found = (getattr(param, both),) * 2
    if any(apart):
        found = (getattr(param, height), getattr(param, width))
    if min(found) <= 0:
        raise ModelError(f"{both} or {height} and {width} must be positive, got {found}")
    return found
