"""The state of a job: the newest report of every rank, as text that is safe for a terminal."""

from __future__ import annotations

import pytest

from tests.support.live_samples import make_job_state, make_report
from undertow.observe.live.job_state import DONE, HISTORY, KEPT_LINES, SILENT_S, JobState, LastLines
from undertow.observe.meter.status_report import Activity
from undertow.plain_text import clean


def test_a_rank_that_was_started_and_has_not_reported_is_starting() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: "a", 1: "a"}, 4)
    snapshot = job.take_snapshot(50.0)
    assert [(row.rank, row.host, row.state, row.report) for row in snapshot.rows] == [
        (0, "a", "starting", None),
        (1, "a", "starting", None),
    ]
    assert (snapshot.world_size, snapshot.reporting, snapshot.steps, snapshot.elapsed_s) == (4, 0, 0, 50.0)


def test_ranks_of_other_hosts_appear_with_their_first_report() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: "a"}, 4)
    job.add_report(make_report(3, host="d"), 1.0)
    assert [(row.rank, row.host) for row in job.take_snapshot(2.0).rows] == [(0, "a"), (3, "d")]


@pytest.mark.parametrize("rank", [-1, 2, 1 << 40])
def test_a_rank_that_does_not_exist_is_ignored(rank: int) -> None:
    job = make_job_state(2)
    job.add_report(make_report(rank), 100.0)
    assert len(job.take_snapshot(101.0).rows) == 2


def test_only_the_newest_report_counts_in_any_order_of_arrival() -> None:
    job = make_job_state(1)
    job.add_report(make_report(0, 7, steps=70), 101.0)
    job.add_report(make_report(0, 6, steps=60), 102.0)
    job.add_report(make_report(0, 7, steps=99), 103.0)
    assert job.take_snapshot(103.0).steps == 70
    assert job.take_snapshot(101.0 + SILENT_S).rows[0].is_alarming  # a late report is no sign of life


def test_silence_is_alarming_until_the_next_report() -> None:
    job = make_job_state(2)
    assert not job.take_snapshot(100.0 + SILENT_S - 0.1).rows[0].is_alarming
    row = job.take_snapshot(107.0).rows[1]
    assert (row.state, row.is_alarming, row.is_up) == ("silent for 7 s", True, True)
    job.add_report(make_report(1, 2), 107.5)
    assert job.take_snapshot(108.0).rows[1].state == "computing"


def test_a_worker_that_has_ended_is_not_silent() -> None:
    job = make_job_state(3)
    job.end_rank(0, DONE)
    job.end_rank(1, "exit code 3")
    job.add_report(make_report(2, 2, state=Activity.ENDED), 101.0)
    rows = job.take_snapshot(200.0).rows
    assert [row.state for row in rows] == ["ended", "ended: exit code 3", "ended"]
    assert [row.is_alarming for row in rows] == [False, True, False]
    assert [row.is_up for row in rows] == [False, False, False]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"state": Activity.WAITING, "stands_for": "conv1.weight"}, "waiting for conv1.weight"),
        ({"state": Activity.WAITING, "stands_for": "conv1.weight", "stands_s": 12.3}, "waiting for conv1.weight, 12 s"),
        ({"state": Activity.WAITING}, "waiting"),
        ({"state": Activity.COMPUTING, "turn_share": 0.95}, "other job's turn"),
        ({"state": Activity.STARTING}, "starting"),
    ],
)
def test_a_state_is_described_in_words(figures: dict[str, object], words: str) -> None:
    assert make_job_state(1, **figures).take_snapshot(100.0).rows[0].state == words


def test_figures_of_the_job_are_means_over_running_ranks() -> None:
    job = make_job_state(3)
    job.add_report(make_report(0, 2, wait_share=0.1, out_bytes_per_s=10e6, waits_for="a", layer="x", steps=5), 100.0)
    job.add_report(
        make_report(1, 2, wait_share=0.3, out_bytes_per_s=30e6, waits_for="b", layer_ms_per_step=99.0), 100.0
    )
    job.end_rank(2, DONE)
    snapshot = job.take_snapshot(101.0)
    assert (snapshot.wait_share, snapshot.out_bytes_per_s) == (pytest.approx(0.2), 20e6)
    assert (snapshot.waits_for, snapshot.layer, snapshot.steps) == ("b", "fc6", 1240)


def test_the_last_figures_stay_when_all_have_ended() -> None:
    job = make_job_state(1)
    job.end_rank(0, DONE)
    job.end_job("done")
    snapshot = job.take_snapshot(101.0)
    assert (snapshot.verdict, snapshot.steps, snapshot.steps_per_s) == ("done", 1240, 8.31)


def test_history_is_short_and_in_order() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: "a"}, 1)
    job.add_history_point()
    assert job.take_snapshot(0.0).history == []
    for number in range(1, HISTORY + 11):
        job.add_report(make_report(0, number, steps_per_s=float(number)), 1.0)
        job.add_history_point()
    assert [point[0] for point in job.take_snapshot(2.0).history] == [
        float(number) for number in range(11, HISTORY + 11)
    ]


def test_no_control_characters_of_workers_reach_the_terminal() -> None:
    job = JobState("tr\x1b[2Jain.py", now_s=0.0)
    job.expect({0: "ho\x07st"}, 1)
    names = {"layer": "fc\x1b]0;title\x07", "waits_for": "a\x9bb\u202ec", "stands_for": "\x1b[31mred\x1b[0m"}
    job.add_report(make_report(0, state=Activity.WAITING, **names), 0.0)
    job.lines.feed(1, b"\x1b[2J\x1b]52;c;xx\x07loss\x08\x08 1\n")
    snapshot = job.take_snapshot(0.0)
    row = snapshot.rows[0]
    assert row.report is not None
    shown = [snapshot.script, row.host, row.state, row.report.layer, row.report.waits_for, *snapshot.lines]
    assert all(text.isprintable() for text in shown)
    assert (snapshot.script, row.report.layer, row.state) == ("train.py", "fc", "waiting for red")
    assert snapshot.lines == ["loss\ufffd\ufffd 1"]


def test_lines_are_shown_as_in_a_terminal() -> None:
    lines = LastLines()
    lines.feed(1, b"one\r\ntw")
    lines.feed(2, b"10 %\r20 %")
    lines.feed(1, b"o\n")
    assert lines.last() == ["one", "two", "20 %"]
    lines.feed(2, b"\r30 %\r")
    assert lines.last() == ["one", "two", "30 %"]


def test_only_the_last_lines_are_kept_with_limited_length() -> None:
    lines = LastLines()
    lines.feed(1, b"".join(b"%d\n" % number for number in range(1000)))
    assert lines.last() == [str(number) for number in range(1000 - KEPT_LINES, 1000)]
    lines.feed(1, b"x" * 1_000_000)
    assert len(lines.last()) == KEPT_LINES
    assert len(lines.last()[-1]) <= 500


def test_clean_text_stays_as_it_is() -> None:
    assert clean("layer.4 größe 日本 ✓") == "layer.4 größe 日本 ✓"
    assert clean("a\tb") == "a    b"
