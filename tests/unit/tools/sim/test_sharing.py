"""Jobs that share virtual hosts: gains against formulas, which job computes when, and the effect of their terms."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.crossover.turns import LEASE_S
from undertow.errors import ConfigError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.plan.cluster import PAYLOAD_SHARE
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.tools.sim import sharing_run
from undertow.tools.sim.engine import Costs
from undertow.tools.sim.schedules import find_schedule
from undertow.tools.sim.sharing import Sharing, share, weigh_sharing
from undertow.tools.sim.sharing_run import SharedRun, Tenant, count_steps, train
from undertow.tools.sim.subject import Device, Subject
from undertow.tools.sim.sweep import Noise, Setting, run
from undertow.tools.sim.topology import Fabric, Host, Topology, make_topology
from undertow.tools.sim.worker import Device as SharedDevice
from undertow.tools.virtual.world import Clock

RATE_BITS = 2e9
TWO = make_topology(2, RATE_BITS, latency_s=1e-5)
ONE = make_topology(1, RATE_BITS)


def make_subject(name: str, ratio: float, *, compute_s: float = 0.1, layers: int = 10) -> Subject:
    """One that sends for `ratio` times as long as it computes: on two hosts each sends as much as there is."""
    size_bytes = ratio * compute_s * RATE_BITS / 8 * PAYLOAD_SHARE / layers
    profile = Profile(
        layers=tuple(
            LayerProfile(
                name=f"{name}{number}",
                tensors=(TensorProfile(name=f"{name}{number}.w", shape=(int(size_bytes / 4),)),) if ratio else (),
                forward_s=compute_s / layers / 3,
                backward_s=compute_s / layers * 2 / 3,
            )
            for number in range(layers)
        )
    )
    return Subject(name=name, title=name, batch=1, profile=profile, device=Device(flops_per_s=1e12))


def make_tenant(subject: Subject, system: str = "plain", *, weight: float = 1.0, is_urgent: bool = False) -> Tenant:
    return Tenant(subject=subject, schedule=find_schedule(system), weight=weight, is_urgent=is_urgent)


def make_equal(count: int, ratio: float, system: str = "plain") -> list[Tenant]:
    return [make_tenant(make_subject("same", ratio), system)] * count


def find_gains(sharing: Sharing) -> tuple[float, float]:
    return sharing.find(Arrangement.TOGETHER).gain, sharing.find(Arrangement.CROSSOVER).gain


def list_turns(trained: SharedRun, rank: int = 0) -> list[int]:
    """Return the jobs in the order in which they computed on a device, in the time that counts."""
    spans = (span.job for span in trained.devices[rank].spans if trained.begin_s <= span.begin_s < trained.end_s)
    return [job for job, _ in groupby(spans)]


def find_device_s(trained: SharedRun, job: int) -> float:
    """Return how long a job computed on the first device."""
    return sum(
        max(0.0, min(span.end_s, trained.end_s) - max(span.begin_s, trained.begin_s))
        for span in trained.devices[0].spans
        if span.job == job
    )


def find_job(device: SharedDevice, time_s: float) -> int | None:
    """Return which job computed at this time."""
    span = device.spans[max(0, bisect_right(device.spans, time_s, key=lambda span: span.begin_s) - 1)]
    return span.job if span.begin_s <= time_s < span.end_s else None


# Against formulas


@pytest.mark.parametrize("others", [["same"], ["other"], ["same", "other"]])
def test_laps_are_those_of_all_arrangements(others: list[str]) -> None:
    tenants = [make_tenant(make_subject(name, 0.5)) for name in ("same", *others)]
    progress = FakeProgress()
    share(tenants, TWO, Setting(steps=2), progress)
    assert progress.done == pytest.approx(weigh_sharing(tenants, TWO, Setting(steps=2)))
    alone = [f"plain, hosts 2: {name} alone" for name in dict.fromkeys(("same", *others))]
    assert progress.said == [*alone, "plain, hosts 2: together", "plain, hosts 2: crossover"]


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
def test_two_equal_jobs_reach_what_the_formula_says(ratio: float) -> None:
    sharing = share(make_equal(2, ratio), TWO)
    job = sharing.jobs[0]
    assert job.compute_s == pytest.approx(0.1)
    assert job.exposed_s == pytest.approx(ratio * 0.1, abs=0.005)
    crossover = sharing.find(Arrangement.CROSSOVER)
    assert crossover.gain >= 0.97 * (1 + ratio)
    assert crossover.gain <= 1.01 * (1 + job.exposed_s / job.compute_s)
    assert crossover.slow_downs == [pytest.approx(2 / crossover.gain, rel=0.02)] * 2
    assert sharing.ideal == pytest.approx(1 + job.exposed_s / job.compute_s, rel=0.02)


@pytest.mark.parametrize(("jobs", "ratio"), [(3, 0.5), (4, 0.5), (3, 2.0)])
def test_three_and_four_jobs_reach_it_as_well(jobs: int, ratio: float) -> None:
    sharing = share(make_equal(jobs, ratio), TWO)
    crossover = sharing.find(Arrangement.CROSSOVER)
    assert crossover.gain >= 0.97 * sharing.ideal
    assert crossover.slow_downs == [pytest.approx(jobs / crossover.gain, rel=0.1)] * jobs


def test_whoever_waits_at_a_gate_lets_the_other_compute() -> None:
    sharing = share(make_equal(2, 1.0, "undertow"), TWO)
    assert sharing.ideal > 1.1
    assert sharing.find(Arrangement.CROSSOVER).gain >= 0.97 * sharing.ideal


@pytest.mark.parametrize("system", ["plain", "undertow"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0.5, 0.1), (0.5, 0.04)),
        ((0.2, 0.1), (1.0, 0.05)),
        ((3.0, 0.03), (0.1, 0.1)),
        ((1.0, 0.02), (0.3, 0.2)),
        ((1.0, 0.07), (1.0, 0.1)),
    ],
)
def test_turns_are_hardly_ever_worse_than_none(
    system: str, one: tuple[float, float], other: tuple[float, float]
) -> None:
    """Jobs of unequal lengths; what they wait for and compute, and how many layers they have, differs too."""
    subjects = (
        make_subject("one", one[0], compute_s=one[1]),
        make_subject("other", other[0], compute_s=other[1], layers=7),
    )
    together, crossover = find_gains(share([make_tenant(subject, system) for subject in subjects], TWO))
    assert crossover >= 0.98 * together


def test_a_job_alone_takes_what_the_simulator_says_of_it() -> None:
    for system in ("plain", "undertow"):
        tenant = make_tenant(make_subject("a", 0.6), system)
        expected_s = run(tenant.subject, TWO, tenant.schedule, Setting()).iteration_s
        assert train([tenant], TWO, has_arbiters=False).steps_s == [pytest.approx(expected_s, rel=1e-3)]
        assert train([tenant], TWO, has_arbiters=True).steps_s == [pytest.approx(expected_s, rel=1e-3)]


def test_a_link_that_is_never_at_rest_is_a_limit_of_its_own() -> None:
    """Gates hide what is sent, not that it is sent."""
    sharing = share(make_equal(2, 1.5, "undertow"), TWO)
    assert sharing.jobs[0].links_s == pytest.approx(0.15, rel=0.03)
    assert sharing.ideal == pytest.approx(sum(job.alone_s for job in sharing.jobs) / 0.3, rel=0.03)
    assert sharing.find(Arrangement.CROSSOVER).gain <= 1.01 * sharing.ideal


# Who computes when


def test_with_an_arbiter_jobs_take_turns_and_without_they_mix() -> None:
    tenants = make_equal(2, 0.5)
    mixed = list_turns(train(tenants, TWO, has_arbiters=False))
    trained = train(tenants, TWO, has_arbiters=True)
    turns = list_turns(trained)
    steps = (trained.end_s - trained.begin_s) / trained.steps_s[0]
    assert len(turns) <= 2 * (steps + 1)
    assert len(mixed) > 3 * len(turns)


@pytest.mark.parametrize(("noise", "agreement"), [(Noise(), 0.6), (Noise(jitter=0.05), 0.4)])
def test_hosts_run_the_same_job_most_of_the_time_and_hardly_ever_rest(noise: Noise, agreement: float) -> None:
    """With the counts that the first worker relays; with each host's own count devices are idle twice as long."""
    tenants = [
        make_tenant(make_subject(name, ratio, compute_s=compute_s))
        for name, ratio, compute_s in (("a", 0.4, 0.1), ("b", 0.6, 0.08), ("c", 0.8, 0.06))
    ]
    trained = train(tenants, make_topology(3, RATE_BITS), Setting(noise=noise, steps=12), has_arbiters=True)
    times_s = [trained.begin_s + 0.001 * number for number in range(int(1000 * (trained.end_s - trained.begin_s)))]
    seen = [[find_job(device, time_s) for device in trained.devices] for time_s in times_s]
    busy = [jobs for jobs in seen if None not in jobs]
    assert len(busy) > 0.86 * len(seen)
    assert sum(len(set(jobs)) == 1 for jobs in busy) > agreement * len(busy)


