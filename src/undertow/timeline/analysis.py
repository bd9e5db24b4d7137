"""Everything that a page says, as figures: made once, shown as words, tables, pictures and JSON.

In: a trace.  Out: an `Analysis`, and what the pictures of its steps are drawn of.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from undertow.timeline.advice import Advice, Findings, advise
from undertow.timeline.arrivals import Arrivals
from undertow.timeline.forecast import Forecaster, Prediction
from undertow.timeline.guess import guess_cluster, guess_profile
from undertow.timeline.links import find_busy, intersect, measure_use
from undertow.timeline.matching import count_unmatched, match_wires
from undertow.timeline.model import Trace
from undertow.timeline.path import Cause, Link, Pathfinder, add_up
from undertow.timeline.ranks import RankRow, SlowLink, Straggler, find_slow_links, find_stragglers
from undertow.timeline.sentences import summarise
from undertow.timeline.spending import Day, Spent
from undertow.timeline.steps import Steps, choose_steps
from undertow.timeline.tensors import TensorRow, find_savings, make_rows
from undertow.timeline.waits import find_gates, share_out

FORMAT = 1
# Of the slices that were sent: fewer without a counterpart are not worth a word.
LOST = 0.01


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Times in nanoseconds.  Means are of all ranks and counted steps, totals their sums."""

    folder: str
    script: str
    version: str
    is_simulated: bool
    world_size: int
    complete: tuple[int, ...]  # steps
    counted: tuple[int, ...]
    lengths_ns: tuple[float, ...]  # of the counted steps: the mean of the ranks
    median_step: int | None
    median_ns: float
    step_ns: float  # mean
    spent_ns: dict[Spent, float]  # mean; adds up to step_ns
    waited_total_ns: dict[str, int]  # whom the waiting belongs to
    ranks: tuple[RankRow, ...]
    tensors: tuple[TensorRow, ...]
    savings: dict[str, float]  # bytes per worker and step
    schemes: dict[str, str]
    path: tuple[Link, ...]  # of the median step
    path_ns: dict[Cause, int]
    stragglers: tuple[Straggler, ...]
    slow_links: tuple[SlowLink, ...]
    prediction: Prediction | None
    has_gates: bool | None
    clock_error_ns: int
    advice: tuple[Advice, ...] = ()
    summary: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def rounds(self) -> int:
        """Ranks times steps: what a total is divided by."""
        return len(self.ranks) * len(self.counted)

    @property
    def busiest(self) -> RankRow | None:
        known = [row for row in self.ranks if row.link.share is not None]
        return max(known, key=lambda row: row.link.share or 0.0, default=None)

    @property
    def top_wait(self) -> tuple[str, float] | None:
        """Who is waited for most, and for how long in a step on average."""
        if not self.waited_total_ns:
            return None
        name = max(self.waited_total_ns, key=lambda name: self.waited_total_ns[name])
        return (name, self.waited_total_ns[name] / self.rounds) if self.waited_total_ns[name] else None

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


@dataclass(frozen=True)
class Study:
    """An analysis, and what it was made of."""

    trace: Trace
    steps: Steps
    days: Mapping[int, Day]  # of each rank
    paths: Mapping[int, list[Link]]  # of each step that is shown
    analysis: Analysis


def study(trace: Trace, wanted: int | None = None) -> Study:
    """`wanted` is a step to show beside the median one."""
    match_wires(trace)
    steps = choose_steps(trace, wanted)
    days = {rank: Day(known) for rank, known in trace.ranks.items()}
    arrivals = {rank: Arrivals(known) for rank, known in trace.ranks.items()}
    finder = Pathfinder(trace, days, arrivals)
    paths = {number: finder.find(number) for number in steps.shown.values()}
    analysis = _Bench(trace, steps, days, arrivals).analyse(paths)
    return Study(trace, steps, days, paths, analysis)


