"""Where all ranks must come to the same point, with the same matter, before any goes on.

In: each rank's arrival.  Out: one verdict for all: what was agreed on, or in words
what differs between which ranks.  It runs in the coordinator, which lives with rank 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from undertow.coordinator.messages import Arrive, Table, Verdict
from undertow.core.decoding import Count, Decoder, Rank
from undertow.errors import Garbled, MismatchError
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, count_slices

Decide = Callable[[Sequence[bytes]], bytes]
Latest = tuple[Rank, list[Count], bool]  # who stopped last, after how many rounds of each table, and whether all did
Difference = tuple[str, list[Rank]]  # the first tensor that differs, and where

T = TypeVar("T")
_tables: Decoder[Table] = Decoder(Table)
_digests: Decoder[list[tuple[str, bytes]]] = Decoder(list[tuple[str, bytes]])
_counts: Decoder[list[int]] = Decoder(list[Count])
_latest: Decoder[tuple[int, list[int], bool]] = Decoder(Latest, "the agreement on the last rounds")
_differences: Decoder[tuple[str, list[int]]] = Decoder(Difference, "the agreement on replicas")


class Keys:
    """The keys of one group.  None is ever given away twice."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> int:
        """So many keys in a row; returns the first."""
        first, self._next = self._next, self._next + count
        return first


class Agreements:
    """All agreements of one group.  Not thread-safe."""

    def __init__(
        self, size: int, *, sizes: Sizes, keys: Keys | None = None, name: Callable[[int], int] = lambda rank: rank
    ) -> None:
        """`name` gives the number by which messages call a rank."""
        self._size = size
        self._sizes = sizes
        self._keys = keys or Keys()
        self._name = name
        self._decided = 0  # the last agreement; a rank comes to the next one only after it
        self._arrivals: dict[int, dict[int, Arrive]] = {}
        self._failed: Verdict | None = None  # after a mismatch ranks are out of step for good
        self._deciders: dict[str, Decide] = {
            "barrier": lambda payloads: b"",
            "copy": lambda payloads: payloads[0],
            "tensors": self._cut,
            "digest": compare_digests,
            "join": latest,
        }

    def expects(self, rank: int, sequence: int) -> bool:
        """Whether this rank may come to that agreement: not one that is over, and not twice.

        After a mismatch everybody may: those who come late must hear of it, too.
        """
        is_new = sequence > self._decided and rank not in self._arrivals.get(sequence, ())
        return is_new or self._failed is not None

    def arrive(self, rank: int, arrival: Arrive) -> list[tuple[int, Verdict]]:
        """Returns the verdict for every rank that waits, once there is one."""
        if self._failed is not None:
            return [(rank, msgspec.structs.replace(self._failed, sequence=arrival.sequence))]
        present = self._arrivals.setdefault(arrival.sequence, {})
        present[rank] = arrival
        try:
            verdict = self._verdict(arrival.sequence, present)
        except (MismatchError, Garbled) as error:
            verdict = self._failed = Verdict(arrival.sequence, b"", str(error))
        if verdict is None:
            return []
        del self._arrivals[arrival.sequence]
        self._decided = arrival.sequence
        return [(waiting, verdict) for waiting in sorted(present)]

    def waits_for(self, rank: int) -> str | None:
        """What the others wait for, if they wait for this rank."""
        for present in self._arrivals.values():
            if rank not in present:
                return next(iter(present.values())).matter
        return None

    def _verdict(self, sequence: int, present: dict[int, Arrive]) -> Verdict | None:
        first = min(present)
        matter = present[first].matter
        for rank, arrival in sorted(present.items()):
            if arrival.matter != matter:
                raise MismatchError(
                    f"ranks do different things: rank {self._name(first)} is at {matter!r}, "
                    f"rank {self._name(rank)} at {arrival.matter!r}. "
                    "All ranks must run the same calls in the same order"
                )
        if len(present) < self._size:
            return None
        payloads = [present[rank].payload for rank in range(self._size)]
        if matter not in self._deciders:
            raise MismatchError(
                f"ranks come to {matter!r}, which rank 0 does not know: install the same undertow on all"
            )
        return Verdict(sequence, self._deciders[matter](payloads))

    def _cut(self, payloads: Sequence[bytes]) -> bytes:
        tables = _decode_all(_tables, payloads)
        compare_tables({self._name(rank): table for rank, table in enumerate(tables)})
        total = sum(tensor.elements * tensor.dtype.numpy.itemsize for tensor in tables[0].tensors)
        slice_bytes = self._sizes.choose(total, shards=self._size)
        first_key = self._keys.take(max(tables[0].keys, count_slices(tables[0].tensors, slice_bytes)))
        return msgspec.msgpack.encode(Cut(first_key, slice_bytes))