def test_a_device_does_one_thing_at_a_time() -> None:
    for has_arbiters in (False, True):
        for device in train(make_equal(3, 0.3), TWO, has_arbiters=has_arbiters).devices:
            assert all(before.end_s <= after.begin_s for before, after in pairwise(device.spans))


def test_every_worker_of_a_host_has_a_device_of_its_own() -> None:
    topology = Topology(hosts=(Host(bandwidth_bits_per_s=RATE_BITS, workers=2),) * 2)
    tenants = make_equal(2, 0.2)
    trained = train(tenants, topology, has_arbiters=True)
    assert len(trained.devices) == 4
    assert [len(arbiter.state.devices) for arbiter in trained.arbiters] == [2, 2]
    sharing = share(tenants, topology)
    assert sharing.find(Arrangement.CROSSOVER).gain >= 0.95 * sharing.ideal


@pytest.mark.parametrize("arbiter_message_s", [0.0, 0.00015, 0.005])
def test_every_hand_over_costs_two_words(arbiter_message_s: float) -> None:
    """In a step of both the turn is handed over four times, for two forward and backward passes and for two updates."""
    trained = train(
        make_equal(2, 0.5), TWO, Setting(costs=Costs(arbiter_message_s=arbiter_message_s)), has_arbiters=True
    )
    assert trained.steps_s == [pytest.approx(0.2 + 4 * 2 * arbiter_message_s, rel=1e-3)] * 2


