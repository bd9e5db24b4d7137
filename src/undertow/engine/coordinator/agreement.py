"""Agreements: every rank waits until all ranks have arrived at the same agreement, about the same matter.

In: each rank's arrival.  Out: one result for all ranks: the decision, or the first difference between ranks.
Runs in the coordinator, in rank 0's process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from undertow.decoding import Count, Decoder, Rank
from undertow.engine.coordinator.messages import AgreementResult, Arrive, TableProposal
from undertow.engine.coordinator.terms import Disagreement
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Cut, count_slices
from undertow.errors import Garbled, MismatchError

Decide = Callable[[Sequence[bytes]], bytes]
Latest = tuple[Rank, list[Count], bool]  # rank that stopped last, rounds of each table, whether all stopped there
Difference = tuple[str, list[Rank]]  # first tensor that differs, ranks on which it differs

T = TypeVar("T")
_tables: Decoder[TableProposal] = Decoder(TableProposal)
_digests: Decoder[list[tuple[str, bytes]]] = Decoder(list[tuple[str, bytes]])
_counts: Decoder[list[int]] = Decoder(list[Count])
LATEST: Decoder[Latest] = Decoder(Latest, "the agreement on the last rounds")
DIFFERENCE: Decoder[Difference] = Decoder(Difference, "the agreement on replicas")


class Keys:
    """Allocator of a group's keys, which returns no key twice."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> int:
        """Reserve consecutive keys; return the first."""
        first, self._next = self._next, self._next + count
        return first


class Agreements:
    """Coordinator's side of all agreements of one group.  Not thread-safe."""

    def __init__(self, shape: Shape, keys: Keys) -> None:
        self._shape = shape
        self._keys = keys
        self._name = shape.name
        self._decided = 0  # number of the last decided agreement; a rank arrives at the next one only after it
        self._arrivals: dict[int, dict[int, Arrive]] = {}
        self._failed: AgreementResult | None = None  # first mismatch, after which ranks remain out of step
        self._deciders: dict[str, Decide] = {
            "barrier": lambda payloads: b"",
            "copy": lambda payloads: payloads[0],
            "tensors": self._cut,
            "digest": compare_digests,
            "join": find_latest,
        }

    def expects(self, rank: int, sequence: int) -> bool:
        """Whether a worker may arrive at an agreement, which must be undecided and which it must not have arrived at.

        After a mismatch every worker may, because late ones must learn of it too.
        """
        if rank >= self._shape.workers:
            return False
        is_new = sequence > self._decided and rank not in self._arrivals.get(sequence, ())
        return is_new or self._failed is not None

    def arrive(self, rank: int, arrival: Arrive) -> list[tuple[int, AgreementResult]]:
        """Note an arrival; once there is a result, return it for every rank that waits."""
        if self._failed is not None:
            return [(rank, msgspec.structs.replace(self._failed, sequence=arrival.sequence))]
        present = self._arrivals.setdefault(arrival.sequence, {})
        present[rank] = arrival
        try:
            result = self._find_result(arrival.sequence, present)
        except (MismatchError, Garbled) as error:
            result = self._failed = AgreementResult(arrival.sequence, b"", _describe(error, arrival.matter))
        if result is None:
            return []
        del self._arrivals[arrival.sequence]
        self._decided = arrival.sequence
        return [(waiting, result) for waiting in sorted(present)]

    def waits_for(self, rank: int) -> str | None:
        """Return the matter of an agreement in which others wait for this rank; None if there is none."""
        if rank >= self._shape.workers:
            return None
        for present in self._arrivals.values():
            if rank not in present:
                return next(iter(present.values())).matter
        return None

    def _find_result(self, sequence: int, present: dict[int, Arrive]) -> AgreementResult | None:
        first = min(present)
        matter = present[first].matter
        for rank, arrival in sorted(present.items()):
            if arrival.matter != matter:
                one, other = self._name(first), self._name(rank)
                raise MismatchError(
                    f"ranks do different things: rank {one} is at {matter!r}, rank {other} at {arrival.matter!r}. "
                    "All ranks must run the same calls in the same order",
                    matter=matter,
                    ranks=(one, other),
                )
        if len(present) < self._shape.workers:
            return None
        payloads = [present[rank].payload for rank in range(self._shape.workers)]
        if matter not in self._deciders:
            raise MismatchError(
                f"ranks come to {matter!r}, which rank 0 does not know: install the same undertow on all",
                matter=matter,
                ranks=(self._name(0),),
            )
        return AgreementResult(sequence, self._deciders[matter](payloads))

    def _cut(self, payloads: Sequence[bytes]) -> bytes:
        tables = _decode_all(_tables, payloads)
        compare_tables({self._name(rank): table for rank, table in enumerate(tables)})
        total = sum(tensor.size_bytes for tensor in tables[0].tensors)
        slice_bytes = self._shape.sizes.choose(total, shards=self._shape.shards)
        first_key = self._keys.take(max(tables[0].keys, count_slices(tables[0].tensors, slice_bytes)))
        return msgspec.msgpack.encode(Cut(first_key, slice_bytes))