def compare_tables(tables: Mapping[int, Table]) -> None:
    """Raise `MismatchError` naming the first tensor that is not the same on all ranks."""
    first, ours = next(iter(tables.items()))
    for rank, theirs in tables.items():
        for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
            if mine != other:
                raise MismatchError(
                    f"ranks {first} and {rank} hold different tensors in {ours.label}: {mine} against {other}"
                )
        if len(ours.tensors) != len(theirs.tensors):
            longer = max(ours.tensors, theirs.tensors, key=len)
            extra = longer[min(len(ours.tensors), len(theirs.tensors))]
            raise MismatchError(
                f"ranks {first} and {rank} hold {len(ours.tensors)} and {len(theirs.tensors)} tensors in {ours.label}; "
                f"the first that is not on both is {extra}"
            )
        if (ours.label, ours.op, ours.keep) != (theirs.label, theirs.op, theirs.keep):
            raise MismatchError(f"rank {first} registers {ours.label}, rank {rank} registers {theirs.label}")


def compare_digests(payloads: Sequence[bytes]) -> bytes:
    """The reply names the first tensor whose digest differs and who differs, if any."""
    digests = _decode_all(_digests, payloads)
    for index, (name, _) in enumerate(digests[0]):
        values = [digest[index][1] if index < len(digest) else b"" for digest in digests]
        common = Counter(values).most_common(1)[0][0]
        different = [rank for rank, value in enumerate(values) if value != common]
        if different:
            return msgspec.msgpack.encode((name, different))
    return b""


def latest(payloads: Sequence[bytes]) -> bytes:
    """Ranks that ran out of input go on together where the last of them stopped."""
    counts = _decode_all(_counts, payloads)
    for rank, count in enumerate(counts):
        if len(count) != len(counts[0]):
            raise MismatchError(f"rank 0 has {len(counts[0])} tables of tensors, rank {rank} has {len(count)}")
    last = max(range(len(counts)), key=lambda rank: counts[rank])
    is_even = all(count == counts[last] for count in counts)
    # Table by table: a rank may have forgotten one that is used no more.
    return msgspec.msgpack.encode((last, [max(steps) for steps in zip(*counts, strict=True)], is_even))


def decode_latest(reply: bytes) -> tuple[int, list[int], bool]:
    """Decode who stopped last, after how many rounds of each table, and whether all stopped there."""
    return _latest.decode(reply)


def decode_difference(reply: bytes) -> tuple[str, list[int]]:
    """The first tensor that differs, and the ranks where it does."""
    return _differences.decode(reply)


def _decode_all(decoder: Decoder[T], payloads: Sequence[bytes]) -> list[T]:
    """Decode what all ranks bring; raises `Garbled` with the rank whose payload cannot be read."""
    found = []
    for rank, payload in enumerate(payloads):
        try:
            found.append(decoder.decode(payload))
        except Garbled as error:
            raise Garbled(f"what rank {rank} brings to an agreement cannot be read: {error}") from None
    return found
