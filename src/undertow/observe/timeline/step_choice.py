"""Chooses the steps that count and those that are shown.

In: a trace.  Out: `StepChoice`, with sentences on what was left out and why.
A step is complete if every rank with a file has recorded both its beginning and its end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from undertow.errors import name_ranks
from undertow.observe.timeline.run_trace import Trace, name_steps
from undertow.plain_text import capitalise
from undertow.plan.replanner import PASSES

# If fewer steps would remain, the first steps count as well.
ENOUGH = 3
# Undertow reports after `PASSES` passes and plans in the next one.
SETTLING = PASSES + 1
FIRST = "it does not overlap with a previous step."


@dataclass(frozen=True, kw_only=True)
class StepChoice:
    """Numbers of steps, ascending; figures are about the `counted` ones."""

    complete: tuple[int, ...]
    counted: tuple[int, ...]
    lengths_ns: Mapping[int, float]  # of the counted ones: means over the ranks
    shown: Mapping[str, int]  # `median`, `fastest`, `slowest`, and `chosen` if one was requested
    notes: tuple[str, ...]  # what was left out
    missing: tuple[str, ...]  # what a complete trace would have


def choose_steps(trace: Trace, wanted: int | None = None) -> StepChoice:
    complete, missing = _find_complete(trace)
    counted, notes = _leave_out_first(trace, complete)
    lengths_ns = {number: statistics.fmean(step.length_ns for step in trace.list_step(number)) for number in counted}
    return StepChoice(
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
    """Leave out the steps in which undertow measures and plans, because they are slower than later ones."""
    for settled, why in _list_choices(trace, complete):
        if len(settled) == len(complete):
            return tuple(complete), ()
        if len(settled) >= ENOUGH:
            first = name_steps([number for number in complete if number not in settled])
            return tuple(settled), (capitalise(f"{first} left out: {why}"),)
    note = "The first steps, in which undertow measures and plans, count as well, because there are too few others."
    return tuple(complete), ((note,) if complete else ())


def _list_choices(trace: Trace, complete: Sequence[int]) -> list[tuple[list[int], str]]:
    """List the possible choices of steps, each with the reason for leaving out the others; the best comes first."""
    begins_ns = {number: trace.find_window(number).begin_ns for number in complete}
    plans_ns = sorted({planned.time_ns for rank in trace.ranks.values() for planned in rank.plans})
    if not plans_ns:
        settled = [number for number in complete if number > (1 if trace.is_simulated else SETTLING)]
        return [
            (settled, FIRST if trace.is_simulated else "undertow measures in the first steps, which slows them down.")
        ]
    after_last = [number for number in complete if number > 1 and begins_ns[number] >= plans_ns[-1]]
    after_first = [number for number in complete if number > 1 and begins_ns[number] >= plans_ns[0]]
    early = "undertow measures until there is a plan, which slows steps down. The plan changed later."
    late = "undertow measured and planned until the plan in force was made."
    return [(after_last, FIRST if after_last[:1] == [2] else late), (after_first, early)]


def _choose_shown(lengths_ns: Mapping[int, float], wanted: int | None) -> dict[str, int]:
    by_length = sorted(lengths_ns, key=lambda number: (lengths_ns[number], number))
    shown = {} if wanted is None else {"chosen": wanted}
    if by_length:
        shown["median"] = by_length[(len(by_length) - 1) // 2]
        shown["fastest"], shown["slowest"] = by_length[0], by_length[-1]
    first_why = {number: why for why, number in reversed(shown.items())}
    return {why: number for why, number in shown.items() if first_why[number] == why}
