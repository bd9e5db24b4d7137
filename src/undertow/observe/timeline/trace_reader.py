"""Reads the trace files of a folder, even incomplete or damaged ones.

In: a folder with `rank-N.json` of every rank (or one `trace.json` with all of them).  Out: a `Trace`, which lists what
is missing; None if there is no trace at all.  If several runs have left files there, one run is chosen.
No content of a file is an error: lines that are not events are counted, and the rest is read.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from undertow.bounds import read_count
from undertow.decoding import Decoder, Format
from undertow.errors import Garbled, PlanError, name_ranks
from undertow.observe.timeline.run_trace import PlanInForce, RankTrace, Span, SpanKind, Step, Trace, Wire
from undertow.observe.timeline.trace_line import Args, Event, decode, to_ns
from undertow.observe.trace.chrome import FORMAT, TraceHeader
from undertow.observe.trace.merging import MERGED, find_files
from undertow.plain_text import capitalise, clean
from undertow.plan.checks import check_plan, check_profile
from undertow.plan.cluster import Cluster
from undertow.plan.plan import PLANS
from undertow.plan.profile import Profile
from undertow.progress import SILENT, Progress
from undertow.units import format_quantity

GATHER = "gather"
T = TypeVar("T")


def read_trace(folder: Path, progress: Progress = SILENT) -> Trace | None:
    """Read all files of a folder, each as one unit of progress.

    Returns None if there are no files; raises `Garbled` if none of them can be read.
    """
    files = list(find_files(folder).values()) or sorted(folder.glob(MERGED))
    progress.expect(len(files))
    missing: list[str] = []
    unreadable: list[str] = []
    found: list[RankTrace] = []
    for path in files:
        progress.say(f"reading the traces: {path.name}")
        try:
            read, gaps = _read_file(path)
            found += read
            missing += gaps
        except OSError as error:
            unreadable.append(f"{path.name}: cannot be read ({error.strerror}).")
        progress.advance()
    if not found:
        if unreadable:
            raise Garbled(f"no trace in {folder} can be read. {' '.join(unreadable)}")
        return None
    missing += unreadable
    ranks, left_out = choose_run(found)
    world_size = next(iter(ranks.values())).header.world_size
    absent = sorted(set(range(world_size)) - ranks.keys())
    if absent:
        gap = f"{name_ranks(absent)} of {world_size}: no trace; copy rank-*.json of every host into this folder."
        missing.insert(0, capitalise(gap))
    empty = [rank for rank, trace in ranks.items() if not trace.steps]
    if empty and len(empty) < len(ranks):
        missing.append(capitalise(f"{name_ranks(empty)}: no complete step, so not part of this page."))
        ranks = {rank: trace for rank, trace in ranks.items() if trace.steps}
    return Trace(folder=str(folder), world_size=world_size, ranks=ranks, missing=[*left_out, *missing])


def _read_file(path: Path) -> tuple[list[RankTrace], list[str]]:
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a FIFO would wait for a writer
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as lines:
        reader = _FileReader()
        for line in lines:
            reader.take(line)
    return reader.close(path.name)


class _FileReader:
    """Reader of one file, line by line, which may have several ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, RankTrace] = {}
        self._broken = 0  # lines
        self._is_last_broken = False
        self._newer: set[int] = set()  # formats of newer versions
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}  # all wires of a slice share one tuple

    def take(self, line: bytes) -> None:
        if line.strip() in (b"", b"[", b"]"):
            return
        event = decode(line)
        self._is_last_broken = event is None
        if event is None:
            self._broken += 1
        elif event.args is not None:
            self._put(event, event.args)

    def close(self, name: str) -> tuple[list[RankTrace], list[str]]:
        gaps = []
        if self._newer:
            gaps.append(f"{name}: format {max(self._newer)}, written by a newer undertow than this one.")
        if not self._ranks:
            return [], gaps or [f"{name}: not a trace of undertow."]
        broken = self._broken - self._is_last_broken
        if broken:
            gaps.append(f"{name}: left out {format_quantity(broken, 'line')} without a valid event.")
        cut = [rank for rank, trace in self._ranks.items() if trace.ended is None]
        if cut:
            how = "in the middle of an event" if self._is_last_broken else "without an end"
            gaps.append(f"{name}: cut off {how}; was {name_ranks(cut)} killed, or is it still running?")
        for trace in self._ranks.values():
            _sort(trace)
        return list(self._ranks.values()), gaps

    def _put(self, event: Event, args: Args) -> None:
        if event.ph == "M":
            return self._put_fact(event, args)
        trace = self._ranks.get(event.pid)
        if trace is None or event.ph != "X":
            return
        begin_ns, end_ns = to_ns(event.ts), to_ns(event.ts + event.dur)
        if event.cat in _THREAD_CATS:
            trace.thread.append(self._make_span(event, args, begin_ns, end_ns))
        elif event.cat == "wire-out":
            trace.outs.append(self._make_wire(args, args.to, begin_ns, end_ns))
        elif event.cat == "wire-in":
            trace.ins.append(self._make_wire(args, args.source_rank, begin_ns, end_ns))
        elif event.cat == "step":
            trace.steps[args.step] = Step(args.step, begin_ns, end_ns)
        elif event.cat == "shard":
            trace.shard.append(self._make_span(event, args, begin_ns, end_ns))
        elif event.cat == "allreduce":
            trace.reduced.append(self._make_span(event, args, begin_ns, end_ns))

    def _put_fact(self, event: Event, args: Args) -> None:
        if event.name == "undertow":
            if args.format > FORMAT:
                self._newer.add(args.format)
            elif 0 <= args.rank < args.world_size:
                self._ranks[event.pid] = RankTrace(_make_header(args))
            return
        trace = self._ranks.get(event.pid)
        if trace is None:
            return
        if event.name == "undertow.table":
            _learn_table(trace, args)
        elif event.name == "undertow.plan":
            trace.plans += _make_plan(event, args)
        elif event.name == "undertow.link":
            trace.link_bytes_per_s = args.bytes_per_s or trace.link_bytes_per_s
        elif event.name == "undertow.clock":
            # Half of the fastest round trip bounds the error; slower comparisons were not used.
            error_ns = round(args.round_trip_s * 1e9 / 2)
            trace.clock_error_ns = min(trace.clock_error_ns or error_ns, error_ns)
        elif event.name == "undertow.end":
            trace.ended = clean(args.reason)

    def _make_span(self, event: Event, args: Args, begin_ns: int, end_ns: int) -> Span:
        tensors = (args.tensor,) if args.tensor else args.tensors
        return Span(
            cat=event.cat,
            name=clean(event.name),
            begin_ns=begin_ns,
            end_ns=end_ns,
            step=args.step,
            tensors=self._share(tensors),
            reason=clean(args.reason),
            key=args.key,
            round=args.round,
            size_bytes=args.size_bytes,
        )

    def _make_wire(self, args: Args, peer: int, begin_ns: int, end_ns: int) -> Wire:
        return Wire(
            kind=clean(args.kind),
            key=args.key,
            round=args.round,
            step=args.step,
            size_bytes=args.size_bytes,
            peer=peer,
            tensors=self._share(args.tensors),
            begin_ns=begin_ns,
            end_ns=end_ns,
            queued_ns=to_ns(args.queued) if args.queued >= 0 else -1,
            sent_ns=to_ns(args.sent) if args.sent >= 0 else -1,
        )

    def _share(self, tensors: object) -> tuple[str, ...]:
        given = tuple(map(str, tensors)) if isinstance(tensors, (list, tuple)) else ()
        names = self._names.get(given)
        if names is None:
            names = self._names[given] = tuple(map(clean, given))
        return names


