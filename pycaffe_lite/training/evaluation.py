"""How good is a net by now? Its outputs over many batches: their means, or average precision."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from .. import device
from ..errors import ModelError
from ..net import Net
from . import log as training_log

log = logging.getLogger("pycaffe_lite")

AP_VERSIONS = ("11point", "MaxIntegral", "Integral")


class Evaluation(Protocol):
    """What a test makes of a net's outputs."""

    def add(self) -> None:
        """Take the outputs of the forward that has just run."""

    def lines(self) -> Iterator[str]:
        """The result, in the lines that Caffe logs."""


def evaluation(net: Net, param: Any) -> Evaluation:
    """What the SolverParameter asks for. Raises ModelError as `check` does."""
    check(param)
    if param.eval_type == "detection":
        return AveragePrecision(net, param.ap_version, param.show_per_class_result)
    return Means(net)


def check(param: Any) -> None:
    """ModelError for an unknown eval_type or ap_version."""
    for field, known in (
        ("eval_type", ("classification", "detection")),
        ("ap_version", AP_VERSIONS),
    ):
        value = getattr(param, field)
        if value not in known:
            raise ModelError(f"unknown {field}: {value} (known: {', '.join(known)})")


class Means:
    """The mean of each number of each output, summed up in float64 where the net runs."""

    def __init__(self, net: Net) -> None:
        self._net, self._count = net, 0
        self._totals: list[Any] = []

    def add(self) -> None:
        """Take the outputs. Raises ModelError where their size differs from that of before."""
        net, ops = self._net, device.current()
        self._count += 1
        with np.errstate(all="ignore"), ops.running():
            values = [
                net.blobs[name].array(ops, write=False).reshape(-1).astype("f8")
                for name in net.outputs
            ]
            if not self._totals:
                self._totals = values
                return
            for name, total, value in zip(net.outputs, self._totals, values, strict=True):
                if total.shape != value.shape:
                    raise ModelError(
                        f"output {name!r} of test net {net.name!r} has no mean: its size differs"
                        f" between batches, {value.size} vs. {total.size}"
                    )
                total += value

    def lines(self) -> Iterator[str]:
        """A line for each number."""
        ops = device.current()
        means = [(ops.to_host(total) / self._count).tolist() for total in self._totals]
        outputs = zip(self._net.outputs, means, strict=True)
        return training_log.output_lines("Test", self._net, outputs)


class AveragePrecision:
    """The mean over all labels of the average precision; each output is one of DetectionEvaluate's.

    Its rows are (image, label, score, true positive, false positive), and (-1, label, number of
    boxes to find, ...) for each label. `version` is how a curve of precision over recall becomes
    a number, see `average_precision`.
    """

    def __init__(self, net: Net, version: str, per_class: bool = False) -> None:
        self._net, self._version, self._per_class = net, version, per_class
        self._rows: dict[str, list[np.ndarray]] = {name: [] for name in net.outputs}

    def add(self) -> None:
        """Take the rows of each output. Raises ModelError where they are not five numbers."""
        for name, rows in self._rows.items():
            blob = self._net.blobs[name]
            if not blob.shape or blob.shape[-1] != 5:
                raise ModelError(
                    f"output {name!r} of test net {self._net.name!r} has shape {blob.shape}: for"
                    " eval_type 'detection' all must be outputs of DetectionEvaluate, (1, 1, n, 5)"
                )
            rows.append(blob.data.reshape(-1, 5).copy())

    def lines(self) -> Iterator[str]:
        """A line for each output, before it one for each label where asked for."""
        for k, (name, parts) in enumerate(self._rows.items()):
            rows = np.concatenate(parts)
            by_label = self._by_label(rows)
            if self._per_class:
                for label, value in by_label.items():
                    yield f"class{label}: {value:g}"
            labels = len(np.unique(rows[rows[:, 0] == -1, 1]))
            mean = sum(by_label.values()) / labels if labels else 0.0
            yield f"    Test net output #{k}: {name} = {mean:g}"

    def _by_label(self, rows: np.ndarray) -> dict[int, float]:
        """Label -> average precision; a warning for labels of which nothing was detected."""
        totals, found = rows[rows[:, 0] == -1], rows[rows[:, 0] != -1]
        found = found[(found[:, 3] != 0) | (found[:, 4] != 0)]  # neither: a difficult box, ignored
        result = {}
        for label in np.unique(totals[:, 1]).astype(int).tolist():
            positives = float(totals[totals[:, 1] == label, 2].sum())
            own = found[found[:, 1] == label]
            if not len(own):
                log.warning("Missing true_pos for label: %d", label)
                continue
            result[label] = average_precision(own[:, 2], own[:, 3], positives, self._version)
        return result


def average_precision(
    scores: np.ndarray, hits: np.ndarray, positives: float, version: str
) -> float:
    """The average precision of detections, (n,) scores and hits (1 right, 0 wrong), n > 0.

    `positives` is the number of boxes to find. "11point" is the mean, over recalls 0, 0.1 .. 1, of
    the best precision at that recall or a higher one; "Integral" the sum of precision times gain in
    recall; "MaxIntegral" the same with the best precision at that recall or a higher one.
    """
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(hits[order].astype("f8"))
    precision = right / np.arange(1, len(right) + 1)
    recall = right / positives if positives else np.zeros_like(right)
    recall = recall.astype("f4").astype("f8")  # as in Caffe: a recall of 0.7 is just below 0.7
    if version == "11point":
        best = [precision[recall >= k / 10].max(initial=0) for k in range(11)]
        return float(np.mean(best))
    if version == "MaxIntegral":
        precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(precision @ np.diff(recall, prepend=0))
