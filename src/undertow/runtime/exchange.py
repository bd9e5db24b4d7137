"""Stages 4 to 8 in the engine thread: slices out, results in, credit back.

In: contributions of this worker, frames of slices from the peers.
Out: frames to the peers, results in the contributions' own memory.
What to do is decided by the flow, the shard and the outbox; here it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from undertow.core import frames
from undertow.core.flow import Contribution, Flow
from undertow.core.frames import ABSENT, RECEIPT, WANTS, Body, Header, Kind
from undertow.core.outbox import Outbox, Parcel, count_for
from undertow.core.rate import Rate
from undertow.core.rounds import EVERYONE, Array, KeySpec, Op, Round, view_bytes
from undertow.plan.slicing import Slice
from undertow.runtime.helper import Owed
from undertow.runtime.pool import Memory, Pool
from undertow.runtime.shape import Shape
from undertow.settings import Priority
from undertow.store.gathering import Gathering, Piece
from undertow.store.shard import Answer, MakeRound, Shard, Unexpected, check_body
from undertow.trace import notes
from undertow.trace.recorder import Recorder, here
from undertow.wire.transport import Transport

MOST_PIECE_BYTES = 1 << 32  # no honest piece of one tensor is larger
# Looked up once: these are asked for with every frame.
_PUSH, _PULL, _RECEIVED = Kind.PUSH, Kind.PULL, Kind.RECEIVED


class Exchange:
    """This worker's side of all rounds, and its shard.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        memory: Memory | None = None,
        make_round: MakeRound = Round,
        pack: Callable[[Header, int, int, Any], Any] = frames.pack,
        recorder: Recorder = here,
    ) -> None:
        self.owed = Owed()
        self.step = 0  # the latest round that this worker has begun, for messages
        self._shape = shape
        self._rank = shape.rank
        self._transport = transport
        self._pack = pack
        self._recorder = recorder
        self._coming_s: dict[int, float] = {}  # of each peer since when its current slice comes, while that is noted
        self._memory = Pool() if memory is None else memory
        self._flow = Flow()
        self._shard = Shard(shape.size, self._memory.give, make_round)
        self._gathering = Gathering(shape.size)
        self.rate = Rate()
        self._clock = clock
        self._largest_bytes = 0  # of all slices ever
        credit_bytes = shape.credit_bytes or shape.credit_slices * shape.sizes.start
        self._outbox = Outbox(credit_bytes, shape.size)
        self._priorities: dict[int, int] = {}
        self._receipt = Header(Kind.RECEIVED, rank=shape.rank, job=shape.job)
        # Of each peer.
        self._received_bytes = count_for(shape.size)
        self._acknowledged_bytes = count_for(shape.size)

    # What this worker wants

    def learn(self, slices: Sequence[Slice]) -> None:
        self._expect_size(max((item.spec.size_bytes for item in slices), default=0))
        self._flow.add(item.spec for item in slices)
        specs = [item.spec for item in slices]
        self._shard.own(spec for spec in specs if spec.shard == self._rank and spec.op is not Op.GATHER)
        self._gathering.disown(spec.key for spec in specs)
        self._gathering.own(spec for spec in specs if spec.shard in (self._rank, EVERYONE) and spec.op is Op.GATHER)

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        for contribution in contributions:
            ready = self._flow.contribute(contribution)
            if ready is not None:
                self._push(ready)
        self.pump()

    def is_idle(self, keys: range) -> bool:
        """Whether nothing that this worker has begun will still contribute to these keys."""
        return self.owed.is_nothing and not self._flow.uses(keys)

    def forget(self, keys: range) -> None:
        """No worker uses these keys any more."""
        self._flow.forget(keys)
        self._shard.forget(keys)
        self._gathering.disown(keys)
        for key in keys:
            self._priorities.pop(key, None)

    def free_memory(self) -> None:
        """Let go of memory that is kept for contributions to come: those to come have other sizes."""
        self._memory.clear()

    def resize(self, slice_bytes: int) -> None:
        """Slices that fit the link have this size from now on: the credit follows."""
        if not self._shape.credit_bytes:
            # Slices of tables that keep their size may be larger.
            self._set_credit(max(self._shape.credit_slices * slice_bytes, 2 * self._largest_bytes))
            self.pump()

    def release(self, pieces: Sequence[Piece]) -> None:
        """The worker has made use of these."""
        for piece in pieces:
            if piece.array is not None:
                self._memory.give(piece.array)

    def join(self, rank: int, keys: Sequence[int], step: int, *, divide_by_active: bool) -> None:
        """A worker ran out of input after round `step`: the rounds of these keys go on without it.

        It has had the answers of all its rounds before: this news would overtake a push.
        """
        self._answer(self._shard.join(rank, keys, step, divide_by_active=divide_by_active))
        self.pump()

    def resume(self, keys: Sequence[int], step: int) -> None:
        # One number is left out: what a worker said when it ran out of input may come after the
        # verdict, which takes another link, and is known as old by the number in it.
        self._flow.resume(keys, step + 1)
        self._shard.rejoin(keys, step + 1)

    def round_of(self, key: int) -> int:
        return self._flow.step(key)

    # Frames

    def sink(self, peer: int, header: Header) -> Array:
        """Where the body of this slice belongs; `Unexpected` if it makes no sense."""
        if self._recorder.is_on:
            self.note_coming(peer, self._recorder.clock())
        if header.kind is Kind.PUSH and self._gathering.knows(header.key):
            self._gathering.expects(peer, header.key, header.step)
            if header.length > MOST_PIECE_BYTES:
                raise Unexpected(f"a piece of {header.length} bytes for key {header.key}")
            return self._memory.take(header.length)
        if header.kind is Kind.PUSH:
            spec = self._shard.expects(peer, header.key, header.step)
            check_body(header, spec)
            return self._memory.take(spec.size_bytes)
        item = self._awaited(peer, header)
        check_body(header, self._flow.spec(header.key))
        if item.target is None:
            raise Unexpected(f"a result of key {header.key} that was not wanted")
        return view_bytes(item.target)

    def handle(self, peer: int, header: Header, body: Array | None) -> None:
        """A frame of a slice, or about one, is complete."""
        self._received_bytes[peer] += header.length
        if not self._outbox.acknowledge(peer, header.received):
            raise Unexpected(f"rank {peer} says that it received {header.received} bytes, which it cannot have")
        kind = header.kind
        if self._recorder.is_on and kind is not _RECEIVED:
            self._note_received(peer, header)
        if kind is _PUSH:
            self._take_push(peer, header, body)
        elif kind is _PULL:
            self._answer([self._shard.pull(peer, header.key, header.step)], Kind.VALUE)
        elif kind is not _RECEIVED:
            self._accept(self._awaited(peer, header), header.present, absent=bool(header.flags & ABSENT))
        self.pump()
        self.rate.note(self._clock(), self._outbox.received_bytes, is_waiting=len(self._outbox) > 0)
        # Credit travels back with the next frame to that peer, or alone where the peer is short of it.
        if header.flags & RECEIPT and self._received_bytes[peer] > self._acknowledged_bytes[peer]:
            self._send(peer, self._receipt, None)

    def pump(self) -> None:
        """Send what the credit allows."""
        while (parcel := self._outbox.take()) is not None:
            flags = RECEIPT if self._outbox.wants_receipt(parcel) else 0
            if self._recorder.is_on:
                self._note_sent(parcel)
            self._send(parcel.peer, parcel.header, parcel.body, flags)

    def _expect_size(self, size_bytes: int) -> None:
        if size_bytes > self._largest_bytes:
            self._largest_bytes = size_bytes
            self._set_credit(self._outbox.credit_bytes)

    def _set_credit(self, credit_bytes: int) -> None:
        self._outbox.resize(credit_bytes, self._largest_bytes)
        if self._outbox.in_flight_bytes:
            for peer in self._shape.peers:
                self._send(peer, self._receipt, None, RECEIPT)  # what left under the old rule may not have asked

    def _send(self, peer: int, header: Header, body: Body | None, flags: int = 0) -> None:
        received = self._acknowledged_bytes[peer] = self._received_bytes[peer]
        checked_body = body if self._transport.checks_bodies(peer) else None
        self._transport.send(peer, self._pack(header, received, flags, checked_body), body and body.data)

    # Questions

    def knows(self, key: int) -> bool:
        return self._flow.knows(key)

    @property
    def is_drained(self) -> bool:
        """Whether nobody needs this worker any more for what it has begun: a round of its own
        shard to which it contributed may still lack the others."""
        return self.owed.is_nothing and not len(self._outbox) and self._flow.pending() is None

    def blocked_by(self, departed: Collection[int]) -> int | None:
        """One of these workers, if something cannot end without it."""
        for blocker in (self._shard.blocked_by(departed), self._gathering.blocked_by(departed)):
            if blocker is not None:
                return blocker
        return self._flow.pending_at(departed)

    def lacks(self, rank: int, spared: Collection[int]) -> bool:
        """Whether a round of this shard waits for the contribution of that worker; `spared` keys do not count."""
        holders = self._shard, self._gathering
        return any(holder.blocked_by([rank], spared) is not None for holder in holders)

    def keys_to_come(self) -> list[int] | None:
        """The keys that this worker will still push, if it begins nothing new; None while some are being sent."""
        return None if len(self._outbox) or not self.owed.is_nothing else self._flow.waiting

    def pending(self) -> tuple[KeySpec, int] | None:
        """A key and round that this worker waits for."""
        item = self._flow.pending()
        return None if item is None else (self._flow.spec(item.key), item.step)

    def missing(self, key: int, step: int) -> list[int]:
        """Whom this shard still waits for."""
        if self._gathering.knows(key):
            return self._gathering.missing(key, step)
        return self._shard.missing(key, step)

    # Inside

    def _push(self, item: Contribution) -> None:
        spec = self._flow.spec(item.key)
        self.step = max(self.step, item.step)
        if self._shape.priority is Priority.BOTH:
            self._priorities[item.key] = item.priority
        if self._recorder.is_on:
            self._recorder.note(notes.Pushed(self._recorder.clock(), item.key, item.step))
        if spec.op is Op.GATHER:
            self._push_piece(item, spec)
        elif spec.is_published:
            if spec.shard == self._rank:
                self._answer(self._shard.publish(self._rank, item.key, item.step, item.source, present=item.present))
        elif spec.shard != self._rank:
            header = self._push_header(Kind.PULL if item.is_pull else Kind.PUSH, item, spec)
            self._outbox.put(self._make_parcel(spec.shard, header, _wrap(item.source)), item.priority)
        elif item.is_pull:
            self._answer([self._shard.pull(self._rank, item.key, item.step)])
        else:
            since_s = self._recorder.clock() if self._recorder.is_on else 0.0
            answers = self._shard.contribute_own(
                self._rank, item.key, item.step, item.source, present=item.present, into=item.target
            )
            self._note_sum(since_s, answers)
            self._answer(answers)

    def _push_piece(self, item: Contribution, spec: KeySpec) -> None:
        header = self._push_header(Kind.PUSH, item, spec)
        self._expect_size(header.length)  # nothing else tells
        peers = self._shape.peers if spec.shard == EVERYONE else [spec.shard]
        body = _wrap(item.source)
        parcels = [self._make_parcel(peer, header, body) for peer in peers if peer != self._rank]
        self._outbox.put_all(parcels, item.priority)
        if spec.shard in (self._rank, EVERYONE):
            self._gather(self._rank, item.key, item.step, Piece(item.source, item.present))

    def _push_header(self, kind: Kind, item: Contribution, spec: KeySpec) -> Header:
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

    def _gather(self, rank: int, key: int, step: int, piece: Piece) -> None:
        pieces = self._gathering.contribute(rank, key, step, piece)
        if pieces is None:
            return
        item = self._flow.awaited(key, step)
        assert item is not None, f"key {key} is complete without this worker's own piece"
        if self._flow.spec(key).shard != EVERYONE:
            done = Header(Kind.RESULT, key, step, self._rank, job=self._shape.job)
            self._put_all([self._make_parcel(peer, done, None) for peer in self._shape.peers])
        item.pieces = pieces
        self._accept(item, item.present, absent=False)

    def _take_push(self, peer: int, header: Header, body: Array | None) -> None:
        if self._gathering.knows(header.key):
            self._gather(peer, header.key, header.step, Piece(body, header.present))
            return
        if body is None and header.present:
            raise Unexpected(f"a contribution to key {header.key} without its bytes")
        array = None if body is None else body.view(header.dtype.numpy)
        wants = bool(header.flags & WANTS)
        since_s = self._recorder.clock() if self._recorder.is_on else 0.0
        answers = self._shard.contribute(peer, header.key, header.step, array, present=header.present, wants=wants)
        self._note_sum(since_s, answers)
        self._answer(answers)

    def _awaited(self, peer: int, header: Header) -> Contribution:
        item = self._flow.awaited(header.key, header.step)
        is_from_shard = item is not None and self._flow.spec(header.key).shard == peer
        if item is None or not is_from_shard or item.is_pull is not (header.kind is Kind.VALUE):
            raise Unexpected(f"a result of round {header.step} of key {header.key} that nobody waits for")
        if not header.length and header.present and item.target is not None:
            raise Unexpected(f"a result of key {header.key} without its bytes")
        return item

    def _answer(self, answers: Sequence[Answer], kind: Kind = Kind.RESULT) -> None:
        """To everybody of one round, or to one."""
        parcels: list[Parcel] = []
        like: Answer | None = None
        for answer in sorted(answers, key=lambda answer: self._shape.distance(answer.rank)):
            if answer.rank == self._rank:
                self._answer_self(answer)
                continue
            if like is None or like.array is not answer.array or like.key != answer.key:
                like, header, body = answer, self._answer_header(kind, answer), _wrap(answer.array)  # the same for most
            if parcels and parcels[-1].header.key != answer.key:
                self._put_all(parcels)
                parcels = []
            parcels.append(self._make_parcel(answer.rank, header, body))
        self._put_all(parcels)

    def _answer_header(self, kind: Kind, answer: Answer) -> Header:
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

    def _answer_self(self, answer: Answer) -> None:
        item = self._flow.awaited(answer.key, answer.step)
        assert item is not None
        if answer.array is not None and item.target is not None:
            np.copyto(item.target, answer.array)
        self._accept(item, answer.present, absent=answer.absent > 0)

    def _accept(self, item: Contribution, present: int, *, absent: bool) -> None:
        if self._recorder.is_on:
            self._recorder.note(notes.Answered(self._recorder.clock(), item.key, item.step))
        following = self._flow.answer(item.key)
        item.present, item.absent = present, absent
        item.on_result(item)
        if following is not None:
            self._push(following)

    def _put_all(self, answers: list[Parcel]) -> None:
        """As urgent as this worker's own contribution to the same key."""
        if answers:
            self._outbox.put_all(answers, self._priorities.get(answers[0].header.key, 0))

    def _make_parcel(self, peer: int, header: Header, body: Body | None) -> Parcel:
        queued_s = self._recorder.clock() if self._recorder.is_on else 0.0
        return Parcel(peer, header, body, header.length, queued_s)

    # What is noted of it

    def note_names(self, name: str, slices: Sequence[Slice]) -> None:
        """These slices carry what is called so."""
        if self._recorder.is_on and slices:
            keys: dict[int, tuple[str, ...]] = {item.spec.key: (name,) for item in slices}
            self._recorder.note(notes.Named(self._recorder.clock(), "calls", slices[0].spec.op.name.lower(), keys))

    def note_coming(self, peer: int, since_s: float) -> None:
        """The body of the next frame of this peer comes since then."""
        self._coming_s[peer] = since_s

    def _note_received(self, peer: int, header: Header) -> None:
        now_s = self._recorder.clock()
        since_s = self._coming_s.pop(peer, now_s)
        self._recorder.note(notes.Received(since_s, now_s, peer, header.kind, header.key, header.step, header.length))

    def _note_sent(self, parcel: Parcel) -> None:
        header, now_s = parcel.header, self._recorder.clock()
        queued_s = parcel.queued_s or now_s  # it was put there before anybody took note
        self._recorder.note(
            notes.Sent(queued_s, now_s, parcel.peer, header.kind, header.key, header.step, header.length)
        )

    def _note_sum(self, since_s: float, answers: Sequence[Answer]) -> None:
        if since_s and answers:
            self._recorder.note(notes.Summed(since_s, self._recorder.clock(), answers[0].key, answers[0].step))


def _wrap(array: Array | None) -> Body | None:
    return None if array is None else Body(view_bytes(array))
