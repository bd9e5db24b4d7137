"""One row for everything that travels: how, how many bytes, how long it queued, travelled and was waited for.

In: a trace whose wires are matched, its counted steps, who waited for what.  Out: rows that add up to the trace's sums.
Tiny tensors that travel in one slice are one row: nobody knows their parts of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from undertow.plan.plan import Choice, Plan
from undertow.plan.planner import show_bytes
from undertow.plan.scheme import Scheme
from undertow.timeline.model import Trace, Wire


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Totals are of all ranks and counted steps together."""

    tensors: tuple[str, ...]
    scheme: str
    total_bytes: int  # out: contributions and the shards' answers
    total_slices: int
    queued_mean_ns: float | None
    queued_longest_ns: int | None
    wire_mean_ns: float | None
    wire_longest_ns: int | None
    waited_total_ns: int
    reason: str


class _Tally:
    """Of one row, while it grows."""

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
    """In the order in which the tensors are needed, if a plan tells it; what is no tensor comes last."""
    tallies = _add_up(trace, steps)
    waited = _assign(waited_ns, tallies)
    choices = {} if trace.planned is None else {choice.tensor: choice for choice in trace.planned.plan.choices}
    rows = [
        _make_row(tensors, tallies.get(tensors, _Tally()), waited.get(tensors, 0), _find_way(trace, tensors, choices))
        for tensors in dict.fromkeys([*tallies, *waited])
    ]
    order = {name: place for place, name in enumerate(choices)}
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
    """A tensor's waiting goes to the row that it travels in; what does not travel has a row as well."""
    home = {name: tensors for tensors in tallies for name in tensors}
    waited: Counter[tuple[str, ...]] = Counter()
    for name, length_ns in waited_ns.items():
        waited[home.get(name, (name,))] += length_ns
    return waited


def _make_row(tensors: tuple[str, ...], tally: _Tally, waited_ns: int, way: tuple[str, str]) -> TensorRow:
    scheme, reason = way
    if tally.reduced_bytes:
        scheme = Scheme.ALLREDUCE.value
        reason = f"{show_bytes(tally.reduced_bytes)} summed by torch; what it sends for that is not recorded"
    elif not tally.slices:
        scheme, reason = "–", "nothing that travels; it was only waited for"
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


def _find_way(trace: Trace, tensors: tuple[str, ...], choices: Mapping[str, Choice]) -> tuple[str, str]:
    """The scheme and why, in words."""
    choice = next((choices[name] for name in tensors if name in choices), None)
    if choice is not None:
        fused = "; several tiny tensors in one slice" if len(tensors) > 1 else ""
        return choice.scheme.value, choice.reason + fused
    if trace.planned is not None:
        return Scheme.DENSE.value, "not in the plan: a buffer, or something that undertow itself sends"
    if trace.world_size == 1:
        return Scheme.DENSE.value, "one worker sends nothing"
    return Scheme.DENSE.value, "no plan in the trace: a small model, or the record ended before there was one"


def find_savings(plan: Plan, rows: Iterable[TensorRow], rounds: int, itemsizes: Mapping[str, int]) -> dict[str, float]:
    """Bytes of one worker and step that each tensor saves that travels otherwise than whole.

    Both in what was really sent and in what a dense gradient would have sent.  `rounds` is ranks times steps.
    """
    sent = {row.tensors[0]: row.total_bytes / rounds for row in rows if len(row.tensors) == 1 and row.total_slices}
    share = 2 * (plan.workers - 1) / plan.workers
    savings = {}
    for choice in plan.choices:
        if choice.scheme in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.ROWS) and choice.tensor in sent:
            size_bytes = itemsizes.get(choice.tensor, 4)
            for length in choice.shape:
                size_bytes *= length
            savings[choice.tensor] = share * size_bytes - sent[choice.tensor]
    return {name: saved for name, saved in savings.items() if saved > 0}


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
