"""Writes the summary at the top of a page.

In: an analysis.  Out: sentences; all their figures are in the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from undertow.observe.timeline.critical_path import Cause
from undertow.observe.timeline.run_trace import name_steps
from undertow.observe.timeline.thread_time import TimeUse
from undertow.plain_text import capitalise
from undertow.units import format_bandwidth, format_bytes, format_ms, format_ns, format_quantity, format_share

if TYPE_CHECKING:
    from undertow.observe.timeline.analysis import Analysis

# Uses that are named only if they take time.
_REST = (TimeUse.OPTIMIZER, TimeUse.APPLY, TimeUse.HOOK, TimeUse.TURN)
# A rank is named if its share of waiting is this times the share of all ranks together.
NOTABLE = 1.25


def summarise(analysis: Analysis) -> list[str]:
    if not analysis.counted:
        return ["No step was recorded completely by all ranks; what is missing is listed below."]
    return [sentence for describe in _SENTENCES for sentence in describe(analysis)]


def _describe_uses(analysis: Analysis) -> Iterator[str]:
    whole = analysis.step_ns
    compute, waiting = (format_share(analysis.spent_ns[use], whole) for use in (TimeUse.COMPUTE, TimeUse.WAIT))
    sentence = f"{compute} of the step is compute, {waiting} is exposed waiting for the network"
    top = analysis.top_wait
    if top is not None:
        sentence += f", of which {format_share(top[1], analysis.spent_ns[TimeUse.WAIT])} for {top[0]}"
    rest = [(use, analysis.spent_ns[use]) for use in _REST if analysis.spent_ns[use]]
    if rest:
        sentence += "; the rest is " + ", ".join(f"{use.value} {format_share(time, whole)}" for use, time in rest)
    yield capitalise(sentence) + "."


def _describe_length(analysis: Analysis) -> Iterator[str]:
    lengths = analysis.lengths_ns
    spread = f" ({format_ns(min(lengths))} to {format_ns(max(lengths))})" if len(lengths) > 1 else ""
    yield (
        f"A step takes {format_ns(analysis.median_ns)}{spread}: the median of {name_steps(analysis.counted)}, on "
        f"{format_quantity(len(analysis.ranks), 'rank')}."
    )


def _describe_link(analysis: Analysis) -> Iterator[str]:
    out_bytes = sum(row.link.out_bytes for row in analysis.ranks)
    if not out_bytes:
        yield "Nothing was sent."
        return
    sent = f"each worker sends {format_bytes(out_bytes / analysis.rounds)} per step"
    busiest = analysis.busiest
    if busiest is None or busiest.link.share is None or busiest.link.bytes_per_s is None:
        yield capitalise(f"{sent}; the rate of its link was not measured.")
        return
    rate = format_bandwidth(busiest.link.bytes_per_s * 8)
    yield f"The link runs at {format_share(busiest.link.share, 1)} (rank {busiest.rank}, which has {rate}); {sent}."


def _describe_savings(analysis: Analysis) -> Iterator[str]:
    savings = sorted(analysis.savings.items(), key=lambda item: -item[1])
    if not savings:
        return
    texts = [f"{name} as {analysis.schemes[name]} saved {format_bytes(saved)}" for name, saved in savings[:2]]
    rest_bytes = sum(saved for _, saved in savings[2:])
    more = f", {len(savings) - 2} more {format_bytes(rest_bytes)}" if len(savings) > 2 else ""
    yield f"Per step and worker, {' and '.join(texts)}{more}."


def _describe_path(analysis: Analysis) -> Iterator[str]:
    if not analysis.path_ns:
        return
    whole = sum(analysis.path_ns.values())
    texts = [f"{format_share(time, whole)} {cause.value}" for cause, time in analysis.path_ns.items()]
    if Cause.COMPUTE in analysis.path_ns:
        index = list(analysis.path_ns).index(Cause.COMPUTE)
        texts[index] += f" ({_name_computer(analysis)})"
    yield f"Critical path of step {analysis.median_step}: {', '.join(texts)}."


def _name_computer(analysis: Analysis) -> str:
    shares: Counter[int] = Counter()
    for link in analysis.path:
        if link.cause is Cause.COMPUTE:
            shares[link.rank] += link.length_ns
    (rank, _), *others = shares.most_common()
    return f"mostly rank {rank}" if others else f"rank {rank}"


def _describe_worst(analysis: Analysis) -> Iterator[str]:
    if len(analysis.ranks) < 2:
        return
    worst = max(analysis.ranks, key=lambda row: row.spent_ns[TimeUse.WAIT] / row.step_ns)
    mean = analysis.spent_ns[TimeUse.WAIT] / analysis.step_ns
    if mean and worst.spent_ns[TimeUse.WAIT] / worst.step_ns >= NOTABLE * mean:
        yield f"Rank {worst.rank} waits most: {format_share(worst.spent_ns[TimeUse.WAIT], worst.step_ns)} of its steps."
    for straggler in analysis.stragglers[:1]:
        yield (
            f"Rank {straggler.rank} is a straggler: it computes {format_ns(straggler.compute_ns)} per step, the others "
            f"{format_ns(straggler.others_ns)}."
        )


def _describe_prediction(analysis: Analysis) -> Iterator[str]:
    found = analysis.prediction
    if found is not None:
        origin = "simulated" if analysis.is_simulated else "measured"
        ratio = found.measured_step_s / found.predicted_step_s
        yield (
            f"The plan predicted {format_ms(found.predicted_step_s)} per step; the {origin} time is "
            f"{format_ms(found.measured_step_s)}, {ratio:.2f} times as long."
        )


_SENTENCES = (
    _describe_uses,
    _describe_length,
    _describe_link,
    _describe_savings,
    _describe_path,
    _describe_worst,
    _describe_prediction,
)
