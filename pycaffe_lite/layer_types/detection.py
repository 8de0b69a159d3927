"""What do a detection net's numbers say: which objects, where, and how many of them are right?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from .. import boxes
from ..blob import describe
from ..errors import MissingFileError, ModelError
from ..layer import Layer

log = logging.getLogger(__name__.partition(".")[0])


def read(layer: Layer, bottom: Any) -> Any:
    """A host-only layer's view of a bottom's values: not writing keeps a device's copy fresh."""
    return bottom.array(layer.ops, write=False)


def checked_classes(param: Any) -> int:
    """`num_classes` of a message. ModelError where it is not given."""
    if not param.HasField("num_classes"):
        raise ModelError("must specify num_classes")
    if param.num_classes < 1:
        raise ModelError(f"num_classes should not be less than 1, got {param.num_classes}")
    return int(param.num_classes)


def check_suppression(nms: Any) -> None:
    """ModelError where a NonMaximumSuppressionParameter cannot be."""
    if nms.nms_threshold < 0:
        raise ModelError(f"nms_threshold must be non negative, got {nms.nms_threshold:g}")
    if not 0 < nms.eta <= 1:
        raise ModelError(f"eta must be in (0, 1], got {nms.eta:g}")


def checked_priors(bottom: Any, box_sets: int, classes: int) -> int:
    """The number of priors. ModelError where loc, conf and prior do not fit together."""
    loc, conf, prior = (b.shape for b in bottom[:3])
    if prod(prior[:2]) != 2 or len(prior) < 3:
        raise ModelError(f"priors must be (1, 2, 4 P), got `{describe(prior)}`")
    priors = prod(prior) // 8
    if loc[:1] != conf[:1] or not loc:
        raise ModelError(f"loc and conf must have as many images: {loc[:1]} vs. {conf[:1]}")
    for name, shape, each in (("location", loc, box_sets * 4), ("confidence", conf, classes)):
        if prod(shape[1:]) != priors * each:
            raise ModelError(
                f"number of priors must match number of {name} predictions: {priors} priors need"
                f" {priors * each} values an image, got {prod(shape[1:])}"
            )
    return priors


