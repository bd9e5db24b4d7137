"""All implementations of `engine.interface` behind one interface, so that one suite can check each of them.

A test is a body that every rank of a team runs: a function of a `Member`, or a generator that yields the tickets for
which it waits.  A real group runs it in one thread per rank.  A fake group and the fault driver's group run it for rank
0 only, whose peers follow a rule.  The simulator runs it for all ranks in turn, and virtual time passes during waits.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from tests.support.fake_group import make_shape
from undertow.engine.client import formation
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.client.waiting import Ticket
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.engine.interface import Group, Rounds
from undertow.engine.wire.loop import Loop
from undertow.settings import Settings
from undertow.sizing import Sizes
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.scenarios.gates import EchoGroup
from undertow.tools.sim.engine import Costs, Engine
from undertow.tools.sim.topology import Fabric, make_topology
from undertow.tools.virtual.world import Clock

HANG_S = 60.0  # nothing here takes this long
SLICE_BYTES = 1024
ECHO = 3  # times the first worker's contribution

T = TypeVar("T")
Open = Callable[[Sequence[TensorSpec], Op], list[Slice]]


@dataclass(frozen=True)
class Member:
    """One rank of a team."""

    rank: int
    size: int
    rounds: Rounds
    open: Open  # makes the slices of a table known to this rank; no rank may contribute before all have called it
    is_group: bool = True

    @property
    def group(self) -> Group:
        assert self.is_group
        return cast(Group, self.rounds)


Waits = Generator[Ticket, None, T]
Body = Callable[[Member], T] | Callable[[Member], Waits[T]]


class Team(Protocol):
    """The ranks of one group that run tests."""

    @property
    def weights(self) -> Sequence[float]:
        """The contribution of each rank, as a multiple of that of rank 0."""

    def run(self, body: Callable[[Member], Any]) -> list[Any]:
        """Run this body on each rank; return the results."""

    def close(self) -> None: ...


class ConnectedTeam:
    """Real groups over sockets on this host, each with an engine thread."""

    def __init__(self, size: int, *, over_tcp: bool, **options: Any) -> None:
        self.weights = [1.0 + rank for rank in range(size)]
        self._size = size
        self._contacts: list[bytes] = [b""] * size
        self._meeting = threading.Barrier(size)
        self._loops = [Loop() for _ in range(size)]
        for loop in self._loops:
            loop.start()
        address = "127.0.0.1" if over_tcp else ""  # without one, workers of a host use Unix sockets
        options = {"slice_bytes": SLICE_BYTES, "address": address} | options
        self.groups: list[ConnectedGroup] = self._in_threads(lambda rank: self._form(rank, **options))

    def _form(self, rank: int, **options: Any) -> ConnectedGroup:
        def meet(contact: bytes) -> list[bytes]:
            self._contacts[rank] = contact
            self._meeting.wait(HANG_S)
            return list(self._contacts)

        settings = Settings(rank=rank, world_size=self._size, token="secret", **options)
        return formation.form(
            meet,
            name="contract",
            settings=settings,
            loop=self._loops[rank],
            address="127.0.0.1",
        )

    def run(self, body: Callable[[Member], Any]) -> list[Any]:
        return self._in_threads(lambda rank: self._run_one(rank, body))

    def _run_one(self, rank: int, body: Callable[[Member], Any]) -> Any:
        group = self.groups[rank]
        member = Member(rank, self._size, group, lambda tensors, op: group.register("table", tensors, op=op))
        try:
            return _finish(body(member), lambda ticket: group.wait_for(ticket))
        except BaseException as error:
            group.leave(f"its test failed: {error}")  # so that the others do not wait for it
            raise

    def _in_threads(self, call: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self._size
        errors: list[BaseException] = []  # in the order of their occurrence: the first is the cause

        def work(rank: int) -> None:
            try:
                results[rank] = call(rank)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=[rank], daemon=True) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive(), "a rank hangs"
        if errors:
            raise errors[0]
        return results

    def close(self) -> None:
        self._in_threads(lambda rank: self.groups[rank].close())
        for loop in self._loops:
            loop.stop()


class FakeTeam:
    """Rank 0 of a fake group, or of the fault driver's."""

    def __init__(self, group: Group, weights: Sequence[float]) -> None:
        self.weights = weights
        self._group = group

    def run(self, body: Callable[[Member], Any]) -> list[Any]:
        group = self._group
        member = Member(0, group.size, group, lambda tensors, op: group.register("table", tensors, op=op))
        return [_finish(body(member), lambda ticket: group.wait_for(ticket))]

    def close(self) -> None: ...


def make_echo_team() -> FakeTeam:
    """Return the first worker of a cluster of the fault driver."""
    cluster = Cluster(Case(7, random.Random(7)), fewest_workers=2, most_workers=2)
    return FakeTeam(EchoGroup(cluster, ECHO), [1.0, ECHO])


class SimulatedTeam:
    """Engines of the simulator, which carry no values."""

    weights: Sequence[float] = ()

    def __init__(self, size: int) -> None:
        self._clock = Clock()
        fabric = Fabric(self._clock, make_topology(size, 1e9, latency_s=0.0001, goodput=1.0))
        shapes = [make_shape(size, rank=rank, sizes=Sizes(fixed=SLICE_BYTES)) for rank in range(size)]
        self._engines = [Engine(self._clock, fabric, shape, Costs()) for shape in shapes]
        for engine in self._engines:
            engine.peers = self._engines

    def run(self, body: Callable[[Member], Any]) -> list[Any]:
        begun = [body(self._make_member(engine)) for engine in self._engines]
        tickets = [next(waits) for waits in begun]
        while True:
            self._clock.run()
            assert all(ticket.is_done for ticket in tickets), "a wait that never ends"
            results = [_advance(waits) for waits in begun]
            if all(is_over for is_over, _ in results):
                return [value for _, value in results]
            tickets = [value for _, value in results]

    def _make_member(self, engine: Engine) -> Member:
        size, first_key = len(self._engines), 0

        def open_table(tensors: Sequence[TensorSpec], op: Op) -> list[Slice]:
            nonlocal first_key
            slices = cut(tensors, Cut(first_key, SLICE_BYTES), op=op, placement=Placement(range(size)))
            first_key += len(slices)
            engine.learn(slices)
            return slices

        return Member(engine.rank, size, engine, open_table, is_group=False)

    def close(self) -> None: ...


def _finish(result: Any, wait: Callable[[Ticket], None]) -> Any:
    """Run a body to its end if it is a generator; otherwise it has ended already."""
    if not isinstance(result, Generator):
        return result
    while True:
        is_over, value = _advance(result)
        if is_over:
            return value
        wait(value)


def _advance(waits: Generator[Ticket, None, Any]) -> tuple[bool, Any]:
    """Return whether the body has ended, and its result, or the ticket that it waits for."""
    try:
        return False, next(waits)
    except StopIteration as end:
        return True, end.value
