"""Regions that may hold an object, proposed by a network (Faster R-CNN)."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import boxes
from ..blob import describe
from ..errors import ModelError
from ..layer import Layer


@dataclass(frozen=True)
class _Rules:
    """What is proposed; lengths in pixels."""

    feat_stride: float
    base_size: float
    ratios: Sequence[float]
    scales: Sequence[float]
    min_size: float
    pre_nms_topn: int
    post_nms_topn: int
    nms_thresh: float


class _Proposals(Layer, abstract=True):
    bottoms = 3
    tops = (1, 2)
    host_only = True

    def rules(self) -> _Rules:
        raise NotImplementedError

    def setup(self, bottom: Any, top: Any) -> None:
        rules = self.rules()
        for name in ("feat_stride", "base_size", "pre_nms_topn", "post_nms_topn"):
            if getattr(rules, name) <= 0:
                raise ModelError(f"{name} must be positive, got {getattr(rules, name):g}")
        if not all(v > 0 for v in (*rules.ratios, *rules.scales)):
            raise ModelError(f"ratios and scales must be positive: {rules.ratios} {rules.scales}")
        self.rule, self.anchors = rules, boxes.anchors(rules.base_size, rules.ratios, rules.scales)

    def reshape(self, bottom: Any, top: Any) -> None:
        scores, told, info = (b.shape for b in bottom)
        count = len(self.anchors)
        for what, shape, each in (("scores", scores, 2), ("deltas", told, 4)):
            if len(shape) != 4 or shape[1] != each * count:
                raise ModelError(
                    f"{what} must be (1, {each * count}, H, W) for {count} anchors, got"
                    f" `{describe(shape)}`"
                )
            if shape[0] != 1:
                raise ModelError(f"only single item batches are supported, got {shape[0]} items")
        if scores[2:] != told[2:]:
            raise ModelError(f"scores and deltas must be of one size: {scores[2:]} vs. {told[2:]}")
        if bottom[2].count < 3:
            raise ModelError(f"im_info must be (1, 3): height, width, scale; got `{info}`")
        rows, scores = self.first_shapes()
        top[0].reshape(rows)
        if len(top) == 2:
            top[1].reshape(scores)

    def first_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the regions and their scores, until forward knows how many there are."""
        return (1, 5), (1, 1)

    def forward(self, bottom: Any, top: Any) -> None:
        scores, told, info = (b.array(self.ops, write=False) for b in bottom)
        height, width, scale = info.reshape(-1)[:3].tolist()
        count = len(self.anchors)
        # One row an anchor, places in the order of the map, as (H, W, anchors).
        foreground = scores[0, count:].transpose(1, 2, 0).reshape(-1)
        deltas = told[0].transpose(1, 2, 0).reshape(-1, 4)
        found = boxes.regress(self._placed(scores.shape[2:], deltas.dtype), deltas)
        found = found.clip(0, self.xp.tile([width - 1, height - 1], 2).astype(found.dtype))
        sides, least = found[:, 2:] - found[:, :2] + 1, self.rule.min_size * scale
        large = ((sides >= least).all(axis=1)).nonzero()[0]
        best = large[boxes.best_first(foreground[large], self.rule.pre_nms_topn)]
        best = best[
            boxes.suppress(found[best], self.rule.nms_thresh, pixel=1, most=self.rule.post_nms_topn)
        ]
        top[0].reshape(len(best), 5)
        top[0].data[:, 0], top[0].data[:, 1:] = 0, found[best]
        if len(top) == 2:
            top[1].reshape(len(best), 1)
            top[1].data[:, 0] = foreground[best]

    def _placed(self, places: Sequence[int], dtype: Any) -> Any:
        """(H W anchors, 4): the anchors at each place of the map."""
        xp, (height, width) = self.xp, places
        x, y = xp.meshgrid(xp.arange(width), xp.arange(height))
        shifts = xp.stack((x, y, x, y), axis=2).reshape(-1, 1, 4) * self.rule.feat_stride
        return (shifts + self.anchors).reshape(-1, 4).astype(dtype)

    def allow_force_backward(self, index: int) -> bool:
        return False

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        for x, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                x.diff[...] = 0


class Proposal(_Proposals):
    """Scores and deltas of anchors -> regions (K, 5), rows [0, x1, y1, x2, y2], the best first.

    Bottoms: scores (1, 2A, H, W), the second half those of an object; deltas (1, 4A, H, W);
    im_info (1, 3): height, width and scale of the image. Anchors: for each `ratio` (0.5, 1, 2) and
    `scale` (8, 16, 32) a box on the square `base_size` (16), at each place, `feat_stride` (16)
    apart. They are moved as the deltas say and cut to the image; those with a side below `min_size`
    (16) times the scale go, of the rest the best `pre_nms_topn` (6000) go through suppression at
    `nms_thresh` (0.7), and the best `post_nms_topn` (300) stay. A second top has the scores (K, 1).
    K is known in forward only; until then the tops are (post_nms_topn, 5) and (post_nms_topn), as
    in the C++ layers of this name.

    Works on the host, as K depends on values. No gradient: zeros, as the regions are taken for
    constants. Fields of other layers of this name are refused.
    """

    def rules(self) -> _Rules:
        """From `proposal_param`."""
        param = self.param
        for name in ("anchor_base_size", "anchor_scale", "anchor_ratio", "max_rois"):
            if param.HasField(name):
                raise ModelError(f"proposal_param: {name} is of another layer of this name")
        overlap = param.iou_threshold if param.HasField("iou_threshold") else param.nms_thresh
        return _Rules(
            feat_stride=param.feat_stride,
            base_size=param.base_size,
            ratios=list(param.ratio) or [0.5, 1, 2],
            scales=list(param.scale) or [8, 16, 32],
            min_size=param.min_size,
            pre_nms_topn=param.pre_nms_topn,
            post_nms_topn=param.post_nms_topn,
            nms_thresh=overlap,
        )

    def first_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.rule.post_nms_topn, 5), (self.rule.post_nms_topn,)


class ProposalLayer(_Proposals):
    """Proposal under its name in Python: module `rpn.proposal_layer` of py-faster-rcnn and R-FCN.

    A net's Python layer of that module becomes this where the module cannot be imported.
    `param_str` gives 'feat_stride' (16) and 'scales' (8, 16, 32). In TRAIN the best 12000 regions
    go through suppression and 2000 stay, in TEST 6000 and 300, the defaults of py-faster-rcnn's
    configuration. All else is as with Proposal, K being 1 before forward.
    """

    def rules(self) -> _Rules:
        """From `param_str`."""
        given = _read_params(self.param_str)
        before, after = (6000, 300) if self.phase == self.TEST else (12000, 2000)
        return _Rules(
            feat_stride=given.get("feat_stride", 16),
            base_size=16,
            ratios=given.get("ratios", (0.5, 1, 2)),
            scales=given.get("scales", (8, 16, 32)),
            min_size=16,
            pre_nms_topn=before,
            post_nms_topn=after,
            nms_thresh=0.7,
        )


def _read_params(text: str) -> dict[str, Any]:
    """`'feat_stride': 16` and the like: YAML of names and numbers or lists, a line or {} each."""
    pairs = re.findall(r"""['"]?(\w+)['"]?\s*:\s*(\[[^\]]*\]|\([^)]*\)|[^,}\s]+)""", text)
    try:
        return {name: ast.literal_eval(value) for name, value in pairs}
    except (ValueError, SyntaxError) as error:
        raise ModelError(f"param_str {text!r}: values must be numbers or lists") from error