class DetectionOutput(Layer):
    """Boxes, scores and priors -> detections: decoding, a threshold and suppression (SSD).

    Bottoms: loc (N, P L 4) tells boxes relative to priors as `code_type` (CORNER) says, L = 1, or
    with `share_location: false` one a class; conf (N, P C), probabilities of `num_classes` C
    classes; prior (1, 2, 4 P), boxes and variances, as PriorBox makes them; a fourth is not read.
    The top is (1, 1, K, 7), a row [image, label, score, xmin, ymin, xmax, ymax] a detection: images
    and labels in order, then the best first; boxes in [0, 1] of the image, not clipped. A score
    counts above `confidence_threshold`; of each class but `background_label_id` (0; -1: none) the
    best `nms_param.top_k` go through suppression at `nms_threshold` (0.3, falling by `eta`), and
    the best `keep_top_k` of an image stay; -1, as by default, means all. Where no image has any:
    (1, 1, N, 7), -1 behind each image's number. K is known in forward only; until then it is 1.

    Works on the host, as K depends on values. `save_output_param` and `visualize` do nothing here,
    which is logged. No gradient: to ask for one is an error.
    """

    bottoms = (3, 4)
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.classes = checked_classes(param)
        self.threshold = -float("inf")
        if param.HasField("confidence_threshold"):
            self.threshold = param.confidence_threshold
        check_suppression(param.nms_param)
        nms = param.nms_param
        self.most = nms.top_k if nms.HasField("top_k") else -1
        self.box_sets = 1 if param.share_location else self.classes
        for name in ("save_output_param", "visualize"):
            if param.HasField(name) and getattr(param, name):
                log.warning("layer %r (%s): %s is not done here", self.name, self.type, name)

    def reshape(self, bottom: Any, top: Any) -> None:
        self.priors = checked_priors(bottom, self.box_sets, self.classes)
        top[0].reshape(1, 1, 1, 7)

    def forward(self, bottom: Any, top: Any) -> None:
        xp, images = self.xp, bottom[0].shape[0]
        told = read(self, bottom[0]).reshape(images, self.priors, self.box_sets, 4)
        scores = read(self, bottom[1]).reshape(images, self.priors, self.classes)
        priors = read(self, bottom[2]).reshape(2, self.priors, 4)
        found = [
            (image, label, scores[image, index, label], decoded[index])
            for image in range(images)
            for label, index, decoded in self._detect(told[image], scores[image], priors)
        ]
        count = sum(len(score) for _, _, score, _ in found)
        top[0].reshape(1, 1, count or images, 7)
        rows = top[0].data[0, 0]
        if not count:
            rows[...] = -1
            rows[:, 0] = xp.arange(images)
        at = 0
        for image, label, score, box in found:
            part = rows[at : at + len(score)]
            part[:, 0], part[:, 1], part[:, 2], part[:, 3:] = image, label, score, box
            at += len(score)

    def _detect(self, told: Any, scores: Any, priors: Any) -> list[tuple[int, Any, Any]]:
        """One image's (label, indices of priors, boxes of all priors), labels ascending."""
        found = list(self._kept(told, scores, priors))
        most = self.param.keep_top_k
        if 0 <= most < sum(len(index) for _, index, _ in found):
            every = self.xp.concatenate([scores[index, label] for label, index, _ in found])
            stays = self.xp.zeros(len(every), bool)
            stays[boxes.best_first(every, most)] = True
            ends = self.xp.cumsum([len(index) for _, index, _ in found])
            parts = self.xp.split(stays, ends[:-1])
            found = [
                (label, index[part], decoded)
                for (label, index, decoded), part in zip(found, parts, strict=True)
            ]
        return found

    def _kept(self, told: Any, scores: Any, priors: Any) -> Iterator[tuple[int, Any, Any]]:
        """Of each class what is left after the threshold and suppression, the best first."""
        labels, at = (self.threshold < scores.T).nonzero()
        ends = self.xp.searchsorted(labels, self.xp.arange(self.classes + 1))
        decoded: dict[int, Any] = {}
        for label in range(self.classes):
            index = at[ends[label] : ends[label + 1]]
            if label == self.param.background_label_id or not len(index):
                continue
            box_set = label if self.box_sets > 1 else 0
            if box_set not in decoded:
                decoded[box_set] = self._decoded(told[:, box_set], priors)
            index = index[boxes.best_first(scores[index, label], self.most)]
            nms, known = self.param.nms_param, decoded[box_set]
            stays = boxes.suppress(known[index], nms.nms_threshold, nms.eta)
            yield label, index[stays], known

    def _decoded(self, told: Any, priors: Any) -> Any:
        variances = None if self.param.variance_encoded_in_target else priors[1]
        return boxes.decode(told, priors[0], variances, self.param.code_type)

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if any(propagate_down):
            raise ModelError("detections have no gradient; set propagate_down: false for all")


