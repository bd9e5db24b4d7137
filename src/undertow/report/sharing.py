"""How crossover looks to a user: the tables of `undertow share`, and what sharing is worth, in words.

In: the arbiter's status, or how jobs that ran together have ended.  Out: rich tables and sentences.
Every cell is plain text: a job's name is never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table

from undertow.crossover.gain import Load, explain_no_gain
from undertow.crossover.messages import DeviceStatus, JobStatus, Status
from undertow.launch.shared_jobs import JobEnd, Story
from undertow.launch.tally import find_shares
from undertow.report.columns import ABSENT, show_figure, show_ms
from undertow.report.safe_text import Text
from undertow.report.table import start_table

LATEST = 5  # notices
WAITED = ("waited for\nits turn", "waited for\nnetwork")
# Of a job; the first few are words, the rest are numbers.
HEADINGS = (
    "job",
    "ranks here",
    "pids",
    "weight",
    "state",
    "steps",
    "device time",
    *WAITED,
    "a step computes,\nwaits, ms",
)
WORDS = 5
UNBOUNDED = 1000


def make_status(status: Status, path: Path) -> RenderableType:
    """All that `undertow share status` shows."""
    first = f"arbiter: {describe_arbiter(status, path)}, up for {show_seconds(status.up_s)}"
    parts: list[RenderableType] = [Text(first)]
    if not status.devices:
        parts.append(Text("no job shares a device now: start one with undertow run --share"))
    for device in status.devices:
        parts += [_DeviceTable(device), Text(describe_gain(device))]
    if status.notices:
        parts.append(Text("\nlatest notices"))
        parts += [Text(f"- {notice}") for notice in status.notices[-LATEST:]]
    return Group(*parts)


def describe_arbiter(status: Status, path: Path) -> str:
    return f"pid {status.pid} at {path}, lease {status.lease_s:g} s"


def describe_gain(device: DeviceStatus) -> str:
    """What the jobs of a device have from being there together."""
    if len(device.jobs) < 2:
        return "one job is here: it computes whenever it likes"
    loads = [
        Load(job.compute_s, job.exposed_s)
        for job in device.jobs
        if job.compute_s is not None and job.exposed_s is not None
    ]
    if device.gain is None or len(loads) < len(device.jobs):
        return "predicted gain: not known before each job has made a few steps"
    words = explain_no_gain([job.name for job in device.jobs], loads)
    if words is not None:
        return f"predicted: {words}"
    return f"predicted: together they do {device.gain:.2f} times as much as one after the other"


def make_summary(story: Story) -> RenderableType:
    """What `undertow share run` shows at the end."""
    table = start_table("", "")
    _add(table, "job", is_number=False)
    for heading in ("exit\ncode", "wall\ntime", "steps", "device time", *WAITED):
        _add(table, heading, is_number=True)
    shares = find_shares({end.name: end.figures for end in story.ends})
    for end in story.ends:
        table.add_row(*map(Text, _show_end(end, shares.get(end.name, 0.0))))
    words = [f"{device.device}: {describe_gain(device)}" for device in story.devices if len(device.jobs) > 1]
    return Group(table, *map(Text, [*words, *_say_what_was_seen(story.ends)]))


def show_seconds(seconds: float) -> str:
    """As long as a person would say it."""
    if seconds < 120:
        return f"{show_figure(seconds)} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"


class _DeviceTable:
    """The jobs of a device: one row for each where there is room, else one column."""

    def __init__(self, device: DeviceStatus) -> None:
        total_s = sum(job.device_s for job in device.jobs)
        self._title = _describe_turn(device)
        self._cells = [_show_job(job, job.device_s / total_s if total_s else 0.0) for job in device.jobs]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._make_wide()
        fits = console.measure(wide, options=options.update(max_width=UNBOUNDED)).maximum <= options.max_width
        yield wide if fits else self._make_tall()

    def _make_wide(self) -> Table:
        table = start_table(self._title, "")
        for number, heading in enumerate(HEADINGS):
            _add(table, heading, is_number=number >= WORDS)
        for cells in self._cells:
            table.add_row(*map(Text, cells))
        return table

    def _make_tall(self) -> Table:
        table = start_table(self._title, "")
        first, *rest = zip(HEADINGS, *self._cells, strict=True)
        for number, heading in enumerate(first):
            _add(table, heading, is_number=number > 0)
        for cells in rest:
            table.add_row(*(Text(cell.replace("\n", " ")) for cell in cells))
        return table


def _describe_turn(device: DeviceStatus) -> str:
    if len(device.jobs) < 2:
        return f"\n{device.device}"
    holder = next((job.name for job in device.jobs if job.job == device.holder), None)
    held = f"{holder} has had the turn for {show_seconds(device.held_s)}" if holder else "nobody has the turn"
    return f"\n{device.device}: {held}"


def _show_job(job: JobStatus, share: float) -> tuple[str, ...]:
    late = f", lost its turn to the lease {job.overdue} times" if job.overdue else ""
    step = ABSENT
    if job.compute_s is not None and job.exposed_s is not None:
        step = f"{show_ms(job.compute_s)} + {show_ms(job.exposed_s)}"
    return (
        job.name,
        f"{_show_ranks(job.ranks)} of {job.world_size}",
        ",".join(map(str, job.pids)),
        f"{job.weight:g}{', urgent' if job.is_urgent else ''}",
        f"{job.state}{late}",
        str(job.steps),
        _show_time(job.device_s, share),
        show_seconds(job.waited_s),
        show_seconds(job.network_s),
        step,
    )


def _show_end(end: JobEnd, share: float) -> Iterable[str]:
    first = (end.name, str(end.exit_code), show_seconds(end.wall_s))
    if end.figures is None:
        return (*first, *[ABSENT] * 4)
    seen = end.figures
    waited = (show_seconds(seen.waited_s), show_seconds(seen.network_s))
    return (*first, str(seen.steps), _show_time(seen.device_s, share), *waited)


def _say_what_was_seen(ends: Sequence[JobEnd]) -> Iterable[str]:
    unseen = [end.name for end in ends if end.figures is None]
    if len(unseen) < len(ends):
        yield "steps and device times as the arbiter last saw them, which may be half a second before the end"
    if unseen:
        yield f"not seen by the arbiter: {', '.join(unseen)} (ended too soon, or trains without undertow.torch)"


def _show_time(seconds: float, share: float) -> str:
    return f"{show_seconds(seconds)} ({share * 100:.0f} %)"


def _show_ranks(ranks: Sequence[int]) -> str:
    """Neighbours as a range: 0-3,7."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _add(table: Table, heading: str, *, is_number: bool) -> None:
    table.add_column(Text(heading), justify="right" if is_number else "left")
