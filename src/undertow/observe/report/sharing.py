"""Tables and sentences of `undertow share`: which job computes, and what sharing gains.

In: the arbiter's status, or the outcome of jobs that ran together.  Out: rich tables and sentences.
Every cell is plain text: a job's name is never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table

from undertow.crossover.gain import Load, explain_no_gain
from undertow.crossover.messages import DeviceStatus, JobStatus, Status
from undertow.launch.job_usage import find_shares
from undertow.launch.shared_jobs import JobEnd, SharedRunResult
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import Justify, start_table
from undertow.units import ABSENT, format_ms_figure, format_percent, format_seconds

LATEST = 5  # notices
WAITED = ("waited for\nits turn", "waited for\nnetwork")
COLUMNS: tuple[tuple[str, Justify], ...] = (
    ("job", "left"),
    ("ranks here", "left"),
    ("pids", "left"),
    ("weight", "left"),
    ("state", "left"),
    ("steps", "right"),
    ("device time", "right"),
    (WAITED[0], "right"),
    (WAITED[1], "right"),
    ("a step computes,\nwaits, ms", "right"),
)
UNBOUNDED = 1000


def make_status(status: Status, path: Path) -> RenderableType:
    """Make the output of `undertow share status`."""
    first = f"arbiter: {describe_arbiter(status, path)}, up for {format_seconds(status.up_s)}"
    shown: list[RenderableType] = [Text(first)]
    if not status.devices:
        shown.append(Text("no job shares a device: start one with undertow run --share"))
    for device in status.devices:
        shown += [_DeviceTable(device), Text(describe_gain(device))]
    if status.notices:
        shown.append(Text("\nlatest notices"))
        shown += [Text(f"- {notice}") for notice in status.notices[-LATEST:]]
    return Group(*shown)


def describe_arbiter(status: Status, path: Path) -> str:
    return f"pid {status.pid} at {path}, lease {status.lease_s:g} s"


def describe_gain(device: DeviceStatus) -> str:
    """Describe what the jobs of a device gain by sharing it."""
    if len(device.jobs) < 2:
        return "only one job: it never waits for a turn"
    loads = [
        Load(job.compute_s, job.exposed_s)
        for job in device.jobs
        if job.compute_s is not None and job.exposed_s is not None
    ]
    if device.gain is None or len(loads) < len(device.jobs):
        return "predicted gain: unknown until each job has made a few steps"
    reason = explain_no_gain([job.name for job in device.jobs], loads)
    if reason is not None:
        return f"predicted: {reason}"
    return f"predicted: together they do {device.gain:.2f} times as much as one after another"


def make_summary(result: SharedRunResult) -> RenderableType:
    """Make the output of `undertow share run` at the end."""
    numbers = ("exit\ncode", "wall\ntime", "steps", "device time", *WAITED)
    table = start_table("", "", [("job", "left"), *((heading, "right") for heading in numbers)])
    shares = find_shares({end.name: end.usage for end in result.ends})
    for end in result.ends:
        table.add_row(*map(Text, _show_end(end, shares.get(end.name, 0.0))))
    words = [f"{device.device}: {describe_gain(device)}" for device in result.devices if len(device.jobs) > 1]
    return Group(table, *map(Text, [*words, *_explain_usage(result.ends)]))


class _DeviceTable:
    """Table of the jobs of a device: one row per job if the console is wide enough, otherwise one column per job."""

    def __init__(self, device: DeviceStatus) -> None:
        total_s = sum(job.device_s for job in device.jobs)
        self._title = _describe_turn(device)
        self._cells = [_show_job(job, job.device_s / total_s if total_s else 0.0) for job in device.jobs]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._make_wide()
        fits = console.measure(wide, options=options.update(max_width=UNBOUNDED)).maximum <= options.max_width
        yield wide if fits else self._make_tall()

    def _make_wide(self) -> Table:
        table = start_table(self._title, "", COLUMNS)
        for cells in self._cells:
            table.add_row(*map(Text, cells))
        return table

    def _make_tall(self) -> Table:
        (heading, *names), *rest = zip([heading for heading, _ in COLUMNS], *self._cells, strict=True)
        table = start_table(self._title, "", [(heading, "left"), *((name, "right") for name in names)])
        for cells in rest:
            table.add_row(*(Text(cell.replace("\n", " ")) for cell in cells))
        return table


def _describe_turn(device: DeviceStatus) -> str:
    if len(device.jobs) < 2:
        return f"\n{device.device}"
    holder = next((job.name for job in device.jobs if job.job == device.holder), None)
    held = f"{holder} has had the turn for {format_seconds(device.held_s)}" if holder else "no job has the turn"
    return f"\n{device.device}: {held}"


def _show_job(job: JobStatus, share: float) -> tuple[str, ...]:
    late = f", its lease ran out {job.overdue} times" if job.overdue else ""
    step = ABSENT
    if job.compute_s is not None and job.exposed_s is not None:
        step = f"{format_ms_figure(job.compute_s)} + {format_ms_figure(job.exposed_s)}"
    return (
        job.name,
        f"{_show_ranks(job.ranks)} of {job.world_size}",
        ",".join(map(str, job.pids)),
        f"{job.weight:g}{', urgent' if job.is_urgent else ''}",
        f"{job.state}{late}",
        str(job.steps),
        _show_time(job.device_s, share),
        format_seconds(job.waited_s),
        format_seconds(job.network_s),
        step,
    )


def _show_end(end: JobEnd, share: float) -> Iterable[str]:
    first = (end.name, str(end.exit_code), format_seconds(end.wall_s))
    if end.usage is None:
        return (*first, *[ABSENT] * 4)
    usage = end.usage
    waited = (format_seconds(usage.waited_s), format_seconds(usage.network_s))
    return (*first, str(usage.steps), _show_time(usage.device_s, share), *waited)


def _explain_usage(ends: Sequence[JobEnd]) -> Iterable[str]:
    unknown = [end.name for end in ends if end.usage is None]
    if len(unknown) < len(ends):
        yield "steps and device times are the arbiter's last ones, up to half a second before the end"
    if unknown:
        yield f"not seen by the arbiter: {', '.join(unknown)} (ended too early, or does not use undertow.torch)"


def _show_time(seconds: float, share: float) -> str:
    return f"{format_seconds(seconds)} ({format_percent(share)})"


def _show_ranks(ranks: Sequence[int]) -> str:
    """Show consecutive ranks as a range: 0-3,7."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
