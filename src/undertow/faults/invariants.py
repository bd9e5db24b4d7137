"""What must hold after every event, whatever happens.

- credit is never negative and never more than allowed;
- every contribution is answered exactly once, and no frame of a round is sent twice;
- a gate is open only when all its results are there;
- an engine never fails by itself, drops nothing that was said in earnest, and names nobody who did nothing.

That sums are right to the bit is checked where they arrive (see `sums`), that nobody waits for ever by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from undertow.core.frames import Header, Kind
from undertow.errors import PeerLost, UndertowError
from undertow.faults.story import Broken
from undertow.runtime.waiting import Ticket

if TYPE_CHECKING:
    from undertow.faults.cluster import Cluster
    from undertow.faults.network import Link
    from undertow.faults.worker import Worker

_NAMED = re.compile(r"rank (\d+) on host host(\d+) was lost: ")


class Answers:
    """Contributions that are answered together: our own count beside the ticket's."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.ticket = Ticket(count)
        self.left = count


class Invariants:
    def __init__(self, cluster: Cluster) -> None:
        self.broken: Broken | None = None  # the first claim that did not hold
        self.may_be_named: set[int] = set()  # whose loss is no slander
        self.may_drop = False  # somebody speaks nonsense
        # The largest credit that there will be; a single parcel may be larger, alone.
        self.most_in_flight_bytes = cluster.credit_bytes
        self.strangers = 0  # frames of another job that came; heartbeats say nothing and do not count
        self.failed_at_s: dict[int, float] = {}  # when each rank that failed did so
        self.further: list[Callable[[], None]] = []  # a scenario's own
        self._cluster = cluster
        self._open: list[Answers] = []
        self._errors: dict[int, UndertowError] = {}
        self._heard: set[tuple[Link, Kind, int, int]] = set()

    def watch(self, answers: Answers) -> None:
        self._open.append(answers)

    def check(self) -> None:
        for worker in self._cluster.workers:
            if not 0 <= worker.outbox.in_flight_bytes <= self.most_in_flight_bytes:
                self._fail(f"credit: rank {worker.rank} has {self._describe_credit(worker)}")
            if worker.group.waiters.error is not self._errors.get(worker.rank):
                self._check_error(worker)
            if worker.group.dropped and not self.may_drop:
                self._fail(f"rank {worker.rank} dropped {dict(worker.group.dropped)}, but nobody speaks nonsense")
        self._check_gates()
        for check in self.further:
            check()
        if self.broken is not None:
            raise self.broken

    def delivered(self, link: Link, header: Header | None) -> None:
        """Of one round each worker sends a shard, and a shard each worker, one frame."""
        if header is not None and header.job != self._cluster.job:
            self.strangers += header.kind is not Kind.HEARTBEAT
        if header is None or header.kind not in (Kind.PUSH, Kind.RESULT) or self.may_drop:
            return
        name = link, header.kind, header.key, header.step
        if name in self._heard:
            self._fail(f"rank {link[0]} sent {link[1]} its {header.kind.name} of key {header.key} twice")
        self._heard.add(name)

    def find_named(self, error: UndertowError | None) -> int | None:
        """Whom an error accuses."""
        match = _NAMED.match(str(error))
        return int(match[1]) if isinstance(error, PeerLost) and match and match[1] == match[2] else None

    def describe_waits(self) -> str:
        """Who waits for what."""
        waits = [self._describe_wait(worker) for worker in self._cluster.workers if worker.script is not None]
        return "; ".join(waits) or "nobody waits"

    def _describe_wait(self, worker: Worker) -> str:
        text = f"rank {worker.rank} waits for {worker.wait.what}"
        if not worker.is_running:
            return f"rank {worker.rank} {worker.state.value}"
        pending = worker.exchange.pending()
        if pending is None:
            return text
        spec, step = pending
        owner = self._cluster.workers[max(spec.shard, 0) if spec.shard >= 0 else worker.rank]
        missing = owner.exchange.missing(spec.key, step)
        text += f" (key {spec.key} round {step} of shard {owner.rank}, which lacks {missing or 'nobody'};"
        return f"{text} {worker.outbox.in_flight_bytes} of {worker.outbox.credit_bytes} bytes in flight)"

    def _describe_credit(self, worker: Worker) -> str:
        return f"{worker.outbox.in_flight_bytes} bytes in flight, of {self.most_in_flight_bytes} allowed"

    def _check_error(self, worker: Worker) -> None:
        error = worker.group.waiters.error
        if error is None or self.broken is not None:
            return
        self._errors[worker.rank] = error
        self.failed_at_s[worker.rank] = self._cluster.clock.now_s
        if worker.is_closed and not isinstance(error, PeerLost):
            return  # it has been shut down
        self._cluster.tell(f"rank {worker.rank} fails: {error}")
        named = self.find_named(error)
        if named is None:
            self._fail(f"rank {worker.rank} failed by itself: {error}")
        if named not in self.may_be_named:
            self._fail(f"rank {worker.rank} names rank {named}, which has done nothing: {error}")
        if f"this is rank {worker.rank} at step" not in str(error):
            self._fail(f"rank {worker.rank} does not say where it is: {error}")

    def _check_gates(self) -> None:
        opened = [answers for answers in self._open if answers.ticket.is_done]
        for answers in opened:
            if answers.left:
                self._fail(f"a gate is open early: {answers.name} lack {answers.left} answers")
            self._open.remove(answers)

    def _fail(self, claim: str) -> None:
        self._cluster.fail(claim)
