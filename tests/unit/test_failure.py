"""The first cause is found, and said last."""

from __future__ import annotations

import itertools
import signal

import pytest

from undertow.launch.failure import Elsewhere, Ending, decide, describe_code

TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: broken")
LOST = ("Traceback (most recent call last):", "undertow.errors.PeerLost: rank 1 (host b) is lost")


def ending(rank: int, code: int = 0, *, at_s: float = 0.0, error: tuple[str, ...] = (), ended: bool = False) -> Ending:
    return Ending(rank=rank, host="a", code=code, ended_s=at_s, by_launcher=ended, error=error)


def test_all_well_says_nothing() -> None:
    verdict = decide([ending(0), ending(1)])
    assert (verdict.exit_code, verdict.lines) == (0, ())


def test_the_first_cause_comes_last_and_in_full() -> None:
    verdict = decide([ending(0, -15, at_s=3, ended=True), ending(1, 1, at_s=1, error=TRACEBACK)])
    assert verdict.exit_code == 1
    assert verdict.lines == (
        "rank 0 was ended, because another rank failed",
        "rank 1 (host a) failed first: exit code 1",
        *TRACEBACK,
    )


def test_a_lost_peer_is_never_the_cause_even_if_it_was_seen_first() -> None:
    verdict = decide([ending(0, 1, at_s=1, error=LOST), ending(1, 7, at_s=2, error=TRACEBACK)])
    assert verdict.exit_code == 7
    assert verdict.lines[0] == "rank 0 failed too: exit code 1: undertow.errors.PeerLost: rank 1 (host b) is lost"
    assert verdict.lines[1] == "rank 1 (host a) failed first: exit code 7"


def test_an_ended_rank_is_never_the_cause() -> None:
    verdict = decide([ending(0, 9, at_s=0, ended=True), ending(1, 1, at_s=5, error=LOST)])
    assert verdict.lines[-3] == "rank 1 (host a) failed first: exit code 1"


def test_when_all_lost_a_peer_of_another_host_the_earliest_is_shown() -> None:
    verdict = decide([ending(1, 1, at_s=2, error=LOST), ending(0, 1, at_s=1, error=LOST)])
    assert verdict.lines[1:] == ("rank 0 (host a) failed first: exit code 1", *LOST)


SILENT = "no sign of life for 10.2 s (process stopped, host down or link cut)"


def lost(rank: int, by: int, reason: str = SILENT) -> tuple[str, ...]:
    words = f"rank {rank} on host b was lost: {reason}; this is rank {by} at step 7"
    return ("Traceback (most recent call last):", f"undertow.errors.PeerLost: {words}")


def test_a_line_of_a_worker_with_an_endless_number_is_a_line() -> None:
    line = f"PeerLost: rank {'9' * 5000} on host a was lost: why"
    assert decide([ending(0, 3, error=("Traceback", line))]).exit_code == 3


def test_a_rank_that_all_others_lost_is_the_first_cause() -> None:
    endings = [
        ending(0, 1, at_s=2, error=lost(3, by=0)),
        ending(1, 1, at_s=1, error=lost(3, by=1)),
        ending(2, -15, at_s=3, ended=True),
        ending(3, -9, at_s=4, ended=True),
    ]
    verdict = decide(endings)
    assert verdict.exit_code == 1
    assert verdict.lines == (
        f"rank 0 failed too: exit code 1: {lost(3, by=0)[1]}",
        "rank 2 was ended, because another rank failed",
        f"rank 3 (host b) was lost first: {SILENT}",
        *lost(3, by=1),
    )


def test_without_agreement_about_who_was_lost_the_earliest_is_shown() -> None:
    verdict = decide([ending(0, 1, at_s=2, error=lost(1, by=0)), ending(1, 1, error=lost(0, by=1))])
    assert verdict.lines[1:] == ("rank 1 (host a) failed first: exit code 1", *lost(0, by=1))


def test_a_rank_with_an_error_of_its_own_is_the_cause_whoever_was_lost() -> None:
    endings = [ending(0, 1, error=lost(2, by=0)), ending(1, 1, at_s=5, error=TRACEBACK), ending(2, -9, ended=True)]
    assert decide(endings).lines[-4:] == ("rank 1 (host a) failed first: exit code 1", *TRACEBACK)


