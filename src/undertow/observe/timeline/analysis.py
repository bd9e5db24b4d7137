"""Computes all figures of a page, which are shown as sentences, tables, pictures and JSON.

In: a trace.  Out: an `Analysis`, and the data to draw its steps.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from undertow.observe.timeline.advice import Advice, advise
from undertow.observe.timeline.arrivals import Arrivals, divide_waits, find_gates
from undertow.observe.timeline.critical_path import Cause, Pathfinder, PathLink, add_up
from undertow.observe.timeline.forecast import Forecaster, Prediction, guess_cluster, guess_profile
from undertow.observe.timeline.rank_rows import (
    RankRow,
    SlowLink,
    Straggler,
    find_busy,
    find_slow_links,
    find_stragglers,
    intersect,
    measure_use,
)
from undertow.observe.timeline.run_trace import Trace, count_unmatched, match_wires
from undertow.observe.timeline.step_choice import StepChoice, choose_steps
from undertow.observe.timeline.summary import summarise
from undertow.observe.timeline.tensor_rows import TensorRow, find_savings, make_rows
from undertow.observe.timeline.thread_time import Segment, ThreadTimeline, TimeUse

FORMAT = 1
# A smaller share of slices without a counterpart is not reported.
LOST = 0.01
# Below this share of the step, waiting does not justify a faster network.
HIDDEN_SHARE = 0.02


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a page.  Means and totals are over all ranks and counted steps."""

    folder: str
    script: str
    version: str
    is_simulated: bool
    world_size: int
    complete: tuple[int, ...]  # steps
    counted: tuple[int, ...]
    lengths_ns: tuple[float, ...]  # of the counted steps: means over the ranks
    median_step: int | None
    median_ns: float
    step_ns: float  # mean
    spent_ns: dict[TimeUse, float]  # mean; adds up to step_ns
    waited_total_ns: dict[str, int]  # by tensor or reason
    ranks: tuple[RankRow, ...]
    tensors: tuple[TensorRow, ...]
    savings: dict[str, float]  # bytes per worker and step
    schemes: dict[str, str]
    path: tuple[PathLink, ...]  # of the median step
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
        """Return ranks * steps; a total over `rounds` is the mean per rank and step."""
        return len(self.ranks) * len(self.counted)

    @property
    def wait_ns(self) -> float:
        return self.spent_ns[TimeUse.WAIT]

    @property
    def is_hidden(self) -> bool:
        return self.wait_ns < HIDDEN_SHARE * self.step_ns

    @property
    def busiest(self) -> RankRow | None:
        known = [row for row in self.ranks if row.link.share is not None]
        return max(known, key=lambda row: row.link.share or 0.0, default=None)

    @property
    def top_wait(self) -> tuple[str, float] | None:
        """Return the tensor or reason with the longest waiting, and its time in an average step."""
        if not self.waited_total_ns:
            return None
        name = max(self.waited_total_ns, key=lambda name: self.waited_total_ns[name])
        return (name, self.waited_total_ns[name] / self.rounds) if self.waited_total_ns[name] else None

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


@dataclass(frozen=True)
class Study:
    """An analysis, with the data that it was made from."""

    trace: Trace
    steps: StepChoice
    threads: Mapping[int, ThreadTimeline]  # by rank
    paths: Mapping[int, list[PathLink]]  # by step, of the steps that are shown
    analysis: Analysis


def study(trace: Trace, wanted: int | None = None) -> Study:
    """Analyse a trace; `wanted` is a step to show beside the median one."""
    match_wires(trace)
    steps = choose_steps(trace, wanted)
    threads = {rank: ThreadTimeline(known) for rank, known in trace.ranks.items()}
    arrivals = {rank: Arrivals(known) for rank, known in trace.ranks.items()}
    finder = Pathfinder(trace, threads, arrivals)
    paths = {number: finder.find(number) for number in steps.shown.values()}
    analysis = _Analyser(trace, steps, threads, arrivals).analyse(paths)
    return Study(trace, steps, threads, paths, analysis)


