"""Control of one group in the engine thread: membership, agreements and orderly leaving.

In: control messages, broken links, ticks.  Out: results of agreements, goodbyes, heartbeats, and at most one
`PeerLost`, which names the first cause.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from undertow.engine.client.calls import NamedCallClient
from undertow.engine.client.comparing import ClockComparison
from undertow.engine.client.discarding import Discarding
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.waiting import Waiters, notice_pauses
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.agreement import Agreements, Keys
from undertow.engine.coordinator.calls import NamedCallCoordinator
from undertow.engine.core import frames
from undertow.engine.core.frames import Header, Kind, Unexpected
from undertow.engine.core.membership import Loss, Membership
from undertow.engine.core.rounds import EVERYONE
from undertow.engine.core.shape import COORDINATOR, Shape
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.transport import Transport
from undertow.errors import PeerLost
from undertow.tracing.recorder import Recorder, process_recorder

log = logging.getLogger("undertow")

GOODBYE_TIMEOUT_S = 5.0
GOODBYE_POLL_S = 0.005
LONGEST_POLL_S = 0.25


@dataclass(eq=False)
class PendingAgreement:
    """Agreement under way: the training thread waits for `done`, the engine thread sets the result."""

    sequence: int
    matter: str
    done: threading.Event = field(default_factory=threading.Event)
    result: messages.AgreementResult | None = None

    def take(self) -> bytes:
        """Return the decision; raise `MismatchError` if the ranks differ."""
        assert self.result is not None
        if self.result.mismatch:
            raise self.result.mismatch.make_error()
        return self.result.payload


class GroupControl:
    """Membership and agreements of one group.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        loop: Loop,
        transport: Transport,
        exchange: Exchange,
        waiters: Waiters,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder = process_recorder,
    ) -> None:
        self.on_turns: Callable[[int, messages.DeviceTime | messages.Lift], None] = lambda peer, message: None
        self.on_side_message: Callable[[bytes], None] = lambda body: None
        self._shape = shape
        self._loop = loop
        self._transport = transport
        self._exchange = exchange
        self._waiters = waiters
        self._clock = clock
        self._comparing = ClockComparison(recorder, functools.partial(self.send, COORDINATOR))
        self._pending: PendingAgreement | None = None  # the agreement under way on this rank
        keys = Keys()
        self._agreements = Agreements(shape, keys)
        self.discarding = Discarding(shape.rank, shape.workers, exchange, self.send_all)
        self.calls = NamedCallClient(
            shape,
            exchange,
            send=self.send,
            send_all=self.send_all,
            coordinator=NamedCallCoordinator(shape, keys) if shape.rank == COORDINATOR else None,
            discard=self.discarding.begin,
        )
        self._membership = Membership(shape.rank, shape.processes, silence_s=shape.silence_timeout_s, now=clock())
        self._reported_loss: Loss | None = None  # sent to all peers that were connected at that time
        self._farewells: set[int] = set()  # peers that have acknowledged this rank's goodbye
        self._ended: dict[int, list[int]] = {}  # rank whose script has ended -> keys that it still contributes to
        self._announced_keys: list[int] | None = None  # keys of the last `Ended` that was sent
        self._goodbye: messages.Goodbye | None = None  # sent when this rank leaves; None while it stays

    # Agreements

    def arrive(self, pending: PendingAgreement, payload: bytes) -> None:
        """Report to the coordinator that this rank has arrived at an agreement, with its payload."""
        self._pending = pending
        arrival = messages.Arrive(pending.sequence, pending.matter, payload)
        if self._shape.rank == COORDINATOR:
            self._decide(self._shape.rank, arrival)
        else:
            self.send(COORDINATOR, arrival)
        self.check_departed()

    def _decide(self, rank: int, arrival: messages.Arrive) -> None:
        if not self._agreements.expects(rank, arrival.sequence):
            raise Unexpected(f"rank {rank} arrives at agreement {arrival.sequence} twice")
        for waiting, result in self._agreements.arrive(rank, arrival):
            if waiting == self._shape.rank:
                self._on_result(result)
            else:
                self.send(waiting, result)

    def _on_result(self, result: messages.AgreementResult) -> None:
        pending = self._pending
        if pending is None or result.sequence != pending.sequence:
            own = "none" if pending is None else pending.sequence
            raise Unexpected(f"a result of agreement {result.sequence}, but this rank waits for {own}")
        self._pending = None
        pending.result = result
        pending.done.set()

    # Messages

    def handle_message(self, peer: int, message: messages.Message) -> None:
        match message:
            case messages.Arrive() if self._shape.rank == COORDINATOR:
                self._decide(peer, message)
            case messages.AgreementResult() if peer == COORDINATOR:
                self._on_result(message)
            case messages.Ended(keys):
                self._ended[peer] = keys
                self._check_ended()
            case messages.Goodbye():
                self._on_goodbye(peer, message)
            case messages.Farewell():
                self._farewells.add(peer)
            case messages.Lost(loss):
                self._on_reported_loss(loss)
            case messages.Joined(keys, step, divide_by_active):
                self._exchange.join(peer, keys, step, divide_by_active=divide_by_active)
            case messages.Discarded(first):
                self.discarding.discard_on(peer, first)
            case messages.AskMissing(key, step):
                self.send(peer, messages.Missing(step, self._exchange.missing(key, step)))
            case messages.Missing(step, ranks):
                self._name_missing(step, ranks)
            case messages.AskTime() if self._shape.rank == COORDINATOR:
                self.send(peer, self._comparing.answer(message))
            case messages.Time() if peer == COORDINATOR:
                self._comparing.take(message)
            case messages.Arrive() | messages.AgreementResult() | messages.AskTime() | messages.Time():
                raise Unexpected(f"rank {peer} mistakes another rank for the coordinator")
            case messages.SideMessage(body):
                self.on_side_message(body)
            case messages.DeviceTime() | messages.Lift():
                self.on_turns(peer, message)
            case _:
                self.calls.handle_message(peer, message)
        self.check_departed()

    def send(self, peer: int, message: messages.Message) -> None:
        body = messages.encode(message)
        header = Header(Kind.CONTROL, rank=self._shape.rank, length=len(body), job=self._shape.job)
        checked_body = frames.Body(body) if self._transport.checks_bodies(peer) else None
        self._transport.send(peer, frames.pack(header, checked_body=checked_body), body)

    def send_all(self, message: messages.Message) -> None:
        for peer in self._shape.peers:
            self.send(peer, message)

    # Membership

    def on_connected(self, peer: int) -> None:
        """Note a new link; report an earlier loss to the peer."""
        self.note_alive(peer)
        if peer == COORDINATOR:
            self._comparing.begin()
        if self._reported_loss is not None:
            self.send(peer, messages.Lost(self._reported_loss))

    def note_alive(self, peer: int) -> None:
        self._membership.note_alive(peer, self._clock())

    def tick(self, now: float) -> None:
        heartbeat = frames.pack(Header(Kind.HEARTBEAT, rank=self._shape.rank, job=self._shape.job))
        for peer in self._shape.peers:
            self._transport.send(peer, heartbeat)
        if self._shape.rank != COORDINATOR:
            self._comparing.tick()
        self.discarding.check()
        self._report_loss(self._membership.tick(now))
        self._check_ended()

    def lose(self, rank: int, reason: str) -> None:
        if rank in self._membership.departed and self._transport.is_connected(rank):
            # The peer's last frames were damaged, but nothing is lost.  With a goodbye, the peer sees no loss either.
            self.send(rank, messages.Goodbye())
        self._report_loss(self._membership.lose(Loss(rank, self._shape.rank, reason)))

    def _on_reported_loss(self, loss: Loss) -> None:
        """Handle a peer's report of a loss, even of a worker that left in order: the peer still needed it."""
        for rank, what in (loss.rank, "is lost"), (loss.seen_by, "has seen a loss"):
            if not 0 <= rank < self._shape.processes:
                raise Unexpected(f"a message says rank {rank} {what}, but there is no such rank")
        self._report_loss(self._membership.lose(loss) or loss)

    def check_departed(self) -> None:
        """Fail the group if something waits for a worker that has left in order."""
        departed = self._membership.departed
        if not departed or self._waiters.error is not None:
            return
        rank = self._exchange.blocked_by(departed)
        if rank is None:
            rank = next((peer for peer in departed if self._agreements.waits_for(peer)), None)
        if rank is None and COORDINATOR in departed and self._pending is not None:
            rank = COORDINATOR
        if rank is None:
            rank = self.calls.blocked_by(departed)
        if rank is not None:
            self._report_ended(rank)

    def _check_ended(self) -> None:
        """Fail the group if something waits for a contribution of a worker whose script has ended.

        Otherwise two workers that wait for each other would never leave.  This is too slow for every frame.
        """
        if self._waiters.error is None:
            rank = next((rank for rank, keys in self._ended.items() if self._lacks(rank, keys)), None)
            if rank is not None:
                self._report_ended(rank)

    def _lacks(self, rank: int, keys: list[int]) -> bool:
        """Whether something here waits for more of a worker than its contributions to these keys."""
        if self._agreements.waits_for(rank) or self.calls.lacks(rank):
            return True
        return self._exchange.lacks(rank, self.calls.keys.union(keys))

    def _report_ended(self, rank: int) -> None:
        reason = "its script has ended while others still train (uneven inputs? see join())"
        self._report_loss(Loss(rank, self._shape.rank, reason))

    def _on_goodbye(self, peer: int, goodbye: messages.Goodbye) -> None:
        self._membership.left(peer)
        self.send(peer, messages.Farewell())
        if goodbye.error:
            self._report_loss(Loss(peer, self._shape.rank, goodbye.error, exit_code=goodbye.exit_code))

    def _report_loss(self, loss: Loss | None) -> None:
        if loss is None or self._waiters.error is not None:
            return
        self._reported_loss = loss
        self.send_all(messages.Lost(loss))
        self._waiters.fail(self._make_error(loss))

    def _make_error(self, loss: Loss) -> PeerLost:
        name = self._shape.name
        return PeerLost(
            loss.reason,
            rank=name(loss.rank),
            host=self._shape.hosts[loss.rank],
            silent_s=loss.silent_s,
            exit_code=loss.exit_code,
            seen_by=name(loss.seen_by),
            own_rank=name(self._shape.rank),
            step=self._exchange.step,
        )

    # Leaving

    def leave(self, goodbye: messages.Goodbye, then: Callable[[], None]) -> None:
        """Wait until no living worker needs this one, send a goodbye and wait until all have acknowledged it.

        A goodbye with an error is sent at once.  In a second call it ends the wait of the first call.
        """
        is_first = self._goodbye is None
        if is_first or goodbye.error:
            self._goodbye = goodbye
        if is_first:
            say_goodbye = functools.partial(self._say_goodbye, then)
            self._poll(self._may_leave, self._shape.stall_timeout_s, say_goodbye, self._warn_of_delay)

    def _may_leave(self) -> bool:
        if self._has_failed or (self._exchange.is_drained and self.calls.is_idle):
            return True
        keys = self._exchange.keys_to_come()
        if keys is None:
            return False
        if keys != self._announced_keys:
            self._announced_keys = keys
            self.send_all(messages.Ended(keys))
        return self._lacks(self._shape.rank, keys)  # then the goodbye fails the others

    @property
    def _has_failed(self) -> bool:
        return bool(self._goodbye and self._goodbye.error) or self._waiters.error is not None

    def _say_goodbye(self, then: Callable[[], None]) -> None:
        self.send_all(self._goodbye or messages.Goodbye())
        # Closing a socket that has unread bytes resets the connection, and the peer may lose what it has not read yet.
        # So wait for the acknowledgements, and for a slow peer until it counts as lost.
        timeout_s = GOODBYE_TIMEOUT_S if self._has_failed else max(GOODBYE_TIMEOUT_S, self._shape.silence_timeout_s)
        self._poll(
            lambda: self._farewells >= self._remaining_peers() and not self._transport.is_draining, timeout_s, then
        )

    def _warn_of_delay(self, waited_s: float) -> None:
        text = "the script of rank %d has ended, but it has waited for %.0f s because other ranks still need it"
        log.warning(text, self._shape.name(self._shape.rank), waited_s)
        self.ask_who_is_missing(waited_s)

    def _poll(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        then: Callable[[], None],
        on_notice: Callable[[float], None] = lambda waited_s: None,
    ) -> None:
        since_s, pauses = self._clock(), notice_pauses()
        notice_s = next(pauses)

        def check() -> None:
            nonlocal notice_s
            waited_s = self._clock() - since_s
            if condition() or waited_s > timeout_s:
                return then()
            if waited_s >= notice_s:
                notice_s = waited_s + next(pauses)
                on_notice(waited_s)
            self._loop.later(min(max(GOODBYE_POLL_S, waited_s / 20), LONGEST_POLL_S), check)

        check()

    def _remaining_peers(self) -> set[int]:
        loss = self._membership.loss
        gone = {*self._membership.departed, *([loss.rank] if loss else [])}
        return {peer for peer in self._shape.peers if self._transport.is_connected(peer)} - gone

    # Late ranks

    def ask_who_is_missing(self, waited_s: float) -> None:
        """Warn of the ranks that a long wait is for, after asking the owner of the key if necessary."""
        pending = self._exchange.pending()
        if pending is None:
            missing = self.calls.describe_missing()
            log.warning(
                "rank %d has waited for %.0f s for the other ranks to make the same call%s",
                self._shape.name(self._shape.rank),
                waited_s,
                f": {missing}" if missing else "",
            )
            return
        spec, step = pending
        if spec.owner in (self._shape.rank, EVERYONE):
            self._name_missing(step, self._exchange.missing(spec.key, step))
        else:
            self.send(spec.owner, messages.AskMissing(spec.key, step))

    def _name_missing(self, step: int, ranks: list[int]) -> None:
        if ranks and all(0 <= rank < self._shape.workers for rank in ranks):
            names = ", ".join(f"{self._shape.name(rank)} on host {self._shape.hosts[rank]}" for rank in ranks)
            own = self._shape.name(self._shape.rank)
            log.warning("rank %d waits at step %d for rank %s: alive, but not at this step yet", own, step, names)
