"""What taking turns is worth: no convoys, fair shares, and nobody pays for a job that dies."""

from __future__ import annotations

import random
from dataclasses import replace

from undertow.crossover.turns import FAR, LEASE_S
from undertow.faults.case import Case
from undertow.faults.turns_draw import Town, make_town
from undertow.faults.turns_host import Host
from undertow.faults.turns_job import Job, Nature
from undertow.faults.turns_world import World

COMPUTE_S = 0.1
STEPS, FIRST_STEPS = 16, 6
# A convoy would take up to half as long again.
ORDERLY = 1.1


def run_turns_order(case: Case) -> None:
    """Equal jobs run in the same order on all hosts, however they came: a step of each takes what it must."""
    dice, world = case.dice, World(case)
    jobs_hosts = dice.choice([(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2)])
    hosts = _make_hosts(world, jobs_hosts[1], delay_s=COMPUTE_S * dice.choice([0.001, 0.01, 0.02]))
    slowness = dice.choice([0.0, 0.0, 0.5, 2.0])
    for host in hosts:
        host.slowness = 1 + dice.uniform(0, slowness)
    nature = _draw_equal(dice)
    # First workers on one host: a step is counted there, and counts of hosts of different speeds are not alike.
    jobs = [Job(world, replace(nature, name=name), _mix(dice, hosts)) for name in "ABCD"[: jobs_hosts[0]]]
    town = make_town(world, hosts, jobs, [dice.choice([0.0, dice.uniform(0, 4 * COMPUTE_S)]) for _ in jobs])
    hiccups = dice.choice([0, 1, 2, 3])
    for _ in range(hiccups):
        _plan_hiccup(town)
    town.run(more_s=10.0)
    _check_pace(town)
    if not hiccups:
        _check_places(town)


