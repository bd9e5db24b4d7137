"""Which steps count, and which are shown.

In: a trace.  Out: `Steps`, with what was left out and why, in words.
A step is complete if every rank whose file is here has it from its begin to its end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from undertow.timeline.model import Step, Trace
from undertow.timeline.words import capitalise, name_ranks, name_steps

# With fewer left than this the first steps are taken along: better some figures than none.
ENOUGH = 3
# Undertow measures in the second and third pass, reports in the fourth, and plans in the fifth; see torch/planning.py.
SETTLING = 5
FIRST = "nothing of a step before it is on its way."


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Numbers in ascending order; `counted` are those that figures are of."""

    complete: tuple[int, ...]
    counted: tuple[int, ...]
    lengths_ns: Mapping[int, float]  # of the counted ones: the mean of all ranks
    shown: Mapping[str, int]  # `median`, `fastest`, `slowest`, and `chosen` if one was asked for
    notes: tuple[str, ...]  # what was left out
    missing: tuple[str, ...]  # what is not there and should be


def choose_steps(trace: Trace, wanted: int | None = None) -> Steps:
    complete, missing = _find_complete(trace)
    counted, notes = _leave_out_first(trace, complete)
    lengths_ns = {number: statistics.fmean(_lengths(trace, number)) for number in counted}
    return Steps(
        complete=complete,
        counted=counted,
        lengths_ns=lengths_ns,
        shown=_choose_shown(lengths_ns, wanted if wanted in complete else None),
        notes=notes,
        missing=missing,
    )


def _find_complete(trace: Trace) -> tuple[tuple[int, ...], tuple[str, ...]]:
    everyone = [
        {number for number, step in rank.steps.items() if step.end_ns > step.begin_ns} for rank in trace.ranks.values()
    ]
    complete = tuple(sorted(number for number in set.intersection(*everyone) if number > 0))
    partial = sorted(number for number in set.union(*everyone) - set(complete) if number > 0)
    if not partial:
        return complete, ()
    without = [rank.rank for rank in trace.ranks.values() if any(number not in rank.steps for number in partial)]
    return complete, (capitalise(f"{name_steps(partial)}: not on {name_ranks(without)}, so not counted."),)


def _leave_out_first(trace: Trace, complete: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Those in which undertow itself measures and plans: they are slower than all that follow."""
    for settled, why in _list_choices(trace, complete):
        if len(settled) == len(complete):
            return tuple(complete), ()
        if len(settled) >= ENOUGH:
            first = name_steps([number for number in complete if number not in settled])
            return tuple(settled), (capitalise(f"{first} left out: {why}"),)
    note = "The first steps, in which undertow measures and plans, are counted as well: there are not enough others."
    return tuple(complete), ((note,) if complete else ())


def _list_choices(trace: Trace, complete: Sequence[int]) -> list[tuple[list[int], str]]:
    """What could be counted and why not the rest, the best first."""
    begins_ns = {number: min(_begins(trace, number)) for number in complete}
    plans_ns = sorted({planned.time_ns for rank in trace.ranks.values() for planned in rank.plans})
    if not plans_ns:
        settled = [number for number in complete if number > (1 if trace.is_simulated else SETTLING)]
        return [
            (settled, FIRST if trace.is_simulated else "in the first steps undertow measures, and computes slower.")
        ]
    after_last = [number for number in complete if number > 1 and begins_ns[number] >= plans_ns[-1]]
    after_first = [number for number in complete if number > 1 and begins_ns[number] >= plans_ns[0]]
    early = "before there is a plan undertow measures, and computes slower. The plan changed later on."
    late = "until the plan in force was made undertow measured and planned."
    return [(after_last, FIRST if after_last[:1] == [2] else late), (after_first, early)]


def _choose_shown(lengths_ns: Mapping[int, float], wanted: int | None) -> dict[str, int]:
    by_length = sorted(lengths_ns, key=lambda number: (lengths_ns[number], number))
    shown = {} if wanted is None else {"chosen": wanted}
    if by_length:
        shown["median"] = by_length[(len(by_length) - 1) // 2]
        shown["fastest"], shown["slowest"] = by_length[0], by_length[-1]
    return {why: number for why, number in shown.items() if number not in _before(shown, why)}


def _before(shown: Mapping[str, int], why: str) -> list[int]:
    names = list(shown)
    return [shown[name] for name in names[: names.index(why)]]


def _lengths(trace: Trace, number: int) -> list[int]:
    return [_step(trace, rank, number).length_ns for rank in trace.ranks]


def _begins(trace: Trace, number: int) -> list[int]:
    return [_step(trace, rank, number).begin_ns for rank in trace.ranks]


def _step(trace: Trace, rank: int, number: int) -> Step:
    return trace.ranks[rank].steps[number]
