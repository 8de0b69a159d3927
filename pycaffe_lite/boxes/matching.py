"""Which prior stands for which object, and which ones are worth learning from? NumPy, on the host.

The rules of SSD's MultiBoxLoss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from . import Boxes, best_first, sizes, suppress

NOBODY, IGNORED = -1, -2
"""In place of an object's index: a prior without one, and a prior left out of everything."""

_LEAST = 1e-6
"""The overlap from which on a pair counts at all."""
_SMALLEST_BOX = 1e-5
"""The area from which on a box takes part in suppression."""


@dataclass
class Matches:
    """One image: its objects, and the object of each prior in each set of boxes."""

    objects: Boxes
    """(G, 8): image, label, instance, xmin, ymin, xmax, ymax, difficult."""
    found: dict[int, Boxes] = field(default_factory=dict)
    """Set of boxes -> (P,) indices of objects, NOBODY or IGNORED; no sets without objects."""
    overlaps: dict[int, Boxes] = field(default_factory=dict)
    """Set of boxes -> (P,) overlaps with the object, or with the nearest one."""
    negatives: list[int] = field(default_factory=list)
    """The priors chosen to stand for the background."""


def match(overlaps: Boxes, threshold: float | None, left_out: Boxes) -> tuple[Boxes, Boxes]:
    """(P, G) overlaps -> (P,) indices of objects, NOBODY or IGNORED, and (P,) overlaps.

    First each object takes the prior that overlaps it most, the largest overlap of all first. Then,
    unless `threshold` is None, each other prior takes the object it overlaps most, by the threshold
    at least. Priors in `left_out`, a (P,) mask, are IGNORED.
    """
    table = np.where((overlaps > _LEAST) & ~left_out[:, None], overlaps, 0)
    found = np.where(left_out, IGNORED, NOBODY)
    near = table.max(axis=1, initial=0)
    open_pairs = table.copy()
    for _ in range(min(table.shape)):
        prior, thing = divmod(int(open_pairs.argmax()), table.shape[1])
        if not open_pairs[prior, thing] > 0:
            break
        found[prior], near[prior] = thing, table[prior, thing]
        open_pairs[prior], open_pairs[:, thing] = 0, 0
    if threshold is not None and table.size:
        more = (found == NOBODY) & (near > 0) & (near >= threshold)
        found[more] = table[more].argmax(axis=1)
    return found, near


@dataclass(frozen=True)
class MiningRules:
    """How examples are chosen: the fields of MultiBoxLossParameter of these names."""

    hard: bool
    """HARD_EXAMPLE: of all priors; else MAX_NEGATIVE: of those without an object."""
    neg_pos_ratio: float
    neg_overlap: float
    sample_size: int
    nms_threshold: float
    """0: no suppression."""
    nms_top_k: int


def mine(matches: Matches, losses: Boxes, boxes: dict[int, Boxes], rules: MiningRules) -> None:
    """Choose the priors with the largest of (P,) losses; note negatives, drop easy positives.

    `boxes` (P, 4) of each set take part in suppression before the choice.
    """
    for box_set, found in matches.found.items():
        eligible = np.ones(len(found), bool)
        most = rules.sample_size
        if not rules.hard:
            eligible = (found == NOBODY) & (matches.overlaps[box_set] < rules.neg_overlap)
            most = int((found >= 0).sum() * rules.neg_pos_ratio)
        at = eligible.nonzero()[0]
        order = best_first(losses[at])
        if rules.nms_threshold > 0:
            order = best_first(losses[at], rules.nms_top_k)
            order = order[sizes(boxes[box_set][at[order]]) >= _SMALLEST_BOX]
            order = order[suppress(boxes[box_set][at[order]], rules.nms_threshold)]
        chosen = np.zeros(len(found), bool)
        chosen[at[order[:most]]] = True
        matches.negatives += (chosen & (found == NOBODY)).nonzero()[0].tolist()
        if rules.hard:
            found[~chosen & (found >= 0)] = NOBODY
