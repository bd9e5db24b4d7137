"""The first cause is found, and printed last."""

from __future__ import annotations

import itertools
import signal

import pytest

from undertow.errors import PeerLost
from undertow.launch.exit_report import RemoteFailure, WorkerExit, describe_code, make_exit_report

TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: broken")
ABSENT = PeerLost(ranks=[1], event="did not connect within 120 s of the start")
SILENT = "no sign of life for 10.2 s (process stopped, host down or link cut)"


def lost(rank: int, by: int, reason: str = "", exit_code: int | None = None) -> PeerLost:
    silent_s = None if reason else 10.2
    return PeerLost(
        reason, rank=rank, host="b", silent_s=silent_s, exit_code=exit_code, seen_by=by, own_rank=by, step=7
    )


def show(loss: PeerLost) -> tuple[str, ...]:
    return ("Traceback (most recent call last):", f"undertow.errors.PeerLost: {loss}")


def ending(
    rank: int,
    code: int = 0,
    *,
    at_s: float = 0.0,
    error: tuple[str, ...] = (),
    ended: bool = False,
    loss: PeerLost | None = None,
) -> WorkerExit:
    words = error or (() if loss is None else show(loss))
    return WorkerExit(rank=rank, host="a", code=code, ended_s=at_s, by_launcher=ended, error=words, loss=loss)


def test_a_job_without_errors_has_an_empty_report() -> None:
    verdict = make_exit_report([ending(0), ending(1)])
    assert (verdict.exit_code, verdict.lines) == (0, ())


def test_the_first_cause_comes_last_and_in_full() -> None:
    verdict = make_exit_report([ending(0, -15, at_s=3, ended=True), ending(1, 1, at_s=1, error=TRACEBACK)])
    assert verdict.exit_code == 1
    assert verdict.lines == (
        "rank 0 was ended, because another rank failed",
        "rank 1 (host a) failed first: exit code 1",
        *TRACEBACK,
    )


def test_a_lost_peer_is_never_the_cause_even_if_it_was_seen_first() -> None:
    verdict = make_exit_report([ending(0, 1, at_s=1, loss=ABSENT), ending(1, 7, at_s=2, error=TRACEBACK)])
    assert verdict.exit_code == 7
    assert verdict.lines[0] == f"rank 0 failed too: exit code 1: undertow.errors.PeerLost: {ABSENT}"
    assert verdict.lines[1] == "rank 1 (host a) failed first: exit code 7"


def test_an_ended_rank_is_never_the_cause() -> None:
    verdict = make_exit_report([ending(0, 9, at_s=0, ended=True), ending(1, 1, at_s=5, loss=ABSENT)])
    assert verdict.lines[-3] == "rank 1 (host a) failed first: exit code 1"


def test_if_all_lost_a_peer_of_another_host_the_earliest_failure_is_shown() -> None:
    verdict = make_exit_report([ending(1, 1, at_s=2, loss=ABSENT), ending(0, 1, at_s=1, loss=ABSENT)])
    assert verdict.lines[1:] == ("rank 0 (host a) failed first: exit code 1", *show(ABSENT))


def test_a_rank_that_all_others_lost_is_the_first_cause() -> None:
    endings = [
        ending(0, 1, at_s=2, loss=lost(3, by=0)),
        ending(1, 1, at_s=1, loss=lost(3, by=1)),
        ending(2, -15, at_s=3, ended=True),
        ending(3, -9, at_s=4, ended=True),
    ]
    verdict = make_exit_report(endings)
    assert verdict.exit_code == 1
    assert verdict.lines == (
        f"rank 0 failed too: exit code 1: {show(lost(3, by=0))[1]}",
        "rank 2 was ended, because another rank failed",
        f"rank 3 (host b) was lost first: {SILENT}",
        *show(lost(3, by=1)),
    )


def test_if_ranks_lost_different_peers_the_earliest_failure_is_shown() -> None:
    verdict = make_exit_report([ending(0, 1, at_s=2, loss=lost(1, by=0)), ending(1, 1, loss=lost(0, by=1))])
    assert verdict.lines[1:] == ("rank 1 (host a) failed first: exit code 1", *show(lost(0, by=1)))


def test_a_rank_with_an_error_of_its_own_is_the_cause_even_if_another_was_lost() -> None:
    endings = [ending(0, 1, loss=lost(2, by=0)), ending(1, 1, at_s=5, error=TRACEBACK), ending(2, -9, ended=True)]
    assert make_exit_report(endings).lines[-4:] == ("rank 1 (host a) failed first: exit code 1", *TRACEBACK)


def test_a_follower_that_was_ended_while_exiting_is_shown_with_its_own_error() -> None:
    endings = [ending(0, -15, at_s=3, ended=True, loss=lost(1, by=0)), ending(1, 1, at_s=1, error=TRACEBACK)]
    assert make_exit_report(endings).lines[0] == f"rank 0 failed too: {show(lost(1, by=0))[1]}"


