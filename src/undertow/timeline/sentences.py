"""The summary in words: what a reader wants to know before any picture.

In: an analysis.  Out: sentences, every figure of which is in the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from undertow.lab.bandwidth import format_bandwidth
from undertow.timeline.path import Cause
from undertow.timeline.spending import Spent
from undertow.timeline.words import capitalise, name_steps, show_bytes, show_ms, show_share

if TYPE_CHECKING:
    from undertow.timeline.analysis import Analysis

# The parts that are named only where there is something of them.
_REST = (Spent.OPTIMIZER, Spent.APPLY, Spent.HOOK, Spent.TURN)
# A rank that waits this much more of its step than all of them together is named.
NOTABLE = 1.25


def summarise(analysis: Analysis) -> list[str]:
    if not analysis.counted:
        return ["There is no step that all ranks have recorded from its begin to its end: see what is missing below."]
    return [sentence for tell in _TELLERS for sentence in tell(analysis)]


def _tell_parts(analysis: Analysis) -> Iterator[str]:
    whole = analysis.step_ns
    compute, waiting = (show_share(analysis.spent_ns[part], whole) for part in (Spent.COMPUTE, Spent.WAIT))
    sentence = f"{compute} of the step is compute, {waiting} is exposed waiting for the network"
    top = analysis.top_wait
    if top is not None:
        sentence += f", of which {show_share(top[1], analysis.spent_ns[Spent.WAIT])} for {top[0]}"
    rest = [(part, analysis.spent_ns[part]) for part in _REST if analysis.spent_ns[part]]
    if rest:
        sentence += "; the rest is " + ", ".join(f"{part.value} {show_share(time, whole)}" for part, time in rest)
    yield capitalise(sentence) + "."


def _tell_length(analysis: Analysis) -> Iterator[str]:
    lengths = analysis.lengths_ns
    spread = f" ({show_ms(min(lengths))} to {show_ms(max(lengths))})" if len(lengths) > 1 else ""
    ranks = len(analysis.ranks)
    yield (
        f"A step takes {show_ms(analysis.median_ns)}{spread}: the median of {name_steps(analysis.counted)}, on "
        f"{ranks} rank{'' if ranks == 1 else 's'}."
    )


def _tell_link(analysis: Analysis) -> Iterator[str]:
    out_bytes = sum(row.link.out_bytes for row in analysis.ranks)
    if not out_bytes:
        yield "Nothing was sent."
        return
    sent = f"each worker sends {show_bytes(out_bytes / analysis.rounds)} per step"
    busiest = analysis.busiest
    if busiest is None or busiest.link.share is None or busiest.link.bytes_per_s is None:
        yield capitalise(f"{sent}; how fast its link is was not measured.")
        return
    rate = format_bandwidth(busiest.link.bytes_per_s * 8)
    yield f"The link runs at {show_share(busiest.link.share, 1)} (rank {busiest.rank}, which has {rate}); {sent}."


def _tell_savings(analysis: Analysis) -> Iterator[str]:
    savings = sorted(analysis.savings.items(), key=lambda item: -item[1])
    if not savings:
        return
    told = [f"{name} as {analysis.schemes[name]} saved {show_bytes(saved)}" for name, saved in savings[:2]]
    rest_bytes = sum(saved for _, saved in savings[2:])
    more = f", {len(savings) - 2} more {show_bytes(rest_bytes)}" if len(savings) > 2 else ""
    yield f"Per step and worker, {' and '.join(told)}{more}."


def _tell_path(analysis: Analysis) -> Iterator[str]:
    if not analysis.path_ns:
        return
    whole = sum(analysis.path_ns.values())
    parts = [f"{show_share(time, whole)} {cause.value}" for cause, time in analysis.path_ns.items()]
    if Cause.COMPUTE in analysis.path_ns:
        place = list(analysis.path_ns).index(Cause.COMPUTE)
        parts[place] += f" ({_name_computer(analysis)})"
    yield f"Critical path of step {analysis.median_step}: {', '.join(parts)}."


def _name_computer(analysis: Analysis) -> str:
    """The rank on which the path computes."""
    shares: Counter[int] = Counter()
    for link in analysis.path:
        if link.cause is Cause.COMPUTE:
            shares[link.rank] += link.length_ns
    (rank, _), *others = shares.most_common()
    return f"mostly rank {rank}" if others else f"rank {rank}"


def _tell_worst(analysis: Analysis) -> Iterator[str]:
    if len(analysis.ranks) < 2:
        return
    worst = max(analysis.ranks, key=lambda row: row.spent_ns[Spent.WAIT] / row.step_ns)
    mean = analysis.spent_ns[Spent.WAIT] / analysis.step_ns
    if mean and worst.spent_ns[Spent.WAIT] / worst.step_ns >= NOTABLE * mean:
        yield f"Rank {worst.rank} waits most: {show_share(worst.spent_ns[Spent.WAIT], worst.step_ns)} of its steps."
    for straggler in analysis.stragglers[:1]:
        yield (
            f"Rank {straggler.rank} is a straggler: it computes {show_ms(straggler.compute_ns)} per step, the others "
            f"{show_ms(straggler.others_ns)}."
        )


def _tell_prediction(analysis: Analysis) -> Iterator[str]:
    found = analysis.prediction
    if found is not None:
        taken = "simulated" if analysis.is_simulated else "measured"
        ratio = found.measured_step_s / found.predicted_step_s
        yield (
            f"The plan predicted {show_ms(found.predicted_step_s * 1e9)} per step; {taken} were "
            f"{show_ms(found.measured_step_s * 1e9)}, {ratio:.2f} times as long."
        )


_TELLERS = (_tell_parts, _tell_length, _tell_link, _tell_savings, _tell_path, _tell_worst, _tell_prediction)
