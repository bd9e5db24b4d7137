"""Frames that make no sense, from a peer that knows the token: dropped and counted, nothing else."""

from __future__ import annotations

import random
from typing import Any

from tests.faults.cluster import Cluster, Script
from tests.faults.workload import Rank, Table, check_all_answered, random_tables
from undertow.coordinator import messages
from undertow.core import frames
from undertow.core.dtypes import DType
from undertow.core.frames import Header, Kind

SEEDS = 120
Sent = tuple[int, bytes, bytes | None]


class Babbler:
    """Speaks nonsense to a worker's peers in between that worker's own frames."""

    def __init__(self, cluster: Cluster, rank: int, tables: list[Table]) -> None:
        self.said = 0
        self._cluster = cluster
        self._rank = rank
        self._specs = [item.spec for table in tables for item in table.slices]
        self._sent: list[Sent] = []
        self._send = cluster.network.transports[rank].send
        cluster.network.transports[rank].send = self._record  # type: ignore[method-assign]

    def speak(self) -> None:
        peer = self._cluster.random.choice([rank for rank in range(self._cluster.size) if rank != self._rank])
        kinds = [
            self._unknown_key,
            self._garbled_control,
            self._senseless_control,
            self._stranger,
            self._acknowledgement,
        ]
        kinds += [self._misfit] * 3 * bool(self._specs) + [self._replay] * 4 * bool(self._sent)
        peer, header, body = self._cluster.random.choice(kinds)(peer, self._cluster.random)
        self._cluster.tell(f"rank {self._rank} babbles to {peer}: {frames.unpack(header)}")
        self._send(peer, header, body)
        self.said += 1

    def _record(self, peer: int, header: bytes, body: Any = None) -> None:
        # Asking again or confirming again is harmless and not dropped.
        if frames.unpack(header).kind in (Kind.PUSH, Kind.RESULT, Kind.VALUE):
            self._sent.append((peer, header, None if body is None else bytes(body)))
        self._send(peer, header, body)

    def _frame(self, peer: int, kind: Kind, body: bytes | None = None, **fields: Any) -> Sent:
        header = Header(kind, **{"rank": self._rank, "job": 7, "length": len(body or b""), **fields})
        return peer, frames.pack(header, fields.get("received", 0)), body

    def _unknown_key(self, peer: int, pick: random.Random) -> Sent:
        kind = pick.choice([Kind.PUSH, Kind.RESULT, Kind.VALUE, Kind.PULL])
        body = None if kind is Kind.PULL else bytes(pick.randint(1, 99))
        return self._frame(peer, kind, body, key=10**6, step=1, dtype=DType.FLOAT32)

    def _misfit(self, peer: int, pick: random.Random) -> Sent:
        """About a key that exists: wrong in one field, to or from its owner or somebody else."""
        spec = pick.choice(self._specs)
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

    def _replay(self, peer: int, pick: random.Random) -> Sent:
        return pick.choice(self._sent)

    def _acknowledgement(self, peer: int, pick: random.Random) -> Sent:
        return self._frame(peer, Kind.RECEIVED, received=10**12)

    def _stranger(self, peer: int, pick: random.Random) -> Sent:
        """A frame of another job, or in the name of somebody else."""
        goodbye = messages.encode(messages.Goodbye("it would be a loss if it were heard"))
        return self._frame(peer, Kind.CONTROL, goodbye, **pick.choice([{"job": 8}, {"rank": peer}]))

    def _garbled_control(self, peer: int, pick: random.Random) -> Sent:
        kind = pick.choice([Kind.CONTROL, Kind.CONTROL, Kind.HEARTBEAT])
        return self._frame(peer, kind, pick.randbytes(pick.randint(1, 60)) + b"\xc1")

    def _senseless_control(self, peer: int, pick: random.Random) -> Sent:
        message = pick.choice([messages.Lost(99, "so I say"), messages.Verdict(4711, b"")])
        if peer != 0 and pick.random() < 0.5:
            message = messages.Arrive(1, "barrier", b"")  # to one that is not the coordinator
        return self._frame(peer, Kind.CONTROL, messages.encode(message))


def test_nonsense_is_dropped_and_counted_and_every_sum_is_right(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2)
    tables = random_tables(cluster, most=2)
    babblers = [Babbler(cluster, rank, tables) for rank in range(cluster.size)]

    def script(rank: int) -> Script:
        worker = Rank(cluster, rank, tables)
        for condition in worker.train(0, 3):
            if cluster.random.random() < 0.5:
                babblers[rank].speak()
            yield condition
        yield from cluster.agree(rank, "barrier")
        yield from worker.pull(3)

    for rank in range(cluster.size):
        cluster.start(rank, script(rank))
    cluster.run()
    check_all_answered(cluster, tables)
    for group in cluster.groups:
        cluster.check(group.waiters.error is None, f"rank {group.rank} failed")
    said, dropped = sum(b.said for b in babblers), sum(group.dropped.total() for group in cluster.groups)
    cluster.check(said == dropped, f"{said} frames of nonsense, {dropped} dropped")
