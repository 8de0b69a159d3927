"""What tests make of a net's outputs: average precision by hand, and its log lines."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from small_solvers import make_solver, regression, write_problem

import pycaffe_lite
from pycaffe_lite import Blob, Layer, ModelError
from pycaffe_lite.training.evaluation import AveragePrecision, average_precision

SCORES = np.float32([0.2, 0.9, 0.6, 0.8, 0.5])
HITS = np.float32([1, 1, 0, 1, 0])
# In order of score: hits 1 1 0 0 1, precision 1 1 2/3 1/2 3/5; of 4 boxes: recall .25 .5 .5 .5 .75.


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("11point", (6 * 1 + 2 * 0.6) / 11),
        ("Integral", 0.25 * 1 + 0.25 * 1 + 0.25 * 0.6),
        ("MaxIntegral", 0.25 * 1 + 0.25 * 1 + 0.25 * 0.6),
    ],
)
def test_average_precision(version, expected):
    assert average_precision(SCORES, HITS, 4, version) == pytest.approx(expected)


@pytest.mark.parametrize(("version", "expected"), [("Integral", 7 / 12), ("MaxIntegral", 2 / 3)])
def test_precision_that_rises_again(version, expected):
    """Hits 0 1 1: precision 0 1/2 2/3 at recall 0 .5 1."""
    got = average_precision(np.float32([3, 2, 1]), np.float32([0, 1, 1]), 2, version)
    assert got == pytest.approx(expected)


def test_recalls_on_the_points_are_compared_as_in_caffe():
    """7 of 10 found: the float32 0.7 is less than 0.7; 5 of 10 is 0.5."""
    for found, points in ((7, 7), (5, 6)):
        ones = np.ones(found, "f4")
        assert average_precision(ones, ones, 10, "11point") == pytest.approx(points / 11)


@pytest.mark.parametrize("version", ["11point", "Integral", "MaxIntegral"])
def test_nothing_to_find(version):
    assert average_precision(np.float32([1]), np.float32([0]), 0, version) == 0


def outputs(*batches):
    """A stand-in for a net, whose output goes from one batch of rows to the next."""
    blob, left = Blob(), iter(batches)
    net = SimpleNamespace(name="n", outputs=["eval"], blobs={"eval": blob})

    def forward():
        rows = np.float32(next(left))
        blob.reshape(1, 1, *rows.shape)
        blob.data[...] = rows

    net.forward = forward
    return net


BATCHES = [
    [[-1, 1, 3, -1, -1], [-1, 2, 1, -1, -1], [0, 1, 0.9, 1, 0], [0, 2, 0.7, 0, 1]],
    [[-1, 1, 1, -1, -1], [4, 1, 0.8, 0, 1], [4, 2, 0.9, 1, 0], [4, 1, 0.95, 0, 0]],
]


def test_rows_of_several_batches():
    net = outputs(*BATCHES)
    result = AveragePrecision(net, "Integral", per_class=True)
    for _ in BATCHES:
        net.forward()
        result.add()
    assert list(result.lines()) == [
        "class1: 0.25",  # one of four, before a wrong one; the row without a verdict is left out
        "class2: 1",
        "    Test net output #0: eval = 0.625",
    ]


def test_a_label_of_which_nothing_is_found_counts(caplog):
    net = outputs([[-1, 1, 3, -1, -1], [-1, 5, 2, -1, -1], [0, 1, 0.9, 1, 0]])
    result = AveragePrecision(net, "Integral")
    net.forward()
    result.add()
    assert list(result.lines()) == ["    Test net output #0: eval = 0.166667"]
    assert caplog.messages == ["Missing true_pos for label: 5"]


def test_nothing_at_all():
    net = outputs([[0, 1, 0.9, 1, 0]])
    result = AveragePrecision(net, "11point")
    net.forward()
    result.add()
    assert list(result.lines()) == ["    Test net output #0: eval = 0"]


def test_outputs_that_are_no_detections():
    net = outputs([[1, 2, 3]])
    result = AveragePrecision(net, "11point")
    net.forward()
    with pytest.raises(ModelError, match=r"output 'eval' of test net 'n' has shape \(1, 1, 1, 3\)"):
        result.add()


def test_a_solver_tests_detections(tmp_path, caplog):
    class Rows(Layer):
        """The batches above, in turn."""

        bottoms, host_only, reshapes_every_time, k = 0, True, True, 1

        def reshape(self, bottom, top):
            top[0].reshape(1, 1, 4, 5)

        def forward(self, bottom, top):
            self.k = 1 - self.k
            top[0].data[0, 0] = BATCHES[self.k]

    caplog.set_level(logging.INFO, logger="pycaffe_lite")
    write_problem(tmp_path)
    try:
        solver = make_solver(
            tmp_path,
            "lr_policy: 'fixed' eval_type: 'detection' ap_version: '11point' test_iter: 2"
            " test_interval: 1 test_net_param { layer { name: 'r' type: 'Rows' top: 'eval' } }",
            regression(tmp_path),
        )
        solver.step(1)
    finally:
        del pycaffe_lite.Layer.registry["Rows"]
    assert f"    Test net output #0: eval = {(3 / 11 + 1) / 2:g}" in caplog.messages
