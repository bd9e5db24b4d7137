"""One worker of a run: the real group, a script in place of its training thread, a helper beside.

A script is a generator that yields a `Wait` and goes on when it is over.  What blocks a training thread
(`Group.agree`, `register`, `close`) is written here once more as such a wait; nothing else is.
This is the one place that looks inside of a group.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from undertow.coordinator import messages
from undertow.core.decoding import Decoder
from undertow.core.flow import Contribution
from undertow.core.outbox import Outbox
from undertow.core.rounds import Op
from undertow.errors import UndertowError
from undertow.faults.clock import VirtualLoop
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.exchange import Exchange
from undertow.runtime.group import Group

if TYPE_CHECKING:
    from undertow.faults.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Wait:
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
    def __init__(self, cluster: Cluster, rank: int, group: Group, loop: VirtualLoop) -> None:
        self.rank = rank
        self.group = group
        self.loop = loop
        self.exchange: Exchange = group._exchange
        self.outbox: Outbox = group._exchange._outbox
        self.state = State.RUNNING
        self.script: Script | None = None
        self.wait = MOMENT
        self.waits_since_s = 0.0
        self.helper: deque[Callable[[], None]] = deque()  # work beside engine and training, of `Group.aside`
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
        """One step of the script.  False if it has ended."""
        assert self.script is not None
        try:
            self.wait = next(self.script)
        except StopIteration:
            self.script = None
        return self.script is not None

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
        """As `Group.agree`, where nobody can disagree."""
        verdict = yield from self.ask(matter, payload)
        self._cluster.check(not verdict.error, f"rank {self.rank} hears at {matter!r}: {verdict.error}")
        return verdict.payload

    def ask(self, matter: str, payload: bytes = b"") -> Asked[messages.Verdict]:
        """The coordinator's verdict, whatever it is."""
        group = self.group
        group._agreement_count += 1
        group._steward.agreed.clear()
        self.loop.post(group._arrive, messages.Arrive(group._agreement_count, matter, payload))
        yield from self.until(f"the agreement on {matter!r}", group._steward.agreed.is_set)
        verdict = group._steward.verdict
        assert verdict is not None
        return verdict

    def register(self, tensors: Sequence[TensorSpec], *, op: Op, keep: bool) -> Asked[list[Slice]]:
        """As `Group.register`, but for the barrier at its end."""
        table = messages.Table("the table", list(tensors), op, keep)
        payload = yield from self.agree("tensors", msgspec.msgpack.encode(table))
        how: Cut = Decoder[Cut](Cut).decode(payload)
        slices = cut(tensors, how, op=op, keep=keep, placement=self.group._placement)
        self.group.learn(slices)
        return slices

    def leave(self, error: str = "") -> Script:
        """As `Group.close`, which never raises."""
        self.loop.post(self.group._leave, error)
        yield Wait("the farewells", self.group._closed.is_set)
