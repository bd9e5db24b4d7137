"""Stages 4 and 8 in the engine thread: sends a worker's contributions and receives the results into their memory.

In: contributions of this worker; frames with results and with gathered contributions.
Out: frames in the process's send queue; results in the memory of the contributions.
Other shards are sent frames; the shard in this process is called directly, so nothing is copied for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from undertow.engine.client.helper import OpenWork
from undertow.engine.core.flow import Contribution, Flow
from undertow.engine.core.frames import ABSENT, WANTS, Header, Kind, Unexpected
from undertow.engine.core.pool import Memory
from undertow.engine.core.rounds import EVERYONE, Array, KeySpec, Op, view_bytes
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice
from undertow.engine.server.gathering import Gathering, RankBytes
from undertow.engine.server.shard import Answer, check_body
from undertow.engine.wire.frame_sender import FrameSender, make_body
from undertow.tracing import events
from undertow.tracing.recorder import Recorder, process_recorder


class LocalShard(Protocol):
    """Shard in the same process as a worker, which takes its contributions without a frame."""

    def contribute(self, item: Contribution, spec: KeySpec) -> None:
        """Take the local worker's contribution to a key that this process owns."""


class WorkerSide:
    """Worker's side of all rounds; implements `LocalWorker`.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        sender: FrameSender,
        shard: LocalShard,
        memory: Memory,
        recorder: Recorder = process_recorder,
    ) -> None:
        self.open_work = OpenWork()
        self.step = 0  # the latest round that this worker has begun, for messages
        self._shape = shape
        self._rank = shape.rank
        self._sender = sender
        self._shard = shard
        self._memory = memory
        self._recorder = recorder
        self.flow = Flow()
        self.gathering = Gathering(shape.workers)  # rounds of keys that every worker gathers

    # Keys

    def learn(self, specs: Sequence[KeySpec]) -> None:
        self._sender.expect_sizes(specs)
        self.flow.add(specs)
        self.gathering.disown(spec.key for spec in specs)
        self.gathering.own(spec for spec in specs if spec.owner == EVERYONE)

    def forget(self, keys: range) -> None:
        self.flow.forget(keys)
        self.gathering.disown(keys)

    # Contributions

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        for contribution in contributions:
            ready = self.flow.contribute(contribution)
            if ready is not None:
                self._push(ready)
        self._sender.pump()

    def release(self, gathered: Sequence[RankBytes]) -> None:
        """Take back the memory of gathered contributions that the worker has used."""
        for each in gathered:
            if each.array is not None:
                self._memory.give(each.array)

    def _push(self, item: Contribution) -> None:
        spec = self.flow.spec(item.key)
        self.step = max(self.step, item.step)
        if spec.owner == self._rank:
            if spec.op is Op.GATHER:
                # The key's spec has no size.
                self._sender.expect_size(0 if item.source is None else item.source.nbytes)
            self._shard.contribute(item, spec)
        elif spec.op is Op.GATHER:
            self._push_to_gather(item, spec)
        elif not spec.is_published:  # otherwise the owner answers without a request
            header = self._make_header(Kind.PULL if item.is_pull else Kind.PUSH, item, spec)
            frame = self._sender.make_frame(spec.owner, header, make_body(item.source))
            self._sender.queue([frame], item.priority)

    def _push_to_gather(self, item: Contribution, spec: KeySpec) -> None:
        header, body = self._make_header(Kind.PUSH, item, spec), make_body(item.source)
        self._sender.expect_size(header.length)
        peers = self._shape.other_workers if spec.owner == EVERYONE else [spec.owner]
        self._sender.queue([self._sender.make_frame(peer, header, body) for peer in peers], item.priority)
        if spec.owner == EVERYONE:
            self._gather(self._rank, item.key, item.step, RankBytes(item.source, item.present))

    def _make_header(self, kind: Kind, item: Contribution, spec: KeySpec) -> Header:
        return Header(
            kind,
            item.key,
            item.step,
            self._rank,
            item.present,
            0 if item.source is None else item.source.nbytes,
            spec.dtype,
            0 if item.target is None else WANTS,
            self._shape.job,
        )

    # Frames from other processes

    def sink_result(self, peer: int, header: Header) -> Array:
        """Return memory for the body of a result; raise `Unexpected` if it is not valid now."""
        item = self._find_awaited(peer, header)
        check_body(header, self.flow.spec(header.key))
        if item.target is None:
            raise Unexpected(f"a result of key {header.key} that was not wanted")
        return view_bytes(item.target)

    def take_result(self, peer: int, header: Header) -> None:
        """Handle the result of a round, whose body is already in place."""
        self._accept(self._find_awaited(peer, header), header.present, absent=bool(header.flags & ABSENT))

    def sink_push(self, peer: int, header: Header) -> Array:
        """Return memory for a contribution that every worker gathers; raise `Unexpected` if it is not valid now."""
        self.gathering.expects(peer, header.key, header.step, header.length)
        return self._memory.take(header.length)

    def take_push(self, peer: int, header: Header, body: Array | None) -> None:
        """Add another worker's contribution, which every worker gathers."""
        self._gather(peer, header.key, header.step, RankBytes(body, header.present))

    def _gather(self, rank: int, key: int, step: int, contribution: RankBytes) -> None:
        gathered = self.gathering.contribute(rank, key, step, contribution)
        if gathered is not None:
            self.take_gathered(key, step, gathered)

    def _find_awaited(self, peer: int, header: Header) -> Contribution:
        item = self.flow.awaited(header.key, header.step)
        is_from_owner = item is not None and self.flow.spec(header.key).owner == peer
        if item is None or not is_from_owner or item.is_pull is not (header.kind is Kind.VALUE):
            raise Unexpected(f"a result of round {header.step} of key {header.key} that was not expected")
        if not header.length and header.present and item.target is not None:
            raise Unexpected(f"a result of key {header.key} without its bytes")
        return item

    # Answers

    def take_answer(self, answer: Answer) -> None:
        item = self.flow.awaited(answer.key, answer.step)
        assert item is not None
        if answer.array is not None and item.target is not None:
            np.copyto(item.target, answer.array)
        self._accept(item, answer.present, absent=answer.absent > 0)

    def take_gathered(self, key: int, step: int, gathered: Sequence[RankBytes]) -> None:
        item = self.flow.awaited(key, step)
        assert item is not None, f"key {key} is complete without this worker's own contribution"
        item.gathered = gathered
        self._accept(item, item.present, absent=False)

    def _accept(self, item: Contribution, present: int, *, absent: bool) -> None:
        following = self.flow.answer(item.key)
        item.present, item.absent = present, absent
        item.on_result(item)
        if following is not None:
            self._push(following)

    # Traces

    def note_names(self, name: str, slices: Sequence[Slice]) -> None:
        """Record, for traces, that these slices carry the tensor of this name."""
        if self._recorder.is_on and slices:
            keys: dict[int, tuple[str, ...]] = {item.spec.key: (name,) for item in slices}
            self._recorder.record(events.Named(self._recorder.clock(), "calls", slices[0].spec.op.name.lower(), keys))
