"""The launchers name the first loss before the workers have met, and none afterwards."""

from __future__ import annotations

import pytest

from undertow.launch.host_watch import (
    BEAT_EVERY_S,
    SILENCE_S,
    Beat,
    EndWorkers,
    Goodbye,
    HostPlace,
    HostWatch,
    Lost,
    Met,
    Tell,
)

HOSTS = [HostPlace("a", 0, 2), HostPlace("b", 2, 2), HostPlace("c", 4, 1)]
KILLED = "rank 3 on host b was killed by SIGKILL before the workers had met"


def make(node_rank: int) -> HostWatch:
    return HostWatch(node_rank, HOSTS, now_s=0.0)


def test_a_worker_that_failed_is_told_to_all_and_ended_where_it_was_told() -> None:
    assert make(1).note_failed(3, "was killed by SIGKILL") == [Tell((0,), Lost(KILLED))]
    hub = make(0)
    assert hub.hear(1, Lost(KILLED), 0.1) == [Tell((2,), Lost(KILLED)), EndWorkers(KILLED)]
    assert make(2).hear(0, Lost(KILLED), 0.2) == [EndWorkers(KILLED)]
    assert hub.cause == KILLED


def test_the_first_cause_stays() -> None:
    hub = make(0)
    hub.hear(1, Lost(KILLED), 0.1)
    assert hub.hear(2, Lost("another"), 0.2) == []
    assert hub.note_closed(1) == []
    assert hub.note_failed(0, "failed") == []
    assert hub.note_met() == []
    assert hub.cause == KILLED


def test_a_stopped_worker_is_named_and_its_own_host_ends_too() -> None:
    cause = "rank 2 on host b was stopped (SIGSTOP; pid 77) before the workers had met"
    assert make(1).note_stopped(2, 77) == [Tell((0,), Lost(cause)), EndWorkers(cause)]


def test_a_connection_that_ends_without_goodbye_is_a_loss() -> None:
    cause = (
        "the launcher on host b (--node-rank 1, ranks 2 and 3) was killed, or its connection was cut, "
        "before the workers had met"
    )
    assert make(0).note_closed(1) == [Tell((2,), Lost(cause)), EndWorkers(cause)]
    hub, spoke = make(0), make(2)
    for watch, host in ((hub, 2), (spoke, 0)):
        assert watch.hear(host, Goodbye(), 1.0) == []
        assert watch.note_closed(host) == []
    assert spoke.tick(99.0) == []
    assert hub.note_failed(1, "failed") == [Tell((1,), Lost("rank 1 on host a failed before the workers had met"))]


def test_a_launcher_that_leaves_says_why() -> None:
    [told] = make(2).note_leaving("was interrupted by SIGINT")
    assert isinstance(told, Tell)
    cause = "the launcher on host c (--node-rank 2, rank 4) was interrupted by SIGINT before the workers had met"
    assert told.message == Lost(cause)


def run_until(watch: HostWatch, until_s: float, *, speaking: list[int]) -> list[str]:
    causes = []
    for second in range(1, int(until_s) + 1):
        for host in speaking:
            watch.hear(host, Beat(), second - 0.5)
        causes += [each.cause for each in watch.tick(second) if isinstance(each, EndWorkers)]
    return causes


@pytest.mark.parametrize(("node_rank", "silent", "speaking"), [(0, 1, [2]), (1, 0, [])])
def test_a_silent_launcher_is_named(node_rank: int, silent: int, speaking: list[int]) -> None:
    watch = make(node_rank)
    assert run_until(watch, SILENCE_S, speaking=speaking) == []
    watch = make(node_rank)
    [cause] = run_until(watch, SILENCE_S + BEAT_EVERY_S, speaking=speaking)
    assert f"host {HOSTS[silent].name} " in cause
    assert "no sign of life for 11 s before the workers had met" in cause


def test_a_launcher_that_was_stopped_itself_blames_no_one() -> None:
    watch = make(0)
    assert run_until(watch, 3, speaking=[1, 2]) == []
    assert watch.tick(300.0) == [Tell((1, 2), Beat())]
    assert watch.tick(301.0) == [Tell((1, 2), Beat())]


def test_nothing_is_decided_after_the_workers_have_met() -> None:
    hub, spoke = make(0), make(1)
    assert hub.note_met() == [Tell((1, 2), Met())]
    assert spoke.hear(0, Met(), 1.0) == []
    for watch, other in ((hub, 1), (spoke, 0)):
        assert watch.note_failed(0, "failed") == []
        assert watch.note_stopped(0, 1) == []
        assert watch.note_leaving("was interrupted by SIGINT") == []
        assert watch.hear(other, Lost("x"), 2.0) == []
        assert all(isinstance(each, Tell) for second in range(60) for each in watch.tick(float(second)))
        assert watch.note_closed(other) == []
        assert watch.cause == ""
