"""Losses between the hosts' rendezvous and the workers': named on every host, in time, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from undertow.faults.case import Case
from undertow.faults.start_hosts import Job, Launcher, Worker
from undertow.faults.turns_world import World
from undertow.launch.host_watch import HUB, HostPlace, HostWatch

KILLED_S, STOPPED_S = 5.0, 15.0
LONG_S, WATCHED_S = 25.0, 45.0
MOST_HOSTS, MOST_WORKERS = 5, 3


@dataclass
class Fault:
    """What happens to the job; `victim` is how a cause must name it, empty if the job must go on."""

    happen: Callable[[], None]
    victim: str = ""
    within_s: float = 0.0
    launcher: Launcher | None = None  # whose own words do not count


def run_start_losses(case: Case) -> None:
    """Who is lost before the workers have met is named by every launcher, in 5 s if killed and in 15 s if stopped."""
    world = World(case)
    job = _draw_job(world)
    fault = _draw_fault(case.dice, job)
    last_s = max(worker.comes_s for worker in job.workers)
    when_s = case.dice.choice([0.5 * last_s, last_s, 2.0 * last_s]) * case.dice.random()
    met_before: list[bool] = []

    def happen() -> None:
        met_before.extend(launcher.watch.has_met for launcher in job.launchers)
        fault.happen()

    world.at(when_s, happen)
    job.start()
    world.run(lambda: False, most_s=max(when_s, last_s) + WATCHED_S)
    _check(job, fault, when_s, met_before)


def _draw_job(world: World) -> Job:
    dice = world.dice
    counts = [dice.randint(1, MOST_WORKERS) for _ in range(dice.randint(2, MOST_HOSTS))]
    places = [HostPlace("abcde"[host], sum(counts[:host]), count) for host, count in enumerate(counts)]
    job = Job(world, delays_s=[dice.choice([0.0001, 0.01, 0.5]) for _ in counts])
    spread_s = dice.choice([0.1, 5.0, 60.0])
    for host, place in enumerate(places):
        launcher = Launcher(world, host, place, HostWatch(host, places, now_s=world.now_s))
        ranks = range(place.first_rank, place.first_rank + place.nproc)
        launcher.workers = [Worker(rank, host, dice.uniform(0.0, spread_s)) for rank in ranks]
        job.launchers.append(launcher)
    return job


def _draw_fault(dice: random.Random, job: Job) -> Fault:
    launcher = dice.choice(job.launchers)
    worker = dice.choice(launcher.workers)
    host = launcher.place.name
    as_worker, as_launcher = f"rank {worker.rank} on host {host} ", f"launcher on host {host} ("
    briefly_s = dice.uniform(0.5, 7.0)
    faults = {
        "kill worker": Fault(lambda: job.kill_worker(worker), as_worker, KILLED_S, launcher),
        "kill launcher": Fault(lambda: job.kill_launcher(launcher, closes=True), as_launcher, KILLED_S, launcher),
        "interrupt": Fault(lambda: job.interrupt(launcher), as_launcher, KILLED_S, launcher),
        "host gone": Fault(lambda: job.kill_launcher(launcher, closes=False), as_launcher, STOPPED_S, launcher),
        "stop worker": Fault(lambda: job.stop(worker, 10 * LONG_S), as_worker, STOPPED_S),
        "stop launcher": Fault(lambda: job.stop(launcher, LONG_S), as_launcher, STOPPED_S, launcher),
        "stop worker briefly": Fault(lambda: job.stop(worker, briefly_s)),
        "stop launcher briefly": Fault(lambda: job.stop(launcher, briefly_s)),
        "suspend all": Fault(lambda: _suspend_all(job)),
        "nothing": Fault(lambda: None),
    }
    return faults[dice.choice(list(faults))]


def _suspend_all(job: Job) -> None:
    """The user suspends every launcher, and lets all go on, within a second each."""
    for launcher in job.launchers:
        late_s = job.world.dice.random()
        job.world.at(late_s, lambda launcher=launcher: job.stop(launcher, LONG_S))  # type: ignore[misc]


def _check(job: Job, fault: Fault, when_s: float, met_before: list[bool]) -> None:
    ended = [launcher for launcher in job.launchers if launcher.cause and launcher is not fault.launcher]
    for launcher in ended:
        if not fault.victim or all(met_before):
            job.world.fail(f"{launcher.name} ended its workers without a reason: {launcher.cause}")
        if fault.victim not in launcher.cause:
            job.world.fail(f"{launcher.name} does not name the {fault.victim}but says: {launcher.cause}")
    # Workers whose launcher is stopped may meet all the same.
    if fault.victim and not job.launchers[HUB].watch.has_met:
        for launcher in job.launchers:
            _check_told(launcher, fault, when_s)
    if not fault.victim and not all(launcher.watch.has_met for launcher in job.launchers):
        job.world.fail("the workers have met, but not all launchers know")


def _check_told(launcher: Launcher, fault: Fault, when_s: float) -> None:
    if launcher.is_dead:
        return
    took_s = launcher.ended_s - when_s
    within_s = LONG_S + KILLED_S if launcher is fault.launcher else fault.within_s
    if took_s > within_s:
        launcher.world.fail(
            f"{launcher.name} needs {took_s:.1f} s, not {within_s:g}, to name {fault.victim.strip(' (')}"
        )
