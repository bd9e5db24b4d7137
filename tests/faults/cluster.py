"""N workers in one thread, and a seeded scheduler that decides what happens next.

Each worker is a whole `Group` over the memory network and runs a script: a generator that
yields a condition and goes on when it holds.  The scheduler picks a script that can go on or
a link that can deliver, until all scripts have ended.  If nothing can happen before that, it
is a deadlock, and the story of the run is told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from undertow.coordinator import messages
from undertow.core.rounds import Op
from undertow.plan.placement import Placement
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.group import Group
from undertow.runtime.shape import Shape
from undertow.wire.memory import MemoryNetwork

Script = Generator[Callable[[], bool], None, None]
TOLD_EVENTS = 80


class InstantLoop:
    """In place of the engine thread: what is posted runs before anything else happens."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []
        self._posted: deque[Callable[[], object]] = deque()
        self._is_running = False

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        self._posted.append(lambda: call(*arguments))
        if self._is_running:
            return
        self._is_running = True
        while self._posted:
            self._posted.popleft()()
        self._is_running = False

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def run_timers(self) -> None:
        timers, self.timers = self.timers, []
        for call in timers:
            self.post(call)

    def every_tick(self, call: Callable[[float], None]) -> None: ...

    def no_tick(self, call: Callable[[float], None]) -> None: ...


class Cluster:
    def __init__(self, seed: int, *, most_workers: int = 5, fewest_workers: int = 1) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.size = self.random.randint(fewest_workers, most_workers)
        self.slice_bytes = 16 * self.random.randint(1, 12)
        self.credit_bytes = self.slice_bytes * self.random.choice([2, 2, 3, 5, 50])
        self.changes_credit = False  # now and then, on one rank alone
        self.largest_parcel_bytes = 0  # if larger than the credit: one such may be in flight, alone
        self.network = MemoryNetwork(self.size)
        self.loops = [InstantLoop() for _ in range(self.size)]
        self.groups = [self._group(rank) for rank in range(self.size)]
        self.scripts: dict[int, Script] = {}
        self.story: list[str] = [f"{self.size} workers, slices of {self.slice_bytes}, credit {self.credit_bytes} bytes"]
        self._conditions: dict[int, Callable[[], bool]] = {}
        self._placement = Placement(self.size)
        self._next_key = 0
        # Some links are a thousand times slower than others, and so are some workers.
        self._speed = {
            who: self.random.random() ** self.random.choice([0, 1, 4]) + 0.001
            for who in [(a, b) for a in range(self.size) for b in range(self.size)] + list(range(self.size))
        }
        self.network.connect(self.groups)

    def _group(self, rank: int) -> Group:
        shape = Shape(
            rank=rank,
            hosts=[f"host{peer}" for peer in range(self.size)],
            job=7,
            sizes=Sizes(fixed=self.slice_bytes),
            credit_bytes=self.credit_bytes,
            silence_timeout_s=10.0,
            stall_timeout_s=10.0,
        )
        return Group(shape, self.loops[rank], self.network.transports[rank])  # type: ignore[arg-type]

    def register(self, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False) -> list[Slice]:
        """As if all ranks had agreed on these tensors already."""
        slices = cut(tensors, Cut(self._next_key, self.slice_bytes), op=op, keep=keep, placement=self._placement)
        self._next_key += len(slices)
        for group in self.groups:
            group._exchange.learn(slices)
        return slices

    def agree(self, rank: int, matter: str, payload: bytes = b"") -> Script:
        """As `Group.agree`, which blocks: a script comes to an agreement and waits for its verdict."""
        group = self.groups[rank]
        group._agreement_count += 1
        group._steward.agreed.clear()
        self.loops[rank].post(group._arrive, messages.Arrive(group._agreement_count, matter, payload))
        yield lambda: group._steward.agreed.is_set() or group.waiters.error is not None

    def agreed(self, rank: int) -> bytes:
        verdict = self.groups[rank]._steward.verdict
        assert verdict is not None
        self.check(not verdict.error, f"rank {rank} hears: {verdict.error}")
        return verdict.payload

    def leave(self, rank: int, error: str = "") -> Script:
        """As `Group.close`, which blocks."""
        group = self.groups[rank]
        self.loops[rank].post(group._leave, error)
        yield group._closed.is_set

    def start(self, rank: int, script: Script) -> None:
        self.scripts[rank] = script
        self._conditions[rank] = lambda: True

    def kill(self, rank: int) -> None:
        """The worker's process ends without a word; what is on its way is lost."""
        self.tell(f"rank {rank} is killed")
        self.scripts.pop(rank, None)
        for peer in range(self.size):
            if peer != rank:
                self.network.cut(rank, peer)
        self.network.transports[rank].close()

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let things happen, one at a time, until all scripts have ended or the condition holds."""
        idle = 0
        while not until():
            if self.random.random() < 0.02:
                self.random.choice(self.loops).run_timers()
            if self.changes_credit and self.random.random() < 0.05:
                self._change_credit()
            ready: list[Any] = [rank for rank in self.scripts if self._conditions[rank]()]
            choices = ready + self.network.links_with_frames()
            if choices:
                idle = 0
                self._happen(self.random.choices(choices, [self._speed[choice] for choice in choices])[0])
                self._check_credit()
            elif any(loop.timers for loop in self.loops) and idle < 3:
                idle += 1
                for loop in self.loops:
                    loop.run_timers()
            elif self.scripts:
                self.fail(f"deadlock: rank {sorted(self.scripts)} cannot go on")
            else:
                return

    def _change_credit(self) -> None:
        rank, slices = self.random.randrange(self.size), self.random.choice([2, 3, 5, 50])
        self.tell(f"rank {rank} has a credit of {slices} slices")
        exchange = self.groups[rank]._exchange
        exchange._set_credit(slices * self.slice_bytes)
        exchange.pump()

    def _happen(self, choice: Any) -> None:
        if isinstance(choice, tuple):
            header = self.network.deliver(*choice)
            self.tell(f"{choice[0]} -> {choice[1]} {'the end' if header is None else _words(header)}")
            return
        try:
            self._conditions[choice] = next(self.scripts[choice])
            self.tell(f"rank {choice} goes on")
        except StopIteration:
            del self.scripts[choice]
            self.tell(f"rank {choice} has ended")

    def _check_credit(self) -> None:
        for group in self.groups:
            outbox = group._exchange._outbox
            most = max(self.credit_bytes, self.largest_parcel_bytes, 50 * self.slice_bytes * self.changes_credit)
            if not 0 <= outbox.in_flight_bytes <= most:
                self.fail(f"rank {group.rank} has {outbox.in_flight_bytes} bytes in flight of {self.credit_bytes}")

    def check(self, condition: bool, claim: str) -> None:
        if not condition:
            self.fail(claim)

    def tell(self, event: str) -> None:
        self.story.append(event)

    def fail(self, claim: str) -> None:
        errors = [f"rank {group.rank}: {group.waiters.error}, dropped {dict(group.dropped)}" for group in self.groups]
        lines = [self.story[0], "...", *self.story[-TOLD_EVENTS:], *errors]
        pytest.fail(f"seed {self.seed}: {claim}\nreplay: pytest tests/faults --seed {self.seed}\n" + "\n".join(lines))


def _words(header: Any) -> str:
    return f"{header.kind.name} key {header.key} step {header.step} of {header.length} bytes"