@pytest.mark.parametrize("ended_with", [-15, 0])
def test_a_rank_that_fails_and_takes_too_long_to_exit_is_the_cause(ended_with: int) -> None:
    reason, code = "its script ended with sys.exit(42)", 42
    endings = [
        ending(0, 1, at_s=1, loss=lost(1, by=0, reason=reason, exit_code=code)),
        ending(1, ended_with, at_s=3, ended=True, error=TRACEBACK),
        ending(2, -15, at_s=3, ended=True, loss=lost(1, by=2, reason=reason, exit_code=code)),
    ]
    verdict = make_exit_report(endings)
    assert verdict.exit_code == code
    assert verdict.lines == (
        f"rank 0 failed too: exit code 1: {show(lost(1, by=0, reason=reason, exit_code=code))[1]}",
        f"rank 2 failed too: {show(lost(1, by=2, reason=reason, exit_code=code))[1]}",
        f"rank 1 (host a) failed first: exit code {code}; it was still exiting when the launcher ended it",
        *TRACEBACK,
    )


def test_a_failed_rank_of_another_host_is_described_by_the_ranks_that_lost_it() -> None:
    loss = lost(3, by=0, reason="its script failed with ValueError: broken\nin two lines", exit_code=1)
    headline = "rank 3 (host b) was lost first: its script failed with ValueError: broken"
    assert make_exit_report([ending(0, 1, loss=loss)]).lines == (headline, *show(loss))


def test_the_text_on_stderr_does_not_affect_the_cause() -> None:
    words = (*show(lost(3, by=0, reason="so it says")), "PeerLost: rank 1 on host b was lost: so it says")
    report = make_exit_report([ending(0, 1, at_s=2, error=words), ending(1, 2, at_s=1, error=words)])
    assert report.exit_code == 2
    assert report.lines[1:] == ("rank 1 (host a) failed first: exit code 2", *words)


def test_among_own_failures_the_earliest_is_the_cause() -> None:
    verdict = make_exit_report([ending(0, 1, at_s=2, error=TRACEBACK), ending(1, 2, at_s=1)])
    assert verdict.lines == (
        "rank 0 failed too: exit code 1: ValueError: broken",
        "rank 1 (host a) failed first: exit code 2",
        "(it wrote nothing to stderr)",
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ties_prefer_a_signal_to_an_exit_code_and_then_the_lower_rank(order: tuple[int, ...]) -> None:
    endings = [ending(0, 1), ending(1, -11), ending(2, -11)]
    verdict = make_exit_report([endings[index] for index in order])
    assert verdict.exit_code == 139
    assert verdict.lines[-2] == "rank 1 (host a) failed first: killed by SIGSEGV"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (-signal.SIGKILL, "killed by SIGKILL; out of memory?"),
        (-signal.SIGABRT, "killed by SIGABRT"),
        (-60, "killed by signal 60"),
    ],
)
def test_exit_codes_are_described_in_words(code: int, words: str) -> None:
    assert describe_code(code) == words


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_not_a_failure_of_a_rank(signum: signal.Signals, code: int) -> None:
    verdict = make_exit_report([ending(0, 1, error=TRACEBACK)], interrupted_by=signum)
    assert verdict.exit_code == code
    assert verdict.lines == (f"undertow: interrupted by {signum.name}, all workers have ended",)


def test_the_host_is_that_of_the_rank_that_failed() -> None:
    endings = [WorkerExit(rank=rank, host=f"host{rank}", code=rank, ended_s=0.0) for rank in (0, 1, 2)]
    assert make_exit_report(endings).lines[-2] == "rank 1 (host host1) failed first: exit code 1"


REMOTE = RemoteFailure("rank 3 on host b was killed by SIGKILL before the workers had met", received_s=5.0)


def test_a_cause_on_another_host_comes_last_and_no_local_rank_is_blamed() -> None:
    verdict = make_exit_report([ending(1, 0, at_s=6, ended=True), ending(0, -15, at_s=6, ended=True)], remote=REMOTE)
    assert verdict.exit_code == 1
    assert verdict.lines == (
        "rank 0 was ended, because the job has ended",
        "rank 1 was ended, because the job has ended",
        REMOTE.cause,
    )
    assert make_exit_report([], remote=REMOTE).lines == (REMOTE.cause,)


def test_a_cause_on_another_host_does_not_hide_an_earlier_local_one() -> None:
    endings = [ending(0, 7, at_s=4, error=TRACEBACK), ending(1, -15, at_s=6, ended=True)]
    verdict = make_exit_report(endings, remote=REMOTE)
    assert (verdict.exit_code, verdict.lines[-1]) == (7, TRACEBACK[-1])


def test_a_remote_cause_after_a_good_end_is_ignored() -> None:
    assert make_exit_report([ending(0, at_s=6)], remote=REMOTE).exit_code == 0
