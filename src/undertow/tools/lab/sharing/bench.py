"""Runs `undertow share bench`: one bandwidth after another, and lap by lap all arrangements.

In: a plan.  Out: results; those measured before a failure are kept.
Every arrangement has its lap in every round, in an order that changes, so that the machine's load affects all alike.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from undertow.crossover.gain import predict_gain
from undertow.observe.report.machine import describe_run
from undertow.observe.report.shared_jobs import Arrangement
from undertow.plan.cluster import PAYLOAD_SHARE
from undertow.plan.scheme import count_dense_traffic
from undertow.progress import Progress
from undertow.tools.lab.bench.bench import UNSHAPED, OpenNetwork, keep_results
from undertow.tools.lab.bench.messages import Ready
from undertow.tools.lab.bench.worker_group import REAL_STEP_S
from undertow.tools.lab.link_check import shape_links
from undertow.tools.lab.replay.device import make_devices
from undertow.tools.lab.sharing.arrangement_run import REHEARSALS, ArrangementRun, warm_up
from undertow.tools.lab.sharing.figures import MeasuredLap, find_gains, find_middle, make_load
from undertow.tools.lab.sharing.plan import Mode, SharePlan
from undertow.tools.lab.sharing.results import Case, JobFigures, Row, ShareResults
from undertow.tools.lab.sharing.worker_groups import BenchContext, WorkerGroups, open_groups
from undertow.units import GIGA, format_bandwidth

CLOSE = 0.03
TRIES = 3


def run_share_bench(
    plan: SharePlan, *, environ: Mapping[str, str], open_network: OpenNetwork, progress: Progress, command: str
) -> ShareResults:
    """Measure everything.  Raises `BenchAborted`, with the results so far, if something fails."""
    cases: list[Case] = []

    def results(*notes: str) -> ShareResults:
        unshaped = [UNSHAPED] if any(case.bandwidth_gbit is None for case in cases) else []
        return ShareResults(**describe_run(command), cases=cases, notes=[*unshaped, *notes])

    with (
        keep_results(results),
        open_network(plan.hosts) as network,
        tempfile.TemporaryDirectory(prefix="undertow-") as folder,
    ):
        make_devices(Path(folder), plan.hosts)
        context = BenchContext(network=network, environ=environ, devices=folder, progress=progress)
        cases.extend(_measure(plan, context))
    return results()


def _measure(plan: SharePlan, context: BenchContext) -> Iterator[Case]:
    """Measure one bandwidth after another."""
    context.progress.expect(_count_laps(plan))
    speeds = _calibrate(plan, context) if plan.ratios else [(None, speed) for speed in plan.bandwidths_gbit]
    context.network.shape(plan.link_rate(speeds[0][1]))
    with open_groups(plan, context) as groups:
        for ratio, bandwidth_gbit in speeds:
            if (rate := plan.link_rate(bandwidth_gbit)) is not None:
                context.progress.say("checking the links")
                shape_links(context.network, rate)
            context.progress.advance()
            runs = _prepare(plan, groups, context)
            _run_rounds(
                plan, runs, context.progress, f"{', '.join(plan.labels)}, {plan.describe_links(bandwidth_gbit)}"
            )
            groups.check_turns()
            yield summarise(plan, runs, groups.ready, bandwidth_gbit=bandwidth_gbit, ratio=ratio)


def _count_laps(plan: SharePlan) -> int:
    """Return the number of laps; starting workers, warming up, checking links and rehearsing count as one each."""
    search = 1 + TRIES * len(plan.ratios) if plan.ratios else 0
    groups = len(plan.jobs) * (4 if plan.is_real else 3)
    rehearsals = REHEARSALS * sum(arrangement.is_company for arrangement in plan.arrangements)
    case = 1 + groups + rehearsals + plan.lap_count
    return search + groups + case * len(plan.ratios or plan.bandwidths_gbit)


def _calibrate(plan: SharePlan, context: BenchContext) -> list[tuple[float | None, float | None]]:
    """Find the bandwidth for each ratio of exposed communication to compute of the first job, plain and alone."""
    job = plan.jobs[0]
    found: list[tuple[float | None, float | None]] = []
    context.progress.say(f"starting {job.model}, to find the bandwidth")
    with context.open_group(plan, job, Mode.PLAIN.value) as group:
        ready = group.wait_until_ready()
        context.progress.advance()
        assert ready.compute_s is not None
        for ratio in plan.ratios:
            wanted_s = ratio * ready.compute_s
            rate = estimate_rate(ready.gradient_bytes, hosts=plan.hosts, exposed_s=wanted_s)
            for left in reversed(range(TRIES)):
                context.progress.say(
                    f"looking for m/c = {ratio:g}: {format_bandwidth(rate * plan.scale * plan.slowdown)}"
                )
                context.network.shape(rate)
                exposed_s = warm_up(group, ready.compute_s + wanted_s) - ready.compute_s
                context.progress.advance()
                if is_close(exposed_s, wanted_s):
                    context.progress.advance(left)
                    break
                rate = correct_rate(rate, found_s=exposed_s, wanted_s=wanted_s)
            found.append((ratio, rate * plan.scale * plan.slowdown / GIGA))
    return found


def _prepare(plan: SharePlan, groups: WorkerGroups, context: BenchContext) -> list[ArrangementRun]:
    """Warm up every group, and learn its pace."""
    expected_s = [(ready.compute_s or REAL_STEP_S) * 3 for ready in groups.ready]
    paces_s = {}
    for of_arrangement in groups.by_arrangement.values():
        for group, step_s in zip(of_arrangement, expected_s, strict=True):
            if group not in paces_s:
                context.progress.say(f"warming up: {group.name}")
                paces_s[group] = warm_up(group, step_s)
                context.progress.advance()
    runs = []
    for arrangement in plan.arrangements:
        of_arrangement = groups.by_arrangement[arrangement]
        if arrangement.is_company:
            doubled_s = [2 * paces_s[group] for group in of_arrangement]
            runs.append(ArrangementRun(arrangement, arrangement.value, of_arrangement, context.network, doubled_s))
            context.progress.say(f"rehearsing: {arrangement.value}")
            runs[-1].rehearse(plan.lap_s)
            context.progress.advance(REHEARSALS)
        else:
            runs += [
                ArrangementRun(arrangement, f"{arrangement.value}, {label}", [group], context.network, [paces_s[group]])
                for group, label in zip(of_arrangement, plan.labels, strict=True)
            ]
    return runs


def _run_rounds(plan: SharePlan, runs: Sequence[ArrangementRun], progress: Progress, title: str) -> None:
    for number in range(plan.rounds):
        first = number * len(runs) // plan.rounds
        for run in (*runs[first:], *runs[:first]):
            progress.say(f"{title}: {run.title}, round {number + 1}")
            run.run(plan.lap_s)
            progress.advance()


def estimate_rate(gradient_bytes: int, *, hosts: int, exposed_s: float) -> float:
    """Return the bits per second at which all gradients reach the shards and return in this time."""
    return count_dense_traffic(gradient_bytes, hosts) * 8 / PAYLOAD_SHARE / exposed_s


def correct_rate(rate_bits_per_s: float, *, found_s: float, wanted_s: float) -> float:
    """Return a better rate, as communication time is inversely proportional to it; change it at most fourfold."""
    return rate_bits_per_s * min(4.0, max(0.25, found_s / wanted_s))


def is_close(found_s: float, wanted_s: float) -> bool:
    return abs(found_s - wanted_s) <= CLOSE * wanted_s


def summarise(
    plan: SharePlan,
    runs: Sequence[ArrangementRun],
    ready: Sequence[Ready],
    *,
    bandwidth_gbit: float | None,
    ratio: float | None,
) -> Case:
    summary = _Summary(plan, runs, ready, plan.link_rate(bandwidth_gbit))
    return Case(
        mode=plan.mode.name.lower(),
        system=plan.mode.value,
        hosts=plan.hosts,
        bandwidth_gbit=bandwidth_gbit,
        ratio=ratio,
        scale=plan.scale,
        slowdown=plan.slowdown,
        jobs=summary.jobs,
        rows=summary.rows,
    )


class _Summary:
    """Figures of one case.  Computes with measured times; those that it returns are without the slowdown."""

    def __init__(
        self, plan: SharePlan, runs: Sequence[ArrangementRun], ready: Sequence[Ready], rate_bits_per_s: float | None
    ) -> None:
        self._plan = plan
        self._laps: dict[Arrangement, list[list[MeasuredLap]]] = {}  # of each job, or of all jobs together
        for run in runs:
            self._laps.setdefault(run.arrangement, []).append(run.laps)
        self._alone_s = self._find_steps(Arrangement.ALONE)
        nominal_s = [one.compute_s for one in ready if one.compute_s is not None]
        self._compute_s = tuple(nominal_s) if len(nominal_s) == len(ready) else self._find_steps(Arrangement.COMPUTE)
        self._links_s = [self._find_links_s(laps, rate_bits_per_s) for laps in self._laps[Arrangement.ALONE]]
        self._loads = [
            make_load(compute_s=compute_s, alone_s=alone_s, links_s=links_s or 0.0)
            for compute_s, alone_s, links_s in zip(self._compute_s, self._alone_s, self._links_s, strict=True)
        ]

    @property
    def rows(self) -> list[Row]:
        return [self._make_row(arrangement) for arrangement in self._laps]

    @property
    def jobs(self) -> list[JobFigures]:
        turns_s, slowdown = self._find_steps(Arrangement.TURNS), self._plan.slowdown
        return [
            JobFigures(
                model=job.model,
                label=label,
                weight=job.weight,
                is_urgent=job.is_urgent,
                compute_s=compute_s / slowdown,
                alone_s=alone_s / slowdown,
                exposed_s=(alone_s - compute_s) / slowdown,
                exposed_over_compute=alone_s / compute_s - 1,
                links_s=None if links_s is None else links_s / slowdown,
                turns_overhead=turn_s / alone_s - 1,
            )
            for job, label, compute_s, alone_s, links_s, turn_s in zip(
                self._plan.jobs, self._plan.labels, self._compute_s, self._alone_s, self._links_s, turns_s, strict=True
            )
        ]

    @staticmethod
    def _find_links_s(laps: Sequence[MeasuredLap], rate_bits_per_s: float | None) -> float | None:
        """Return how long a link needs for the bytes of a step; None where links are not shaped."""
        if rate_bits_per_s is None:
            return None
        return statistics.median(lap.sent_bytes for lap in laps) * 8 / (rate_bits_per_s * PAYLOAD_SHARE)

    def _find_steps(self, arrangement: Arrangement) -> tuple[float, ...]:
        """Return the step time of each job in this arrangement."""
        return tuple(step_s for laps in self._laps[arrangement] for step_s in find_middle(laps))

    def _make_row(self, arrangement: Arrangement) -> Row:
        steps_s, groups, slowdown = self._find_steps(arrangement), self._laps[arrangement], self._plan.slowdown
        by_lap = [[step_s for lap in laps for step_s in lap.steps_s] for laps in zip(*groups, strict=True)]
        row = Row(
            arrangement=arrangement.value,
            steps_s=[step_s / slowdown for step_s in steps_s],
            slow_downs=[step_s / alone_s for step_s, alone_s in zip(steps_s, self._alone_s, strict=True)],
            gain=1.0 if arrangement is Arrangement.ALONE else None,
            cpu=statistics.fmean(lap.cpu for laps in groups for lap in laps),
            laps_s=[[step_s / slowdown for step_s in lap] for lap in by_lap],
        )
        return self._compare(row, groups[0], steps_s) if arrangement.is_company else row

    def _compare(self, row: Row, laps: Sequence[MeasuredLap], steps_s: Sequence[float]) -> Row:
        """Return the row with its gains over running the jobs one after another."""
        gains = find_gains(self._laps[Arrangement.ALONE], laps)
        mix = [1 / step_s for step_s in steps_s]
        return msgspec.structs.replace(
            row,
            gain=statistics.median(gains),
            gain_low=min(gains),
            gain_high=max(gains),
            ideal=predict_gain(self._loads),
            ideal_as_mixed=predict_gain(self._loads, mix),
        )