class _Bench:
    """What the figures of one trace are worked out from."""

    def __init__(self, trace: Trace, steps: Steps, days: Mapping[int, Day], arrivals: Mapping[int, Arrivals]) -> None:
        self._trace = trace
        self._steps = steps
        self._counted = frozenset(steps.counted)
        self._days = days
        self._arrivals = arrivals
        self._rows = [self._make_rank(rank) for rank in trace.ranks] if steps.counted else []
        self._rounds = max(1, len(self._rows) * len(steps.counted))

    def analyse(self, paths: Mapping[int, list[Link]]) -> Analysis:
        trace, steps, header = self._trace, self._steps, next(iter(self._trace.ranks.values())).header
        waited = self._share_waits()
        rows = make_rows(trace, self._counted, waited) if steps.counted else []
        median = steps.shown.get("median", steps.shown.get("chosen"))
        bare = Analysis(
            folder=trace.folder,
            script=header.script,
            version=header.version,
            is_simulated=trace.is_simulated,
            world_size=trace.world_size,
            complete=steps.complete,
            counted=steps.counted,
            lengths_ns=tuple(steps.lengths_ns.values()),
            median_step=median,
            median_ns=statistics.median(steps.lengths_ns.values()) if steps.lengths_ns else 0.0,
            step_ns=sum(row.step_ns for row in self._rows) / self._rounds,
            spent_ns={part: sum(row.spent_ns[part] for row in self._rows) / self._rounds for part in Spent},
            waited_total_ns=dict(waited.most_common()),
            ranks=tuple(self._rows),
            tensors=tuple(rows),
            savings=self._find_savings(rows),
            schemes={} if trace.planned is None else {c.tensor: c.scheme.value for c in trace.planned.plan.choices},
            path=tuple(paths[median]) if median is not None else (),
            path_ns=add_up(paths[median]) if median is not None else {},
            stragglers=tuple(find_stragglers(self._rows)),
            slow_links=tuple(find_slow_links(self._rows)),
            prediction=self._compare(),
            has_gates=self._find_gates(),
            clock_error_ns=max(rank.clock_error_ns for rank in trace.ranks.values()),
            notes=steps.notes,
            missing=(*trace.missing, *steps.missing, *self._find_lost_slices()),
        )
        advised = msgspec.structs.replace(bare, advice=tuple(self._advise(bare)))
        return msgspec.structs.replace(advised, summary=tuple(summarise(advised)))

    def _make_rank(self, rank: int) -> RankRow:
        trace = self._trace.ranks[rank]
        spent: Counter[Spent] = Counter(dict.fromkeys(Spent, 0))
        waits = []
        for number in self._steps.counted:
            step = trace.steps[number]
            spent.update(self._days[rank].add_up(step))
            segments = self._days[rank].cut(step.begin_ns, step.end_ns)
            waits += [(part.begin_ns, part.end_ns) for part in segments if part.spent is Spent.WAIT]
        busy = sum(end - begin for begin, end in intersect(waits, find_busy(trace, self._counted)))
        return RankRow(
            rank=rank,
            host=trace.header.host,
            steps=len(self._steps.counted),
            step_ns=sum(trace.steps[number].length_ns for number in self._steps.counted),
            spent_ns=dict(spent),
            idle_wait_ns=spent[Spent.WAIT] - busy,
            link=measure_use(trace, self._counted),
        )

    def _share_waits(self) -> Counter[str]:
        waited: Counter[str] = Counter()
        for rank, trace in self._trace.ranks.items():
            for number in self._steps.counted:
                step = trace.steps[number]
                segments = self._days[rank].cut(step.begin_ns, step.end_ns)
                waited.update(share_out(segments, self._arrivals[rank]))
        return waited

    def _find_savings(self, rows: list[TensorRow]) -> dict[str, float]:
        planned = self._trace.planned
        if planned is None or not rows:
            return {}
        itemsizes = {} if planned.profile is None else {one.name: one.itemsize for one in planned.profile.tensors}
        return find_savings(planned.plan, rows, self._rounds, itemsizes)

    def _find_gates(self) -> bool | None:
        rank = next(iter(self._trace.ranks.values()))
        return find_gates([span for span in rank.lane if span.step in self._counted])

    def _compare(self) -> Prediction | None:
        planned = self._trace.planned
        if planned is None or not self._rows:
            return None
        compute_ns = statistics.median(row.per_step(Spent.COMPUTE) for row in self._rows)
        return Prediction(
            predicted_step_s=planned.plan.step_s,
            measured_step_s=statistics.median(self._steps.lengths_ns.values()) / 1e9,
            predicted_compute_s=planned.plan.compute_s,
            measured_compute_s=compute_ns / 1e9,
        )

    def _find_lost_slices(self) -> tuple[str, ...]:
        # What was sent in the last step may arrive after the end of the record.
        lost, sent = count_unmatched(self._trace, self._counted - {max(self._steps.complete, default=0)})
        if lost <= LOST * sent:
            return ()
        return (f"{lost} of {sent} slices that were sent never arrive in the file of their receiver.",)

    def _advise(self, bare: Analysis) -> list[Advice]:
        if not self._rows:
            return []
        findings = Findings(
            step_ns=bare.step_ns,
            spent_ns=bare.spent_ns,
            ranks=self._rows,
            stragglers=bare.stragglers,
            slow_links=bare.slow_links,
            link_share=None if bare.busiest is None else bare.busiest.link.share,
            forecaster=self._make_forecaster(bare),
            has_gates=bare.has_gates,
        )
        return advise(findings)

    def _make_forecaster(self, bare: Analysis) -> Forecaster | None:
        planned = self._trace.planned
        profile = planned.profile if planned else guess_profile(self._trace, self._counted)
        cluster = planned.cluster if planned else guess_cluster(self._trace)
        if profile is None or cluster is None or not profile.layers:
            return None
        schemes = {} if planned is None else planned.plan.schemes
        has_gates = bare.has_gates is not False
        return Forecaster(profile, cluster, schemes, measured_s=bare.median_ns / 1e9, has_gates=has_gates)
