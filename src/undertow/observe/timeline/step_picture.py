"""Makes the marks of a step's timeline, few enough for any number of ranks.

In: a trace, a step.  Out: `StepPicture`, numbers for the page's script.
Each rank has three lanes: its training thread, the wire out and the wire in.  Times are whole ticks from the beginning
of the picture; if there are too many marks, short neighbours within a 2000th of the step become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from undertow.observe.timeline.critical_path import PathLink
from undertow.observe.timeline.run_trace import RankTrace, SpanKind, Step, Trace, Wire, name_tensors
from undertow.observe.timeline.thread_time import ThreadTimeline

# Ticks per picture: no screen shows a shorter time.
TICKS = 40_000
# With more marks than this in all steps of a page, marks are merged: each takes about 25 bytes.
MOST_MARKS = 80_000
# Marks within this fraction of the step look like one anyway.  The distance doubles until there are few enough marks.
CLOSE = 2000
# Kinds of marks; the page's script refers to them by their index.
KINDS = (*(kind.value for kind in SpanKind), "script", "push", "result", "pull", "value", "report")
NO_PEER = -1


class Mark(NamedTuple):
    """A bar of the timeline, written to the page as six numbers."""

    begin: int
    length: int
    kind: int
    name: int  # index in `names`
    peer: int
    size_bytes: int  # of a merged mark: the sum


class RankLanes(msgspec.Struct, frozen=True):
    """The marks of one rank."""

    rank: int
    host: str
    begin: int  # of this rank's step
    end: int
    thread: tuple[Mark, ...]
    out: tuple[Mark, ...]
    into: tuple[Mark, ...]


class PathMark(NamedTuple):
    """A link of the critical path, in ticks."""

    begin: int
    length: int
    cause: str
    rank: int
    peer: int
    name: int


class StepPicture(msgspec.Struct, frozen=True):
    """Picture of one step on all ranks."""

    step: int
    why: str  # the reason for showing it: median, fastest, slowest, chosen
    length_ns: int  # of the whole picture
    ticks: int
    is_merged: bool
    ranks: tuple[RankLanes, ...]
    path: tuple[PathMark, ...]


class PictureDrawer:
    """Drawer of pictures that share one list of names."""

    def __init__(self, trace: Trace, threads: Mapping[int, ThreadTimeline]) -> None:
        self._trace = trace
        self._threads = threads
        self._names: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def draw_all(self, shown: Mapping[str, int], paths: Mapping[int, Iterable[PathLink]]) -> list[StepPicture]:
        """Draw these steps with at most `MOST_MARKS` marks in total."""
        pictures = [self._draw(number, why, paths[number]) for why, number in shown.items()]
        distance = TICKS // CLOSE
        while sum(map(count_marks, pictures)) > MOST_MARKS:
            pictures = [_merge(picture, distance) for picture in pictures]
            distance *= 2
        return pictures

    def _draw(self, number: int, why: str, path: Iterable[PathLink]) -> StepPicture:
        steps = {rank: known.steps[number] for rank, known in self._trace.ranks.items()}
        window = self._trace.find_window(number)
        scale = _Scale(window)
        ranks = [self._draw_rank(known, steps[rank], scale) for rank, known in self._trace.ranks.items()]
        return StepPicture(
            step=number,
            why=why,
            length_ns=window.length_ns,
            ticks=TICKS,
            is_merged=False,
            ranks=tuple(ranks),
            path=tuple(self._draw_path(path, scale)),
        )

    def _draw_rank(self, known: RankTrace, step: Step, scale: _Scale) -> RankLanes:
        return RankLanes(
            rank=known.rank,
            host=known.header.host,
            begin=scale.to_ticks(step.begin_ns),
            end=scale.to_ticks(step.end_ns),
            thread=tuple(self._draw_thread(known, scale)),
            out=tuple(self._draw_wires(known.outs, scale)),
            into=tuple(self._draw_wires(known.ins, scale)),
        )

    def _draw_thread(self, known: RankTrace, scale: _Scale) -> Iterator[Mark]:
        """Yield the uses of time within the picture, as they are counted in the sums."""
        for segment in self._threads[known.rank].cut(scale.begin_ns, scale.end_ns):
            kind, name = ("script", "between layers") if segment.span is None else (segment.span.cat, segment.span.name)
            begin, length = scale.measure(segment.begin_ns, segment.end_ns)
            yield Mark(begin, length, KINDS.index(kind), self._number(name), NO_PEER, 0)

    def _draw_wires(self, wires: Iterable[Wire], scale: _Scale) -> Iterator[Mark]:
        for wire in wires:
            if wire.end_ns > scale.begin_ns and wire.begin_ns < scale.end_ns:
                begin, length = scale.measure(wire.begin_ns, wire.end_ns)
                kind = KINDS.index(wire.kind) if wire.kind in KINDS else KINDS.index("value")
                yield Mark(begin, length, kind, self._number(name_tensors(wire.tensors)), wire.peer, wire.size_bytes)

    def _draw_path(self, path: Iterable[PathLink], scale: _Scale) -> Iterator[PathMark]:
        for link in path:
            begin, length = scale.measure(link.begin_ns, link.end_ns)
            peer = NO_PEER if link.peer is None else link.peer
            yield PathMark(begin, length, link.cause.value, link.rank, peer, self._number(link.name))

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


class _Scale:
    """Conversion of nanoseconds to ticks."""

    def __init__(self, window: Step) -> None:
        self.begin_ns, self.end_ns = window.begin_ns, window.end_ns
        self._tick_ns = max(1, window.length_ns) / TICKS

    def to_ticks(self, time_ns: int) -> int:
        return round((min(max(time_ns, self.begin_ns), self.end_ns) - self.begin_ns) / self._tick_ns)

    def measure(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        begin = self.to_ticks(begin_ns)
        return begin, self.to_ticks(end_ns) - begin


def count_marks(picture: StepPicture) -> int:
    return sum(len(rank.thread) + len(rank.out) + len(rank.into) for rank in picture.ranks)


def _merge(picture: StepPicture, distance: int) -> StepPicture:
    ranks = []
    for rank in picture.ranks:
        lanes = {name: merge(getattr(rank, name), distance) for name in ("thread", "out", "into")}
        ranks.append(msgspec.structs.replace(rank, **lanes))
    return msgspec.structs.replace(picture, ranks=tuple(ranks), is_merged=True)


def merge(marks: Iterable[Mark], distance: int) -> tuple[Mark, ...]:
    """Merge short marks that begin within this distance; long ones stay as they are."""
    merged: list[Mark] = []
    near: list[Mark] = []
    for mark in marks:
        is_near = bool(near) and mark.begin - near[0].begin <= distance
        if near and (mark.length > distance or not is_near):
            merged.append(_join(near))
            near = []
        if mark.length > distance:
            merged.append(mark)
        else:
            near.append(mark)
    return (*merged, _join(near)) if near else tuple(merged)


def _join(marks: Sequence[Mark]) -> Mark:
    """Join marks under the name of the longest one of the kind that takes most of the time."""
    lengths: Counter[int] = Counter()
    for mark in marks:
        lengths[mark.kind] += mark.length
    kind = lengths.most_common(1)[0][0]
    named = max((mark for mark in marks if mark.kind == kind), key=lambda mark: mark.length)
    begin, end = marks[0].begin, max(mark.begin + mark.length for mark in marks)
    return named._replace(begin=begin, length=end - begin, size_bytes=sum(mark.size_bytes for mark in marks))
