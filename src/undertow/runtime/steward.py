"""The group's household in the engine thread: who is here, what was agreed, who left.

In: control messages, broken links, ticks.  Out: verdicts, goodbyes, heartbeats, and at
most one `PeerLost`, which names the first cause.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable

from undertow.coordinator import messages
from undertow.coordinator.agreement import Agreements, Keys
from undertow.coordinator.calls import Calls
from undertow.core import frames
from undertow.core.frames import Header, Kind
from undertow.core.membership import Loss, Membership
from undertow.core.rounds import EVERYONE
from undertow.errors import PeerLost
from undertow.runtime.calls import Caller
from undertow.runtime.comparing import Comparing
from undertow.runtime.discarding import Discarding
from undertow.runtime.exchange import Exchange
from undertow.runtime.shape import COORDINATOR, Shape
from undertow.runtime.waiting import Waiters, notice_pauses
from undertow.store.shard import Unexpected
from undertow.trace.recorder import Recorder, here
from undertow.wire.loop import Loop
from undertow.wire.transport import Transport

log = logging.getLogger("undertow")

GOODBYE_TIMEOUT_S = 5.0
GOODBYE_POLL_S = 0.005
LONGEST_POLL_S = 0.25


class Steward:
    """Owned by the engine thread, but for `verdict`, read by who waited for `agreed`."""

    def __init__(
        self,
        shape: Shape,
        loop: Loop,
        transport: Transport,
        exchange: Exchange,
        waiters: Waiters,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder = here,
    ) -> None:
        self.agreed = threading.Event()
        self.verdict: messages.Verdict | None = None
        self.on_turns: Callable[[int, messages.Standing | messages.Behind], None] = lambda peer, message: None
        self.on_pulse: Callable[[bytes], None] = lambda body: None
        self._shape = shape
        self._loop = loop
        self._transport = transport
        self._exchange = exchange
        self._waiters = waiters
        self._clock = clock
        self._comparing = Comparing(recorder, functools.partial(self.tell, COORDINATOR))
        self._awaiting = 0  # the agreement that this rank is at
        keys = Keys()
        self._agreements = Agreements(shape.size, sizes=shape.sizes, keys=keys, name=shape.name)
        self.discarding = Discarding(shape.rank, shape.size, exchange, self.tell_all)
        self.calls = Caller(
            shape.rank,
            exchange,
            tell=self.tell,
            tell_all=self.tell_all,
            size=shape.size,
            decide=self._make_calls(keys) if shape.rank == COORDINATOR else None,
            discard=self.discarding.begin,
        )
        self._membership = Membership(shape.rank, shape.hosts, silence_s=shape.silence_timeout_s, now=clock())
        self._mourned: messages.Lost | None = None  # what all were told who were connected then
        self._farewells: set[int] = set()
        self._ended: dict[int, list[int]] = {}  # whose script has ended, with the keys that it still contributes to
        self._said_ended: list[int] | None = None  # what the others were told of this rank's own end
        self._leaving_because: str | None = None  # an error, or none; None while this rank stays

    def _make_calls(self, keys: Keys) -> Calls:
        return Calls(self._shape.size, sizes=self._shape.sizes, keys=keys, name=self._shape.name)

    # Agreements

    def arrive(self, arrival: messages.Arrive) -> None:
        self._awaiting = arrival.sequence
        if self._shape.rank == COORDINATOR:
            self._decide(self._shape.rank, arrival)
        else:
            self.tell(COORDINATOR, arrival)
        self.check_departed()

    def _decide(self, rank: int, arrival: messages.Arrive) -> None:
        if not self._agreements.expects(rank, arrival.sequence):
            raise Unexpected(f"rank {rank} comes to agreement {arrival.sequence} once more")
        for waiting, verdict in self._agreements.arrive(rank, arrival):
            if waiting == self._shape.rank:
                self._hear(verdict)
            else:
                self.tell(waiting, verdict)

    def _hear(self, verdict: messages.Verdict) -> None:
        if verdict.sequence != self._awaiting:
            raise Unexpected(f"a verdict on agreement {verdict.sequence}, this rank is at {self._awaiting}")
        self._awaiting = 0
        self.verdict = verdict
        self.agreed.set()

    # Messages

    def obey(self, peer: int, message: messages.Message) -> None:
        match message:
            case messages.Arrive() if self._shape.rank == COORDINATOR:
                self._decide(peer, message)
            case messages.Verdict() if peer == COORDINATOR:
                self._hear(message)
            case messages.Arrive() | messages.Verdict():
                raise Unexpected(f"rank {peer} takes the wrong rank for the coordinator")
            case messages.Ended(keys):
                self._ended[peer] = keys
                self._check_ended()
            case messages.Goodbye(error):
                self._part_with(peer, error)
            case messages.Farewell():
                self._farewells.add(peer)
            case messages.Lost(rank, reason):
                self._hear_of_loss(
                    rank, reason if "(seen by" in reason else f"{reason} (seen by rank {self._shape.name(peer)})"
                )
            case messages.Joined(keys, step, divide_by_active):
                self._exchange.join(peer, keys, step, divide_by_active=divide_by_active)
            case messages.Discarded(first):
                self.discarding.hear(peer, first)
            case messages.AskMissing(key, step):
                self.tell(peer, messages.Missing(key, step, self._exchange.missing(key, step)))
            case messages.Missing(_, step, ranks):
                self._name_missing(step, ranks)
            case messages.AskTime() if self._shape.rank == COORDINATOR:
                self.tell(peer, self._comparing.answer(message))
            case messages.Time() if peer == COORDINATOR:
                self._comparing.hear(message)
            case messages.AskTime() | messages.Time():
                raise Unexpected(f"rank {peer} takes the wrong rank for the coordinator")
            case messages.Pulse(body):
                self.on_pulse(body)
            case messages.Standing() | messages.Behind():
                self.on_turns(peer, message)
            case _:
                self.calls.obey(peer, message)
        self.check_departed()

    def tell(self, peer: int, message: messages.Message) -> None:
        body = messages.encode(message)
        header = Header(Kind.CONTROL, rank=self._shape.rank, length=len(body), job=self._shape.job)
        checked_body = frames.Body(body) if self._transport.checks_bodies(peer) else None
        self._transport.send(peer, frames.pack(header, checked_body=checked_body), body)

    def tell_all(self, message: messages.Message) -> None:
        for peer in self._shape.peers:
            self.tell(peer, message)

    # Life and loss

    def greet(self, peer: int) -> None:
        """A peer is connected; who comes after a loss hears of it too."""
        self.heard(peer)
        if peer == COORDINATOR:
            self._comparing.begin()
        if self._mourned is not None:
            self.tell(peer, self._mourned)

    def heard(self, peer: int) -> None:
        self._membership.heard(peer, self._clock())

    def tick(self, now: float) -> None:
        heartbeat = frames.pack(Header(Kind.HEARTBEAT, rank=self._shape.rank, job=self._shape.job))
        for peer in self._shape.peers:
            self._transport.send(peer, heartbeat)
        if self._shape.rank != COORDINATOR:
            self._comparing.tick()
        self.discarding.look()
        self._mourn(self._membership.tick(now))
        self._check_ended()

    def lose(self, rank: int, reason: str) -> None:
        if rank in self._membership.departed and self._transport.is_connected(rank):
            # Its last frames were damaged, but nothing was lost.  To it this is no loss either: both have left.
            self.tell(rank, messages.Goodbye())
        self._mourn(self._membership.lose(rank, reason))

    def _hear_of_loss(self, rank: int, reason: str) -> None:
        """Also of a worker that has left in order: somebody still needed it, and will leave for that."""
        if not 0 <= rank < self._shape.size:
            raise Unexpected(f"rank {rank} is said to be lost, but there is none")
        self._mourn(self._membership.lose(rank, reason) or Loss(rank, self._shape.hosts[rank], reason))

    def check_departed(self) -> None:
        """An error as soon as something waits for a worker that has left in order."""
        departed = self._membership.departed
        if not departed or self._waiters.error is not None:
            return
        rank = self._exchange.blocked_by(departed)
        if rank is None:
            rank = next((peer for peer in departed if self._agreements.waits_for(peer)), None)
        if rank is None and COORDINATOR in departed and self._awaiting:
            rank = COORDINATOR
        if rank is None:
            rank = self.calls.blocked_by(departed)
        if rank is not None:
            self._miss(rank)

    def _check_ended(self) -> None:
        """An error if something waits for a contribution of a worker whose script has ended.

        Two that wait for each other would otherwise never leave.  Not asked with every frame: it takes a while.
        """
        if self._waiters.error is None:
            rank = next((rank for rank, keys in self._ended.items() if self._awaits_in_vain(rank, keys)), None)
            if rank is not None:
                self._miss(rank)

    def _awaits_in_vain(self, rank: int, keys: list[int]) -> bool:
        """Whether something here waits for this worker, which contributes to no keys but these any more."""
        if self._agreements.waits_for(rank) or self.calls.lacks(rank):
            return True
        return self._exchange.lacks(rank, self.calls.keys.union(keys))

    def _miss(self, rank: int) -> None:
        reason = "its script has ended while others still train (uneven inputs? see join())"
        self._mourn(Loss(rank, self._shape.hosts[rank], reason))

    def _part_with(self, peer: int, error: str) -> None:
        self._membership.left(peer, error)
        self.tell(peer, messages.Farewell())
        if error:
            self._mourn(Loss(peer, self._shape.hosts[peer], error))

    def _mourn(self, loss: Loss | None) -> None:
        if loss is None or self._waiters.error is not None:
            return
        self._mourned = messages.Lost(loss.rank, loss.reason)
        self.tell_all(self._mourned)
        named = dataclasses.replace(loss, rank=self._shape.name(loss.rank))
        own = self._shape.name(self._shape.rank)
        self._waiters.fail(PeerLost(f"{named}; this is rank {own} at step {self._exchange.step}"))

    # Leaving

    def leave(self, error: str, then: Callable[[], None]) -> None:
        """Wait until no living worker needs this one, say goodbye, wait until everyone has heard it.

        With an error the goodbye is said at once; a second call with one cuts the wait of the first short.
        """
        is_first, self._leaving_because = self._leaving_because is None, error or self._leaving_because or ""
        if is_first:
            say_goodbye = functools.partial(self._say_goodbye, then)
            self._until(self._may_leave, self._shape.stall_timeout_s, say_goodbye, self._say_who_is_awaited)

    def _may_leave(self) -> bool:
        if self._has_failed or (self._exchange.is_drained and self.calls.is_idle):
            return True
        keys = self._exchange.keys_to_come()
        if keys is None:
            return False
        if keys != self._said_ended:
            self._said_ended = keys
            self.tell_all(messages.Ended(keys))
        return self._awaits_in_vain(self._shape.rank, keys)  # then the goodbye tells the others

    @property
    def _has_failed(self) -> bool:
        return bool(self._leaving_because) or self._waiters.error is not None

    def _say_goodbye(self, then: Callable[[], None]) -> None:
        self.tell_all(messages.Goodbye(self._leaving_because or ""))
        # A socket that is closed with unread bytes resets the connection and may cut off what the peer has not
        # read yet: so wait for the answers, of a slow peer for as long as it does not count as lost.
        timeout_s = GOODBYE_TIMEOUT_S if self._has_failed else max(GOODBYE_TIMEOUT_S, self._shape.silence_timeout_s)
        self._until(lambda: self._farewells >= self._living() and not self._transport.is_draining, timeout_s, then)

    def _say_who_is_awaited(self, waited_s: float) -> None:
        text = "the script of rank %d has ended; it has waited for %.0f s to leave, because other ranks still need it"
        log.warning(text, self._shape.name(self._shape.rank), waited_s)
        self.ask_who_is_missing(waited_s)

    def _until(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        then: Callable[[], None],
        on_notice: Callable[[float], None] = lambda waited_s: None,
    ) -> None:
        since_s, pauses = self._clock(), notice_pauses()
        notice_s = next(pauses)

        def look() -> None:
            nonlocal notice_s
            waited_s = self._clock() - since_s
            if condition() or waited_s > timeout_s:
                return then()
            if waited_s >= notice_s:
                notice_s = waited_s + next(pauses)
                on_notice(waited_s)
            self._loop.later(min(max(GOODBYE_POLL_S, waited_s / 20), LONGEST_POLL_S), look)

        look()

    def _living(self) -> set[int]:
        loss = self._membership.loss
        gone = {*self._membership.departed, *([loss.rank] if loss else [])}
        return {peer for peer in self._shape.peers if self._transport.is_connected(peer)} - gone

    # Who is late

    def ask_who_is_missing(self, waited_s: float) -> None:
        pending = self._exchange.pending()
        if pending is None:
            missing = self.calls.describe_missing()
            log.warning(
                "rank %d has waited for %.0f s for the other ranks to come to the same call%s",
                self._shape.name(self._shape.rank),
                waited_s,
                f": {missing}" if missing else "",
            )
            return
        spec, step = pending
        if spec.shard in (self._shape.rank, EVERYONE):
            self._name_missing(step, self._exchange.missing(spec.key, step))
        else:
            self.tell(spec.shard, messages.AskMissing(spec.key, step))

    def _name_missing(self, step: int, ranks: list[int]) -> None:
        if ranks and all(0 <= rank < self._shape.size for rank in ranks):
            names = ", ".join(f"{self._shape.name(rank)} on host {self._shape.hosts[rank]}" for rank in ranks)
            own = self._shape.name(self._shape.rank)
            log.warning("rank %d waits at step %d for rank %s: alive, but not there yet", own, step, names)
