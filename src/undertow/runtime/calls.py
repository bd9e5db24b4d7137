"""This worker's side of calls that are matched by name, in the engine thread.

In: calls of the training threads, what the coordinator says of them.  Out: contributions to the
exchange, in the order in which the coordinator begins the calls, and the end of each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from undertow.coordinator import messages
from undertow.coordinator.calls import Calls
from undertow.coordinator.terms import Terms, lay_out
from undertow.core.flow import Contribution
from undertow.plan.slicing import Slice
from undertow.runtime.exchange import Exchange
from undertow.runtime.shape import COORDINATOR
from undertow.runtime.waiting import Ticket
from undertow.store.shard import Unexpected

Answer = Callable[[Contribution], None]


class NamedCall:
    """One call of a training thread, which waits for `done` and then looks for a `refusal`.

    `contribute(slices, answer)` is asked in the engine thread for this rank's part: one contribution for
    each slice, that ends with `answer`.
    """

    def __init__(
        self, name: str, terms: Terms, contribute: Callable[[Sequence[Slice], Answer], list[Contribution]]
    ) -> None:
        self.name = name
        self.terms = terms
        self.contribute = contribute
        self.done = threading.Event()
        self.refusal = ""


class RunningOut:
    """A training thread that has no more input, until all have none; `last` is who was the last."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.last = -1


class Caller:
    """All calls of this rank.  `tell` reaches the coordinator, `tell_all` every other rank.

    `decide` makes the decisions and is there on rank 0 only.
    """

    def __init__(
        self,
        rank: int,
        exchange: Exchange,
        *,
        tell: Callable[[int, messages.Message], None],
        tell_all: Callable[[messages.Message], None],
        size: int,
        decide: Calls | None,
        discard: Callable[[range], None] = lambda keys: None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._exchange = exchange
        self._tell = tell
        self._tell_all = tell_all
        self._decide = decide
        self._discard = discard
        self._calls: dict[str, NamedCall] = {}  # made here, not begun
        self._sets: dict[int, list[Slice]] = {}
        self._running_out: RunningOut | None = None

    def make(self, call: NamedCall) -> None:
        self._calls[call.name] = call
        self._ask(messages.Call(call.name, call.terms))

    def run_out(self, waiting: RunningOut) -> None:
        self._running_out = waiting
        self._ask(messages.RanOut())

    def obey(self, peer: int, message: messages.Asked | messages.Told) -> None:
        if isinstance(message, messages.Asked) and self._decide is not None:
            self._judge(self._decide, peer, message)
        elif isinstance(message, messages.Told) and peer == COORDINATOR:
            self._hear(message)
        else:
            raise Unexpected(f"rank {peer} takes the wrong rank for the coordinator")

    def blocked_by(self, departed: Collection[int]) -> int | None:
        """One of these workers, if a call cannot end without it."""
        if self._decide is not None:
            return next((rank for rank in departed if self._decide.waits_for(rank) is not None), None)
        is_waiting = bool(self._calls) or self._running_out is not None
        return COORDINATOR if is_waiting and COORDINATOR in departed else None

    @property
    def is_idle(self) -> bool:
        """Whether every call that this rank has made has begun."""
        return not self._calls

    @property
    def keys(self) -> set[int]:
        """All keys of calls: once all ranks have made a call, their engines contribute to these by themselves."""
        return {item.spec.key for slices in self._sets.values() for item in slices}

    def lacks(self, rank: int) -> bool:
        """Whether a call waits for this rank to make it, as far as this rank knows."""
        return self._decide is not None and self._decide.lacks(rank) is not None

    def describe_missing(self) -> str:
        """Which calls wait for whom, as far as this rank knows."""
        if self._decide is None:
            return ", ".join(f"{name!r} waits for other ranks" for name in self._calls)
        missing = self._decide.missing().items()
        return ", ".join(f"{name!r} waits for rank {', '.join(map(str, ranks))}" for name, ranks in missing)

    # On rank 0

    def _ask(self, message: messages.Asked) -> None:
        if self._decide is None:
            self._tell(COORDINATOR, message)
        else:
            self._judge(self._decide, self._rank, message)

    def _judge(self, decide: Calls, rank: int, message: messages.Asked) -> None:
        match message:
            case messages.Call(name) if not decide.expects(rank, name):
                raise Unexpected(f"rank {rank} makes the call {name!r} once more")
            case messages.Call():
                told = decide.arrive(rank, message)
            case messages.Prepared(number):
                told = decide.prepared(rank, number)
            case messages.RanOut():
                told = decide.run_out(rank)
        for one in told:
            self._tell_all(one)
            self._hear(one)

    # On all

    def _hear(self, message: messages.Message) -> None:
        match message:
            case messages.Prepare(number, how, terms):
                slices = self._sets[number] = lay_out(terms, how, self._size)
                self._exchange.learn(slices)
                self._ask(messages.Prepared(number))
            case messages.Begin(name, number) if number not in self._sets:
                raise Unexpected(f"the call {name!r} begins with keys that this rank does not know")
            case messages.Begin(name, number):
                self._begin(self._calls.pop(name, None), number)
            case messages.Drop(number) if slices := self._sets.pop(number, []):
                self._discard(range(slices[0].spec.key, slices[-1].spec.key + 1))
            case messages.Decline(name, reason) if name in self._calls:
                call = self._calls.pop(name)
                call.refusal = reason
                call.done.set()
            case messages.AllOut(last) if self._running_out is not None:
                waiting, self._running_out = self._running_out, None
                waiting.last = last
                waiting.done.set()

    def _begin(self, call: NamedCall | None, number: int) -> None:
        slices = self._sets[number]
        ticket = Ticket(len(slices), lambda: self._end(call, number))
        if call is None:  # this rank has run out of input
            empty = [Contribution(item.spec.key, None, None, 0, self._drop(ticket)) for item in slices]
            self._exchange.contribute(empty)
        else:
            self._exchange.note_names(call.name, slices)
            self._exchange.contribute(call.contribute(slices, ticket.answer))
        if not slices:
            self._end(call, number)

    def _drop(self, ticket: Ticket) -> Answer:
        def answer(contribution: Contribution) -> None:
            pieces = contribution.pieces
            self._exchange.release([piece for rank, piece in enumerate(pieces) if rank != self._rank])
            ticket.answer(contribution)

        return answer

    def _end(self, call: NamedCall | None, number: int) -> None:
        if self._decide is not None:
            self._decide.release(number)
        if call is not None:
            call.done.set()