def compare_tables(tables: Mapping[int, TableProposal]) -> None:
    """Raise `MismatchError` with the first tensor that is not the same on all ranks."""
    first, ours = next(iter(tables.items()))
    for rank, theirs in tables.items():
        tensor, difference = _find_difference(ours, theirs)
        if difference:
            message = f"ranks {first} and {rank} {difference}"
            raise MismatchError(message, matter=ours.label, tensor=tensor, ranks=(first, rank))


def _find_difference(ours: TableProposal, theirs: TableProposal) -> tuple[str, str]:
    """Return the first tensor that differs, or an empty string, and a description of the difference, if any."""
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if mine != other:
            return mine.name, f"hold different tensors in {ours.label}: {mine} against {other}"
    counts = len(ours.tensors), len(theirs.tensors)
    if counts[0] != counts[1]:
        extra = max(ours.tensors, theirs.tensors, key=len)[min(counts)]
        difference = f"hold {counts[0]} and {counts[1]} tensors in {ours.label}; the first that is not on both"
        return extra.name, f"{difference} is {extra}"
    if (ours.label, ours.op, ours.keep) != (theirs.label, theirs.op, theirs.keep):
        return "", f"register different tables: {_describe_table(ours)} against {_describe_table(theirs)}"
    return "", ""


def _describe_table(table: TableProposal) -> str:
    return f"{table.label} ({table.op.name.lower()}{', kept' if table.keep else ''})"


def compare_digests(payloads: Sequence[bytes]) -> bytes:
    """Return, encoded, the first tensor whose digest differs and the ranks where it does; empty if none does."""
    digests = _decode_all(_digests, payloads)
    for index, (name, _) in enumerate(digests[0]):
        values = [digest[index][1] if index < len(digest) else b"" for digest in digests]
        common = Counter(values).most_common(1)[0][0]
        different = [rank for rank, value in enumerate(values) if value != common]
        if different:
            return msgspec.msgpack.encode((name, different))
    return b""


def find_latest(payloads: Sequence[bytes]) -> bytes:
    """Return the round after which the last rank ran out of input, encoded as `Latest`: all ranks resume after it."""
    counts = _decode_all(_counts, payloads)
    for rank, count in enumerate(counts):
        if len(count) != len(counts[0]):
            text = f"rank 0 has {len(counts[0])} tables of tensors, rank {rank} has {len(count)}"
            raise MismatchError(text, matter="join", ranks=(0, rank))
    last = max(range(len(counts)), key=lambda rank: counts[rank])
    is_even = all(count == counts[last] for count in counts)
    # The maximum for each table, because a rank may have discarded a table that is no longer used.
    return msgspec.msgpack.encode((last, [max(steps) for steps in zip(*counts, strict=True)], is_even))


def _describe(error: MismatchError | Garbled, matter: str) -> Disagreement:
    if isinstance(error, MismatchError):
        return Disagreement(str(error), error.matter, error.tensor, error.ranks)
    return Disagreement(str(error), matter)


def _decode_all(decoder: Decoder[T], payloads: Sequence[bytes]) -> list[T]:
    """Decode the payloads of all ranks; raise `Garbled` with the rank whose payload cannot be read."""
    found = []
    for rank, payload in enumerate(payloads):
        try:
            found.append(decoder.decode(payload))
        except Garbled as error:
            raise Garbled(f"the payload of rank {rank} for an agreement cannot be read: {error}") from None
    return found
