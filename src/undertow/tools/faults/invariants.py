"""Claims that must hold after every event.

- credit is never negative and never more than allowed;
- every contribution is answered exactly once, and no frame of a round is sent twice;
- a gate is open only when all its results are there;
- an engine never fails without a fault, drops no valid frame, and names no rank that has done nothing wrong.

Sums are compared bit by bit where they arrive (see `sums`); the driver checks that no rank waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.frames import Header, Kind
from undertow.engine.core.rounds import EVERYONE
from undertow.errors import PeerLost, UndertowError
from undertow.tools.faults.event_log import Broken

if TYPE_CHECKING:
    from undertow.tools.faults.cluster import Cluster
    from undertow.tools.faults.network import Link
    from undertow.tools.faults.worker import Worker


class Answers:
    """Contributions with one ticket, and the driver's own count of missing answers."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.ticket = Ticket(count)
        self.left = count


class Invariants:
    """Claims about a cluster, checked after every event."""

    def __init__(self, cluster: Cluster) -> None:
        self.broken: Broken | None = None  # the first claim that did not hold
        self.may_be_named: set[int] = set()  # ranks whose loss may be reported
        self.may_drop = False  # a rank sends nonsense
        # The largest credit of the run; a single frame that is larger may be in flight alone.
        self.most_in_flight_bytes = cluster.credit_bytes
        self.strangers = 0  # frames of another job that arrived, without heartbeats
        self.failed_at_s: dict[int, float] = {}  # when each failed rank did so
        self.further: list[Callable[[], None]] = []  # claims of a scenario
        self._cluster, self._fail = cluster, cluster.fail
        self._open: list[Answers] = []
        self._errors: dict[int, UndertowError] = {}
        self._delivered: set[tuple[Link, Kind, int, int]] = set()

    def watch(self, answers: Answers) -> None:
        self._open.append(answers)

    def check(self) -> None:
        for worker in self._cluster.workers:
            size_bytes, most_bytes = worker.outbox.in_flight_bytes, self.most_in_flight_bytes
            if not 0 <= size_bytes <= most_bytes:
                self._fail(f"credit: rank {worker.rank} has {size_bytes} bytes in flight, of {most_bytes} allowed")
            if worker.group.waiters.error is not self._errors.get(worker.rank):
                self._check_error(worker)
            dropped = worker.group.receiver.dropped
            if dropped and not self.may_drop:
                self._fail(f"rank {worker.rank} dropped {dict(dropped)}, but no rank sends nonsense")
        self._check_gates()
        for check in self.further:
            check()
        if self.broken is not None:
            raise self.broken

    def delivered(self, link: Link, header: Header | None) -> None:
        """Check that in one round each worker sends each shard one frame, and each shard sends each worker one."""
        if header is not None and header.job != self._cluster.job:
            self.strangers += header.kind is not Kind.HEARTBEAT
        if header is None or header.kind not in (Kind.PUSH, Kind.RESULT) or self.may_drop:
            return
        name = link, header.kind, header.key, header.step
        if name in self._delivered:
            self._fail(f"rank {link[0]} sent {link[1]} its {header.kind.name} of key {header.key} twice")
        self._delivered.add(name)

    def find_named(self, error: UndertowError | None) -> int | None:
        """Return the rank that an error names, if it names one."""
        if not isinstance(error, PeerLost) or error.host != f"host{error.rank}":
            return None
        return error.rank

    def describe_waits(self) -> str:
        waits = [self._describe_wait(worker) for worker in self._cluster.workers if worker.script is not None]
        return "; ".join(waits) or "no rank waits"

    def _describe_wait(self, worker: Worker) -> str:
        text = f"rank {worker.rank} waits for {worker.wait.what}"
        if not worker.is_running:
            return f"rank {worker.rank} {worker.state.value}"
        pending = worker.exchange.pending()
        if pending is None:
            return text
        spec, step = pending
        owner = self._cluster.workers[worker.rank if spec.owner == EVERYONE else spec.owner]
        missing = owner.exchange.missing(spec.key, step)
        text += f" (key {spec.key} round {step} at rank {owner.rank}, which lacks {missing or 'no rank'};"
        return f"{text} {worker.outbox.in_flight_bytes} of {worker.outbox.credit_bytes} bytes in flight)"

    def _check_error(self, worker: Worker) -> None:
        error = worker.group.waiters.error
        if error is None or self.broken is not None:
            return
        self._errors[worker.rank] = error
        self.failed_at_s[worker.rank] = self._cluster.clock.now_s
        if worker.is_closed and not isinstance(error, PeerLost):
            return  # the error of a group that is closed
        self._cluster.note(f"rank {worker.rank} fails: {error}")
        named = self.find_named(error)
        if named is None:
            self._fail(f"rank {worker.rank} failed by itself: {error}")
        if named not in self.may_be_named:
            self._fail(f"rank {worker.rank} names rank {named}, which has done nothing: {error}")
        if not isinstance(error, PeerLost) or error.own_rank != worker.rank or error.step is None:
            self._fail(f"rank {worker.rank} does not name its own rank and step: {error}")

    def _check_gates(self) -> None:
        opened = [answers for answers in self._open if answers.ticket.is_done]
        for answers in opened:
            if answers.left:
                self._fail(f"a gate is open early: {answers.name} lack {answers.left} answers")
            self._open.remove(answers)
