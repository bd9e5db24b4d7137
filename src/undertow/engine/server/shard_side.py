"""Stage 6 in the engine thread: the rounds of the keys that one process owns.

In: contributions and pulls: frames from other workers, calls from the local worker, if there is one.
Out: answers: frames in the process's send queue, and calls of the local worker.
It also works in a process without a worker.  It decides nothing: `Shard` and `Gathering` do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import ABSENT, WANTS, Header, Kind, Unexpected
from undertow.engine.core.outbox import QueuedFrame
from undertow.engine.core.pool import Memory
from undertow.engine.core.rounds import Array, KeySpec, Op, Round
from undertow.engine.core.shape import Shape
from undertow.engine.server.gathering import Gathering, RankBytes
from undertow.engine.server.shard import Answer, MakeRound, Shard, check_body
from undertow.engine.wire.frame_sender import FrameSender, make_body
from undertow.settings import Priority
from undertow.tracing import events
from undertow.tracing.recorder import Recorder, process_recorder


class LocalWorker(Protocol):
    """Worker in the same process as a shard, which gets its answers without frames."""

    def take_answer(self, answer: Answer) -> None:
        """Handle the answer to this worker's contribution."""

    def take_gathered(self, key: int, step: int, gathered: Sequence[RankBytes]) -> None:
        """Handle all workers' contributions to a gathered round, in rank order."""


