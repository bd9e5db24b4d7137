"""One worker of a run: the real group, with stand-ins for its engine's thread, its helper and its training thread.

A script is a generator that yields a `Wait` and goes on when it is over.  What blocks a training thread
(`ConnectedGroup.agree`, `register`, `close`) is written here once more as such a wait; nothing else is.
Of the driver, only this module and the scenario that looks for what was forgotten (`scenarios/discards.py`) look inside
of a group.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from undertow.engine.client.exchange import Exchange
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.client.waiting import FIRST_NOTICE_S
from undertow.engine.coordinator import messages
from undertow.engine.core.flow import Contribution
from undertow.engine.core.outbox import Outbox
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.engine.wire.loop import TICK_S
from undertow.errors import UndertowError
from undertow.tools.virtual.world import Clock, Timetable

if TYPE_CHECKING:
    from undertow.tools.faults.cluster import Cluster


class VirtualLoop:
    """Loop of one worker's engine, which runs timers when the driver says so.

    It keeps the promises of the engine thread (see `engine.wire.loop`): calls run one after the other and in order,
    timers not before they are due, a tick every second.  A posted call runs at once, unless the driver lets the engine
    lag behind.
    """

    def __init__(self, clock: Clock) -> None:
        self.lags = False
        self._clock = clock
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers = Timetable()
        self._tickers: list[Callable[[float], None]] = []
        self._is_running = False

    # What a group asks of its loop

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        self._posted.append((call, arguments))
        if not self.lags and not self._is_running:
            self._run_posted()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.at(self._clock.now_s + delay_s, call)

    def every_tick(self, call: Callable[[float], None]) -> None:
        if not self._tickers:
            self.later(TICK_S, self._tick)
        self._tickers.append(call)

    def no_tick(self, call: Callable[[float], None]) -> None:
        self._tickers.remove(call)

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """Do nothing: a loop in memory has no thread that could end."""

    def no_failure(self, call: Callable[[Exception], None]) -> None: ...

    # The driver's side

    @property
    def is_due(self) -> bool:
        """Whether there is something to run now."""
        return bool(self._posted) or self._timers.next_s <= self._clock.now_s

    @property
    def next_due_s(self) -> float:
        """Time of the next timer; infinity if there is none."""
        return self._timers.next_s

    def run_due(self) -> None:
        """Run what was posted, then all timers that are due, as the engine thread does."""
        self._run_posted()
        while self._timers.next_s <= self._clock.now_s:
            self.post(self._timers.pop())

    def _run_posted(self) -> None:
        self._is_running = True
        try:
            while self._posted:
                call, arguments = self._posted.popleft()
                call(*arguments)
        finally:
            self._is_running = False

    def _tick(self) -> None:
        if self._tickers:
            self.later(TICK_S, self._tick)
        for ticker in tuple(self._tickers):
            ticker(self._clock.now_s)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a script for a condition."""

    what: str
    is_over: Callable[[], bool]


_Result = TypeVar("_Result")
Script = Generator[Wait, None, None]
Asked = Generator[Wait, None, _Result]  # a part of a script that brings something back
MOMENT = Wait("its turn", lambda: True)


class State(enum.Enum):
    RUNNING = "runs"
    STOPPED = "is stopped"  # as by SIGSTOP: it does nothing, and its links stay open
    DEAD = "is dead"


class GaveUp(Exception):
    """The group has failed: what a wait raises in a training thread."""


class VirtualHelper:
    """Stands in for a group's helper thread: the driver decides when it works."""

    def __init__(self, queue: deque[Callable[[], None]]) -> None:
        self._queue = queue

    def start(self) -> None: ...

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def stop(self) -> None: ...


class Worker:
    """Worker of a run: the real group, and a script."""

    def __init__(self, cluster: Cluster, rank: int, group: ConnectedGroup, loop: VirtualLoop) -> None:
        self.rank = rank
        self.group = group
        self.loop = loop
        self.exchange: Exchange = group._exchange
        self.outbox: Outbox = group._exchange.sender.outbox
        self.state = State.RUNNING
        self.script: Script | None = None
        self.wait = MOMENT
        self.waits_since_s = 0.0
        self.helper: deque[Callable[[], None]] = deque()  # work beside engine and training, of `ConnectedGroup.aside`
        stand_in: Any = VirtualHelper(self.helper)
        group._helper = stand_in
        self.is_done = False  # its training has ended as it should
        self.failure: UndertowError | None = None  # what has ended its training otherwise
        self._cluster = cluster

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_ready(self) -> bool:
        """Whether its script can go on."""
        return self.script is not None and self.wait.is_over()

    @property
    def is_closed(self) -> bool:
        return self.group._closed.is_set()

    def go_on(self) -> bool:
        """Run the script up to its next wait.  False if it has ended."""
        assert self.script is not None
        try:
            self.wait = next(self.script)
        except StopIteration:
            self.script = None
        return self.script is not None

    def ask_who_is_missing(self) -> None:
        """Do what a training thread does whose wait lasts long."""
        self.group._on_stall(FIRST_NOTICE_S)

    def change_credit(self, size_bytes: int) -> None:
        self.exchange.sender.set_credit(size_bytes)
        self.exchange.sender.pump()

    # Parts of scripts

    def until(self, what: str, is_over: Callable[[], bool]) -> Script:
        """Wait as a training thread does: the group's error ends every wait."""
        waiters = self.group.waiters
        yield Wait(what, lambda: waiters.error is not None or is_over())
        if waiters.error is not None:
            raise GaveUp

    def train(self, script: Script) -> Script:
        """Run this to its end, or to the group's error, which is kept."""
        try:
            yield from script
            self.is_done = True
        except GaveUp:
            self.failure = self.group.waiters.error

    def contribute(self, items: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        """Hand over; now and then the engine is busy and takes it later."""
        self.loop.lags = self._cluster.random.random() < 0.3
        self.group.contribute(items, is_ready)
        self.loop.lags = False

    def agree(self, matter: str, payload: bytes = b"") -> Asked[bytes]:
        """Agree as `ConnectedGroup.agree` does, where no rank can disagree."""
        result = yield from self.ask(matter, payload)
        if result.mismatch is not None:
            self._cluster.fail(f"rank {self.rank} hears at {matter!r}: {result.mismatch.message}")
        return result.payload

    def ask(self, matter: str, payload: bytes = b"") -> Asked[messages.AgreementResult]:
        """Return the coordinator's result, whatever it is."""
        pending = self.group.begin_agreement(matter, payload)
        yield from self.until(f"the agreement on {matter!r}", pending.done.is_set)
        assert pending.result is not None
        return pending.result

    def register(self, tensors: Sequence[TensorSpec], *, op: Op, keep: bool) -> Asked[list[Slice]]:
        """Register as `ConnectedGroup.register` does, but for the barrier at its end."""
        proposal = messages.TableProposal("the table", list(tensors), op, keep)
        reply = yield from self.agree("tensors", msgspec.msgpack.encode(proposal))
        slices = self.group.cut_as_agreed(proposal, reply)
        self.group.learn(slices)
        return slices

    def live(self, training: Script, *, says_why: bool = True) -> Script:
        """Train, then leave; the other ranks may hear what has ended the training."""
        yield from self.train(training)
        yield from self.leave(str(self.failure or "") if says_why else "")

    def leave(self, error: str = "") -> Script:
        """Leave as `ConnectedGroup.close` does, which never raises."""
        self.group.leave(error)
        yield Wait("the farewells", self.group._closed.is_set)
