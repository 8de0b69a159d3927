"""Are numbers of training logs read as they stand there? Of every Caffe, interrupted, resumed."""

from __future__ import annotations

import math

import pytest
from caffe_logs import FOLDER

from pycaffe_lite.errors import MissingFileError, ModelError
from pycaffe_lite.logs import csv_tables as log_csv
from pycaffe_lite.logs.reader import read_log
from pycaffe_lite.logs.run import Row

RECORDED = (FOLDER / "train.log").read_text()


@pytest.fixture
def read(tmp_path):
    """Read the text of a log."""

    def read(text, name="x.log", encoding="utf-8"):
        path = tmp_path / name
        path.write_text(text, encoding=encoding)
        return read_log(path)

    return read


def table(rows):
    return [(row.iteration, row.outputs) for row in rows]


# ---- Caffe's own log ----------------------------------------------------------------------------


def test_a_recorded_log(read):
    (run,) = read(RECORDED)
    assert [row.iteration for row in run.train] == [0, 4, 8, 12, 16, 20, 24, 28]
    losses = [1.48847, 1.53004, 1.16905, 1.07147, 1.08167, 1.0912, 0.998982, 0.782182]
    assert [row.loss for row in run.train] == losses
    single = [1.48847, 1.62504, 1.22797, 1.01302, 0.786189, 1.17988, 1.19802, 0.887199]
    assert [row.outputs for row in run.train] == [{"loss": loss} for loss in single]
    assert [row.rate for row in run.train] == [0.1] * 3 + [0.05] * 3 + [0.025] * 2
    assert list(run.tests) == [0]
    assert table(run.tests[0]) == [
        (0, {"accuracy": 0.3, "loss": 1.57103}),
        (10, {"accuracy": 0.566667, "loss": 1.10611}),
        (20, {"accuracy": 0.6, "loss": 0.971587}),
        (30, {"accuracy": 0.6, "loss": 0.901353}),
    ]
    assert [row.rate for row in run.tests[0]] == [0.1, 0.1, 0.05, 0.025]
    assert run.losses == {"loss"}


def test_seconds_count_from_solving_on(read):
    """Its time is 32.054971; the outputs of test and display have 32.058717 and 32.058858."""
    (run,) = read(RECORDED)
    assert run.tests[0][0].seconds == pytest.approx(0.003746)
    assert run.train[0].seconds == pytest.approx(0.003887)
    assert run.train[-1].seconds == pytest.approx(0.004915)


def test_older_glog_has_no_year(read):
    (new,), (old,) = read(RECORDED), read(RECORDED.replace("I20261130", "I1130"))
    assert old == new


def test_lines_without_times(read):
    (run,) = read("\n".join(line.partition("] ")[2] for line in RECORDED.splitlines()) + "\n")
    assert [row.iteration for row in run.tests[0]] == [0, 10, 20, 30]
    assert all(math.isnan(row.seconds) for row in run.rows())


def test_dates_of_pythons_logging(read):
    (run,) = read(
        "2026-02-28 23:59:59,250 INFO Solving tiny\n"
        "2026-03-01 00:00:01,750 INFO Iteration 7, loss = 2\n"
    )
    assert [(row.iteration, row.seconds) for row in run.train] == [(7, 2.5)]


def test_files_of_powershell(read):
    (run,) = read(RECORDED, encoding="utf-16")
    assert len(run.train) == 8


def test_windows_line_ends(read, tmp_path):
    (tmp_path / "x.log").write_bytes(RECORDED.replace("\n", "\r\n").encode())
    (run,) = read_log(tmp_path / "x.log")
    assert len(run.train) == 8


# ---- other forms --------------------------------------------------------------------------------


def test_older_caffe_and_ssd(read):
    (run,) = read(
        "I0828 10:00:00.000000  9 solver.cpp:214] Iteration 40, loss = 5.25\n"
        "I0828 10:00:00.000000  9 solver.cpp:229]     Train net output #0: mbox_loss = 5.5"
        " (* 1 = 5.5 loss)\n"
        "I0828 10:00:00.000000  9 solver.cpp:486] Iteration 40, lr = 0.001\n"
        "I0828 10:00:02.000000  9 solver.cpp:346] Iteration 60, Testing net (#0)\n"
        "I0828 10:00:03.500000  9 solver.cpp:463] class1: 0.5\n"
        "I0828 10:00:03.500000  9 solver.cpp:463]     Test net output #0: detection_eval = 0.5\n"
    )
    assert (run.train[0].loss, run.train[0].outputs) == (5.25, {"mbox_loss": 5.5})
    assert table(run.tests[0]) == [(60, {"detection_eval": 0.5})]
    assert run.tests[0][0].seconds == 3.5
    assert run.losses == {"mbox_loss"}