class ShardSide:
    """Server of the keys that one process owns.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        sender: FrameSender,
        memory: Memory,
        *,
        make_round: MakeRound = Round,
        recorder: Recorder = process_recorder,
    ) -> None:
        self.worker: LocalWorker | None = None  # None in a dedicated server
        self._shape = shape
        self._rank = shape.rank
        self._sender = sender
        self._memory = memory
        self._recorder = recorder
        self._shard = Shard(shape.workers, memory.give, make_round)
        self._gathering = Gathering(shape.workers)
        self._priorities: dict[int, int] = {}  # key -> priority of the local worker's contribution

    # Keys

    def learn(self, specs: Sequence[KeySpec]) -> None:
        """Own the keys among these that this process is the owner of."""
        own = [spec for spec in specs if spec.owner == self._rank]
        self._sender.expect_sizes(own)
        self._shard.own(spec for spec in own if spec.op is not Op.GATHER)
        self._gathering.disown(spec.key for spec in specs)
        self._gathering.own(spec for spec in own if spec.op is Op.GATHER)

    def forget(self, keys: range) -> None:
        self._shard.forget(keys)
        self._gathering.disown(keys)
        for key in keys:
            self._priorities.pop(key, None)

    def join(self, rank: int, keys: Sequence[int], step: int, *, divide_by_active: bool) -> None:
        """Continue the rounds of these keys without a worker that ran out of input after round `step`."""
        self._answer(self._shard.join(rank, keys, step, divide_by_active=divide_by_active))

    def resume(self, keys: Sequence[int], step: int) -> None:
        self._shard.rejoin(keys, step)

    # Frames from other processes

    def sink_push(self, peer: int, header: Header) -> Array:
        """Return memory for the body of a contribution; raise `Unexpected` if it is not valid now."""
        if header.key in self._gathering.keys:
            self._gathering.expects(peer, header.key, header.step, header.length)
        else:
            check_body(header, self._shard.expects(peer, header.key, header.step))
        return self._memory.take(header.length)

    def take_push(self, peer: int, header: Header, body: Array | None) -> None:
        """Add a worker's contribution to a round."""
        if header.key in self._gathering.keys:
            self._gather(peer, header.key, header.step, RankBytes(body, header.present))
            return
        if body is None and header.present:
            raise Unexpected(f"a contribution to key {header.key} without its bytes")
        array = None if body is None else body.view(header.dtype.numpy)
        wants = bool(header.flags & WANTS)
        since_s = self._recorder.clock() if self._recorder.is_on else 0.0
        answers = self._shard.contribute(peer, header.key, header.step, array, present=header.present, wants=wants)
        self._record_sum(since_s, answers)
        self._answer(answers)

    def take_pull(self, peer: int, header: Header) -> None:
        """Send a worker the value that it requests."""
        self._answer([self._shard.pull(peer, header.key, header.step)], Kind.VALUE)

    # The worker in this process

    def contribute(self, item: Contribution, spec: KeySpec) -> None:
        """Add the local worker's contribution to a key that this process owns."""
        if self._shape.priority is Priority.BOTH:
            self._priorities[item.key] = item.priority
        if spec.op is Op.GATHER:
            self._gather(self._rank, item.key, item.step, RankBytes(item.source, item.present))
        elif spec.is_published:
            self._answer(self._shard.publish(self._rank, item.key, item.step, item.source, present=item.present))
        elif item.is_pull:
            self._answer([self._shard.pull(self._rank, item.key, item.step)])
        else:
            since_s = self._recorder.clock() if self._recorder.is_on else 0.0
            answers = self._shard.contribute_own(
                self._rank, item.key, item.step, item.source, present=item.present, into=item.target
            )
            self._record_sum(since_s, answers)
            self._answer(answers)

    # State, for messages and decisions

    def missing(self, key: int, step: int) -> list[int]:
        """Return the ranks that this round still waits for."""
        if key in self._gathering.keys:
            return self._gathering.missing(key, step)
        return self._shard.missing(key, step)

    def blocked_by(self, ranks: Collection[int], spared: Collection[int] = ()) -> int | None:
        """Return one of these workers that a round waits for; None if there is none.  `spared` keys do not count."""
        blocker = self._shard.blocked_by(ranks, spared)
        return self._gathering.blocked_by(ranks, spared) if blocker is None else blocker

    # Answers

    def _gather(self, rank: int, key: int, step: int, contribution: RankBytes) -> None:
        gathered = self._gathering.contribute(rank, key, step, contribution)
        if gathered is None:
            return
        assert self.worker is not None, f"key {key} was gathered in a process without a worker"
        done = Header(Kind.RESULT, key, step, self._rank, job=self._shape.job)
        self._queue([self._sender.make_frame(peer, done, None) for peer in self._shape.other_workers])
        self.worker.take_gathered(key, step, gathered)

    def _answer(self, answers: Sequence[Answer], kind: Kind = Kind.RESULT) -> None:
        """Send answers of one or several rounds: frames to other processes, calls to the local worker."""
        frames: list[QueuedFrame] = []
        packed: Answer | None = None  # header and body were made for it; most answers share them
        for answer in sorted(answers, key=lambda answer: self._shape.distance(answer.rank)):
            if answer.rank == self._rank and self.worker is not None:
                self.worker.take_answer(answer)
                continue
            if packed is None or packed.array is not answer.array or packed.key != answer.key:
                packed = answer
                header, body = self._make_header(kind, answer), make_body(answer.array)
            if frames and frames[-1].header.key != answer.key:
                self._queue(frames)
                frames = []
            frames.append(self._sender.make_frame(answer.rank, header, body))
        self._queue(frames)

    def _make_header(self, kind: Kind, answer: Answer) -> Header:
        spec = self._shard.spec(answer.key)
        return Header(
            kind,
            answer.key,
            answer.step,
            self._rank,
            answer.present,
            0 if answer.array is None else spec.size_bytes,
            spec.dtype,
            ABSENT if answer.absent else 0,
            self._shape.job,
        )

    def _queue(self, frames: list[QueuedFrame]) -> None:
        """Queue answers for one key with the priority of the local worker's contribution to it."""
        if frames:
            self._sender.queue(frames, self._priorities.get(frames[0].header.key, 0))

    def _record_sum(self, since_s: float, answers: Sequence[Answer]) -> None:
        if since_s and answers:
            self._recorder.record(events.Summed(since_s, self._recorder.clock(), answers[0].key, answers[0].step))