_THREAD_CATS = frozenset(lane.value for lane in SpanKind)


def _make_header(args: Args) -> TraceHeader:
    return TraceHeader(
        rank=args.rank,
        world_size=args.world_size,
        host=clean(args.host),
        version=clean(args.version),
        source=clean(args.source),
        script=clean(args.script),
        started=clean(str(args.started)),
    )


def _learn_table(trace: RankTrace, args: Args) -> None:
    keys = args.tensors if isinstance(args.tensors, dict) else {}
    numbers = {number for number in map(read_count, map(str, keys)) if number is not None}
    if args.op.lower() == GATHER:
        trace.gathered |= numbers
    else:
        trace.gathered -= numbers


def _make_plan(event: Event, args: Args) -> list[PlanInForce]:
    try:
        plan = PLANS.decode(args.plan)
    except Garbled:
        return []
    profile, cluster = _decode_optional(args.profile, Profile), _decode_optional(args.cluster, Cluster)
    try:
        check_plan(plan)
        if profile is not None:
            check_profile(profile)
    except PlanError:
        return []
    return [PlanInForce(to_ns(event.ts), plan, profile, cluster)]


def _decode_optional(raw: msgspec.Raw, wanted: type[T]) -> T | None:
    try:
        return Decoder[T](wanted, format=Format.JSON).decode(raw)
    except Garbled:
        return None


def _sort(trace: RankTrace) -> None:
    """Sort by start time; of two spans that start together, the longer one contains the other and comes first."""
    for spans in (trace.thread, trace.shard, trace.reduced):
        spans.sort(key=lambda span: (span.begin_ns, -span.end_ns))
    for wires in (trace.outs, trace.ins):
        wires.sort(key=lambda wire: (wire.begin_ns, wire.end_ns))
        # A table's operation may not apply to all of its keys: a key with a result was summed, not gathered.
        trace.gathered -= {wire.key for wire in wires if wire.kind == "result"}


def choose_run(found: Sequence[RankTrace]) -> tuple[dict[int, RankTrace], list[str]]:
    """Choose the run with the most ranks; of equal ones, the latest."""
    runs: dict[tuple[str, int, str], list[RankTrace]] = {}
    for trace in found:
        header = trace.header
        runs.setdefault((header.started, header.world_size, header.source), []).append(trace)
    *others, best = sorted(runs, key=lambda run: (len({trace.rank for trace in runs[run]}), _find_end_ns(runs[run])))
    chosen = {trace.rank: trace for trace in runs[best]}
    notes = [_describe(runs[run], runs[best]) for run in others]
    if len(chosen) < len(runs[best]):
        ranks = [trace.rank for trace in runs[best]]
        twice = name_ranks(rank for rank in chosen if ranks.count(rank) > 1)
        notes.append(capitalise(f"{twice}: in two files, only one of which is used."))
    return dict(sorted(chosen.items())), notes


def _find_end_ns(run: Sequence[RankTrace]) -> int:
    return max((step.end_ns for trace in run for step in trace.steps.values()), default=0)


def _describe(left_out: Sequence[RankTrace], chosen: Sequence[RankTrace]) -> str:
    names = name_ranks(trace.rank for trace in left_out)
    return capitalise(f"{names} left out, from another run ({_name(left_out)}): this page is about {_name(chosen)}.")


def _name(run: Sequence[RankTrace]) -> str:
    header = run[0].header
    return f"{format_quantity(header.world_size, 'worker')}, run {header.started or 'without a name'}"