def test_scores_before_outputs_had_names(read):
    (run,) = read("Iteration 500, Testing net\nTest score #0: 0.9\nTest score #1: 0.25\n")
    assert table(run.tests[0]) == [(500, {"score 0": 0.9, "score 1": 0.25})]


def test_what_nvidias_caffe_adds(read):
    (run,) = read(
        "Iteration 20 (8.4 iter/s, 2.4s/20 iter), 0.5/10ep, loss = 2.3\n"
        "    Train net output #0: loss = 2.25 (* 1 = 2.25 loss)\n"
        "Iteration 20, lr = 0.01, m = 0.9, wd = 0.0005\n"
    )
    assert run.train == [Row(20, pytest.approx(math.nan, nan_ok=True), {"loss": 2.25}, 2.3, 0.01)]


def test_outputs_with_several_numbers_and_test_nets(read):
    (run,) = read(
        "Iteration 0, Testing net (#0)\n    Test net output #0: a/b = 1e-05\n"
        "    Test net output #1: a/b = -nan\n    Test net output #2: a/b = 3\n"
        "Iteration 0, Testing net (#1)\n    Test net output #0: c = inf\n"
    )
    assert list(run.tests) == [0, 1]
    assert list(run.tests[0][0].outputs) == ["a/b", "a/b[1]", "a/b[2]"]
    assert run.tests[0][0].outputs["a/b"] == 1e-5
    assert math.isnan(run.tests[0][0].outputs["a/b[1]"])
    assert run.tests[1][0].outputs == {"c": math.inf}


# ---- interrupted, resumed, repeated -------------------------------------------------------------


def test_half_a_last_line_is_left_out(read):
    whole = RECORDED[: RECORDED.index("Iteration 24, lr")]
    for length in range(len(whole), RECORDED.index("Iteration 28 ("), 5):
        (run,) = read(RECORDED[:length])
        assert [row.iteration for row in run.train][-1] in (24, 28)
    (run,) = read(whole[: whole.rindex("1.19802") + 3])
    assert (run.train[-1].iteration, run.train[-1].outputs) == (24, {})


def test_a_line_broken_off_and_another_process_in_it(read):
    text = (
        "I0101 00:00:00.000000 1 s.cpp:1] Iteration 5, loss = 0.12"
        "I0101 00:00:07.000000 2 s.cpp:1] Iteration 6, loss = 3\n"
    )
    (run,) = read(text)
    assert [(row.iteration, row.loss) for row in run.train] == [(6, 3.0)]


def test_a_test_without_result_is_none(read):
    (run,) = read("Iteration 3, loss = 2\nIteration 4, Testing net (#0)\nTest interrupted.\n")
    assert run.tests == {0: []}


def lines(first, *iterations, minute=0, second=0):
    """A log of one process that starts at a time and displays every second."""
    text = f"I{first} 10:{minute:02}:{second:02}.000000 1 s.cpp:1] Solving tiny\n"
    for k, iteration in enumerate(iterations, second + 1):
        text += (
            f"I{first} 10:{minute:02}:{k:02}.000000 1 s.cpp:1] Iteration {iteration}, loss = 1\n"
        )
    return text


def test_resumed_in_the_same_file(read):
    """What is computed again counts once, seconds go on without the pause."""
    (run,) = read(lines("0131", 0, 10, 20, 30) + lines("0203", 20, 30, 40, second=9))
    assert [(row.iteration, row.seconds) for row in run.train] == [
        (0, 1), (10, 2), (20, 3), (30, 4), (40, 5),
    ]  # fmt: skip


def test_begun_again_in_the_same_file(read):
    first, second = read(lines("0131", 0, 10, 20) + lines("0131", 0, 10, minute=5))
    assert [row.iteration for row in first.train] == [0, 10, 20]
    assert [(row.iteration, row.seconds) for row in second.train] == [(0, 1), (10, 2)]


def test_a_process_that_never_got_to_a_display(read):
    (run,) = read(lines("0131") + lines("0131", 0, 5, second=30))
    assert [row.seconds for row in run.train] == [1, 2]


def test_begun_again_where_the_log_begins_late(read):
    text = lines("0131", 40, 50) + lines("0131", 0, 10, minute=1)
    first, second = read("".join(line + "\n" for line in text.splitlines() if "Solv" not in line))
    assert [(row.iteration, row.seconds) for row in first.train] == [(40, 0), (50, 1)]
    assert [(row.iteration, row.seconds) for row in second.train] == [(0, 0), (10, 1)]


