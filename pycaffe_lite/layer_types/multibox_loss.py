"""The loss of detectors with prior boxes: where is it, and what is it?"""

from __future__ import annotations

from typing import Any

from .. import boxes
from ..blob import describe
from ..boxes.matching import IGNORED, Matches, MiningRules, match, mine
from ..errors import ModelError
from ..ops.base import Array
from .detection import check_suppression, checked_classes, checked_priors
from .loss import _NormalizedLoss
from .softmax_loss import SMALLEST


class MultiBoxLoss(_NormalizedLoss):
    """L = (`loc_weight` * sum of box losses + sum of class losses) / norm (SSD).

    Bottoms: loc (N, P L 4) and conf (N, P C), scores of `num_classes` C classes before a softmax,
    as DetectionOutput takes them otherwise; prior (1, 2, 4 P); objects (1, 1, G, 8), rows [image,
    label, instance, xmin, ymin, xmax, ymax, difficult], those of image -1 left out. A prior stands
    for an object as box_matching.match says (`overlap_threshold` 0.5 with `match_type`
    PER_PREDICTION, the default); the loss of its box is that of loc against the encoded object
    (SMOOTH_L1 or L2). The loss of its class is SOFTMAX or LOGISTIC, against the object's label, and
    for negatives against `background_label_id` (0). With `mining_type` NONE all other priors are
    negatives; MAX_NEGATIVE: those with the largest losses, `neg_pos_ratio` (3) a match, overlapping
    all objects by less than `neg_overlap`; HARD_EXAMPLE: of all priors the `sample_size` (64) with
    the largest losses. Images without objects have no negatives when mining. norm: the number of
    matches, unless loss_param's `normalization` says otherwise; at least 1.

    Works on the host: what is compared depends on values. Gradients are exact, also with
    `encode_variance_in_target`, where the original's lack a factor. `nms_param.top_k` not set means
    all (none in the original). Raises ModelError for labels that are no classes.
    """

    bottoms = 4
    host_only = True

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        param = self.param
        self.classes, self.background = checked_classes(param), param.background_label_id
        if self.background >= self.classes:
            raise ModelError(
                f"background_label_id should be within [0, {self.classes}), got {self.background}"
            )
        if param.map_object_to_agnostic and self.classes != 2:
            raise ModelError(f"map_object_to_agnostic needs num_classes 2, got {self.classes}")
        if param.map_object_to_agnostic and self.background:
            raise ModelError(
                "map_object_to_agnostic needs background_label_id 0, as all objects become the"
                f" class behind it, got {self.background}"
            )
        self.mining = self._mining_rules()
        self.box_sets = [0]
        if not param.share_location:
            self.box_sets = [c for c in range(self.classes) if c != self.background]
        self.threshold = None
        if param.match_type == param.PER_PREDICTION:
            self.threshold = param.overlap_threshold
        asked = list(self.spec.propagate_down)
        self.counts = asked[:2] if asked else [True, True]

    def _mining_rules(self) -> MiningRules | None:
        param, nms = self.param, self.param.nms_param
        mining = param.mining_type
        if param.HasField("do_neg_mining"):
            if not param.HasField("mining_type") and not param.do_neg_mining:
                mining = param.NONE
            if param.do_neg_mining != (mining != param.NONE):
                name = param.MiningType.Name(mining)
                raise ModelError(
                    f"do_neg_mining {param.do_neg_mining} contradicts mining_type {name}"
                )
        if mining == param.NONE:
            return None
        check_suppression(nms)
        if mining == param.HARD_EXAMPLE and param.sample_size < 1:
            raise ModelError(f"sample_size must be > 0, got {param.sample_size}")
        return MiningRules(
            hard=mining == param.HARD_EXAMPLE,
            neg_pos_ratio=param.neg_pos_ratio,
            neg_overlap=param.neg_overlap,
            sample_size=param.sample_size,
            nms_threshold=nms.nms_threshold if param.HasField("nms_param") else 0,
            nms_top_k=nms.top_k if nms.HasField("top_k") else -1,
        )

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        sets = 1 if self.param.share_location else self.classes
        self.priors = checked_priors(bottom, sets, self.classes)
        self.images = bottom[0].shape[0]
        objects = bottom[3].shape
        if len(objects) != 4 or objects[:2] != (1, 1) or objects[3] != 8:
            raise ModelError(f"objects must be (1, 1, G, 8), got `{describe(objects)}`")
        self.told_shape = (self.images, self.priors, sets, 4)
        self.score_shape = (self.images, self.priors, self.classes)

    def forward(self, bottom: Any, top: Any) -> None:
        told, scores, priors, truth = (b.array(self.ops, write=False) for b in bottom)
        told, scores = told.reshape(self.told_shape), scores.reshape(self.score_shape)
        priors = priors.reshape(2, self.priors, 4)
        self.objects = truth = self._checked(truth[0, 0])
        images = [
            self._matched(told[n], priors, truth[truth[:, 0] == n]) for n in range(self.images)
        ]
        if self.mining is not None:
            self._mine(images, told, scores, priors)
        self.positives = self._positives(images)
        loc, self.loc_gradient = self._box_losses(told, priors)
        self.rows = self._rows(images)
        given = scores[self.rows[:2]]
        conf = self._class_losses(given, self.rows[2])
        self.conf_gradient = self._class_gradient(given, self.rows[2])
        self.norm = max(len(self.positives[0]), 1)
        if self.normalization != "VALID":
            self.norm = self.divisor(self.images, self.priors, None)
        total = self.counts[0] * self.param.loc_weight * loc.sum() + self.counts[1] * conf.sum()
        top[0].data[...] = total / self.norm

    def _checked(self, truth: Array) -> Array:
        """The objects that count. ModelError for an image or a label that is not there."""
        truth = truth[truth[:, 0] != -1]
        if not self.param.use_difficult_gt:
            truth = truth[truth[:, 7] == 0]
        limits = {"image": self.images, "label": self.classes}
        if self.param.map_object_to_agnostic:
            del limits["label"]
        for column, (what, limit) in enumerate(limits.items()):
            wrong = self.ops.first_outside(truth[:, column], 0, limit)
            if wrong is not None:
                raise ModelError(
                    f"{what} {wrong:g} of an object is out of range (0 to {limit - 1})"
                )
        if (truth[:, 1] == self.background).any():
            raise ModelError(f"found background label {self.background} in the dataset")
        return truth

    # ---- who stands for what -------------------------------------------------------------------

    def _matched(self, told: Array, priors: Array, truth: Array) -> Matches:
        xp, found = self.xp, Matches(truth)
        if not len(truth):
            return found
        if self.param.use_prior_for_matching:
            index, near = self._match(priors[0], truth)
        for s in self.box_sets:
            ours = xp.arange(len(truth))
            if not self.param.share_location:
                ours = (truth[:, 1] == s).nonzero()[0]
            if self.param.use_prior_for_matching:
                one = xp.where((index == IGNORED) | xp.isin(index, ours), index, -1)
            else:
                one, near = self._match(self._decoded(told[:, s], priors), truth[ours])
                one[one >= 0] = ours[one[one >= 0]]
            found.found[s], found.overlaps[s] = one, near
        return found

    def _match(self, candidates: Array, truth: Array) -> tuple[Array, Array]:
        left_out = self.xp.zeros(len(candidates), bool)
        if self.param.ignore_cross_boundary_bbox:
            left_out = ((candidates < 0) | (candidates > 1)).any(axis=1)
        return match(boxes.jaccard(candidates, truth[:, 3:7]), self.threshold, left_out)

    def _decoded(self, told: Array, priors: Any) -> Array:
        variances = None if self.param.encode_variance_in_target else priors[1]
        return boxes.decode(told, priors[0], variances, self.param.code_type)

    def _mine(self, images: list[Matches], told: Array, scores: Array, priors: Array) -> None:
        assert self.mining is not None
        losses = self._class_losses(scores, self._labels(images))
        if self.mining.hard:
            self.positives = self._positives(images)
            more, _ = self._box_losses(told, priors)
            self.xp.add.at(losses, self.positives[:2], more.sum(axis=1))
        for n, image in enumerate(images):
            places = {}
            if self.mining.nms_threshold > 0:
                places = {
                    s: priors[0]
                    if self.param.use_prior_for_nms
                    else self._decoded(told[n, :, s], priors)
                    for s in image.found
                }
            mine(image, losses[n], places, self.mining)

    def _positives(self, images: list[Matches]) -> tuple[Array, ...]:
        """Of each match its image, prior, set of boxes (M,) and object (M, 8)."""
        xp, none = self.xp, self.xp.zeros(0, int)
        parts = [(none, none, none, self.objects[:0])]
        for n, image in enumerate(images):
            for s, index in image.found.items():
                at = (index >= 0).nonzero()[0]
                here = xp.full_like(at, n), at, xp.full_like(at, s), image.objects[index[at]]
                parts.append(here)
        return tuple(xp.concatenate(part) for part in zip(*parts, strict=True))

    def _object_labels(self) -> Array:
        """The class of each match, (M,)."""
        labels = self.positives[3][:, 1].astype(int)
        return labels * 0 + 1 if self.param.map_object_to_agnostic else labels

    def _labels(self, images: list[Matches]) -> Array:
        """(N, P): the class that each prior should say."""
        self.positives = self._positives(images)
        labels = self.xp.full((self.images, self.priors), self.background)
        labels[self.positives[:2]] = self._object_labels()
        return labels

    def _rows(self, images: list[Matches]) -> tuple[Array, Array, Array]:
        """The images, priors and classes of all scores with a loss, (K,) each."""
        xp = self.xp
        if self.mining is None:
            image, prior = xp.indices((self.images, self.priors)).reshape(2, -1)
            return image, prior, self._labels(images).reshape(-1)
        negatives = [(n, p) for n, image in enumerate(images) for p in image.negatives]
        image, prior = xp.asarray(negatives, int).reshape(-1, 2).T
        labels = self._object_labels(), xp.full(len(image), self.background)
        matched = self.positives
        return (
            xp.concatenate((matched[0], image)),
            xp.concatenate((matched[1], prior)),
            xp.concatenate(labels),
        )

    # ---- losses, each with its gradient --------------------------------------------------------

    def _box_losses(self, told: Array, priors: Array) -> tuple[Array, Array]:
        """(M, 4): the loss of each coordinate of each match, and its gradient by loc."""
        xp, param = self.xp, self.param
        image, at, s, truth = self.positives
        prior, variance = priors[0][at], priors[1][at]
        given = told[image, at, s]
        wanted = boxes.encode(truth[:, 3:7], prior, None, param.code_type)
        scale = 1 / variance if param.encode_variance_in_target else xp.ones_like(variance)
        if not param.encode_variance_in_target:
            wanted = wanted / variance
        d = (given - wanted) * scale
        if param.bp_inside:
            box = prior
            if not param.use_prior_for_matching:
                box = self._decoded(given, (prior, variance))
            d[(box < 0) | (box > 1)] = 0
        if param.loc_loss_type == param.L2:
            return d * d / 2, d * scale
        near = xp.abs(d) < 1
        return (
            xp.where(near, d * d / 2, xp.abs(d) - 0.5),
            xp.where(near, d, xp.sign(d)) * scale,
        )

    def _class_losses(self, scores: Array, labels: Array) -> Array:
        """(..., C) scores, (...) classes -> (...) losses."""
        xp = self.xp
        if self.param.conf_loss_type == self.param.LOGISTIC:
            each = xp.log1p(xp.exp(-xp.abs(scores))) + xp.maximum(scores, 0)
            return each.sum(axis=-1) - _picked(xp, scores, labels)
        p = _picked(xp, _softmax(xp, scores), labels)
        return -xp.log(xp.maximum(p, SMALLEST))

    def _class_gradient(self, scores: Array, labels: Array) -> Array:
        """(K, C) scores, (K,) classes -> the gradient of the losses by the scores."""
        xp = self.xp
        if self.param.conf_loss_type == self.param.LOGISTIC:
            found = 0.5 + 0.5 * xp.tanh(0.5 * scores)
        else:
            found = _softmax(xp, scores)
        found[xp.arange(len(labels)), labels] -= 1
        return found

    # ---- backward ------------------------------------------------------------------------------

    def allow_force_backward(self, index: int) -> bool:
        return index < 2

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for what, asked in zip(("prior", "label"), propagate_down[2:], strict=True):
            if asked:
                raise ModelError(f"{self.type} layer cannot backpropagate to {what} inputs")
        scale = self.share(top[0].diff, self.norm)
        loc = (self.positives[:3], self.loc_gradient * self.param.loc_weight, self.told_shape)
        conf = (self.rows[:2], self.conf_gradient, self.score_shape)
        for k, (at, gradient, shape) in enumerate((loc, conf)):
            if propagate_down[k]:
                dx = bottom[k].diff
                dx[...] = 0
                self.xp.add.at(dx.reshape(shape), at, gradient * scale)


def _softmax(xp: Any, scores: Array) -> Array:
    e = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _picked(xp: Any, values: Array, labels: Array) -> Array:
    return xp.take_along_axis(values, labels[..., None], axis=-1)[..., 0]