@pytest.mark.parametrize(("system", "turns"), [("plain", 2), ("undertow", 1)])
def test_updates_at_gates_need_no_turn_of_their_own(system: str, turns: int) -> None:
    trained = train(make_equal(2, 0.5, system), TWO, has_arbiters=True)
    for arbiter in trained.arbiters:
        for job in arbiter.state.describe(trained.end_s)[0].jobs:
            assert job.turns == pytest.approx(turns * job.steps, rel=0.15)


# What jobs ask for


@pytest.mark.parametrize("weights", [(1, 2), (1, 2, 3)])
def test_device_time_is_shared_by_weight(weights: Sequence[int]) -> None:
    tenants = [make_tenant(make_subject(f"job{weight}", 0.0), weight=weight) for weight in weights]
    trained = train(tenants, ONE, Setting(steps=24), has_arbiters=True)
    used_s = [find_device_s(trained, job) for job in range(len(weights))]
    assert [seconds / used_s[0] for seconds in used_s] == [pytest.approx(weight, rel=0.04) for weight in weights]
    assert sum(used_s) >= 0.98 * (trained.end_s - trained.begin_s)


def test_an_urgent_job_goes_first_and_the_other_fills_its_gaps() -> None:
    subject = make_subject("same", 0.5, layers=40)
    urgent, other = share([make_tenant(subject, is_urgent=True), make_tenant(subject)], TWO).rows[-1].slow_downs
    assert urgent < 1.06
    assert 1.5 < other < 3


def test_a_job_that_hardly_ever_computes_is_said_to_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_run, "MOST_TIMES", 1)
    hurry, other = make_subject("hurry", 0.0), make_subject("other", 0.0, compute_s=30.0, layers=20)
    tenants, progress = [make_tenant(hurry, is_urgent=True), make_tenant(other)], FakeProgress()
    sharing = share(tenants, ONE, progress=progress)
    assert progress.done == pytest.approx(weigh_sharing(tenants, ONE))  # the steps that it did not make are not missed
    crossover = sharing.find(Arrangement.CROSSOVER)
    assert crossover.slow_downs[1] == math.inf
    assert math.isfinite(crossover.gain)
    assert math.isfinite(sharing.ideal_as_mixed)


def test_what_cannot_share_is_refused() -> None:
    tenant = make_tenant(make_subject("a", 0.2))
    with pytest.raises(ConfigError, match="at least two jobs"):
        share([tenant], TWO)
    with pytest.raises(ConfigError, match="9 jobs cannot share a device: at most 8 can"):
        share([tenant] * 9, TWO)
    with pytest.raises(ConfigError, match="ddp takes no turns: name a system that does"):
        share([tenant, make_tenant(tenant.subject, "ddp")], TWO)
    with pytest.raises(ConfigError, match="a weight of 0 is not possible"):
        share([tenant, make_tenant(tenant.subject, weight=0)], TWO)


# The pieces


def test_jobs_get_equal_parts_of_a_link() -> None:
    clock = Clock()
    fabric = Fabric(clock, make_topology(2, 8e6, latency_s=0.0, goodput=1.0))
    arrived: list[tuple[float, str]] = []
    for job, name in enumerate(("a", "b")):
        # To the same receiver, which is one stream for one job.
        for part in "12":
            fabric.for_job(job).send(0, 1, 500_000, lambda time_s, item: arrived.append((time_s, item)), name + part)
    clock.run()
    times_s = {item: time_s for time_s, item in arrived}
    assert times_s == {
        name: pytest.approx(due_s, abs=0.01) for name, due_s in (("a1", 1.0), ("b1", 1.0), ("a2", 2.0), ("b2", 2.0))
    }


def test_steps_are_counted_with_their_parts() -> None:
    ends_s = [1.0, 2.0, 4.0]
    assert [count_steps(ends_s, time_s) for time_s in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0)] == [0, 1, 1.5, 2, 2.5, 3, 3]
    assert count_steps([], 1.0) == 0


def test_an_arbiter_takes_the_turn_from_one_that_holds_it_for_too_long() -> None:
    """An operation of forty seconds is longer than the lease: the other job computes behind it, and all go on."""
    assert LEASE_S == 30.0
    long, short = make_subject("long", 0.0, compute_s=120.0, layers=1), make_subject("short", 0.0, layers=1)
    trained = train([make_tenant(long), make_tenant(short)], ONE, Setting(steps=1), has_arbiters=True)
    accounts = trained.arbiters[0].state.describe(trained.end_s)[0].jobs
    assert accounts[0].overdue > 0
    assert all(math.isfinite(step_s) for step_s in trained.steps_s)
