"""What must hold of jobs that share devices, after every event.

- no two jobs compute on a device, unless one of them has overstayed its lease or does not know of the arbiter yet;
- the arbiter and a worker with no letter between them agree on whether it waits, computes, or is alone;
- nobody waits for a turn that nobody has;
- no job counts as having had far more device time than there was.
"""

from __future__ import annotations

from collections.abc import Sequence

from undertow.crossover.part import Mode
from undertow.crossover.turns import Turns
from undertow.faults.turns_host import Arbiter, Host
from undertow.faults.turns_job import Job, Worker
from undertow.faults.turns_world import World


class Claims:
    def __init__(self, world: World, hosts: Sequence[Host], jobs: Sequence[Job]) -> None:
        self._world, self._hosts = world, hosts
        workers = [worker for job in jobs for worker in job.workers]
        self._workers = {host.number: [one for one in workers if one.host == host.number] for host in hosts}
        self._least_weight = min(job.nature.weight for job in jobs)
        world.checks.append(self.check)

    def check(self, host: int) -> None:
        arbiter = self._hosts[host].arbiter
        if arbiter is None:
            return
        turns = arbiter.turns
        self._check_exclusion(host, arbiter)
        if turns is not None:
            self._check_conserving(turns, arbiter)
            self._check_counts(turns, arbiter)
            for worker in self._workers[host]:
                self._check_agreement(worker, turns, arbiter)

    def _check_exclusion(self, host: int, arbiter: Arbiter) -> None:
        computing = [worker for worker in self._workers[host] if _computes_by_right(worker, arbiter)]
        if len({worker.job for worker in computing}) > 1:
            names = " and ".join(worker.name for worker in computing)
            self._world.fail(f"two jobs compute at a time: {names} on host {host}")

    def _check_conserving(self, turns: Turns, arbiter: Arbiter) -> None:
        if turns.turn is None and any(account.waiting for account in turns.accounts.values()):
            self._world.fail(f"a free turn: somebody waits for it at {arbiter.name}")
        if turns.turn is not None and not turns.turn.computing:
            self._world.fail(f"a free turn: {arbiter.name} counts it as taken")

    def _check_counts(self, turns: Turns, arbiter: Arbiter) -> None:
        """Per weight; of any host, for jobs are lifted to what others have had elsewhere."""
        # Twice, because places run ahead by a step, and who has just been alone may be counted by both sides.
        most_s = 2 * self._world.now_s / self._least_weight + 1.0
        for name, account in turns.accounts.items():
            if account.virtual_s > most_s:
                self._world.fail(f"{arbiter.name} counts {account.virtual_s:.3f} s for {name}; there were {most_s:.3f}")

    def _check_agreement(self, worker: Worker, turns: Turns, arbiter: Arbiter) -> None:
        """Once all that was said has been heard."""
        connection, part = worker.connection, worker.part
        if connection is None or connection.arbiter is not arbiter or connection.on_the_way:
            return
        if connection.is_crossed and (part.is_computing or part.is_waiting):
            return
        connection.is_crossed = False
        member, name = connection.member, worker.job.nature.name
        is_waiting = name in turns.accounts and member in turns.accounts[name].waiting
        is_granted = turns.turn is not None and member in turns.turn.computing
        if (part.mode is Mode.ALONE) is not turns.is_alone:
            self._world.fail(f"{worker.name} believes that {part.mode.value}; there are {len(turns.accounts)} jobs")
        if part.is_waiting is not is_waiting:
            self._world.fail(f"{worker.name} and its arbiter disagree on whether it waits for the turn: {is_waiting}")
        if part.is_granted is not is_granted and member not in arbiter.overdue:
            self._world.fail(f"{worker.name} and its arbiter disagree on whether it has the turn: {is_granted}")


def _computes_by_right(worker: Worker, arbiter: Arbiter) -> bool:
    """It has a turn of this arbiter, or need not ask."""
    part, connection = worker.part, worker.connection
    if not part.is_computing or worker.is_done or connection is None or connection.arbiter is not arbiter:
        return False
    if connection.is_crossed or connection.member in arbiter.overdue:
        return False
    return part.mode is Mode.ALONE or part.is_granted
