"""The shutdown of a job: which signal is sent when, with the clock as an argument."""

from __future__ import annotations

import signal

from undertow.launch.supervisor import (
    FAILURE_GRACE_S,
    SIGNAL_GRACE_S,
    STOPPED_CHECKS,
    STUCK_CHECKS,
    Phase,
    Shutdown,
    StoppedWorkers,
)


def test_a_healthy_job_is_left_alone() -> None:
    shutdown = Shutdown()
    assert shutdown.due(1e9) is None
    assert shutdown.deadline_s is None
    assert not shutdown.has_signalled


def test_after_a_failure_the_others_may_first_end_on_their_own() -> None:
    shutdown = Shutdown()
    shutdown.fail(10.0)
    assert shutdown.due(10.0 + FAILURE_GRACE_S - 0.01) is None
    assert not shutdown.has_signalled
    assert shutdown.due(10.0 + FAILURE_GRACE_S) is signal.SIGTERM
    assert shutdown.has_signalled
    assert shutdown.due(10.0 + FAILURE_GRACE_S + SIGNAL_GRACE_S - 0.01) is None
    assert shutdown.due(10.0 + FAILURE_GRACE_S + SIGNAL_GRACE_S) is signal.SIGKILL
    assert shutdown.due(1e9) is None


def test_further_failures_do_not_prolong_the_grace() -> None:
    shutdown = Shutdown()
    shutdown.fail(10.0)
    shutdown.fail(11.0)
    assert shutdown.deadline_s == 10.0 + FAILURE_GRACE_S


def test_an_interrupt_is_forwarded_at_once_and_enforced() -> None:
    shutdown = Shutdown()
    assert shutdown.interrupt(signal.SIGINT, 5.0) is signal.SIGINT
    assert shutdown.interrupted_by is signal.SIGINT
    assert shutdown.due(5.0 + SIGNAL_GRACE_S) is signal.SIGKILL


def test_sigterm_is_forwarded_as_sigterm() -> None:
    assert Shutdown().interrupt(signal.SIGTERM, 0.0) is signal.SIGTERM


def test_a_second_interrupt_kills_at_once() -> None:
    shutdown = Shutdown()
    shutdown.interrupt(signal.SIGINT, 5.0)
    assert shutdown.interrupt(signal.SIGINT, 5.1) is signal.SIGKILL
    assert shutdown.phase is Phase.KILLED
    assert shutdown.interrupted_by is signal.SIGINT


def test_an_interrupt_cuts_the_grace_after_a_failure_short() -> None:
    shutdown = Shutdown()
    shutdown.fail(0.0)
    assert shutdown.interrupt(signal.SIGINT, 0.5) is signal.SIGINT
    assert shutdown.deadline_s == 0.5 + SIGNAL_GRACE_S


def test_workers_that_fail_because_of_an_interrupt_start_no_new_grace() -> None:
    shutdown = Shutdown()
    shutdown.interrupt(signal.SIGINT, 0.0)
    shutdown.fail(0.1)
    assert shutdown.phase is Phase.SIGNALLED


def test_a_stopped_worker_is_named_once() -> None:
    watch = StoppedWorkers()
    warnings = [watch.observe(2, 77, state="T") for _ in range(3 * STOPPED_CHECKS)]
    assert [index for index, warning in enumerate(warnings, 1) if warning] == [STOPPED_CHECKS]
    assert "rank 2 (pid 77) is stopped" in str(warnings[STOPPED_CHECKS - 1])


def test_a_worker_that_stays_stopped_is_stuck_until_it_continues() -> None:
    watch = StoppedWorkers()
    assert not watch.is_stuck(2)
    stuck = []
    for state in "T" * STUCK_CHECKS + "S":
        watch.observe(2, 77, state=state)
        stuck.append(watch.is_stuck(2))
    assert stuck == [False] * (STUCK_CHECKS - 1) + [True, False]


def test_the_count_restarts_when_a_worker_continues() -> None:
    watch = StoppedWorkers()
    states = "TTTTSTTTTRTTTTT"
    warnings = [watch.observe(0, 1, state=state) for state in states]
    assert [bool(warning) for warning in warnings] == [False] * (len(states) - 1) + [True]


def test_stops_are_counted_per_rank() -> None:
    watch = StoppedWorkers()
    for _ in range(STOPPED_CHECKS - 1):
        assert watch.observe(0, 1, state="T") is None
        assert watch.observe(1, 2, state="S") is None
    assert watch.observe(0, 1, state="T")
    assert watch.observe(1, 2, state="T") is None


def test_a_failure_on_another_host_ends_workers_at_once() -> None:
    shutdown = Shutdown()
    assert shutdown.end(10.0) is signal.SIGTERM
    assert shutdown.has_signalled
    assert shutdown.end(10.1) is None
    assert shutdown.due(10.0 + SIGNAL_GRACE_S) is signal.SIGKILL
    assert shutdown.end(12.0) is None
