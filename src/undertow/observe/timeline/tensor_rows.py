"""Figures of each tensor: its scheme, its bytes, and how long it was queued, on the wire and waited for.

In: a trace whose wires are matched, its counted steps, the waits by tensor.  Out: rows that add up to the trace's sums.
Tiny tensors that share a slice share a row, because their times cannot be separated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from undertow.observe.timeline.run_trace import Trace, Wire
from undertow.plan.plan import Choice, Plan
from undertow.plan.scheme import Scheme, count_dense_traffic
from undertow.units import format_bytes


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one tensor, or of a fused slice, over all ranks and counted steps."""

    tensors: tuple[str, ...]
    scheme: str
    total_bytes: int  # sent as contributions and as answers of shards
    total_slices: int
    queued_mean_ns: float | None
    queued_longest_ns: int | None
    wire_mean_ns: float | None
    wire_longest_ns: int | None
    waited_total_ns: int
    reason: str


class _Tally:
    """Sums of one row."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.slices = 0
        self.queued_ns: list[int] = []
        self.wire_ns: list[int] = []
        self.reduced_bytes = 0

    def add(self, wire: Wire) -> None:
        self.size_bytes += wire.size_bytes
        self.slices += 1
        if wire.waited_ns is not None:
            self.queued_ns.append(wire.waited_ns)
        if wire.wire_ns is not None:
            self.wire_ns.append(wire.wire_ns)


def make_rows(trace: Trace, steps: Collection[int], waited_ns: Mapping[str, int]) -> list[TensorRow]:
    """Make the rows in the order of the plan; rows without a planned tensor come last."""
    tallies = _add_up(trace, steps)
    waited = _assign(waited_ns, tallies)
    choices = {} if trace.planned is None else {choice.tensor: choice for choice in trace.planned.plan.choices}
    rows = [
        _make_row(
            tensors, tallies.get(tensors, _Tally()), waited.get(tensors, 0), _find_scheme(trace, tensors, choices)
        )
        for tensors in dict.fromkeys([*tallies, *waited])
    ]
    order = {name: index for index, name in enumerate(choices)}
    return sorted(rows, key=lambda row: order.get(row.tensors[0] if row.tensors else "", len(order)))


def _add_up(trace: Trace, steps: Collection[int]) -> dict[tuple[str, ...], _Tally]:
    tallies: dict[tuple[str, ...], _Tally] = {}
    for rank in trace.ranks.values():
        for wire in rank.outs:
            if wire.step in steps:
                tallies.setdefault(wire.tensors, _Tally()).add(wire)
        for span in rank.reduced:
            if span.step in steps:
                tallies.setdefault(span.tensors, _Tally()).reduced_bytes += span.size_bytes
    return tallies


def _assign(waited_ns: Mapping[str, int], tallies: Iterable[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Add each tensor's waiting to the row that contains it, or to a row of its own."""
    row_of = {name: tensors for tensors in tallies for name in tensors}
    waited: Counter[tuple[str, ...]] = Counter()
    for name, length_ns in waited_ns.items():
        waited[row_of.get(name, (name,))] += length_ns
    return waited


def _make_row(tensors: tuple[str, ...], tally: _Tally, waited_ns: int, scheme_and_reason: tuple[str, str]) -> TensorRow:
    scheme, reason = scheme_and_reason
    if tally.reduced_bytes:
        scheme = Scheme.ALLREDUCE.value
        reason = f"{format_bytes(tally.reduced_bytes)} summed by torch, whose traffic is not recorded"
    elif not tally.slices:
        scheme, reason = "–", "not a tensor: only waited for"
    return TensorRow(
        tensors=tensors,
        scheme=scheme,
        total_bytes=tally.size_bytes,
        total_slices=tally.slices,
        queued_mean_ns=_mean(tally.queued_ns),
        queued_longest_ns=max(tally.queued_ns, default=None),
        wire_mean_ns=_mean(tally.wire_ns),
        wire_longest_ns=max(tally.wire_ns, default=None),
        waited_total_ns=waited_ns,
        reason=reason,
    )


def _find_scheme(trace: Trace, tensors: tuple[str, ...], choices: Mapping[str, Choice]) -> tuple[str, str]:
    choice = next((choices[name] for name in tensors if name in choices), None)
    if choice is not None:
        fused = "; several tiny tensors in one slice" if len(tensors) > 1 else ""
        return choice.scheme.value, choice.reason + fused
    if trace.planned is not None:
        return Scheme.DENSE.value, "not in the plan: a buffer, or sent by undertow itself"
    if trace.world_size == 1:
        return Scheme.DENSE.value, "one worker sends nothing"
    return Scheme.DENSE.value, "no plan in the trace: a small model, or recording ended before there was one"


def find_savings(plan: Plan, rows: Iterable[TensorRow], rounds: int, itemsizes: Mapping[str, int]) -> dict[str, float]:
    """Return the bytes that each tensor with factors or rows saves, per worker and step.

    Savings are the bytes of a dense gradient minus those that were sent.  `rounds` is ranks * steps.
    """
    sent = {row.tensors[0]: row.total_bytes / rounds for row in rows if len(row.tensors) == 1 and row.total_slices}
    savings = {}
    for choice in plan.choices:
        if choice.scheme in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.ROWS) and choice.tensor in sent:
            size_bytes = itemsizes.get(choice.tensor, 4) * math.prod(choice.shape)
            savings[choice.tensor] = count_dense_traffic(size_bytes, plan.workers) - sent[choice.tensor]
    return {name: saved for name, saved in savings.items() if saved > 0}


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
