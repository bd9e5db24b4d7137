"""Jobs that share devices: they compute one at a time, in the same order on all hosts, and each gets a fair share."""

from __future__ import annotations

import random
from dataclasses import replace

from undertow.crossover.client import ANSWER_S, ASK_EVERY_S, LOOK_EVERY_S
from undertow.crossover.turns import FAR, LEASE_S
from undertow.engine.client.waiting import KEEP_TURN_S
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.turns_job import Job, JobTraits, SlowHost
from undertow.tools.faults.turns_setup import SharedSetup, draw_setup, make_setup
from undertow.tools.faults.world import CheckedWorld

# After a fault: to notice that the arbiter is gone, to find the next one, and to be accepted or not.
AFTER_A_FAULT_S = 2 * ANSWER_S + 2 * ASK_EVERY_S + 2 * LOOK_EVERY_S
# For jobs whose order and shares are checked.
COMPUTE_S = 0.1
STEPS, FIRST_STEPS = 16, 6
# Largest factor on the shortest time of a step; a convoy can take 1.5 times as long.
ORDERLY = 1.1


def run_turns(case: Case) -> None:
    """Check that jobs compute one at a time, all end, and an urgent one waits for hardly more than a layer."""
    setup = draw_setup(case)
    setup.run()
    for host in setup.hosts:
        if host.arbiter is None or host.arbiter.lapses:
            setup.world.fail(f"a worker on host {host.number} has lost its turn, although none exceeded the lease")
    urgent = [job for job in setup.jobs if job.traits.is_urgent]
    if len(urgent) == 1:
        _check_urgent(setup, urgent[0])


def _check_urgent(setup: SharedSetup, urgent: Job) -> None:
    """Check the longest wait: a layer, four messages (ask, recall, give, grant), and `KEEP_TURN_S` at a gate."""
    for worker in urgent.workers:
        others = [job.traits for job in setup.jobs if job is not urgent and worker.host in job.hosts]
        layer_s = max((max(one.layer_s, one.optimizer_s) * (1 + one.jitter) for one in others), default=0.0)
        gate_s = KEEP_TURN_S if any(one.is_gated for one in others) else 0.0
        most_s = layer_s * worker.home.slowness + gate_s + 4 * worker.home.delay_s
        if worker.most_delayed_s > most_s + 1e-9:
            setup.world.fail(
                f"{worker.name} is urgent and has waited for {worker.most_delayed_s:.4f} s, not {most_s:.4f}"
            )


def run_turns_faults(case: Case) -> None:
    """Check that a worker or arbiter that dies or stops holds a turn for at most the lease, and the others end."""
    dice = case.dice
    lease_s = dice.choice([0.2, 1.0, 5.0])
    setup = draw_setup(case, lease_s=lease_s, most_jobs=4)
    faults = dice.randint(1, 3)
    lost_s = sum(_plan_fault(setup, lease_s) for _ in range(faults))
    setup.run(more_s=lost_s + faults * (lease_s + AFTER_A_FAULT_S))


def _plan_fault(setup: SharedSetup, lease_s: float) -> float:
    """Plan one fault, and return for how long it may delay others, besides the lease."""
    world, dice = setup.world, setup.world.dice
    job, host = dice.choice(setup.jobs), dice.choice(setup.hosts)
    worker = dice.choice(job.workers)
    when_s = dice.uniform(0.0, 1.0) * dice.choice([0.3, max(setup.starts_s) + job.traits.step_s * job.traits.steps])
    lasts_s = dice.choice([0.05, 1.0, 2.0 * lease_s, 25.0]) * dice.uniform(0.5, 1.5)
    match dice.choice(["kill", "stop", "kill arbiter", "stop arbiter"]):
        case "kill":
            world.at(when_s, job.kill, worker.rank, lasts_s)
        case "stop":
            world.at(when_s, world.stop_process, worker, lasts_s)
        case "kill arbiter":
            world.at(when_s, host.kill_arbiter, lasts_s)
        case "stop arbiter":
            world.at(when_s, host.stop_arbiter, lasts_s)
    return lasts_s


