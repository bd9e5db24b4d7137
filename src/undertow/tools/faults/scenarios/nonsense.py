"""Frames that make no sense, or come from an old job: they are dropped and counted, and change nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from undertow.engine.coordinator import messages
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import Header, Kind
from undertow.engine.core.membership import Loss
from undertow.engine.core.rounds import KeySpec
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.network import Sent, draw_prefix
from undertow.tools.faults.sums import Summer, Table, check_all_done, make_tables
from undertow.tools.faults.whole_job import WholeJob, check_named, rehearse
from undertow.tools.faults.worker import Script

MOST_FRAMES, MOST_LATE_FRAMES = 20, 30
# A heartbeat has no content that could be wrong.  Pulling twice is allowed: both pulls are answered, and if the puller
# drops an answer, the credit for it never returns to the shard.
HARMLESS = (Kind.HEARTBEAT, Kind.PULL)
NEXT_JOB = 8


class RoguePeer:
    """Peer that knows the token, and sends nonsense between its worker's own frames.

    None of its frames is valid for the receiver, so each must be dropped and counted, and change nothing.
    """

    def __init__(self, cluster: Cluster, rank: int, tables: list[Table], dice: random.Random) -> None:
        self.rank = rank
        self.sent = 0
        self._cluster = cluster
        self._tables = tables
        self._dice = dice
        cluster.invariants.may_drop = True
        if cluster.network.record is None:
            cluster.network.record = []

    def send_nonsense(self) -> None:
        peer = self._dice.choice([rank for rank in range(self._cluster.size) if rank != self.rank])
        sent = self._dice.choice(self._list_kinds())(peer)
        self._cluster.note(f"rank {self.rank} sends nonsense to {sent[1]}: {frames.unpack(sent[2])}")
        self.sent += self._cluster.network.inject(sent)

    def _list_kinds(self) -> list[Callable[[int], Sent]]:
        kinds: list[Callable[[int], Sent]] = [
            self._unknown_key,
            self._garbled_control,
            self._senseless_control,
            self._stranger,
            self._acknowledgement,
        ]
        return kinds + [self._misfit] * 3 * bool(self._specs()) + [self._repeat] * 4 * bool(self._slices_sent())

    def _specs(self) -> list[KeySpec]:
        return [item.spec for table in self._tables for item in table.slices]

    def _slices_sent(self) -> list[Sent]:
        """Return sent frames whose repetition is dropped; repeated requests and confirmations are harmless."""
        kinds = (Kind.PUSH, Kind.RESULT, Kind.VALUE)
        record = self._cluster.network.record or []
        return [sent for sent in record if sent[0] == self.rank and frames.unpack(sent[2]).kind in kinds]

    def _frame(self, peer: int, kind: Kind, body: bytes | None = None, **fields: Any) -> Sent:
        header = Header(kind, **{"rank": self.rank, "job": self._cluster.job, "length": len(body or b""), **fields})
        return self.rank, peer, frames.pack(header, fields.get("received", 0)), body

    def _unknown_key(self, peer: int) -> Sent:
        kind = self._dice.choice([Kind.PUSH, Kind.RESULT, Kind.VALUE, Kind.PULL])
        body = None if kind is Kind.PULL else bytes(self._dice.randint(1, 99))
        return self._frame(peer, kind, body, key=10**6, step=1, dtype=DType.FLOAT32)

    def _misfit(self, peer: int) -> Sent:
        """Make a frame of an existing key, to or from any rank, with one wrong field."""
        pick, spec = self._dice, self._dice.choice(self._specs())
        kind = pick.choice([Kind.PUSH, Kind.RESULT, Kind.VALUE])
        fields: dict[str, Any] = {"key": spec.key, "step": pick.randint(0, 3), "dtype": spec.dtype, "present": 1}
        body: bytes | None = bytes(spec.size_bytes)
        match pick.choice(["length", "dtype", "step", "no bytes"]):
            case "length":
                body = bytes(spec.size_bytes + pick.choice([-1, 1, 1000]) or 1000)
            case "dtype":
                fields["dtype"] = pick.choice([dtype for dtype in DType if dtype is not spec.dtype])
            case "step":
                fields["step"] = pick.choice([0, 10**6])
            case "no bytes":
                body, fields["step"] = None, pick.choice([0, 10**6])
        return self._frame(peer, kind, body, **fields)

    def _repeat(self, peer: int) -> Sent:
        return self._dice.choice(self._slices_sent())

    def _acknowledgement(self, peer: int) -> Sent:
        return self._frame(peer, Kind.RECEIVED, received=10**12)

    def _stranger(self, peer: int) -> Sent:
        """Make a frame of another job, or in the name of another rank."""
        goodbye = messages.encode(messages.Goodbye("it would be a loss if it were heard"))
        return self._frame(peer, Kind.CONTROL, goodbye, **self._dice.choice([{"job": 99}, {"rank": peer}]))

    def _garbled_control(self, peer: int) -> Sent:
        kind = self._dice.choice([Kind.CONTROL, Kind.CONTROL, Kind.HEARTBEAT])
        return self._frame(peer, kind, self._dice.randbytes(self._dice.randint(1, 60)) + b"\xc1")

    def _senseless_control(self, peer: int) -> Sent:
        choices: list[messages.Message] = [messages.Lost(Loss(99, 0, "so I say")), messages.AgreementResult(4711, b"")]
        message = self._dice.choice(choices)
        if peer != 0 and self._dice.random() < 0.5:
            message = messages.Arrive(1, "barrier", b"")  # to a rank that is not the coordinator
        return self._frame(peer, Kind.CONTROL, messages.encode(message))


def run_nonsense(case: Case) -> None:
    """Check that nonsense from all ranks is dropped and counted, frame by frame, and every sum is right."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    tables = make_tables(cluster)
    rogues = [RoguePeer(cluster, rank, tables, dice) for rank in range(cluster.size)]

    def script(rank: int) -> Script:
        summer = Summer(cluster, rank, tables)
        for wait in summer.train(0, 3):
            if dice.random() < 0.5:
                rogues[rank].send_nonsense()
            yield wait
        yield from summer.worker.agree("barrier")
        yield from summer.pull(3)

    cluster.start_all(lambda worker: worker.train(script(worker.rank)))
    cluster.run()
    check_all_done(cluster, tables)
    sent = sum(rogue.sent for rogue in rogues)
    dropped = sum(worker.group.receiver.dropped.total() for worker in cluster.workers)
    cluster.check(sent == dropped, f"nonsense: {sent} frames were sent, {dropped} dropped")