def test_a_follower_that_was_ended_while_it_left_has_its_say() -> None:
    endings = [ending(0, -15, at_s=3, ended=True, error=lost(1, by=0)), ending(1, 1, at_s=1, error=TRACEBACK)]
    assert decide(endings).lines[0] == f"rank 0 failed too: {lost(1, by=0)[1]}"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("its script failed with ValueError: broken", 1),
        ("its script ended with sys.exit(42)", 42),
        ("its script ended with sys.exit(3) (seen by rank 2)", 3),
        ("its script ended with sys.exit(-1)", 255),
        ("its script ended with sys.exit('no data')", 1),
    ],
)
@pytest.mark.parametrize("ended_with", [-15, 0])
def test_a_rank_that_fails_and_takes_too_long_to_exit_is_the_cause(reason: str, code: int, ended_with: int) -> None:
    endings = [
        ending(0, 1, at_s=1, error=lost(1, by=0, reason=reason)),
        ending(1, ended_with, at_s=3, ended=True, error=TRACEBACK),
        ending(2, -15, at_s=3, ended=True, error=lost(1, by=2, reason=reason)),
    ]
    verdict = decide(endings)
    assert verdict.exit_code == code
    assert verdict.lines == (
        f"rank 0 failed too: exit code 1: {lost(1, by=0, reason=reason)[1]}",
        f"rank 2 failed too: {lost(1, by=2, reason=reason)[1]}",
        f"rank 1 (host a) failed first: exit code {code}; it was still exiting when the launcher ended it",
        *TRACEBACK,
    )


def test_a_rank_on_another_host_that_fails_is_told_in_the_words_of_those_who_lost_it() -> None:
    words = lost(3, by=0, reason="its script failed with ValueError: broken")
    headline = "rank 3 (host b) was lost first: its script failed with ValueError: broken"
    assert decide([ending(0, 1, error=words)]).lines == (headline, *words)


def test_among_own_failures_the_earliest_is_the_cause() -> None:
    verdict = decide([ending(0, 1, at_s=2, error=TRACEBACK), ending(1, 2, at_s=1)])
    assert verdict.lines == (
        "rank 0 failed too: exit code 1: ValueError: broken",
        "rank 1 (host a) failed first: exit code 2",
        "(it wrote nothing to stderr)",
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_in_the_same_instant_a_signal_goes_before_an_exit_code_then_the_lower_rank(order: tuple[int, ...]) -> None:
    endings = [ending(0, 1), ending(1, -11), ending(2, -11)]
    verdict = decide([endings[index] for index in order])
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
def test_codes_are_said_in_words(code: int, words: str) -> None:
    assert describe_code(code) == words


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("PeerLost: rank 2", True),
        ("undertow.errors.PeerLost: rank 2", True),
        ("  | undertow.errors.PeerLost: rank 2", True),
        ("[rank0]: undertow.errors.PeerLost: rank 2", True),
        ("[rank12]:   | undertow.errors.PeerLost: rank 2", True),
        ("PeerLost", True),
        ("ValueError: not PeerLost: no", False),
        ("NotPeerLost: rank 2", False),
        ("log: PeerLostness", False),
    ],
)
def test_a_lost_peer_is_recognised_by_its_traceback(line: str, lost: bool) -> None:
    assert ending(0, 1, error=("Traceback", line)).lost_a_peer is lost


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_no_failure_of_a_rank(signum: signal.Signals, code: int) -> None:
    verdict = decide([ending(0, 1, error=TRACEBACK)], interrupted_by=signum)
    assert verdict.exit_code == code
    assert verdict.lines == (f"undertow: interrupted by {signum.name}, all workers have ended",)


def test_the_host_is_that_of_the_rank_that_failed() -> None:
    endings = [Ending(rank=rank, host=f"host{rank}", code=rank, ended_s=0.0) for rank in (0, 1, 2)]
    assert decide(endings).lines[-2] == "rank 1 (host host1) failed first: exit code 1"


ELSEWHERE = Elsewhere("rank 3 on host b was killed by SIGKILL before the workers had met", heard_s=5.0)


def test_a_cause_on_another_host_comes_last_and_no_rank_here_is_blamed() -> None:
    verdict = decide([ending(1, 0, at_s=6, ended=True), ending(0, -15, at_s=6, ended=True)], elsewhere=ELSEWHERE)
    assert verdict.exit_code == 1
    assert verdict.lines == (
        "rank 0 was ended, because the job has ended",
        "rank 1 was ended, because the job has ended",
        ELSEWHERE.cause,
    )
    assert decide([], elsewhere=ELSEWHERE).lines == (ELSEWHERE.cause,)


def test_a_cause_on_another_host_does_not_hide_an_earlier_one_here() -> None:
    endings = [ending(0, 7, at_s=4, error=TRACEBACK), ending(1, -15, at_s=6, ended=True)]
    verdict = decide(endings, elsewhere=ELSEWHERE)
    assert (verdict.exit_code, verdict.lines[-1]) == (7, TRACEBACK[-1])


def test_workers_that_ended_well_by_themselves_need_no_other_host() -> None:
    assert decide([ending(0, at_s=6)], elsewhere=ELSEWHERE).exit_code == 0
