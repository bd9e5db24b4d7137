"""Named calls on the worker's side, in the engine thread.

In: calls from training threads, decisions of the coordinator.
Out: contributions to the exchange, in the order in which the coordinator begins the calls; the end of each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from undertow.engine.client.exchange import Exchange
from undertow.engine.client.waiting import Ticket
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.calls import NamedCallCoordinator
from undertow.engine.coordinator.terms import Disagreement, Terms, lay_out
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import Unexpected
from undertow.engine.core.shape import COORDINATOR, Shape
from undertow.engine.core.slicing import Slice

Answer = Callable[[Contribution], None]


@dataclass(eq=False)
class NamedCall:
    """Call of a training thread, which waits for `done` and then checks for a `mismatch`.

    `contribute(slices, answer)` is called in the engine thread and returns this rank's contribution to each slice,
    which must call `answer` with the result.
    """

    name: str
    terms: Terms
    contribute: Callable[[Sequence[Slice], Answer], list[Contribution]]
    done: threading.Event = field(default_factory=threading.Event)
    mismatch: Disagreement | None = None


@dataclass(eq=False)
class RunningOut:
    """Wait of a training thread until all ranks have run out of input; `last` is the last rank that did."""

    done: threading.Event = field(default_factory=threading.Event)
    last: int = -1


class NamedCallClient:
    """Client of the coordinator for all named calls of one rank.  Owned by the engine thread.

    `send` sends a message to a rank, `send_all` to all other ranks.  `coordinator` is not None on rank 0.
    """

    def __init__(
        self,
        shape: Shape,
        exchange: Exchange,
        *,
        send: Callable[[int, messages.Message], None],
        send_all: Callable[[messages.Message], None],
        coordinator: NamedCallCoordinator | None,
        discard: Callable[[range], None] = lambda keys: None,
    ) -> None:
        self._shape = shape
        self._rank = shape.rank
        self._exchange = exchange
        self._send = send
        self._send_all = send_all
        self._coordinator = coordinator
        self._discard = discard
        self._calls: dict[str, NamedCall] = {}  # calls that this rank has made and that have not begun yet
        self._sets: dict[int, list[Slice]] = {}  # sets of keys by number
        self._running_out: RunningOut | None = None

    def make(self, call: NamedCall) -> None:
        self._calls[call.name] = call
        self._request(messages.Call(call.name, call.terms))

    def run_out(self, waiting: RunningOut) -> None:
        self._running_out = waiting
        self._request(messages.RanOut())

    def handle_message(self, peer: int, message: messages.CallRequest | messages.CallDecision) -> None:
        if isinstance(message, messages.CallRequest) and self._coordinator is not None:
            self._decide(self._coordinator, peer, message)
        elif isinstance(message, messages.CallDecision) and peer == COORDINATOR:
            self._follow(message)
        else:
            raise Unexpected(f"rank {peer} mistakes another rank for the coordinator")

    def blocked_by(self, departed: Collection[int]) -> int | None:
        """Return a departed worker that a call waits for; None if there is none."""
        if self._coordinator is not None:
            return next((rank for rank in departed if self._coordinator.waits_for(rank) is not None), None)
        is_waiting = bool(self._calls) or self._running_out is not None
        return COORDINATOR if is_waiting and COORDINATOR in departed else None

    @property
    def is_idle(self) -> bool:
        """Whether every call that this rank has made has begun."""
        return not self._calls

    @property
    def keys(self) -> set[int]:
        """All keys of calls.  Once every rank has made a call, the engine contributes without the training thread."""
        return {item.spec.key for slices in self._sets.values() for item in slices}

    def lacks(self, rank: int) -> bool:
        """Whether a call waits for a rank to make it, as far as this rank knows."""
        return self._coordinator is not None and self._coordinator.lacks(rank) is not None

    def describe_missing(self) -> str:
        """Return a description of the pending calls and, if known, of the ranks that they wait for."""
        if self._coordinator is None:
            return ", ".join(f"{name!r} waits for other ranks" for name in self._calls)
        missing = self._coordinator.missing().items()
        return ", ".join(f"{name!r} waits for rank {', '.join(map(str, ranks))}" for name, ranks in missing)

    # Requests

    def _request(self, message: messages.CallRequest) -> None:
        if self._coordinator is None:
            self._send(COORDINATOR, message)
        else:
            self._decide(self._coordinator, self._rank, message)

    def _decide(self, coordinator: NamedCallCoordinator, rank: int, message: messages.CallRequest) -> None:
        match message:
            case messages.Call(name) if not coordinator.expects(rank, name):
                raise Unexpected(f"rank {rank} makes the call {name!r} twice")
            case messages.Call():
                decisions = coordinator.arrive(rank, message)
            case messages.Prepared(number):
                decisions = coordinator.prepared(rank, number)
            case messages.RanOut():
                decisions = coordinator.run_out(rank)
        for decision in decisions:
            self._send_all(decision)
            self._follow(decision)

    # Decisions

    def _follow(self, message: messages.Message) -> None:
        match message:
            case messages.Prepare(number, how, terms):
                slices = self._sets[number] = lay_out(terms, how, self._shape)
                self._exchange.learn(slices)
                self._request(messages.Prepared(number))
            case messages.Begin(name, number) if number not in self._sets:
                raise Unexpected(f"the call {name!r} begins with keys that are not known here")
            case messages.Begin(name, number):
                self._begin(self._calls.pop(name, None), number)
            case messages.Drop(number) if slices := self._sets.pop(number, []):
                self._discard(range(slices[0].spec.key, slices[-1].spec.key + 1))
            case messages.Decline(name, mismatch) if name in self._calls:
                call = self._calls.pop(name)
                call.mismatch = mismatch
                call.done.set()
            case messages.AllOut(last) if self._running_out is not None:
                waiting, self._running_out = self._running_out, None
                waiting.last = last
                waiting.done.set()

    def _begin(self, call: NamedCall | None, number: int) -> None:
        slices = self._sets[number]
        ticket = Ticket(len(slices), lambda: self._end(call, number))
        if call is None:  # this rank has run out of input

            def answer(contribution: Contribution) -> None:
                gathered = contribution.gathered
                self._exchange.worker.release([each for rank, each in enumerate(gathered) if rank != self._rank])
                ticket.answer(contribution)

            self._exchange.worker.contribute([Contribution(item.spec.key, None, None, 0, answer) for item in slices])
        else:
            self._exchange.worker.note_names(call.name, slices)
            self._exchange.worker.contribute(call.contribute(slices, ticket.answer))
        if not slices:
            self._end(call, number)

    def _end(self, call: NamedCall | None, number: int) -> None:
        if self._coordinator is not None:
            self._coordinator.release(number)
        if call is not None:
            call.done.set()
