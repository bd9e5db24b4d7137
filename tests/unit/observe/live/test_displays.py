"""A line sums up a snapshot, and an alarm is written once."""

from __future__ import annotations

from tests.support.live_samples import make_job_state, make_report, make_snapshot
from undertow.observe.live import displays
from undertow.observe.live.displays import LogDisplay
from undertow.observe.live.job_state import JobState


def test_a_line_has_all_figures() -> None:
    assert displays.describe(make_snapshot(1)) == (
        "step 1240, 8.3 steps/s, 9 % waiting (most for conv1.weight), out 93 MB/s, in 92 MB/s, slowest layer fc6 31 ms"
    )
    assert ", in 92 MB/s each, " in displays.describe(make_snapshot(2))


def test_unknown_figures_are_left_out() -> None:
    job = JobState("train.py", now_s=0.0)
    job.expect({0: "a"}, 1)
    assert displays.describe(job.take_snapshot(1.0)) == "no worker has reported yet"
    job.add_report(make_report(0, steps=0, wait_share=0.0, layer=""), 1.0)
    assert displays.describe(job.take_snapshot(1.0)) == "no step seen yet, 0 % waiting, out 93 MB/s, in 92 MB/s"


def test_the_turn_of_another_job_is_named() -> None:
    assert "40 % other job's turn" in displays.describe(make_snapshot(1, turn_share=0.4))


def test_an_alarm_is_written_immediately_and_once() -> None:
    said: list[str] = []
    now = [100.0]
    log = LogDisplay(said.append, lambda: now[0])
    job = make_job_state(2)
    log.start()
    for now[0] in (101.0, 105.5, 106.0):
        job.add_report(make_report(0, int(now[0])), now[0])
        log.show(job.take_snapshot(now[0]))
    assert said[0] == "rank 1 on host node1: silent for 6 s"
    assert len(said) == 2  # and the line that was due after five seconds
    job.add_report(make_report(1, 2), 107.0)
    log.show(job.take_snapshot(107.0))
    log.show(job.take_snapshot(112.1))
    assert said[2:] == ["rank 0 on host node0: silent for 6 s", "rank 1 on host node1: silent for 5 s"]


def test_a_failed_worker_is_no_alarm() -> None:
    job = make_job_state(1)
    job.end_rank(0, "exit code 1")
    assert displays.find_alarms(job.take_snapshot(101.0), set()) == []


def test_the_last_line_is_not_written_twice() -> None:
    said: list[str] = []
    log = LogDisplay(said.append, lambda: 105.0)
    log.show(make_snapshot(1))
    log.finish(make_snapshot(1))
    assert len(said) == 1
