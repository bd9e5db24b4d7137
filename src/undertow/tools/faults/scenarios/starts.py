"""Losses between the hosts' rendezvous and the workers' rendezvous: every host names them in time, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from undertow.launch.host_watch import HUB, HostRanks, HostWatch
from undertow.runtime.launcher_notes import Mark
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.start_hosts import DIAL_S, Job, Launcher, Worker
from undertow.tools.faults.world import CheckedWorld

KILLED_S, STOPPED_S = 5.0, 15.0
LONG_S, WATCHED_S = 25.0, 45.0
MOST_HOSTS, MOST_WORKERS = 5, 3
STARTED_S = 2.0  # by then all launchers are connected, and have started their workers
FOREVER_S = float("inf")


@dataclass
class Fault:
    """Fault that hits the job; `victim` is what a cause must name, empty if the job must continue."""

    happen: Callable[[], None]
    victim: str = ""
    within_s: float = 0.0
    launcher: Launcher | None = None  # whose cause is not checked
    waiters: Callable[[Launcher], float] = lambda launcher: 0.0  # when that launcher knows that the victim is missed
    may_be_early: bool = False  # it can happen before the workers are started


def run_start_losses(case: Case) -> None:
    """Check that every launcher names a loss before the workers have met: within 5 s if killed, 15 s if stopped."""
    # A process that is stopped, or has ended in order, is lost only if workers wait for it.
    world = CheckedWorld(case)
    job = _draw_job(world)
    fault = _draw_fault(case.dice, job)
    last_s = max((worker.comes_s for worker in job.workers if worker.comes_s < FOREVER_S), default=5.0)
    when_s = _draw_time(case.dice, last_s, fault)
    met_before: list[bool] = []

    def happen() -> None:
        met_before.extend(launcher.watch.has_met for launcher in job.launchers)
        fault.happen()

    world.at(when_s, happen)
    job.start()
    world.run_until(lambda: False, most_s=max(when_s, last_s) + WATCHED_S)
    _check(job, fault, when_s, met_before)


def _draw_job(world: CheckedWorld) -> Job:
    dice = world.dice
    counts = [dice.randint(1, MOST_WORKERS) for _ in range(dice.randint(2, MOST_HOSTS))]
    places = [HostRanks("abcde"[host], sum(counts[:host]), count) for host, count in enumerate(counts)]
    job = Job(world, delays_s=[dice.choice([0.0001, 0.01, 0.5]) for _ in counts])
    spread_s = dice.choice([0.1, 5.0, 60.0])
    is_group = dice.random() < 0.75  # otherwise its workers train without each other, or with torch's process group
    for host, place in enumerate(places):
        launcher = Launcher(world, host, place, HostWatch(host, places, now_s=world.now_s))
        comes_s = [dice.uniform(0.0, spread_s) if is_group else FOREVER_S for _ in place.ranks]
        launcher.workers = [Worker(rank, host, comes) for rank, comes in zip(place.ranks, comes_s, strict=True)]
        job.launchers.append(launcher)
    return job


def _draw_time(dice: random.Random, last_s: float, fault: Fault) -> float:
    if fault.may_be_early and dice.random() < 0.3:
        return dice.choice([DIAL_S, 0.5 * STARTED_S, STARTED_S]) * dice.random()
    return STARTED_S + dice.choice([0.5 * last_s, last_s, 2.0 * last_s]) * dice.random()


def _draw_fault(dice: random.Random, job: Job) -> Fault:
    launcher = dice.choice(job.launchers)
    worker = dice.choice(launcher.workers)
    host = launcher.place.name
    as_worker, as_launcher = f"rank {worker.rank} on host {host} ", f"launcher on host {host} ("
    briefly_s = dice.uniform(0.5, 7.0)

    def await_worker(_: Launcher) -> float:
        return min((each.came_s for each in job.workers if each is not worker), default=FOREVER_S)

    def await_ended(by: Launcher) -> float:
        # The first launcher relays which workers wait, unless it has left with its only worker.
        is_alone = launcher.host == HUB and len(launcher.workers) == 1
        return by.awaits_s if is_alone else await_worker(by)

    def await_launcher(by: Launcher) -> float:
        if not by.watch.may_start:
            return 0.0  # the launchers themselves wait
        if launcher.host == HUB:
            return by.awaits_s
        return min(each.awaits_s for each in job.launchers if each is not launcher)

    def kill(closes: bool) -> Callable[[], None]:
        return lambda: job.kill_launcher(launcher, closes=closes)

    def lose_launcher(happen: Callable[[], None], within_s: float, waiters: Callable[[Launcher], float]) -> Fault:
        return Fault(happen, as_launcher, within_s, launcher, waiters, may_be_early=True)

    at_once = Fault.waiters
    faults = {
        "kill worker": Fault(lambda: job.kill_worker(worker), as_worker, KILLED_S, launcher),
        "kill launcher": lose_launcher(kill(True), KILLED_S, at_once),
        "interrupt": lose_launcher(lambda: job.interrupt(launcher), KILLED_S, at_once),
        "host gone": lose_launcher(kill(False), STOPPED_S, await_launcher),
        "end worker": Fault(lambda: job.end_worker(worker), as_worker, KILLED_S, waiters=await_ended),
        "stop worker": Fault(lambda: job.stop(worker, 10 * LONG_S), as_worker, STOPPED_S, waiters=await_worker),
        "stop launcher": lose_launcher(lambda: job.stop(launcher, LONG_S), STOPPED_S, await_launcher),
        "stop worker briefly": Fault(lambda: job.stop(worker, briefly_s)),
        "stop launcher briefly": Fault(lambda: job.stop(launcher, briefly_s)),
        "suspend all": Fault(lambda: _suspend_all(job)),
        "nothing": Fault(lambda: None),
    }
    return faults[dice.choice(list(faults))]


def _suspend_all(job: Job) -> None:
    """Suspend every launcher as its user might, each within a second, and let all go on."""
    for launcher in job.launchers:
        late_s = job.world.dice.random()
        job.world.after(late_s, job.stop, launcher, LONG_S)


def _check(job: Job, fault: Fault, when_s: float, met_before: list[bool]) -> None:
    for launcher in job.launchers:
        if launcher.cause and launcher is not fault.launcher:
            is_missed = any(fault.waiters(each) <= launcher.ended_s for each in job.launchers)
            _check_cause(launcher, fault, may_end=is_missed and not all(met_before))
    # Even workers whose launcher is stopped may meet.
    if fault.victim and not job.launchers[HUB].watch.has_met:
        for launcher in job.launchers:
            _check_in_time(launcher, fault, when_s)
    is_group = job.workers[0].comes_s < FOREVER_S
    if not fault.victim and is_group and not all(launcher.watch.has_met for launcher in job.launchers):
        job.world.fail("the workers have met, but not all launchers know")


def _check_cause(launcher: Launcher, fault: Fault, *, may_end: bool) -> None:
    if not fault.victim or not may_end:
        launcher.world.fail(f"{launcher.name} ended its workers without a reason: {launcher.cause}")
    if fault.victim not in launcher.cause:
        launcher.world.fail(f"{launcher.name} does not name the {fault.victim}but gives the cause: {launcher.cause}")


def _check_in_time(launcher: Launcher, fault: Fault, when_s: float) -> None:
    missed_s = max(when_s, fault.waiters(launcher))
    if launcher.is_dead or (launcher.has_left and not launcher.cause) or missed_s == FOREVER_S:
        return
    if all(worker.mark is Mark.MET for worker in launcher.workers):
        return  # connected workers notice the loss themselves
    took_s = launcher.ended_s - missed_s
    within_s = LONG_S + KILLED_S if launcher is fault.launcher else fault.within_s
    if took_s > within_s:
        launcher.world.fail(
            f"{launcher.name} needs {took_s:.1f} s, not {within_s:g}, to name {fault.victim.strip(' (')}"
        )
