"""Worker of a run: the real group, with stand-ins for its engine thread, its helper thread and its training thread.

A script is a generator that yields a `Wait` and continues when it is over.  Only the calls that block a training thread
(`ConnectedGroup.agree`, `register`, `close`) are written here again, as such waits.
Only this module and two scenarios use private parts of a group: that of discarded keys (`scenarios/discards.py`), and
that of gates (`scenarios/gates.py`), whose group is another one with some of its calls replaced.
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
    """Loop of one worker's engine, which runs timers when the driver tells it to.

    It keeps the guarantees of the engine thread (see `engine.wire.loop`): calls run one at a time and in order, timers
    never before they are due, a tick every second.  A posted call runs at once, unless the driver lets the engine lag.
    """

    def __init__(self, clock: Clock) -> None:
        self.lags = False
        self._clock = clock
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers = Timetable()
        self._tickers: list[Callable[[float], None]] = []
        self._is_running = False

    # Interface of the engine's loop

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

    # Interface for the driver

    @property
    def is_due(self) -> bool:
        """Whether a call or a timer is due."""
        return bool(self._posted) or self._timers.next_s <= self._clock.now_s

    @property
    def next_due_s(self) -> float:
        """Time of the next timer; infinity if there is none."""
        return self._timers.next_s

    def run_due(self) -> None:
        """Run the posted calls, then all timers that are due, as the engine thread does."""
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
Subscript = Generator[Wait, None, _Result]  # a part of a script that returns a result
MOMENT = Wait("the driver", lambda: True)


class State(enum.Enum):
    RUNNING = "runs"
    STOPPED = "is stopped"  # as by SIGSTOP: it does nothing, and its links stay open
    DEAD = "is dead"


class GaveUp(Exception):
    """Error raised by a wait because the group has failed."""


class VirtualHelper(deque[Callable[[], None]]):
    """Stand-in for a group's helper thread: its work, from `ConnectedGroup.aside`, for the driver to run."""

    submit = deque.append

    def start(self) -> None: ...

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
        stand_in: Any = VirtualHelper()
        self.helper: VirtualHelper = stand_in
        group._helper = stand_in
        self.is_done = False  # its training has ended in order
        self.failure: UndertowError | None = None  # the error that has ended its training
        self._cluster = cluster

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_ready(self) -> bool:
        """Whether its script can continue."""
        return self.script is not None and self.wait.is_over()

    @property
    def is_closed(self) -> bool:
        return self.group._closed.is_set()

    def run_script(self) -> bool:
        """Run the script up to its next wait, and return whether there is one."""
        assert self.script is not None
        try:
            self.wait = next(self.script)
        except StopIteration:
            self.script = None
        return self.script is not None

    def ask_who_is_missing(self) -> None:
        """Do what a training thread does when its wait takes long."""
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

    def pause(self) -> Script:
        """Let the driver choose other events before the script continues."""
        yield from self.until(MOMENT.what, MOMENT.is_over)

    def train(self, script: Script) -> Script:
        """Run this script to its end, or to the group's error, which is kept."""
        try:
            yield from script
            self.is_done = True
        except GaveUp:
            self.failure = self.group.waiters.error

    def contribute(self, items: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        """Contribute; now and then the engine lags and takes the contributions later."""
        self.loop.lags = self._cluster.random.random() < 0.3
        self.group.contribute(items, is_ready)
        self.loop.lags = False

    def agree(self, matter: str, payload: bytes = b"") -> Subscript[bytes]:
        """Agree as `ConnectedGroup.agree` does; a mismatch breaks the run."""
        result = yield from self.find_agreement(matter, payload)
        if result.mismatch is not None:
            self._cluster.fail(f"rank {self.rank} cannot agree on {matter!r}: {result.mismatch.message}")
        return result.payload

    def find_agreement(self, matter: str, payload: bytes = b"") -> Subscript[messages.AgreementResult]:
        """Return the coordinator's result, which may be a mismatch."""
        pending = self.group.begin_agreement(matter, payload)
        yield from self.until(f"the agreement on {matter!r}", pending.done.is_set)
        assert pending.result is not None
        return pending.result

    def register(self, tensors: Sequence[TensorSpec], *, op: Op, keep: bool) -> Subscript[list[Slice]]:
        """Register as `ConnectedGroup.register` does, without the barrier at its end."""
        proposal = messages.TableProposal("the table", list(tensors), op, keep)
        reply = yield from self.agree("tensors", msgspec.msgpack.encode(proposal))
        slices = self.group.cut_as_agreed(proposal, reply)
        self.group.learn(slices)
        return slices

    def run(self, training: Script, *, sends_error: bool = True) -> Script:
        """Train, then leave; the goodbye may carry the error that has ended the training."""
        yield from self.train(training)
        yield from self.leave(str(self.failure or "") if sends_error else "")

    def leave(self, error: str = "") -> Script:
        """Leave as `ConnectedGroup.close` does, which never raises."""
        self.group.leave(error)
        yield Wait("the goodbyes", self.group._closed.is_set)