class DetectionEvaluate(Layer):
    """Detections against what is there: which are true positives, which are false (SSD).

    Bottoms: (1, 1, D, 7), as DetectionOutput makes them, rows of label -1 left out; (1, 1, G, 8),
    rows [image, label, instance, xmin, ymin, xmax, ymax, difficult], those of image -1 left out.
    The top is (1, 1, K, 5): first a row [-1, label, number of objects, -1, -1] for each of
    `num_classes` but `background_label_id` (0), then a row [image, label, score, tp, fp] a
    detection: images and labels in order, the best first. A detection belongs to the object of its
    image and label that it overlaps most, if by `overlap_threshold` (0.5) at least; tp is 1 for the
    first of an object, fp for its others and for those of none. With `evaluate_difficult_gt: false`
    difficult objects are not counted, and both are 0 for what belongs to one.

    `name_size_file`, a line "name height width" an image in order, has overlaps computed in pixels.
    Works on the host, as K depends on values. No gradient: to ask for one is an error.
    """

    bottoms = 2
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        param = self.param
        self.classes = checked_classes(param)
        self.counts_difficult = param.evaluate_difficult_gt
        if param.overlap_threshold <= 0:
            raise ModelError(f"overlap_threshold must be positive, got {param.overlap_threshold:g}")
        if param.HasField("resize_param"):
            raise ModelError("resize_param is not available here")
        self.image_sizes = _image_sizes(param.name_size_file)
        self._next = 0

    def reshape(self, bottom: Any, top: Any) -> None:
        for what, blob, columns in zip(("det", "gt"), bottom, (7, 8), strict=True):
            if prod(blob.shape[:2]) != 1 or blob.shape[3:] != (columns,):
                raise ModelError(
                    f"{what} must be (1, 1, number, {columns}), got `{describe(blob.shape)}`"
                )
        top[0].reshape(1, 1, self.classes, 5)

    def forward(self, bottom: Any, top: Any) -> None:
        found, truth = (read(self, b)[0, 0] for b in bottom)
        found, truth = found[found[:, 1] != -1], truth[truth[:, 0] != -1]
        background = self.param.background_label_id
        if (truth[:, 1] == background).any():
            raise ModelError(f"found background label {background} in the dataset")
        labels = [c for c in range(self.classes) if c != background]
        top[0].reshape(1, 1, len(labels) + len(found), 5)
        rows = top[0].data[0, 0]
        rows[: len(labels)] = -1
        counted = truth if self.counts_difficult else truth[truth[:, 7] == 0]
        for row, label in zip(rows, labels, strict=False):
            row[1], row[2] = label, (counted[:, 1] == label).sum()
        self._judge(found, truth, rows[len(labels) :])

    def _judge(self, found: Any, truth: Any, rows: Any) -> None:
        """A row a detection: sorted, and 1 in the fourth or the fifth place."""
        found = found[self.xp.lexsort((-found[:, 2], found[:, 1], found[:, 0]))]
        rows[:, :3], rows[:, 3:] = found[:, :3], 0
        for image in self.xp.unique(found[:, 0]):
            size = self._next_size()
            for label in self.xp.unique(found[found[:, 0] == image, 1]):
                ours = ((found[:, 0] == image) & (found[:, 1] == label)).nonzero()[0]
                there = truth[(truth[:, 0] == image) & (truth[:, 1] == label)]
                self._match(found[ours, 3:], there, ours, rows, size)

    def _match(self, detected: Any, truth: Any, at: Any, rows: Any, size: Any) -> None:
        scale = 1 if size is None else self.xp.asarray([size[1], size[0]] * 2)
        pixel = 0 if size is None else 1
        overlaps = boxes.jaccard(detected * scale, truth[:, 3:7] * scale, pixel)
        seen: set[int] = set()
        for row, overlap in zip(at, overlaps, strict=True):
            nearest = int(overlap.argmax()) if len(overlap) else -1
            if nearest < 0 or overlap[nearest] < self.param.overlap_threshold:
                rows[row, 4] = 1
            elif self.counts_difficult or not truth[nearest, 7]:
                rows[row, 4 if nearest in seen else 3] = 1
                seen.add(nearest)

    def _next_size(self) -> tuple[int, int] | None:
        if not self.image_sizes:
            return None
        self._next += 1
        return self.image_sizes[(self._next - 1) % len(self.image_sizes)]

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if any(propagate_down):
            raise ModelError("detections have no gradient; set propagate_down: false for all")


def _image_sizes(path: str) -> list[tuple[int, int]]:
    """The (height, width) of each line "name height width" of a file; none where none is named."""
    if not path:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MissingFileError(f"failed to open name_size_file: {path}") from error
    try:
        return [(int(h), int(w)) for _, h, w in (line.split() for line in lines if line.strip())]
    except ValueError as error:
        raise ModelError(f"{path}: lines must be `name height width`: {error}") from error
