"""The launchers name the first loss before the workers have met, and none afterwards."""

from __future__ import annotations

import pytest

from undertow.launch.host_watch import (
    ARRIVE_S,
    BEAT_EVERY_S,
    SILENCE_S,
    Beat,
    EndWorkers,
    Go,
    Goodbye,
    HostRanks,
    HostWatch,
    Left,
    Lost,
    Met,
    SendMessage,
    StartWorkers,
)
from undertow.runtime.launcher_notes import Mark

HOSTS = [HostRanks("a", 0, 2), HostRanks("b", 2, 2), HostRanks("c", 4, 1)]
KILLED = "rank 3 on host b was killed by SIGKILL before the workers had met"


def make(node_rank: int, *, waits: Mark = Mark.NONE) -> HostWatch:
    """Return the watch of a launcher that has started its workers; the first worker waits as `waits` says."""
    watch = HostWatch(node_rank, HOSTS, now_s=0.0)
    for host in (1, 2) if node_rank == 0 else []:
        watch.note_arrived(host, 0.0)
    watch.handle_message(0, Go(), 0.0)
    watch.note_marks({HOSTS[node_rank].first_rank: waits})
    return watch


def find_causes(instructions: list[SendMessage | StartWorkers | EndWorkers]) -> list[str]:
    return [each.cause for each in instructions if isinstance(each, EndWorkers)]


def test_a_failed_worker_is_reported_to_all_hosts_and_ends_their_workers() -> None:
    assert make(1).note_failed(3, "was killed by SIGKILL") == [SendMessage((0,), Lost(KILLED))]
    hub = make(0)
    assert hub.handle_message(1, Lost(KILLED), 0.1) == [SendMessage((2,), Lost(KILLED)), EndWorkers(KILLED)]
    assert make(2).handle_message(0, Lost(KILLED), 0.2) == [EndWorkers(KILLED)]
    assert hub.cause == KILLED


def test_the_first_cause_is_never_replaced() -> None:
    hub = make(0)
    hub.handle_message(1, Lost(KILLED), 0.1)
    assert hub.handle_message(2, Lost("another"), 0.2) == []
    assert hub.note_closed(1) == []
    assert hub.note_failed(0, "failed") == []
    assert hub.note_met() == []
    assert hub.cause == KILLED


def test_a_stopped_worker_is_named_and_the_job_ends_on_its_own_host_too() -> None:
    cause = "rank 2 on host b was stopped (SIGSTOP; pid 77) before the workers had met"
    watch = make(1)
    watch.note_marks({2: Mark.WAITS, 3: Mark.WAITS})
    assert watch.note_stopped(2, 77) == [SendMessage((0,), Lost(cause)), EndWorkers(cause)]


def test_a_stopped_worker_is_not_a_loss_unless_another_worker_waits() -> None:
    watch = make(1)
    watch.note_marks({2: Mark.WAITS, 3: Mark.NONE})  # its own mark does not count
    assert watch.note_stopped(2, 77) == []
    watch.handle_message(0, Beat(Mark.WAITS), 1.0)
    assert find_causes(watch.note_stopped(2, 77))
    watch = make(1)
    watch.handle_message(
        0, Beat(Mark.MET), 1.0
    )  # the last worker to connect is stopped, so the first launcher gets no message from it
    assert find_causes(watch.note_stopped(2, 77))


def test_a_connection_that_ends_without_goodbye_is_a_loss() -> None:
    cause = (
        "the launcher on host b (--node-rank 1, ranks 2 and 3) was killed, or its connection was cut, "
        "before the workers had met"
    )
    assert make(0).note_closed(1) == [SendMessage((2,), Lost(cause)), EndWorkers(cause)]
    hub, spoke = make(0), make(2)
    for watch, host in ((hub, 2), (spoke, 0)):
        assert watch.handle_message(host, Goodbye(), 1.0) == []
        assert watch.note_closed(host) == []
    assert spoke.tick(99.0) == []
    assert hub.note_failed(1, "failed") == [
        SendMessage((1,), Lost("rank 1 on host a failed before the workers had met"))
    ]


def test_a_leaving_launcher_sends_the_reason() -> None:
    [told] = make(2).note_leaving("was interrupted by SIGINT")
    assert isinstance(told, SendMessage)
    cause = "the launcher on host c (--node-rank 2, rank 4) was interrupted by SIGINT before the workers had met"
    assert told.message == Lost(cause)


def run_until(watch: HostWatch, until_s: float, *, alive: list[int]) -> list[str]:
    causes = []
    for second in range(1, int(until_s) + 1):
        for host in alive:
            watch.handle_message(host, Beat(), second - 0.5)
        causes += find_causes(watch.tick(second))
    return causes


@pytest.mark.parametrize(("node_rank", "silent", "alive"), [(0, 1, [2]), (1, 0, [])])
def test_a_silent_launcher_is_named(node_rank: int, silent: int, alive: list[int]) -> None:
    watch = make(node_rank, waits=Mark.WAITS)
    assert run_until(watch, SILENCE_S, alive=alive) == []
    watch = make(node_rank, waits=Mark.WAITS)
    [cause] = run_until(watch, SILENCE_S + BEAT_EVERY_S, alive=alive)
    assert f"host {HOSTS[silent].name} " in cause
    assert "no sign of life for 11 s before the workers had met" in cause


def test_a_launcher_that_was_stopped_reports_no_loss() -> None:
    watch = make(0, waits=Mark.WAITS)
    assert run_until(watch, 3, alive=[1, 2]) == []
    beats = [SendMessage((1,), Beat(Mark.WAITS)), SendMessage((2,), Beat(Mark.WAITS))]
    assert watch.tick(300.0) == beats
    assert watch.tick(301.0) == beats


