"""Layers of YOLO's forks."""

from __future__ import annotations

from math import nextafter
from typing import Any

import numpy as np

from .. import boxes
from ..blob import describe
from ..boxes.yolo import detections
from ..errors import ModelError
from ..layer import Layer
from .detection import read
from .interp import image_shape


class Reorg(Layer):
    """(N, C, H, W) -> (N, C s^2, H / s, W / s), or with `reverse` the way back; s is `stride` (2).

    The order of values is Darknet's: `reverse` puts channel (i s + j) C / s^2 + c to rows i and
    columns j of every s of channel c. The other way reads the bottom as if it were the top of that,
    C / s^2 channels of H s x W s, and hands what comes out on as C s^2 channels: values change
    places between rows. dx is the true gradient. ModelError where sizes are no multiples.
    """

    def reshape(self, bottom: Any, top: Any) -> None:
        n, c, h, w = image_shape(bottom[0])
        s, reverse = self.param.stride, self.param.reverse
        if s < 1:
            raise ModelError(f"stride must be > 0, got {s}")
        if c % (s * s):
            raise ModelError(f"channels must be a multiple of stride^2: {c} vs. {s * s}")
        if not reverse and (h % s or w % s):
            raise ModelError(f"height and width must be multiples of stride {s}, got {h} and {w}")
        part = c // (s * s)
        self.blocks, self.planes = (n, part, h, s, w, s), (n, s, s, part, h, w)
        top[0].reshape(*((n, part, h * s, w * s) if reverse else (n, c * s * s, h // s, w // s)))

    def forward(self, bottom: Any, top: Any) -> None:
        self._move(bottom[0].data, top[0].data)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            self._move(bottom[0].diff, top[0].diff, back=True)

    def _move(self, x: Any, y: Any, back: bool = False) -> None:
        """From x to y, or from y to x."""
        if self.param.reverse:
            a, b = x.reshape(self.planes).transpose(0, 3, 4, 1, 5, 2), y.reshape(self.blocks)
        else:
            a, b = x.reshape(self.blocks).transpose(0, 3, 5, 1, 2, 4), y.reshape(self.planes)
        if back:
            a[...] = b
        else:
            b[...] = a


class _Detections(Layer, abstract=True):
    """Top (1, 1, R, 7) with what `_detect` finds in each image; -1 where there is nothing."""

    host_only = True

    def forward(self, bottom: Any, top: Any) -> None:
        maps = [read(self, x) for x in bottom]
        found = [self._detect([m[image] for m in maps]) for image in range(len(maps[0]))]
        count = sum(map(len, found))
        top[0].reshape(1, 1, count or len(found), 7)
        rows, start = top[0].data[0, 0], 0
        if not count:
            rows[...] = -1
            for image in range(len(found)):
                rows[image, 0] = image
        for image, part in enumerate(found):
            stop = start + len(part)
            rows[start:stop, 0], rows[start:stop, 1:] = image, part
            rows[start:stop, 1] += 1
            start = stop

    def _detect(self, maps: list[Any]) -> Any:
        """(R, 6): class, score and box of what is left in one image, the best first."""
        raise NotImplementedError

    def allow_force_backward(self, index: int) -> bool:
        return False


class YoloDetectionOutput(_Detections):
    """What a map of YOLO v2 finds (its region output): top (1, 1, R, 7), a row a detection.

    Bottom: (N, num_box (5 + num_classes), H, W); `biases` are the anchors' widths and heights in
    cells. The score is the sigmoid of there being an object times the softmax of the best class,
    and must be `confidence_threshold` or more. Suppression and rows are Yolov3DetectionOutput's.
    `side` is not read, as the bottom says it, nor `label_map_file`. (The original takes one image.)
    Runs on the host; no gradient. ModelError for channels and biases that do not fit.
    """

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.num_classes < 1 or param.num_box < 1:
            raise ModelError(
                "num_classes and num_box should not be less than 1, got"
                f" {param.num_classes} and {param.num_box}"
            )
        if param.coords != 4:
            raise ModelError(f"coords must be 4, got {param.coords}")
        if len(param.biases) != 2 * param.num_box:
            raise ModelError(
                f"biases must have 2 num_box = {2 * param.num_box} entries, got {len(param.biases)}"
            )
        self.anchors = list(zip(param.biases[::2], param.biases[1::2], strict=True))

    def reshape(self, bottom: Any, top: Any) -> None:
        channels = self.param.num_box * (5 + self.param.num_classes)
        shape = image_shape(bottom[0])
        if shape[1] != channels:
            raise ModelError(
                f"the bottom must have num_box (5 + num_classes) = {channels} channels, got"
                f" `{describe(shape)}`"
            )
        top[0].reshape(1, 1, 1, 7)

    def _detect(self, maps: list[Any]) -> Any:
        told, param = maps[0], self.param
        own = told.reshape(param.num_box, 5 + param.num_classes, *told.shape[1:])
        at_least = nextafter(param.confidence_threshold, -1)
        rows = detections(own, self.anchors, 1, at_least, exclusive=True)
        return _kept(rows, param.nms_threshold)


class Yolov3DetectionOutput(_Detections):
    """What several maps of YOLO v3 find: top (1, 1, R, 7) with a row for each detection.

    Bottoms (N, num_box (5 + num_classes), H, W), one for each of the `mask_group_num` groups of
    `mask`, which name anchors (pairs of `biases`, in pixels), with `anchors_scale` pixels a cell.
    Scores must be above `confidence_threshold`. Of boxes that overlap by `nms_threshold` or more
    only the best stays, whatever their classes. Rows: image, class + 1, score, xmin, ymin, xmax,
    ymax (of the image's size, not clipped), images one after the other and the best first; without
    any detection one row of -1 for each image. (The original takes all images for the first one.)
    Runs on the host; no gradient. ModelError for channels, masks and scales that do not fit, and
    for `gaussian_box`.
    """

    bottoms = (1, None)

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        if param.gaussian_box:
            raise ModelError("gaussian_box: true is not available")
        if param.num_classes < 1:
            raise ModelError(f"num_classes should not be less than 1, got {param.num_classes}")
        if len(bottom) != param.mask_group_num or len(param.anchors_scale) != len(bottom):
            raise ModelError(
                f"mask_group_num and the number of anchors_scale must be that of the bottoms,"
                f" {len(bottom)}, got {param.mask_group_num} and {len(param.anchors_scale)}"
            )
        if len(param.mask) != len(bottom) * param.num_box:
            raise ModelError(
                f"mask must have num_box entries for each bottom, {len(bottom) * param.num_box},"
                f" got {len(param.mask)}"
            )
        if max(param.mask, default=0) * 2 + 1 >= len(param.biases):
            raise ModelError(
                f"mask names anchor {max(param.mask, default=0)}; biases has"
                f" {len(param.biases) // 2} pairs"
            )
        pairs = list(zip(param.biases[::2], param.biases[1::2], strict=False))
        self.anchors = [pairs[k] for k in param.mask]

    def reshape(self, bottom: Any, top: Any) -> None:
        channels = self.param.num_box * (5 + self.param.num_classes)
        for x in bottom:
            shape = image_shape(x)
            if shape[1] != channels or shape[0] != bottom[0].shape[0]:
                raise ModelError(
                    f"the bottoms must have num_box (5 + num_classes) = {channels} channels and"
                    f" the same num, got `{describe(shape)}`"
                )
        top[0].reshape(1, 1, 1, 7)

    def _detect(self, maps: list[Any]) -> Any:
        """(R, 6): class, score and box of what is left in one image, the best first."""
        param, parts = self.param, []
        for k, told in enumerate(maps):
            count = param.num_box
            own = told.reshape(count, 5 + param.num_classes, *told.shape[1:])
            anchors = self.anchors[k * count : (k + 1) * count]
            scale = param.anchors_scale[k]
            parts.append(detections(own, anchors, scale, param.confidence_threshold))
        return _kept(np.vstack(parts), param.nms_threshold)


def _kept(rows: Any, threshold: float) -> Any:
    """The best first, without those that overlap a better one by the threshold or more."""
    rows = rows[boxes.best_first(rows[:, 1])]
    return rows[boxes.suppress(rows[:, 2:], nextafter(threshold, -1))]