class _Analyser:
    """Analyser of one trace."""

    def __init__(
        self, trace: Trace, steps: StepChoice, threads: Mapping[int, ThreadTimeline], arrivals: Mapping[int, Arrivals]
    ) -> None:
        self._trace = trace
        self._steps = steps
        self._counted = frozenset(steps.counted)
        self._threads = threads
        self._arrivals = arrivals
        self._rows = [self._make_rank(rank) for rank in trace.ranks] if steps.counted else []
        self._rounds = max(1, len(self._rows) * len(steps.counted))

    def analyse(self, paths: Mapping[int, list[PathLink]]) -> Analysis:
        trace, steps, header = self._trace, self._steps, next(iter(self._trace.ranks.values())).header
        waited = self._divide_waits()
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
            spent_ns={use: sum(row.spent_ns[use] for row in self._rows) / self._rounds for use in TimeUse},
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
            has_gates=find_gates(next(iter(trace.ranks.values())), self._counted),
            clock_error_ns=max(rank.clock_error_ns for rank in trace.ranks.values()),
            notes=steps.notes,
            missing=(*trace.missing, *steps.missing, *self._find_lost_slices()),
        )
        advice = advise(bare, self._make_forecaster(bare)) if self._rows else ()
        advised = msgspec.structs.replace(bare, advice=tuple(advice))
        return msgspec.structs.replace(advised, summary=tuple(summarise(advised)))

    def _make_rank(self, rank: int) -> RankRow:
        trace = self._trace.ranks[rank]
        spent = dict.fromkeys(TimeUse, 0)
        waits = []
        for segment in self._cut(rank):
            spent[segment.use] += segment.length_ns
            if segment.use is TimeUse.WAIT:
                waits.append((segment.begin_ns, segment.end_ns))
        busy = sum(end - begin for begin, end in intersect(waits, find_busy(trace, self._counted)))
        return RankRow(
            rank=rank,
            host=trace.header.host,
            steps=len(self._steps.counted),
            step_ns=sum(trace.steps[number].length_ns for number in self._steps.counted),
            spent_ns=spent,
            idle_wait_ns=spent[TimeUse.WAIT] - busy,
            link=measure_use(trace, self._counted),
        )

    def _divide_waits(self) -> Counter[str]:
        waited: Counter[str] = Counter()
        for rank in self._trace.ranks:
            waited.update(divide_waits(self._cut(rank), self._arrivals[rank]))
        return waited

    def _cut(self, rank: int) -> Iterator[Segment]:
        """Yield the segments of the counted steps of a rank."""
        steps = self._trace.ranks[rank].steps
        for number in self._steps.counted:
            yield from self._threads[rank].cut(steps[number].begin_ns, steps[number].end_ns)

    def _find_savings(self, rows: list[TensorRow]) -> dict[str, float]:
        planned = self._trace.planned
        if planned is None or not rows:
            return {}
        itemsizes = {} if planned.profile is None else {one.name: one.itemsize for one in planned.profile.tensors}
        return find_savings(planned.plan, rows, self._rounds, itemsizes)

    def _compare(self) -> Prediction | None:
        planned = self._trace.planned
        if planned is None or not self._rows:
            return None
        compute_ns = statistics.median(row.per_step(TimeUse.COMPUTE) for row in self._rows)
        return Prediction(
            predicted_step_s=planned.plan.step_s,
            measured_step_s=statistics.median(self._steps.lengths_ns.values()) / 1e9,
            predicted_compute_s=planned.plan.compute_s,
            measured_compute_s=compute_ns / 1e9,
        )

    def _find_lost_slices(self) -> tuple[str, ...]:
        # Slices sent in the last step may arrive after recording ended.
        lost, sent = count_unmatched(self._trace, self._counted - {max(self._steps.complete, default=0)})
        if lost <= LOST * sent:
            return ()
        return (f"{lost} of {sent} slices that were sent are not in the files of their receivers.",)

    def _make_forecaster(self, bare: Analysis) -> Forecaster | None:
        planned = self._trace.planned
        profile = planned.profile if planned else guess_profile(self._trace, self._counted)
        cluster = planned.cluster if planned else guess_cluster(self._trace)
        if profile is None or cluster is None or not profile.layers:
            return None
        schemes = {} if planned is None else planned.plan.schemes
        has_gates = bare.has_gates is not False
        return Forecaster(profile, cluster, schemes, measured_s=bare.median_ns / 1e9, has_gates=has_gates)
