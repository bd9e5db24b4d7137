"""A peer that knows the token and speaks nonsense, in between its worker's own frames.

Everything it says makes no sense to whoever hears it, so each frame must be dropped and counted, and change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from undertow.coordinator import messages
from undertow.core import frames
from undertow.core.dtypes import DType
from undertow.core.frames import Header, Kind
from undertow.core.rounds import KeySpec
from undertow.faults.cluster import Cluster
from undertow.faults.network import Sent
from undertow.faults.tables import Table


class Babbler:
    def __init__(self, cluster: Cluster, rank: int, tables: list[Table], dice: random.Random) -> None:
        self.rank = rank
        self.said = 0
        self._cluster = cluster
        self._tables = tables
        self._dice = dice
        cluster.invariants.may_drop = True
        if cluster.network.record is None:
            cluster.network.record = []

    def speak(self) -> None:
        peer = self._dice.choice([rank for rank in range(self._cluster.size) if rank != self.rank])
        sent = self._dice.choice(self._repertoire())(peer)
        self._cluster.tell(f"rank {self.rank} babbles to {sent[1]}: {frames.unpack(sent[2])}")
        self.said += self._cluster.network.inject(sent)

    def _repertoire(self) -> list[Callable[[int], Sent]]:
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
        """Asking again or confirming again is harmless and not dropped."""
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
        """About a key that exists: wrong in one field, to or from its owner or somebody else."""
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
        """A frame of another job, or in the name of somebody else."""
        goodbye = messages.encode(messages.Goodbye("it would be a loss if it were heard"))
        return self._frame(peer, Kind.CONTROL, goodbye, **self._dice.choice([{"job": 99}, {"rank": peer}]))

    def _garbled_control(self, peer: int) -> Sent:
        kind = self._dice.choice([Kind.CONTROL, Kind.CONTROL, Kind.HEARTBEAT])
        return self._frame(peer, kind, self._dice.randbytes(self._dice.randint(1, 60)) + b"\xc1")

    def _senseless_control(self, peer: int) -> Sent:
        choices: list[messages.Message] = [messages.Lost(99, "so I say"), messages.Verdict(4711, b"")]
        message = self._dice.choice(choices)
        if peer != 0 and self._dice.random() < 0.5:
            message = messages.Arrive(1, "barrier", b"")  # to one that is not the coordinator
        return self._frame(peer, Kind.CONTROL, messages.encode(message))