def run_turns_order(case: Case) -> None:
    """Check that equal jobs run in the same order on all hosts, whenever they start, and lose hardly any time."""
    dice, world = case.dice, CheckedWorld(case)
    jobs_hosts = dice.choice([(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2)])
    hosts = _make_hosts(world, jobs_hosts[1], delay_s=COMPUTE_S * dice.choice([0.001, 0.01, 0.02]))
    slowness = dice.choice([0.0, 0.0, 0.5, 2.0])
    for host in hosts:
        host.slowness = 1 + dice.uniform(0, slowness)
    traits = _draw_equal(dice)
    # All first workers are on one host: they count the device time, which differs between hosts of different speeds.
    jobs = [Job(world, replace(traits, name=name), _mix(dice, hosts)) for name in "ABCD"[: jobs_hosts[0]]]
    setup = make_setup(world, hosts, jobs, [dice.choice([0.0, dice.uniform(0, 4 * COMPUTE_S)]) for _ in jobs])
    hiccups = dice.choice([0, 1, 2, 3])
    for _ in range(hiccups):
        _plan_hiccup(setup)
    setup.run(more_s=10.0)
    _check_pace(setup)
    if not hiccups:
        _check_positions(setup)


def _draw_equal(dice: random.Random) -> JobTraits:
    is_gated = dice.random() < 0.25
    return JobTraits(
        name="",
        steps=STEPS,
        layers=dice.choice([3, 5]),
        compute_s=COMPUTE_S,
        network_s=COMPUTE_S * dice.choice([0.1, 0.3, 0.6, 0.8, 1.0, 1.0, 1.3, 2.0, 3.0]),
        optimizer_s=0.0 if is_gated else COMPUTE_S * dice.choice([0.0, 0.03, 0.1]),
        load_s=COMPUTE_S * dice.choice([0.0, 0.02, 0.1]),
        is_gated=is_gated,
        jitter=dice.choice([0.0, 0.02, 0.04]),
        delay_s=COMPUTE_S * 0.02,
        spread_s=COMPUTE_S * dice.choice([0.02, 1.0, 3.0]),
    )


def _mix(dice: random.Random, hosts: list[SlowHost]) -> list[SlowHost]:
    return [hosts[0], *dice.sample(hosts[1:], len(hosts) - 1)]


def _plan_hiccup(setup: SharedSetup) -> None:
    """Stop a worker early for a moment, after which the jobs ask in another order on its host."""
    world, dice = setup.world, setup.world.dice
    worker = dice.choice(dice.choice(setup.jobs).workers)
    lasts_s = COMPUTE_S * dice.uniform(0.5, 2)
    world.after(COMPUTE_S * len(setup.jobs) * dice.uniform(0.5, 4), world.stop_process, worker, lasts_s)


def _check_pace(setup: SharedSetup) -> None:
    """Check the pace from the time when the order has settled until the first job ends."""
    begin_s = max(job.steps_s[FIRST_STEPS - 1] for job in setup.jobs)
    end_s = min(job.steps_s[-1] for job in setup.jobs)
    steps = sum(begin_s < step_s <= end_s for job in setup.jobs for step_s in job.steps_s) / len(setup.jobs)
    wanted_s = _find_period_s(setup)
    # At both ends a step may be counted for one job and not yet for another.
    if end_s - begin_s > ORDERLY * wanted_s * (steps + 0.5):
        pace = (end_s - begin_s) / steps / wanted_s
        setup.world.fail(f"convoy: a step of each takes {pace:.2f} times what it must")


def _check_positions(setup: SharedSetup) -> None:
    """Check that all workers of a job ask with the same position in each step."""
    for job in setup.jobs:
        for step, positions in job.positions.items():
            if len(positions) > 1:
                setup.world.fail(
                    f"the workers of {job.traits.name} disagree on its position for step {step}: {positions}"
                )


def _find_period_s(setup: SharedSetup) -> float:
    """Return max(sum c, max(c + m)), where c includes loading and two changes of the turn, of two messages each."""
    traits = setup.jobs[0].traits
    slowest = max(host.slowness for host in setup.hosts)
    device_s = traits.device_s * slowest + traits.load_s + 4 * setup.hosts[0].delay_s / 2
    return max(len(setup.jobs) * device_s, device_s + traits.network_s)


def run_turns_shares(case: Case) -> None:
    """Check that jobs that always compute get device time by their weights, to within a step and a half of each."""
    dice, world = case.dice, CheckedWorld(case)
    hosts = _make_hosts(world, dice.choice([1, 1, 2, 3]), delay_s=dice.choice([1e-5, 1e-4, 1e-3]))
    jitter = dice.choice([0.0, 0.03])
    jobs = []
    for name in "ABC"[: dice.choice([2, 2, 3])]:
        traits = JobTraits(
            name=name,
            steps=STEPS,
            layers=8,  # a waiting job gets a layer whenever another ends a step: it must be short
            compute_s=dice.uniform(0.08, 0.16),
            network_s=0.0,
            jitter=jitter,
            delay_s=1e-4,
            weight=dice.choice([1.0, 1.5, 2.0]),
        )
        jobs.append(Job(world, traits, hosts))
    setup = make_setup(world, hosts, jobs, [dice.uniform(0, 0.3) for _ in jobs])
    world.checks.append(Shares(setup).check)
    setup.run()
    first_s = min(job.steps_s[-1] for job in jobs)
    for job in jobs:
        if job.steps_s[1] > first_s:
            world.fail(f"shares: {job.traits.name} has hardly begun when another one has ended")


