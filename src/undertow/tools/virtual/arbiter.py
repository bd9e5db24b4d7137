"""Arbiter of a virtual host: the real `ArbiterState`, behind connections with delays.

In: connections of workers, their messages.  Out: the state's messages, in order on each connection.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from undertow.crossover import messages
from undertow.crossover.arbiter_state import ArbiterState, Outgoing
from undertow.crossover.messages import FromArbiter, ToArbiter
from undertow.crossover.turns import LEASE_S
from undertow.tools.virtual.world import Channel, Process, World

if TYPE_CHECKING:
    from undertow.tools.virtual.worker import VirtualWorker


class Connection:
    """Connection between a virtual worker and its host's arbiter."""

    def __init__(self, arbiter: Arbiter, worker: VirtualWorker, member: int) -> None:
        self.arbiter, self.worker, self.member = arbiter, worker, member
        self._to_arbiter = Channel(arbiter.world, arbiter, arbiter.home.draw_delay_s)
        self._to_worker = Channel(arbiter.world, worker, arbiter.home.draw_delay_s)
        self._is_closed = False  # by the worker

    @property
    def in_flight(self) -> int:
        """Number of messages that have been sent and not received, in both directions."""
        return self._to_arbiter.in_flight + self._to_worker.in_flight

    def send(self, message: ToArbiter) -> None:
        self._to_arbiter.carry(self.arbiter.receive, self, message)

    def answer(self, message: FromArbiter) -> None:
        self._to_worker.carry(self.worker.receive, self, message)

    def close(self) -> None:
        """Close the worker's end; messages sent before still arrive."""
        if not self._is_closed:
            self._is_closed = True
            self._to_arbiter.carry(self.arbiter.remove, self)

    def end(self) -> None:
        """Close the arbiter's end."""
        self._to_worker.carry(self.worker.lose, self)


class Arbiter(Process):
    """Arbiter of a virtual host."""

    def __init__(self, world: World, home: Host) -> None:
        super().__init__(f"the arbiter of host {home.number}", home.number)
        self.world, self.home = world, home
        self.state = ArbiterState(home.lease_s)
        self.connections: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._ticks_s = math.inf  # when the next tick is planned

    def accept(self, worker: VirtualWorker) -> Connection:
        number = next(self._numbers)
        connection = self.connections[number] = self._connect(worker, number)
        return connection

    def receive(self, connection: Connection, message: ToArbiter) -> None:
        if isinstance(message, messages.Query):
            status = messages.Status(pid=0, lease_s=self.state.lease_s, up_s=0.0, devices=[], notices=[])
            self._deliver([(connection.member, status)])
            return
        self.world.note(f"{self.name} receives from {connection.worker.name}: {message}")
        self._deliver(self.state.handle(connection.member, message, self.world.now_s))
        self._tick()

    def remove(self, connection: Connection) -> None:
        """Remove a worker that has closed its connection."""
        self.world.note(f"{self.name} has lost {connection.worker.name}")
        del self.connections[connection.member]
        self._deliver(self.state.remove(connection.member, self.world.now_s))
        self._tick()

    def kill(self) -> None:
        self.is_dead = True
        self.world.note(f"{self.name} is killed")
        for connection in self.connections.values():
            connection.end()

    def _connect(self, worker: VirtualWorker, member: int) -> Connection:
        return Connection(self, worker, member)

    def _tick(self) -> None:
        """Call the state's `tick`, as after every round of the arbiter's loop, and plan the next call."""
        self._deliver(self.state.tick(self.world.now_s))
        deadline_s = self.state.deadline_s
        if deadline_s is not None and not self.world.now_s < self._ticks_s <= deadline_s:
            self._ticks_s = deadline_s
            self.world.plan(self, max(deadline_s, self.world.now_s), self._tick)

    def _deliver(self, outgoing: Outgoing) -> None:
        for member, message in outgoing:
            if (connection := self.connections.get(member)) is not None:
                self.world.note(f"{self.name} to {connection.worker.name}: {message}")
                connection.answer(message)


class Host:
    """Virtual host, which may have an arbiter."""

    def __init__(
        self, world: World, number: int, draw_delay_s: Callable[[], float], *, lease_s: float = LEASE_S
    ) -> None:
        self.number = number
        self.lease_s = lease_s
        self.draw_delay_s = draw_delay_s  # of a message between a worker and the arbiter
        self.arbiter: Arbiter | None = None
        self.world = world

    def start_arbiter(self) -> None:
        self.arbiter = Arbiter(self.world, self)

    def kill_arbiter(self, for_s: float) -> None:
        """Kill the arbiter; start a new one after `for_s`."""
        if self.arbiter is not None and not self.arbiter.is_dead:
            self.arbiter.kill()
            self.arbiter = None
            self.world.after(for_s, self.start_arbiter)

    def stop_arbiter(self, for_s: float) -> None:
        if self.arbiter is not None:
            self.world.stop_process(self.arbiter, for_s)
