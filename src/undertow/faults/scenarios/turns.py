"""Jobs that share devices: one at a time on each, in the same order on all, and nobody waits for ever."""

from __future__ import annotations

from undertow.crossover.client import ANSWER_S, ASK_EVERY_S, LOOK_EVERY_S
from undertow.faults.case import Case
from undertow.faults.turns_draw import Town, draw_town
from undertow.faults.turns_job import Job

# After a fault: to miss the arbiter, to find the next one, to be welcomed or not.
AFTER_A_FAULT_S = 2 * ANSWER_S + 2 * ASK_EVERY_S + 2 * LOOK_EVERY_S


def run_turns(case: Case) -> None:
    """Jobs compute one at a time, all of them end, and an urgent one waits for no more than a layer."""
    town = draw_town(case)
    town.run()
    for host in town.hosts:
        if host.arbiter is None or host.arbiter.lapses:
            town.world.fail(f"somebody on host {host.number} has lost its turn, although nobody has overstayed")
    urgent = [job for job in town.jobs if job.nature.is_urgent]
    if len(urgent) == 1:
        _check_urgent(town, urgent[0])


def _check_urgent(town: Town, urgent: Job) -> None:
    """Ask, recall, give and grant take a letter each."""
    for worker in urgent.workers:
        others = [job.nature for job in town.jobs if job is not urgent and worker.host in job.hosts]
        layer_s = max((max(one.layer_s, one.optimizer_s) * (1 + one.jitter) for one in others), default=0.0)
        most_s = layer_s * worker.home.slowness + 4 * worker.home.delay_s
        if worker.most_delayed_s > most_s + 1e-9:
            town.world.fail(
                f"{worker.name} is urgent and has waited for {worker.most_delayed_s:.4f} s, not {most_s:.4f}"
            )


def run_turns_faults(case: Case) -> None:
    """Whoever dies or stops, worker or arbiter, keeps a turn for no longer than the lease, and the others end."""
    dice = case.dice
    lease_s = dice.choice([0.2, 1.0, 5.0])
    town = draw_town(case, lease_s=lease_s, most_jobs=4)
    faults = dice.randint(1, 3)
    lost_s = sum(_plan_fault(town, lease_s) for _ in range(faults))
    town.run(more_s=lost_s + faults * (lease_s + AFTER_A_FAULT_S))


def _plan_fault(town: Town, lease_s: float) -> float:
    """Returns how long it may keep others from going on, besides the lease."""
    world, dice = town.world, town.world.dice
    job, host = dice.choice(town.jobs), dice.choice(town.hosts)
    worker = dice.choice(job.workers)
    when_s = dice.uniform(0.0, 1.0) * dice.choice([0.3, max(town.starts_s) + job.nature.step_s * job.nature.steps])
    lasts_s = dice.choice([0.05, 1.0, 2.0 * lease_s, 25.0]) * dice.uniform(0.5, 1.5)
    match dice.choice(["kill", "stop", "kill arbiter", "stop arbiter"]):
        case "kill":
            world.at(when_s, lambda: job.kill(worker.rank, lasts_s))
        case "stop":
            world.at(when_s, lambda: world.stop(worker, lasts_s))
        case "kill arbiter":
            world.at(when_s, lambda: host.kill_arbiter(lasts_s))
        case "stop arbiter":
            world.at(when_s, lambda: host.stop_arbiter(lasts_s))
    return lasts_s
