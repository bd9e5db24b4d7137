"""The arbiter of a virtual host: the real `Office`, at the end of connections that take their time.

In: connections of workers, what they say.  Out: what the office says, in order on each connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, ToArbiter
from undertow.crossover.office import Letters, Office
from undertow.crossover.turns import Turns
from undertow.faults.turns_world import Process, World

if TYPE_CHECKING:
    from undertow.faults.turns_job import Worker

DEVICE = "gpu0"


class Connection:
    """Between one worker and one arbiter; in order in each direction."""

    def __init__(self, arbiter: Arbiter, worker: Worker, member: int) -> None:
        self.arbiter, self.worker, self.member = arbiter, worker, member
        self.on_the_way = 0  # letters, in both directions
        self.solitudes = 0  # on the way to the worker
        # Two jobs have come and gone while a letter was on its way: the arbiter takes a word from before for a new one,
        # and the worker computes beside another job once.
        self.is_crossed = False
        self.is_closed = False  # by the worker
        self._arrivals_s = [0.0, 0.0]  # of the last letter to the arbiter, and to the worker

    def say(self, message: ToArbiter) -> None:
        is_old = self.solitudes > 0 and isinstance(message, messages.Give)

        def hear() -> None:
            self.is_crossed |= is_old and self.arbiter.turns is not None and not self.arbiter.turns.is_alone
            self.arbiter.hear(self, message)

        self._carry(0, hear, self.arbiter)

    def answer(self, message: FromArbiter) -> None:
        is_solitude = isinstance(message, messages.Solitude)
        self.solitudes += is_solitude

        def hear() -> None:
            self.solitudes -= is_solitude
            self.worker.hear(self, message)

        self._carry(1, hear, self.worker)

    def close(self) -> None:
        """The worker has gone; what it said before still arrives."""
        if not self.is_closed:
            self.is_closed = True
            self._carry(0, lambda: self.arbiter.dismiss(self), self.arbiter)

    def end(self) -> None:
        """The arbiter has gone."""
        self._carry(1, lambda: self.worker.lose(self), self.worker)

    def _carry(self, direction: int, deliver: Callable[[], None], to: Process) -> None:
        world, host = self.arbiter.world, self.arbiter.home
        arrival_s = max(self._arrivals_s[direction], world.now_s + host.draw_delay_s())
        self._arrivals_s[direction] = arrival_s
        self.on_the_way += 1

        def arrive() -> None:
            self.on_the_way -= 1
            deliver()

        world.at_time(arrival_s, arrive, to)


class Arbiter(Process):
    def __init__(self, world: World, home: Host) -> None:
        super().__init__(f"the arbiter of host {home.number}", home.number)
        self.world, self.home = world, home
        self.office = Office(home.lease_s)
        self.connections: dict[int, Connection] = {}
        self.overdue: set[int] = set()  # members that lost their turn and have not given back since
        self.lapses = 0  # turns that were longer than the lease
        self._numbers = itertools.count(1)
        self._wakes_s = float("inf")

    @property
    def turns(self) -> Turns | None:
        return self.office.devices.get(DEVICE)

    def admit(self, worker: Worker) -> Connection:
        connection = Connection(self, worker, next(self._numbers))
        self.connections[connection.member] = connection
        return connection

    def hear(self, connection: Connection, message: ToArbiter) -> None:
        if isinstance(message, messages.Query):
            status = messages.Status(pid=0, lease_s=self.office.lease_s, up_s=0.0, devices=[], notices=[])
            self._deliver([(connection.member, status)])
            return
        self.world.tell(f"{self.name} hears from {connection.worker.name}: {message}")
        if isinstance(message, messages.Give):
            self.overdue.discard(connection.member)
        self._deliver(self.office.hear(connection.member, message, self.world.now_s))
        self._tick()

    def dismiss(self, connection: Connection) -> None:
        self.world.tell(f"{self.name} has lost {connection.worker.name}")
        del self.connections[connection.member]
        self.overdue.discard(connection.member)
        self._deliver(self.office.gone(connection.member, self.world.now_s))
        self._tick()

    def die(self) -> None:
        self.is_dead = True
        self.world.tell(f"{self.name} is killed")
        for connection in self.connections.values():
            connection.end()

    def _tick(self) -> None:
        """What is due, as after every round of the arbiter's loop; and when it is due next."""
        before = self.turns.turn if self.turns is not None else None
        letters = self.office.tick(self.world.now_s)
        if before is not None and (self.turns is None or self.turns.turn is not before):
            self.overdue |= before.computing
            self.lapses += 1
        self._deliver(letters)
        deadline_s = self.office.deadline_s
        if deadline_s is not None and not self.world.now_s < self._wakes_s <= deadline_s:
            self._wakes_s = deadline_s
            self.world.at_time(max(deadline_s, self.world.now_s), self._tick, self)

    def _deliver(self, letters: Letters) -> None:
        for member, message in letters:
            if (connection := self.connections.get(member)) is not None:
                self.world.tell(f"{self.name} to {connection.worker.name}: {message}")
                connection.answer(message)


class Host:
    def __init__(self, world: World, number: int, *, slowness: float, delay_s: float, lease_s: float) -> None:
        self.number = number
        self.slowness = slowness  # how many times as long a layer takes
        self.lease_s = lease_s
        self.delay_s = delay_s  # the most that a letter takes
        self._world = world
        self.arbiter: Arbiter | None = None
        self.start_arbiter()

    def start_arbiter(self) -> None:
        self.arbiter = Arbiter(self._world, self)

    def draw_delay_s(self) -> float:
        return self._world.dice.uniform(0.1, 1.0) * self.delay_s

    def kill_arbiter(self, for_s: float) -> None:
        """There is a new one after so long."""
        if self.arbiter is not None and not self.arbiter.is_dead:
            self.arbiter.die()
            self.arbiter = None
            self._world.at(for_s, self.start_arbiter)

    def stop_arbiter(self, for_s: float) -> None:
        if self.arbiter is not None:
            self._world.stop(self.arbiter, for_s)