@pytest.mark.parametrize(("node_rank", "alive"), [(0, [2]), (1, [])])
def test_a_silent_launcher_is_not_a_loss_until_a_worker_of_another_host_waits(node_rank: int, alive: list[int]) -> None:
    """A user may stop a job that never forms a group for any time."""
    watch, silent = make(node_rank), 1 - node_rank
    watch.handle_message(silent, Beat(Mark.WAITS_FOR_ALL), 0.0)
    assert run_until(watch, 3600, alive=alive) == []
    watch.note_marks({HOSTS[node_rank].first_rank: Mark.WAITS})
    [cause] = find_causes(watch.tick(3601.0))
    assert f"host {HOSTS[silent].name} " in cause


def test_the_hub_sends_each_host_what_workers_of_other_hosts_wait_for() -> None:
    hub = make(0)
    hub.handle_message(1, Beat(Mark.WAITS_FOR_ALL), 0.5)
    assert hub.tick(1.0) == [SendMessage((1,), Beat()), SendMessage((2,), Beat(Mark.WAITS_FOR_ALL))]
    hub.note_marks({0: Mark.WAITS, 1: Mark.NONE})
    assert hub.tick(2.0) == [SendMessage((1,), Beat(Mark.WAITS)), SendMessage((2,), Beat(Mark.WAITS_FOR_ALL))]


LEFT = "rank 3 on host b ended with exit code 0 before the workers had met, and others wait for it"


def test_a_worker_that_ended_normally_is_named_if_others_wait_for_it() -> None:
    assert make(1).note_left(3) == [SendMessage((0,), Left(3))]
    hub, spoke = make(0), make(2)
    assert hub.handle_message(1, Left(3), 0.5) == [SendMessage((2,), Left(3))]
    assert hub.handle_message(1, Goodbye(), 0.6) == []  # all workers of that host have ended
    assert find_causes(hub.tick(1.0)) == []
    hub.handle_message(2, Beat(Mark.WAITS), 1.5)  # for torch's process group, which may be without that rank
    assert find_causes(hub.tick(2.0)) == []
    hub.handle_message(2, Beat(Mark.WAITS_FOR_ALL), 2.5)
    assert hub.tick(3.0) == [SendMessage((2,), Beat()), SendMessage((2,), Lost(LEFT)), EndWorkers(LEFT)]
    assert spoke.handle_message(0, Left(3), 0.5) == []
    spoke.handle_message(0, Goodbye(), 0.6)
    spoke.note_marks({4: Mark.WAITS_FOR_ALL})
    assert spoke.tick(1.0) == [EndWorkers(LEFT)]


def test_an_ended_worker_does_not_count_as_waiting() -> None:
    for watch, source in ((make(0), 1), (make(2), 0)):
        watch.handle_message(source, Beat(Mark.WAITS_FOR_ALL), 0.4)  # possibly only that worker's wait
        watch.handle_message(source, Left(3), 0.5)
        assert find_causes(watch.tick(1.0)) == []
        watch.handle_message(source, Beat(Mark.WAITS_FOR_ALL), 1.4)
        assert find_causes(watch.tick(2.0)) == [LEFT]


def test_with_one_host_only_a_worker_that_ended_normally_is_named() -> None:
    watch = HostWatch(0, HOSTS[:1], now_s=0.0)
    watch.note_marks({0: Mark.WAITS_FOR_ALL, 1: Mark.NONE})
    assert watch.note_stopped(1, 77) == []
    assert watch.note_left(1) == []
    assert find_causes(watch.tick(1.0)) == [LEFT.replace("3 on host b", "1 on host a")]
    watch = HostWatch(0, HOSTS[:1], now_s=0.0)
    watch.note_marks({0: Mark.MET, 1: Mark.MET})
    assert watch.has_met


def test_workers_start_when_all_launchers_are_connected() -> None:
    hub = HostWatch(0, HOSTS, now_s=0.0)
    assert hub.note_arrived(2, 0.5) == []
    assert hub.tick(1.0) == [SendMessage((2,), Beat())]
    assert hub.note_arrived(1, 1.5) == [SendMessage((1, 2), Go()), StartWorkers()]
    assert hub.note_arrived(1, 1.6) == []
    assert HostWatch(2, HOSTS, now_s=0.0).handle_message(0, Go(), 0.5) == [StartWorkers()]


def test_a_launcher_that_never_connects_is_named_in_less_than_five_seconds() -> None:
    hub = HostWatch(0, HOSTS, now_s=0.0)
    hub.note_arrived(2, 0.5)
    assert run_until(hub, ARRIVE_S, alive=[2]) == []
    [cause] = find_causes(hub.tick(ARRIVE_S + 0.9))
    assert "host b (--node-rank 1" in cause


def test_before_the_start_a_silent_launcher_is_a_loss() -> None:
    spoke = HostWatch(2, HOSTS, now_s=0.0)
    [cause] = run_until(spoke, SILENCE_S + BEAT_EVERY_S, alive=[])
    assert "host a (--node-rank 0" in cause


def test_nothing_is_decided_after_the_workers_have_met() -> None:
    hub, spoke = make(0), make(1)
    assert hub.note_met() == [SendMessage((1, 2), Met())]
    assert spoke.handle_message(0, Met(), 1.0) == []
    for watch, other in ((hub, 1), (spoke, 0)):
        assert watch.note_failed(0, "failed") == []
        assert watch.note_stopped(0, 1) == []
        assert watch.note_leaving("was interrupted by SIGINT") == []
        assert watch.handle_message(other, Lost("x"), 2.0) == []
        assert all(isinstance(each, SendMessage) for second in range(60) for each in watch.tick(float(second)))
        assert watch.note_closed(other) == []
        assert watch.cause == ""
