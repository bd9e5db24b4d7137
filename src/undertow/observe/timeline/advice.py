"""Advises what would make steps faster, and by how much.

In: an analysis, predictions.  Out: advice with its figures, the most useful first; never empty.  A rule whose figures
are missing or too inaccurate gives no advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from undertow.errors import name_ranks
from undertow.observe.timeline.forecast import HIDDEN, Forecaster
from undertow.observe.timeline.thread_time import TimeUse
from undertow.plain_text import capitalise
from undertow.plan.bottleneck import GRADES_GBIT
from undertow.units import format_bandwidth, format_ms, format_ns, format_share

if TYPE_CHECKING:
    from undertow.observe.timeline.analysis import Analysis

# Below this share of the step, waiting is not examined.
NOTABLE_WAIT = 0.05
# A change must save at least this share of the step.
WORTH = 0.02
# Links with less use than this share, and idle for that share of the waiting, do not cause it.
IDLE_SHARE, IDLE_WAIT = 0.5, 0.5


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on what to do, or that nothing needs to be done, with the reason and figures."""

    title: str
    reason: str


def advise(analysis: Analysis, forecaster: Forecaster | None) -> list[Advice]:
    advice = [
        *_name_hidden(analysis),
        *_name_stragglers(analysis),
        *_name_slow_links(analysis),
        *_suggest_overlap(analysis, forecaster),
        *_suggest_bandwidth(analysis, forecaster),
        *_name_idle_links(analysis),
        *_name_turns(analysis),
    ]
    return advice or [_find_nothing(analysis)]


def _name_hidden(analysis: Analysis) -> Iterator[Advice]:
    if analysis.is_hidden:
        yield Advice(
            title="A faster network would gain nothing",
            reason=f"Only {format_ns(analysis.wait_ns)} of a step of {format_ns(analysis.step_ns)} "
            f"({format_share(analysis.wait_ns, analysis.step_ns)}) is waiting for it.",
        )


def _name_stragglers(analysis: Analysis) -> Iterator[Advice]:
    if not analysis.stragglers or analysis.stragglers[0].excess_ns < WORTH * analysis.step_ns:
        return
    worst, *others = analysis.stragglers
    are = "is" if len(others) == 1 else "are"
    more = f" {capitalise(name_ranks(one.rank for one in others))} {are} slow too." if others else ""
    yield Advice(
        title=f"Check rank {worst.rank} on {worst.host or 'its host'}: the others wait for it",
        reason=f"It computes {format_ns(worst.compute_ns)} per step, the others {format_ns(worst.others_ns)} "
        f"(median), so they wait up to {format_ns(worst.excess_ns)} per step.{more}",
    )


def _name_slow_links(analysis: Analysis) -> Iterator[Advice]:
    for link in analysis.slow_links[:1]:
        rates = [format_bandwidth(rate * 8) for rate in (link.bytes_per_s, link.others_bytes_per_s)]
        yield Advice(
            title=f"Check the link of rank {link.rank} on {link.host or 'its host'}",
            reason=f"It carries {rates[0]}, the others {rates[1]} (median); every sum waits for the slowest link.",
        )


def _suggest_overlap(analysis: Analysis, forecaster: Forecaster | None) -> Iterator[Advice]:
    if analysis.is_hidden or analysis.has_gates is not False or forecaster is None or not forecaster.is_believable:
        return
    now_s, then_s = forecaster.predict_s(has_gates=False), forecaster.predict_s(has_gates=True)
    if now_s - then_s >= WORTH * now_s:
        yield Advice(
            title="Let the next forward pass start early: parallelize(), or undertow run --overlap",
            reason="Backward now waits for all gradients. With gates, each layer waits only for its own: predicted "
            f"{format_ms(then_s)} instead of {format_ms(now_s)} per step.",
        )


def _suggest_bandwidth(analysis: Analysis, forecaster: Forecaster | None) -> Iterator[Advice]:
    if analysis.is_hidden or forecaster is None:
        return
    if not forecaster.is_believable:
        yield Advice(
            title="No prediction for other links",
            reason=f"This run takes {1 / (1 + forecaster.error):.2f} times as long as predicted, so predictions for "
            "other links cannot be trusted.",
        )
        return
    needed = forecaster.find_bandwidth()
    if needed > forecaster.bits_per_s:
        yield _name_bandwidth(forecaster, needed)


def _name_bandwidth(forecaster: Forecaster, needed: float) -> Advice:
    then_s, rest_s = forecaster.predict_s(bits_per_s=needed), forecaster.floor_s - forecaster.compute_s
    sold = next((gbit * 1e9 for gbit in GRADES_GBIT if gbit * 1e9 >= needed), None)
    grade = f" ({format_bandwidth(sold)} Ethernet is the next faster one)" if sold and sold > 1.03 * needed else ""
    hidden = "everything"
    if rest_s > (HIDDEN - 1) * forecaster.compute_s:
        hidden = f"all but {format_ms(rest_s)}, which no bandwidth hides: latency, sums and products"
    return Advice(
        title=f"At this batch {format_bandwidth(needed)}{grade} would hide {hidden}",
        reason=f"The links now carry {format_bandwidth(forecaster.bits_per_s)}. Predicted: {format_ms(then_s)} per "
        f"step instead of {format_ms(forecaster.predict_s())}, of which compute is {format_ms(forecaster.compute_s)}.",
    )


def _name_idle_links(analysis: Analysis) -> Iterator[Advice]:
    """Rule out the links as the cause if they are idle while ranks wait."""
    waited_ns = sum(row.spent_ns[TimeUse.WAIT] for row in analysis.ranks)
    idle_ns = sum(row.idle_wait_ns for row in analysis.ranks)
    is_waiting = analysis.wait_ns >= NOTABLE_WAIT * analysis.step_ns
    link_share = None if analysis.busiest is None else analysis.busiest.link.share
    if link_share is None or link_share >= IDLE_SHARE or not is_waiting:
        return
    late_ns = analysis.stragglers[0].excess_ns if analysis.stragglers else 0.0
    if idle_ns < IDLE_WAIT * waited_ns or late_ns >= IDLE_WAIT * analysis.wait_ns:
        return
    yield Advice(
        title="The links are not the cause of the waiting: check the processors",
        reason=f"During {format_share(idle_ns, waited_ns)} of the waiting, the waiting rank's own link was idle, and "
        f"the links run at {format_share(link_share, 1)}. The remaining causes are the engine, the shards and "
        "late ranks: leave the engine a core, or try larger slices (UNDERTOW_SLICE_TIME) and more credit "
        "(UNDERTOW_CREDIT).",
    )


def _name_turns(analysis: Analysis) -> Iterator[Advice]:
    turns_ns = analysis.spent_ns[TimeUse.TURN]
    if turns_ns >= NOTABLE_WAIT * analysis.step_ns:
        yield Advice(
            title="Another job uses the device",
            reason=f"{format_ns(turns_ns)} of a step ({format_share(turns_ns, analysis.step_ns)}) is waiting for the "
            "turn, because the jobs share the device. Alone, the step would be shorter by at most that time.",
        )


def _find_nothing(analysis: Analysis) -> Advice:
    """Return the advice for a run whose waiting no rule explains."""
    return Advice(
        title="No advice",
        reason=f"{format_ns(analysis.wait_ns)} of a step is waiting, and the trace does not show what would shorten "
        "it: no plan, no measured link, no rank that stands out.",
    )