class Shares:
    """Claim that the difference in device time per weight of two jobs varies by at most a step and a half of each.

    A job that is half a step behind does not count as far behind.
    """

    def __init__(self, setup: SharedSetup) -> None:
        self._setup = setup
        self._ranges: dict[tuple[int, str, str], tuple[float, float]] = {}

    def check(self, host: int) -> None:
        jobs = self._setup.jobs
        if any(not FIRST_STEPS <= len(job.steps_s) < STEPS for job in jobs):
            return
        served = [(job.traits, job.workers[host].computed_s / job.traits.weight) for job in jobs]
        for index, (one, one_s) in enumerate(served):
            for other, other_s in served[:index]:
                most_s = (1 + FAR) * (_step_s(one) + _step_s(other))
                self._follow((host, one.name, other.name), one_s - other_s, most_s)

    def _follow(self, pair: tuple[int, str, str], ahead_s: float, most_s: float) -> None:
        low_s, high_s = self._ranges.get(pair, (ahead_s, ahead_s))
        self._ranges[pair] = low_s, high_s = min(low_s, ahead_s), max(high_s, ahead_s)
        if high_s - low_s > most_s:
            host, one, other = pair
            self._setup.world.fail(f"shares: {one} and {other} drift apart on host {host} by {high_s - low_s:.3f} s")


def _step_s(traits: JobTraits) -> float:
    """Return the device time per weight of a step and one more layer, because layers are not interrupted."""
    return traits.compute_s * (1 + traits.jitter) * (1 + 1 / traits.layers) / traits.weight


def run_turns_killed(case: Case) -> None:
    """Check that a job that dies does not delay another one, and one that stops delays it by at most the lease."""
    dice = case.dice
    kills, rank = dice.random() < 0.5, dice.randrange(3)
    when_s, lease_s = dice.uniform(0.0, 1.0), dice.choice([0.5, 2.0])
    usual_s = _run_pair(case, lease_s).jobs[1].ended_s
    case.log.begin_again()
    setup = _run_pair(case, lease_s, fault=(kills, rank, when_s))
    ended_s, dying = setup.jobs[1].ended_s, setup.jobs[0].traits
    assert usual_s is not None
    assert ended_s is not None
    # The other workers of the dying job end the step that they have begun; its results never come.
    most_s = usual_s + (0.0 if kills else lease_s) + dying.device_s
    if ended_s > most_s:
        setup.world.fail(f"B should have ended at {most_s:.3f} and not at {ended_s:.3f}, if A had not died")


def _run_pair(case: Case, lease_s: float, fault: tuple[bool, int, float] | None = None) -> SharedSetup:
    """Run two jobs, the same for the same seed."""
    same = Case(case.seed, random.Random(case.seed), case.log)
    dice, world = same.dice, CheckedWorld(same)
    hosts = _make_hosts(world, dice.choice([1, 2, 3]), delay_s=1e-4, lease_s=lease_s)
    jobs = []
    for name in "AB":
        compute_s = dice.uniform(0.03, 0.1)
        traits = JobTraits(
            name=name,
            steps=8,
            compute_s=compute_s,
            network_s=compute_s * dice.uniform(0, 2),
            optimizer_s=compute_s * dice.choice([0.0, 0.1]),
            is_gated=dice.random() < 0.3,
        )
        jobs.append(Job(world, traits, hosts))
    setup = make_setup(world, hosts, jobs, [0.0, 0.0])
    if fault is not None:
        kills, rank, when_s = fault
        victim = jobs[0].workers[rank % len(hosts)]
        world.at(
            when_s,
            lambda: jobs[0].kill(victim.rank, 1.0) if kills else world.stop_process(victim, 100.0),
        )
    setup.run(more_s=100.0)
    return setup


def _make_hosts(world: CheckedWorld, count: int, *, delay_s: float, lease_s: float = LEASE_S) -> list[SlowHost]:
    return [SlowHost(world, number, slowness=1.0, delay_s=delay_s, lease_s=lease_s) for number in range(count)]