def run_nonsense_and_death(case: Case) -> None:
    """Check that survivors name a dead or stopped rank, and not another one that sends nonsense."""
    events = rehearse(case, fewest_workers=3)
    cluster, dice = Cluster(case, fewest_workers=3), case.dice
    whole_job = WholeJob(cluster)
    culprit, rank = dice.sample(range(cluster.size), 2)
    rogue = RoguePeer(cluster, rank, whole_job.tables, dice)
    for _ in range(dice.randint(1, MOST_FRAMES)):
        cluster.plan(dice.randrange(events), rogue.send_nonsense)
    if dice.random() < 0.7:
        cluster.plan(dice.randrange(events), lambda: cluster.kill(culprit, draw_prefix(dice)))
    else:
        cluster.invariants.may_be_named = {culprit}
        cluster.plan(dice.randrange(events), lambda: cluster.stop(culprit))
    cluster.run()
    check_named(cluster, {culprit})


def run_repeats(case: Case) -> None:
    """Check that repeated frames of any kind, with their bodies, change no sum and make no rank fail."""
    events = rehearse(case, fewest_workers=2)
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    cluster.invariants.may_drop = True
    record = cluster.network.record = []
    whole_job = WholeJob(cluster)

    def repeat() -> None:
        repeatable = [sent for sent in record if frames.unpack(sent[2]).kind not in HARMLESS]
        if repeatable:
            sent = dice.choice(repeatable[-30:] if dice.random() < 0.5 else repeatable)
            cluster.note(f"rank {sent[0]} sends again to {sent[1]}: {frames.unpack(sent[2])}")
            cluster.network.inject(sent)

    for _ in range(dice.randint(1, MOST_FRAMES)):
        cluster.plan(dice.randrange(events), repeat)
    cluster.run()
    whole_job.check_all_well()


def run_restart(case: Case) -> None:
    """Check that frames of an old job are dropped and counted, and every sum of the new one is right."""
    first, dice = Cluster(case, fewest_workers=2), case.dice
    record = first.network.record = []
    WholeJob(first)
    culprit = dice.randrange(first.size)
    first.plan(dice.randrange(150), lambda: first.kill(culprit, draw_prefix(dice)))
    first.run()
    check_named(first, {culprit})
    _start_again(case, first.size, record)


def _start_again(case: Case, most_workers: int, record: list[Sent]) -> None:
    """Start some of the workers as a new job; the dead worker's host may be missing."""
    cluster, dice = Cluster(case, fewest_workers=2, most_workers=most_workers, job=NEXT_JOB), case.dice
    cluster.invariants.may_drop = True
    whole_job = WholeJob(cluster)
    late = [sent for sent in record if max(sent[:2]) < cluster.size]

    def deliver_one() -> None:
        sent = dice.choice(late)
        cluster.note(f"late frame of the old job from {sent[0]} to {sent[1]}: {frames.unpack(sent[2])}")
        cluster.network.inject(sent)

    for _ in range(dice.randint(1, MOST_LATE_FRAMES) if late else 0):
        cluster.plan(dice.choice([0, dice.randrange(60)]), deliver_one)
    cluster.run()
    whole_job.check_all_well()
    came = cluster.invariants.strangers
    dropped = sum(worker.group.receiver.dropped.total() for worker in cluster.workers)
    cluster.check(came == dropped, f"late frames: {came} came, {dropped} were dropped")
