"""State of the arbiter: which workers it accepts, what it sends, and what it knows of every job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from undertow.crossover import messages
from undertow.crossover.arbiter_state import ENOUGH, MOST_JOBS, NOTICES, ArbiterState, find_memory_obstacle
from undertow.crossover.gain import Load
from undertow.crossover.messages import (
    VERSION,
    Ask,
    DeviceTime,
    EndStep,
    FromArbiter,
    Give,
    Grant,
    Hello,
    Lift,
    Notice,
    NowAlone,
    NowShared,
    Recall,
    Refusal,
    Welcome,
)
from undertow.errors import Garbled

GIGA = 10**9

GPU = "gpu0"


def hello_of(job: str, **options: Any) -> Hello:
    usual = {"version": VERSION, "name": f"job {job}", "rank": 0, "world_size": 2, "pid": 100, "device": GPU}
    return Hello(job=job, **{**usual, **options})


def make_state(*jobs: str) -> ArbiterState:
    """Return the state with jobs of one worker each, numbered from 1, none of which computes."""
    state = ArbiterState(lease_s=10.0)
    for member, job in enumerate(jobs, 1):
        state.handle(member, hello_of(job), now=0.0)
    for member in range(1, len(jobs) + 1):
        state.handle(member, Give(), now=0.0)
    return state


def end_steps(state: ArbiterState, member: int, count: int, *, compute_s: float, network_s: float) -> list[FromArbiter]:
    """Return the messages to all members."""
    said: list[FromArbiter] = []
    for step in range(1, count + 1):
        outgoing = state.handle(member, EndStep(step, 1, compute_s, network_s), now=0.0)
        said += [message for _, message in outgoing]
    return said


# Who is welcome


def test_an_accepted_worker_learns_whether_it_is_alone() -> None:
    state = ArbiterState(lease_s=10.0)
    assert state.handle(1, hello_of("a"), now=0.0) == [(1, Welcome(10.0)), (1, NowAlone())]
    assert state.handle(2, hello_of("b"), now=0.0) == [(2, Welcome(10.0)), (1, NowShared())]
    assert state.handle(3, hello_of("c"), now=0.0) == [(3, Welcome(10.0))]


def test_devices_are_independent() -> None:
    state = ArbiterState(lease_s=10.0)
    state.handle(1, hello_of("a"), now=0.0)
    assert state.handle(2, hello_of("b", device="gpu1"), now=0.0) == [(2, Welcome(10.0)), (2, NowAlone())]
    state.remove(2, now=1.0)
    assert set(state.devices) == {GPU}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"version": VERSION + 1}, f"the arbiter has version {VERSION}, this worker version {VERSION + 1}"),
        ({"weight": 0.0}, "a weight of 0 is not possible"),
        ({"weight": -1.0}, "a weight of -1 is not possible"),
        ({"weight": float("inf")}, "a weight of inf is not possible"),
        ({"weight": float("nan")}, "a weight of nan is not possible"),
        ({"growth_bytes": 2 * GIGA, "free_bytes": GIGA}, "the device does not have enough memory"),
    ],
)
def test_a_refused_worker_gets_the_reason_and_is_no_member(options: dict[str, Any], reason: str) -> None:
    state = make_state("a")
    ((member, refusal),) = state.handle(2, hello_of("b", **options), now=0.0)
    assert member == 2
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith(reason)
    assert state.remove(2, now=0.0) == []
    assert list(state.devices[GPU].accounts) == ["a"]


def test_the_first_job_is_accepted_whatever_it_allocates() -> None:
    state = ArbiterState()
    outgoing = state.handle(1, hello_of("a", growth_bytes=2 * GIGA, free_bytes=GIGA), now=0.0)
    assert isinstance(outgoing[0][1], Welcome)


def test_memory_that_others_are_about_to_allocate_is_reserved() -> None:
    state = ArbiterState()
    state.handle(1, hello_of("a", growth_bytes=3 * GIGA, free_bytes=4 * GIGA), now=0.0)
    newcomer = hello_of("b", growth_bytes=2 * GIGA, free_bytes=4 * GIGA)
    assert isinstance(state.handle(2, newcomer, now=0.0)[0][1], Refusal)
    state.handle(1, EndStep(2, 2, 1.0, 0.0), now=0.0)
    assert isinstance(state.handle(3, newcomer, now=0.0)[0][1], Welcome)


def test_at_most_eight_jobs_share_a_device() -> None:
    state = make_state(*(f"job {number}" for number in range(MOST_JOBS)))
    assert MOST_JOBS == 8
    ((_, refusal),) = state.handle(20, hello_of("one more"), now=0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "8 jobs already share gpu0: start this one later, or without sharing"
    assert isinstance(state.handle(21, hello_of("job 0", rank=1), now=0.0)[0][1], Welcome)  # a worker, not a job
    state.remove(3, now=0.0)
    assert isinstance(state.handle(22, hello_of("one more"), now=0.0)[0][1], Welcome)


# Nonsense


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (hello_of("a"), "a second Hello"),
        (EndStep(1, 0, 0.0, 0.0), "an EndStep after 0 steps"),
        (EndStep(1, -3, 0.0, 0.0), "an EndStep after -3 steps"),
        (messages.Query(), "a Query from a worker"),
    ],
)
def test_nonsense_is_an_error(message: Any, words: str) -> None:
    with pytest.raises(Garbled, match=words):
        make_state("a").handle(1, message, now=0.0)


@pytest.mark.parametrize("message", [Ask(), Give(), EndStep(1, 1, 0.0, 0.0), Lift(1.0)])
def test_messages_before_a_hello_are_errors(message: Any) -> None:
    with pytest.raises(Garbled, match="without a Hello"):
        ArbiterState().handle(1, message, now=0.0)


def test_messages_after_a_refusal_are_errors() -> None:
    state = make_state("a")
    state.handle(2, hello_of("b", weight=0.0), now=0.0)
    with pytest.raises(Garbled, match="a Ask without a Hello"):
        state.handle(2, Ask(), now=0.0)


# Turns


def test_turns_pass_on_in_messages() -> None:
    state = make_state("a", "b")
    assert state.handle(1, Ask(5.0, 1.0), now=0.0) == [(1, Grant())]
    assert state.handle(2, Ask(1.0, 0.4), now=0.5) == [(1, Recall())]
    assert state.handle(1, Give(), now=0.6) == [(2, Grant(lift_s=3.0))]


def test_only_the_first_worker_receives_the_device_time() -> None:
    state = make_state("a", "b")
    state.handle(3, hello_of("a", rank=1), now=0.0)
    state.handle(1, Ask(), now=0.0)
    state.handle(1, Give(), now=2.0)
    assert state.handle(1, EndStep(1, 1, 2.0, 0.0), now=2.0) == [(1, DeviceTime(1, 2.0, 2.0))]
    assert state.handle(3, EndStep(1, 1, 2.0, 0.0), now=2.0) == []


def test_the_device_time_of_a_lone_worker_is_counted() -> None:
    state = make_state("a")
    assert state.handle(1, EndStep(4, 4, 2.0, 0.0, is_alone=True), now=1.0) == [(1, DeviceTime(4, 2.0, 0.5))]


def test_a_lift_raises_the_account() -> None:
    state = make_state("a", "b")
    assert state.handle(1, Lift(5.0), now=0.0) == []
    assert state.devices[GPU].accounts["a"].virtual_s == 5.0


def test_an_overdue_worker_is_reported_to_one_worker_of_each_job() -> None:
    state = make_state("a", "b")
    state.handle(3, hello_of("b", rank=1), now=0.0)
    state.handle(1, Ask(), now=0.0)
    state.handle(2, Ask(), now=1.0)
    assert state.deadline_s == 10.0
    assert state.tick(now=9.0) == []
    words = (
        "rank 0 of job a (pid 100) has computed on gpu0 for 10 s without giving the turn back, or is stopped: the turn "
        "passes to another job"
    )
    assert state.tick(now=10.0) == [(1, Notice(words)), (2, Notice(words)), (2, Grant())]
    assert list(state.notices) == [words]
    assert state.describe(now=10.0)[0].jobs[0].overdue == 1


def test_a_worker_that_is_gone_frees_its_turn() -> None:
    state = make_state("a", "b", "c")
    state.handle(1, Ask(), now=0.0)
    state.handle(2, Ask(), now=0.0)
    assert state.remove(1, now=1.0) == [(2, Grant())]
    assert state.remove(1, now=1.0) == []
    assert state.remove(3, now=1.0) == [(2, NowAlone())]
    assert state.remove(2, now=1.0) == []
    assert state.devices == {}
    assert state.deadline_s is None


# What is known


def test_the_load_of_a_job_is_known_after_some_steps() -> None:
    state = make_state("a")
    device = state.devices[GPU]
    end_steps(state, 1, ENOUGH - 1, compute_s=0.2, network_s=0.1)
    assert state.find_load(device, "a") is None
    end_steps(state, 1, 1, compute_s=0.2, network_s=0.1)
    assert state.find_load(device, "a") == Load(0.2, 0.1)


def test_a_report_of_several_steps_counts_as_their_mean() -> None:
    state = make_state("a")
    for _ in range(ENOUGH):
        state.handle(1, EndStep(4, 4, 0.8, 0.4), now=0.0)
    assert state.find_load(state.devices[GPU], "a") == Load(pytest.approx(0.2), pytest.approx(0.1))  # type: ignore[arg-type]


def test_long_waits_while_sharing_do_not_count_as_network_time() -> None:
    state = make_state("a")
    for waited_s in [0.1] * 6 + [0.9] * 6:
        state.handle(1, EndStep(1, 1, 0.2, waited_s), now=0.0)
    assert state.find_load(state.devices[GPU], "a") == Load(0.2, 0.1)


def test_a_pair_that_cannot_gain_gets_one_notice() -> None:
    state = make_state("a", "b")
    said = end_steps(state, 1, ENOUGH, compute_s=0.2, network_s=0.0)
    said += end_steps(state, 2, 2 * ENOUGH, compute_s=0.2, network_s=0.0)
    said += end_steps(state, 1, ENOUGH, compute_s=0.2, network_s=0.0)
    notices = [message for message in said if isinstance(message, Notice)]
    assert len(notices) == 2  # one for each
    assert notices[0].text.startswith("job b and job a gain nothing from sharing a device: they hardly wait")
    assert len(state.notices) == 1


def test_a_pair_that_gains_gets_no_notice() -> None:
    state = make_state("a", "b")
    said = [end_steps(state, member, ENOUGH, compute_s=0.2, network_s=0.2) for member in (1, 2)]
    assert not [message for one in said for message in one if isinstance(message, Notice)]


def test_only_the_latest_notices_are_kept() -> None:
    state = make_state("a", "b")
    now = 0.0
    for _ in range(NOTICES + 5):
        for member in (1, 2):
            state.handle(member, Ask(), now)
        now += 20.0
        state.tick(now)
    assert len(state.notices) == NOTICES


def test_the_status_describes_all_jobs() -> None:
    state = make_state("a", "b", "c")
    for member in (1, 2, 3):
        end_steps(state, member, ENOUGH, compute_s=0.2, network_s=0.3)
    state.handle(4, hello_of("d", device="gpu1", weight=2.0, is_urgent=True), now=1.0)
    state.handle(1, Ask(), now=2.0)
    state.handle(2, Ask(), now=3.0)
    shared, alone = state.describe(now=5.0)
    assert (shared.device, shared.holder, shared.held_s) == (GPU, "a", 3.0)
    assert shared.gain == pytest.approx(1.5 / 0.9)
    assert [(job.job, job.state, job.device_s, job.waited_s) for job in shared.jobs] == [
        ("a", "computes", 1.0, 0.0),  # up to the last word
        ("b", "waits for its turn", 0.0, 2.0),
        ("c", "waits for the network", 0.0, 0.0),
    ]
    assert (shared.jobs[0].steps, shared.jobs[0].turns, shared.jobs[0].network_s) == (ENOUGH, 1, pytest.approx(2.4))
    (lone,) = alone.jobs
    assert (lone.state, lone.weight, lone.is_urgent, lone.since_s) == ("is alone", 2.0, True, 4.0)
    assert (alone.holder, alone.gain, lone.compute_s) == (None, None, None)
    msgspec.json.encode([shared, alone])


# Memory


def test_the_first_job_is_never_refused_for_memory() -> None:
    assert find_memory_obstacle(10 * GIGA, 1 * GIGA) is None


def test_the_limit_of_memory_is_exact() -> None:
    assert find_memory_obstacle(4 * GIGA, 4 * GIGA, others_bytes=[0]) is None
    assert find_memory_obstacle(4 * GIGA + 1, 4 * GIGA, others_bytes=[0]) is not None


def test_jobs_that_have_just_started_allocate_first() -> None:
    assert find_memory_obstacle(2 * GIGA, 4 * GIGA, others_bytes=[1 * GIGA, 1 * GIGA]) is None
    assert find_memory_obstacle(2 * GIGA, 4 * GIGA, others_bytes=[1 * GIGA, 2 * GIGA]) == (
        "the device does not have enough memory for another job: its gradients and its optimizer need 2 GB, and "
        "4 GB are free, of which other jobs are about to allocate 3 GB. Start it after another job has ended, or "
        "without sharing"
    )


def test_without_such_jobs_the_message_does_not_mention_them() -> None:
    assert "about to allocate" not in str(find_memory_obstacle(5 * GIGA, 4 * GIGA, others_bytes=[0, 0]))
