"""The state of a job as its launcher knows it.

In: status reports, endings of workers, output of rank 0, the time.  Out: a `JobSnapshot`, which every display shows.
Pure, and for one thread at a time.  All text from workers is made safe here, once.  An unfinished line of rank 0 is
included as it stands, so that a progress bar moves.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import msgspec

from undertow.engine.wire.streams import Lines
from undertow.observe.meter.status_report import LONGEST_NAME, Activity, StatusReport
from undertow.plain_text import clean, show_line

# A worker may miss a report or two while its interpreter is busy.
SILENT_S = 5.0
HISTORY = 120  # points, about one per second
DONE = "done"  # the ending of a worker without an error
KEPT_LINES = 50
KEPT_BYTES = 8192


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Current state of one rank."""

    rank: int
    host: str
    state: str  # in words
    is_alarming: bool
    is_up: bool
    report: StatusReport | None = msgspec.field(name="pulse")  # its name in state.json; None until the first one


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one moment.  Rates and shares are means over the ranks that have reported."""

    script: str
    world_size: int
    elapsed_s: float
    verdict: str  # how it ended; empty while it runs
    reporting: int = msgspec.field(name="heard")  # its name in state.json; number of ranks that have reported
    steps: int  # 0 if unknown
    steps_per_s: float
    wait_share: float
    waits_for: str
    turn_share: float
    out_bytes_per_s: float
    in_bytes_per_s: float
    layer: str
    layer_ms_per_step: float
    rows: list[RankRow]
    lines: list[str]  # last lines of rank 0's output
    history: list[tuple[float, float]]  # steps per second and share of waits, oldest first


class JobState:
    """Latest report and ending of every rank, and the last lines of rank 0."""

    def __init__(self, script: str, *, now_s: float) -> None:
        self.lines = LastLines()
        self._script = clean(script)
        self._began_s = now_s
        self._world_size = 0
        self._verdict = ""
        self._hosts: dict[int, str] = {}  # of the ranks that this launcher starts
        self._reports: dict[int, StatusReport] = {}
        self._reported_s: dict[int, float] = {}
        self._endings: dict[int, str] = {}
        self._history: deque[tuple[float, float]] = deque(maxlen=HISTORY)

    def expect(self, hosts: dict[int, str], world_size: int) -> None:
        """Set the ranks that this launcher starts with their hosts, and the number of all ranks."""
        self._hosts = {rank: clean(host) for rank, host in hosts.items()}
        self._world_size = world_size

    def add_report(self, report: StatusReport, now_s: float) -> None:
        """Store a report, unless it is late, a duplicate, or from a rank that does not exist."""
        known = self._reports.get(report.rank)
        if not 0 <= report.rank < self._world_size or (known is not None and report.sequence <= known.sequence):
            return
        names = {
            name: clean(getattr(report, name), LONGEST_NAME) for name in ("host", "stands_for", "waits_for", "layer")
        }
        self._reports[report.rank] = msgspec.structs.replace(report, **names)
        self._reported_s[report.rank] = now_s

    def end_rank(self, rank: int, ending: str) -> None:
        """Record how this worker has ended: `DONE`, or how it failed."""
        self._endings[rank] = ending

    def end_job(self, verdict: str) -> None:
        self._verdict = verdict

    def add_history_point(self) -> None:
        """Add a point to the history; called about once per second."""
        running = self._running()
        if running:
            self._history.append((_speed(running), _mean(report.wait_share for report in running)))

    def take_snapshot(self, now_s: float) -> JobSnapshot:
        running = self._running() or list(self._reports.values())
        slowest = max(running, key=lambda report: report.layer_ms_per_step, default=None)
        waiting = max(running, key=lambda report: report.wait_share, default=None)
        return JobSnapshot(
            script=self._script,
            world_size=self._world_size,
            elapsed_s=now_s - self._began_s,
            verdict=self._verdict,
            reporting=len(self._reports),
            steps=max((report.steps for report in self._reports.values()), default=0),
            steps_per_s=_speed(running),
            wait_share=_mean(report.wait_share for report in running),
            waits_for=waiting.waits_for if waiting else "",
            turn_share=_mean(report.turn_share for report in running),
            out_bytes_per_s=_mean(report.out_bytes_per_s for report in running),
            in_bytes_per_s=_mean(report.in_bytes_per_s for report in running),
            layer=slowest.layer if slowest else "",
            layer_ms_per_step=slowest.layer_ms_per_step if slowest else 0.0,
            rows=[self._make_row(rank, now_s) for rank in sorted({*self._hosts, *self._reports})],
            lines=self.lines.last(),
            history=list(self._history),
        )

    def _running(self) -> list[StatusReport]:
        return [report for rank, report in self._reports.items() if self._is_up(rank)]

    def _is_up(self, rank: int) -> bool:
        report = self._reports.get(rank)
        return rank not in self._endings and not (report is not None and report.state is Activity.ENDED)

    def _make_row(self, rank: int, now_s: float) -> RankRow:
        report = self._reports.get(rank)
        silent_s = now_s - self._reported_s.get(rank, now_s)
        is_silent = self._is_up(rank) and silent_s >= SILENT_S
        ending = self._endings.get(rank, "")
        if ending:
            state = f"ended: {ending}" if ending != DONE else "ended"
        elif is_silent:
            state = f"silent for {silent_s:.0f} s"
        else:
            state = describe_state(report)
        return RankRow(
            rank=rank,
            host=self._hosts.get(rank) or (report.host if report else ""),
            state=state,
            is_alarming=is_silent or ending not in ("", DONE),
            is_up=self._is_up(rank),
            report=report,
        )


def describe_state(report: StatusReport | None) -> str:
    """Describe what a worker is doing."""
    if report is None:
        return Activity.STARTING.value
    if report.state is Activity.WAITING:
        what = f"waiting for {report.stands_for}" if report.stands_for else "waiting"
        return f"{what}, {report.stands_s:.0f} s" if report.stands_s >= 2 else what
    if report.state is Activity.COMPUTING and report.turn_share > 0.9:
        return "other job's turn"
    return str(report.state.value)


def _speed(reports: Sequence[StatusReport]) -> float:
    """Return the median over the ranks, which is not distorted by ranks that started late."""
    known = [report.steps_per_s for report in reports if report.steps]
    return statistics.median(known) if known else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else 0.0


class LastLines:
    """The last lines of several numbered streams together."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._streams: dict[int, Lines] = defaultdict(lambda: Lines(KEPT_BYTES))

    def feed(self, stream: int, data: bytes) -> None:
        whole = self._streams[stream].feed(data)
        self._lines.extend(map(_show, whole[-KEPT_LINES:]))

    def last(self) -> list[str]:
        unfinished = [_show(lines.rest) for lines in self._streams.values() if lines.rest]
        return [*self._lines, *unfinished][-KEPT_LINES:]


def _show(line: bytes) -> str:
    return clean(show_line(line).rstrip())
