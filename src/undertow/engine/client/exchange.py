"""Dispatch of slices in the engine thread, to the worker's side or to the shard's side of the process.

In: frames of slices from peers.  Out: calls of the worker's side, which waits for results, and of the shard's side,
which owns keys.  Both sides share the process's memory for contributions and its send queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from undertow.engine.client.worker_side import WorkerSide
from undertow.engine.core import frames
from undertow.engine.core.frames import Header, Kind
from undertow.engine.core.pool import Memory, Pool
from undertow.engine.core.rounds import Array, KeySpec, Round
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice
from undertow.engine.server.shard import MakeRound
from undertow.engine.server.shard_side import ShardSide
from undertow.engine.wire.frame_sender import FrameSender
from undertow.engine.wire.transport import Transport
from undertow.tracing.recorder import Recorder, process_recorder

# Looked up once, because they are compared with every frame.
_PUSH, _PULL, _RECEIVED = Kind.PUSH, Kind.PULL, Kind.RECEIVED


class Exchange:
    """Worker's side and shard's side of one process.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        memory: Memory | None = None,
        make_round: MakeRound = Round,
        pack: Callable[[Header, int, int, Any], Any] = frames.pack,
        recorder: Recorder = process_recorder,
    ) -> None:
        self._memory = Pool() if memory is None else memory
        self._recorder = recorder
        self.sender = FrameSender(shape, transport, clock=clock, pack=pack, recorder=recorder)
        self.shard = ShardSide(shape, self.sender, self._memory, make_round=make_round, recorder=recorder)
        self.worker = WorkerSide(shape, self.sender, self.shard, self._memory, recorder)
        self.shard.worker = self.worker
        self._gathered_keys = self.worker.gathering.keys  # contributions to all other keys are for the shard

    # Keys

    def learn(self, slices: Sequence[Slice]) -> None:
        specs = [item.spec for item in slices]
        self.worker.learn(specs)
        self.shard.learn(specs)

    def forget(self, keys: range) -> None:
        """Forget keys that no worker uses any longer."""
        self.worker.forget(keys)
        self.shard.forget(keys)

    def free_memory(self) -> None:
        """Free the memory that is kept for contributions, because later contributions have other sizes."""
        self._memory.clear()

    def join(self, rank: int, keys: Sequence[int], step: int, *, divide_by_active: bool) -> None:
        """Continue the rounds of these keys without a worker that ran out of input after round `step`.

        That worker must have the answers to all its rounds, because its message would overtake a contribution.
        """
        self.shard.join(rank, keys, step, divide_by_active=divide_by_active)
        self.sender.pump()

    def resume(self, keys: Sequence[int], step: int) -> None:
        """Continue the rounds of these keys with all workers, after round `step`."""
        # One number is skipped: a worker's message that it ran out of input may arrive after the agreement's result,
        # which takes another link.  The number in that message then shows that it is outdated.
        self.worker.flow.resume(keys, step + 1)
        self.shard.resume(keys, step + 1)

    # Frames

    def sink(self, peer: int, header: Header) -> Array:
        """Return memory for the body of this slice; raise `Unexpected` if it is not valid now."""
        if self._recorder.is_on:
            self.sender.note_arriving(peer, self._recorder.clock())
        if header.kind is not _PUSH:
            return self.worker.sink_result(peer, header)
        side = self.worker if header.key in self._gathered_keys else self.shard
        return side.sink_push(peer, header)

    def handle(self, peer: int, header: Header, body: Array | None) -> None:
        """Handle a complete frame that carries or concerns a slice."""
        self.sender.note_arrived(peer, header)
        kind = header.kind
        if kind is _PUSH:
            side = self.worker if header.key in self._gathered_keys else self.shard
            side.take_push(peer, header, body)
        elif kind is _PULL:
            self.shard.take_pull(peer, header)
        elif kind is not _RECEIVED:
            self.worker.take_result(peer, header)
        self.sender.go_on(peer, header)

    # State

    @property
    def step(self) -> int:
        """The latest round that this worker has begun."""
        return self.worker.step

    def knows(self, key: int) -> bool:
        return self.worker.flow.knows(key)

    def is_idle(self, keys: range) -> bool:
        """Whether no contribution of this worker to these keys is unanswered or still to come."""
        return self.worker.open_work.is_done and not self.worker.flow.uses(keys)

    @property
    def is_drained(self) -> bool:
        """Whether this worker has completed everything that other workers could need from it.

        A round of its own shard to which it has contributed may still wait for others.
        """
        return self.worker.open_work.is_done and self.sender.is_empty and self.worker.flow.pending() is None

    def keys_to_come(self) -> list[int] | None:
        """Return the keys to which this worker has contributions waiting; None while frames are still being sent."""
        return self.worker.flow.waiting if self.sender.is_empty and self.worker.open_work.is_done else None

    def pending(self) -> tuple[KeySpec, int] | None:
        """Return a key and round that this worker waits for, if any."""
        item = self.worker.flow.pending()
        return None if item is None else (self.worker.flow.spec(item.key), item.step)

    def missing(self, key: int, step: int) -> list[int]:
        """Return the ranks that a round in this process still waits for."""
        side = self.worker.gathering if key in self._gathered_keys else self.shard
        return side.missing(key, step)

    def blocked_by(self, departed: Collection[int]) -> int | None:
        """Return one of these workers that something waits for; None if there is none."""
        rank = self._find_lacking(departed)
        return self.worker.flow.blocked_by(departed) if rank is None else rank

    def lacks(self, rank: int, spared: Collection[int]) -> bool:
        """Whether a round in this process waits for this worker's contribution; `spared` keys do not count."""
        return self._find_lacking([rank], spared) is not None

    def _find_lacking(self, ranks: Collection[int], spared: Collection[int] = ()) -> int | None:
        rank = self.shard.blocked_by(ranks, spared)
        return self.worker.gathering.blocked_by(ranks, spared) if rank is None else rank