def _draw_equal(dice: random.Random) -> Nature:
    is_gated = dice.random() < 0.25
    return Nature(
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


def _mix(dice: random.Random, hosts: list[Host]) -> list[Host]:
    return [hosts[0], *dice.sample(hosts[1:], len(hosts) - 1)]


def _plan_hiccup(town: Town) -> None:
    """A worker stands still for a moment, early on: from then on the jobs come in another order on its host."""
    world, dice = town.world, town.world.dice
    worker = dice.choice(dice.choice(town.jobs).workers)
    lasts_s = COMPUTE_S * dice.uniform(0.5, 2)
    world.at(COMPUTE_S * len(town.jobs) * dice.uniform(0.5, 4), lambda: world.stop(worker, lasts_s))


def _check_pace(town: Town) -> None:
    """From when all have found their place to when the first has ended."""
    begin_s = max(job.steps_s[FIRST_STEPS - 1] for job in town.jobs)
    end_s = min(job.steps_s[-1] for job in town.jobs)
    steps = sum(begin_s < step_s <= end_s for job in town.jobs for step_s in job.steps_s) / len(town.jobs)
    wanted_s = _find_period_s(town)
    # At either end a step may be counted for one job and not yet for another.
    if end_s - begin_s > ORDERLY * wanted_s * (steps + 0.5):
        pace = (end_s - begin_s) / steps / wanted_s
        town.world.fail(f"convoy: a step of each takes {pace:.2f} times what it must")


def _check_places(town: Town) -> None:
    """Whoever asks for a step of a job names the same place."""
    for job in town.jobs:
        for step, places in job.places.items():
            if len(places) > 1:
                town.world.fail(f"the workers of {job.nature.name} disagree on its place for step {step}: {places}")


def _find_period_s(town: Town) -> float:
    """T = max(sum c, max(c + m)), with two hand-overs of two letters, and data that nobody else covers."""
    nature = town.jobs[0].nature
    slowest = max(host.slowness for host in town.hosts)
    device_s = nature.device_s * slowest + nature.load_s + 4 * town.hosts[0].delay_s / 2
    return max(len(town.jobs) * device_s, device_s + nature.network_s)


def run_turns_shares(case: Case) -> None:
    """Jobs that always want to compute have device time by their weights, to a step and a half of each."""
    dice, world = case.dice, World(case)
    hosts = _make_hosts(world, dice.choice([1, 1, 2, 3]), delay_s=dice.choice([1e-5, 1e-4, 1e-3]))
    jitter = dice.choice([0.0, 0.03])
    jobs = []
    for name in "ABC"[: dice.choice([2, 2, 3])]:
        nature = Nature(
            name=name,
            steps=STEPS,
            layers=8,  # whoever waits has one whenever another job ends a step: it must be worth less than that
            compute_s=dice.uniform(0.08, 0.16),
            network_s=0.0,
            jitter=jitter,
            delay_s=1e-4,
            weight=dice.choice([1.0, 1.5, 2.0]),
        )
        jobs.append(Job(world, nature, hosts))
    town = make_town(world, hosts, jobs, [dice.uniform(0, 0.3) for _ in jobs])
    world.checks.append(Shares(town).check)
    town.run()
    first_s = min(job.steps_s[-1] for job in jobs)
    for job in jobs:
        if job.steps_s[1] > first_s:
            world.fail(f"shares: {job.nature.name} has hardly begun when another one has ended")


class Shares:
    """Of two jobs each the device time per weight differs by the same all the time, to a step and a half of each.

    Half a step does not count as far behind.
    """

    def __init__(self, town: Town) -> None:
        self._town = town
        self._ranges: dict[tuple[int, str, str], tuple[float, float]] = {}

    def check(self, host: int) -> None:
        jobs = self._town.jobs
        if any(not FIRST_STEPS <= len(job.steps_s) < STEPS for job in jobs):
            return
        served = [(job.nature, job.workers[host].computed_s / job.nature.weight) for job in jobs]
        for index, (one, one_s) in enumerate(served):
            for other, other_s in served[:index]:
                most_s = (1 + FAR) * (_step_s(one) + _step_s(other))
                self._follow((host, one.name, other.name), one_s - other_s, most_s)

    def _follow(self, pair: tuple[int, str, str], ahead_s: float, most_s: float) -> None:
        low_s, high_s = self._ranges.get(pair, (ahead_s, ahead_s))
        self._ranges[pair] = low_s, high_s = min(low_s, ahead_s), max(high_s, ahead_s)
        if high_s - low_s > most_s:
            host, one, other = pair
            self._town.world.fail(f"shares: {one} and {other} drift apart on host {host} by {high_s - low_s:.3f} s")


def _step_s(nature: Nature) -> float:
    """Of a step, per weight; and a layer, which nobody interrupts."""
    return nature.compute_s * (1 + nature.jitter) * (1 + 1 / nature.layers) / nature.weight


def run_turns_killed(case: Case) -> None:
    """A job that dies delays another one not at all, and one that stops by no more than the lease."""
    dice = case.dice
    kills, rank, when_s, lease_s = (
        dice.random() < 0.5,
        dice.randrange(3),
        dice.uniform(0.0, 1.0),
        dice.choice([0.5, 2.0]),
    )
    usual_s = _run_pair(case, lease_s).jobs[1].ended_s
    case.story.begin_again()
    town = _run_pair(case, lease_s, fault=(kills, rank, when_s))
    ended_s, dying = town.jobs[1].ended_s, town.jobs[0].nature
    assert usual_s is not None
    assert ended_s is not None
    # What the other workers of the dying job have begun they end, up to the network that never comes.
    most_s = usual_s + (0.0 if kills else lease_s) + dying.device_s
    if ended_s > most_s:
        town.world.fail(f"B should have ended at {most_s:.3f} and not at {ended_s:.3f}, if A had not died")


def _run_pair(case: Case, lease_s: float, fault: tuple[bool, int, float] | None = None) -> Town:
    """The same jobs every time."""
    same = Case(case.seed, random.Random(case.seed), case.story)
    dice, world = same.dice, World(same)
    hosts = _make_hosts(world, dice.choice([1, 2, 3]), delay_s=1e-4, lease_s=lease_s)
    jobs = []
    for name in "AB":
        compute_s = dice.uniform(0.03, 0.1)
        nature = Nature(
            name=name,
            steps=8,
            compute_s=compute_s,
            network_s=compute_s * dice.uniform(0, 2),
            optimizer_s=compute_s * dice.choice([0.0, 0.1]),
            is_gated=dice.random() < 0.3,
        )
        jobs.append(Job(world, nature, hosts))
    town = make_town(world, hosts, jobs, [0.0, 0.0])
    if fault is not None:
        kills, rank, when_s = fault
        victim = jobs[0].workers[rank % len(hosts)]
        world.at(when_s, lambda: jobs[0].kill(victim.rank, 1.0) if kills else world.stop(victim, 100.0))
    town.run(more_s=100.0)
    return town


def _make_hosts(world: World, count: int, *, delay_s: float, lease_s: float = LEASE_S) -> list[Host]:
    return [Host(world, number, slowness=1.0, delay_s=delay_s, lease_s=lease_s) for number in range(count)]