def test_a_year_ends(read):
    (run,) = read(
        "I1231 23:59:59.500000 1 s.cpp:1] Solving tiny\n"
        "I0101 00:00:01.000000 1 s.cpp:1] Iteration 0, loss = 1\n"
        "I0102 00:00:01.000000 1 s.cpp:1] Iteration 5, loss = 1\n"
    )
    assert [row.seconds for row in run.train] == [1.5, 86401.5]


def test_a_leap_day(read):
    text = (
        "I0228 12:00:00.000000 1 s.cpp:1] Solving tiny\n"
        "I0229 12:00:00.000000 1 s.cpp:1] Iteration 0, loss = 1\n"
        "I0301 12:00:00.000000 1 s.cpp:1] Iteration 5, loss = 1\n"
    )
    (run,) = read(text)
    assert [row.seconds for row in run.train] == [86400, 2 * 86400]
    (run,) = read("".join(line + "\n" for line in text.splitlines() if "I0229" not in line))
    assert [row.seconds for row in run.train] == [86400]


def test_a_clock_set_back_an_hour_is_no_new_year(read):
    """It stands still meanwhile."""
    text = lines("1025", 0, minute=59)
    text += "I1025 10:00:00.500000 1 s.cpp:1] Iteration 3, loss = 1\n"
    (run,) = read(text + "I1025 10:00:02.000000 1 s.cpp:1] Iteration 6, loss = 1\n")
    assert [(row.iteration, row.seconds) for row in run.train] == [(0, 1), (3, 1), (6, 2.5)]


# ---- CSV ----------------------------------------------------------------------------------------

TABLE = """iteration,phase,seconds,learning_rate,smoothed_loss,accuracy,loss
0,test,0.25,,,0.125,2.5
0,train,0.5,0.1,2.25,,2.125
10,train,1.5,0.1,2,,1.875
20,test 1,2.5,0.1,1.75,0.5,1.5
20,train,3.0,0.05,1.25,,1.125
"""


def test_a_table_of_train(read):
    (run,) = read(TABLE, "x.csv")
    assert run.train == [
        Row(0, 0.5, {"loss": 2.125}, 2.25, 0.1),
        Row(10, 1.5, {"loss": 1.875}, 2.0, 0.1),
        Row(20, 3.0, {"loss": 1.125}, 1.25, 0.05),
    ]
    assert run.tests == {
        0: [Row(0, 0.25, {"accuracy": 0.125, "loss": 2.5}, None, 0.1)],
        1: [Row(20, 2.5, {"accuracy": 0.5, "loss": 1.5}, None, 0.05)],
    }


def test_a_table_that_was_gone_on_with(read):
    (run,) = read(TABLE + "20,tra\n10,train,0.5,0.1,7,,8\n30,train,2.5,0.01,6,,5\n30,tr", "x.csv")
    assert [(row.iteration, row.seconds, row.loss) for row in run.train] == [
        (0, 0.5, 2.25), (10, 1.0, 7.0), (30, 3.0, 6.0),
    ]  # fmt: skip
    assert [row.iteration for rows in run.tests.values() for row in rows] == [0]


def test_tables_are_written_as_parse_log_does(read):
    (run,) = read(lines("0131", 0, 10))
    run.train[0].outputs, run.train[0].rate = {"a": 1.5}, 0.01
    run.train[1].outputs, run.train[1].rate = {"a": 0.5, "b": 2.0}, 0.001
    text = log_csv.write(run.train)
    assert text == "NumIters,Seconds,LearningRate,a,b\n0.0,1.0,0.01,1.5,\n10.0,2.0,0.001,0.5,2.0\n"
    (again,) = read(text, "x.log.test")
    assert again.tests[0] == [
        Row(0, 1.0, {"a": 1.5}, None, 0.01),
        Row(10, 2.0, {"a": 0.5, "b": 2.0}, None, 0.001),
    ]


def test_a_table_of_a_log_with_nothing_but_losses(read):
    (run,) = read(lines("0131", 0, 10))
    text = log_csv.write(run.train)
    assert text == "NumIters,Seconds,LearningRate,loss\n0.0,1.0,nan,1.0\n10.0,2.0,nan,1.0\n"


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "hello\n", "Batch 0, accuracy = 0.5\n", "a,b\n1,2\n"])
def test_a_file_that_is_no_log(read, text):
    with pytest.raises(ModelError, match=r"x\.log is no training log"):
        read(text)


def test_a_log_that_is_not_there(tmp_path):
    with pytest.raises(MissingFileError, match=r"log not found: .*no\.log"):
        read_log(tmp_path / "no.log")
