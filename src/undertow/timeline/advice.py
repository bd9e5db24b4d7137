"""What would help, and by how much: each piece with the figures that carry it.

In: `Findings`, the figures of a page.  Out: advice, the most useful first; never empty where there are steps.
A rule that lacks a figure, or whose figure is too far off, says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from undertow.lab.bandwidth import format_bandwidth
from undertow.plan.bottleneck import GRADES_GBIT
from undertow.timeline.forecast import HIDDEN, Forecaster
from undertow.timeline.ranks import RankRow, SlowLink, Straggler
from undertow.timeline.spending import Spent
from undertow.timeline.words import capitalise, name_ranks, show_ms, show_share

# Waiting below this part of the step is not worth anybody's money.
HIDDEN_SHARE = 0.02
# From this part of the step on it is worth a look at what the links do meanwhile.
WORTH_A_LOOK = 0.05
# A change must promise this part of the step.
WORTH = 0.02
# Links that are used less, and idle for this part of the waiting, are not what is waited for.
IDLE_SHARE, IDLE_WAIT = 0.5, 0.5


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, or that there is nothing to do; and why, with figures."""

    title: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What advice stands on; None is what nobody knows."""

    step_ns: float  # the mean of all ranks and counted steps
    spent_ns: dict[Spent, float]  # the same, of each part
    ranks: Sequence[RankRow]
    stragglers: Sequence[Straggler]
    slow_links: Sequence[SlowLink]
    link_share: float | None
    forecaster: Forecaster | None
    has_gates: bool | None

    @property
    def wait_ns(self) -> float:
        return self.spent_ns[Spent.WAIT]

    @property
    def is_hidden(self) -> bool:
        return self.wait_ns < HIDDEN_SHARE * self.step_ns


def advise(findings: Findings) -> list[Advice]:
    return [advice for rule in _RULES for advice in rule(findings)]


def _name_hidden(findings: Findings) -> Iterator[Advice]:
    if findings.is_hidden:
        yield Advice(
            title="Nothing to gain from a faster network",
            reason=f"Only {show_ms(findings.wait_ns)} of a step of {show_ms(findings.step_ns)} "
            f"({show_share(findings.wait_ns, findings.step_ns)}) is waiting for it.",
        )


def _name_stragglers(findings: Findings) -> Iterator[Advice]:
    if not findings.stragglers or findings.stragglers[0].excess_ns < WORTH * findings.step_ns:
        return
    worst, *others = findings.stragglers
    more = f" {capitalise(name_ranks(one.rank for one in others))} {_are(others)} slow, too." if others else ""
    yield Advice(
        title=f"Look at rank {worst.rank} on {worst.host or 'its host'}: the others wait for it",
        reason=f"It computes {show_ms(worst.compute_ns)} in a step, the others {show_ms(worst.others_ns)} in the "
        f"middle: everybody waits up to {show_ms(worst.excess_ns)} per step for it.{more}",
    )


def _are(several: Sequence[object]) -> str:
    return "is" if len(several) == 1 else "are"


def _name_slow_links(findings: Findings) -> Iterator[Advice]:
    for link in findings.slow_links[:1]:
        rates = [format_bandwidth(rate * 8) for rate in (link.bytes_per_s, link.others_bytes_per_s)]
        yield Advice(
            title=f"Look at the link of rank {link.rank} on {link.host or 'its host'}",
            reason=f"It carries {rates[0]}, those of the others {rates[1]}; every sum waits for the slowest.",
        )


def _suggest_overlap(findings: Findings) -> Iterator[Advice]:
    forecaster = findings.forecaster
    if findings.is_hidden or findings.has_gates is not False or forecaster is None or not forecaster.is_believable:
        return
    now_s, then_s = forecaster.predict_s(has_gates=False), forecaster.predict_s(has_gates=True)
    if now_s - then_s >= WORTH * now_s:
        yield Advice(
            title="Let the next forward pass start early: parallelize(), or undertow run --overlap",
            reason="Here backward waits for all gradients. With gates each layer waits for its own only: predicted "
            f"{show_ms(then_s * 1e9)} instead of {show_ms(now_s * 1e9)} per step.",
        )


def _suggest_bandwidth(findings: Findings) -> Iterator[Advice]:
    forecaster = findings.forecaster
    if findings.is_hidden or forecaster is None:
        return
    if not forecaster.is_believable:
        yield Advice(
            title="No word about other links",
            reason=f"This very run takes {1 / (1 + forecaster.error):.2f} times as long as it is predicted to, so "
            "predictions of others say nothing.",
        )
        return
    needed = forecaster.find_bandwidth()
    if needed > forecaster.bits_per_s:
        yield _name_bandwidth(forecaster, needed)


def _name_bandwidth(forecaster: Forecaster, needed: float) -> Advice:
    then_s, rest_s = forecaster.predict_s(bits_per_s=needed), forecaster.floor_s - forecaster.compute_s
    sold = next((gbit * 1e9 for gbit in GRADES_GBIT if gbit * 1e9 >= needed), None)
    grade = f" ({format_bandwidth(sold)} Ethernet is the next that is sold)" if sold and sold > 1.03 * needed else ""
    hidden = "everything"
    if rest_s > (HIDDEN - 1) * forecaster.compute_s:
        hidden = f"all but {show_ms(rest_s * 1e9)}, which no bandwidth hides: latency, sums and products"
    return Advice(
        title=f"At this batch {format_bandwidth(needed)}{grade} would hide {hidden}",
        reason=f"The links carry {format_bandwidth(forecaster.bits_per_s)} now. Predicted {show_ms(then_s * 1e9)} per "
        f"step there instead of {show_ms(forecaster.predict_s() * 1e9)}; compute is "
        f"{show_ms(forecaster.compute_s * 1e9)} of it.",
    )


def _name_idle_links(findings: Findings) -> Iterator[Advice]:
    """Waiting, and nothing on the wire: then it is not the wire that is waited for."""
    waited_ns = sum(row.spent_ns[Spent.WAIT] for row in findings.ranks)
    idle_ns = sum(row.idle_wait_ns for row in findings.ranks)
    is_waiting = findings.wait_ns >= WORTH_A_LOOK * findings.step_ns
    if findings.link_share is None or findings.link_share >= IDLE_SHARE or not is_waiting:
        return
    late_ns = findings.stragglers[0].excess_ns if findings.stragglers else 0.0
    if idle_ns < IDLE_WAIT * waited_ns or late_ns >= IDLE_WAIT * findings.wait_ns:
        return
    yield Advice(
        title="The links are not what is waited for: look at the processors",
        reason=f"In {show_share(idle_ns, waited_ns)} of the waiting nothing was on the waiting rank's own link, and "
        f"links run at {show_share(findings.link_share, 1)}. What is left is the engine, the shards and other ranks "
        "that are late: leave the engine a core, or try larger slices (UNDERTOW_SLICE_TIME) and more credit "
        "(UNDERTOW_CREDIT).",
    )


def _name_turns(findings: Findings) -> Iterator[Advice]:
    turns_ns = findings.spent_ns[Spent.TURN]
    if turns_ns >= WORTH_A_LOOK * findings.step_ns:
        yield Advice(
            title="Another job has the device meanwhile",
            reason=f"{show_ms(turns_ns)} of a step ({show_share(turns_ns, findings.step_ns)}) is waiting for the turn; "
            "that is what sharing means. Alone, the step would be shorter by up to as much.",
        )


def _admit(findings: Findings) -> Iterator[Advice]:
    """Waiting that no rule has an answer to."""
    if findings.is_hidden or any(list(rule(findings)) for rule in _RULES if rule is not _admit):
        return
    yield Advice(
        title="No advice",
        reason=f"{show_ms(findings.wait_ns)} of a step is waiting, and the trace does not tell what would shorten it: "
        "no plan, no measured link, no rank that stands out.",
    )


Rule = Callable[[Findings], Iterator[Advice]]
_RULES: tuple[Rule, ...] = (
    _name_hidden,
    _name_stragglers,
    _name_slow_links,
    _suggest_overlap,
    _suggest_bandwidth,
    _name_idle_links,
    _name_turns,
    _admit,
)
