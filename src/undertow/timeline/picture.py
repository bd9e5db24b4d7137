"""What the timeline of one step is drawn of: few enough marks for any number of ranks.

In: a study, a step.  Out: `Picture`, plain numbers for the page's script.
Each rank has three lanes: its training thread, the wire out and the wire in.  Times are whole ticks from the begin of
the picture; short neighbours within a 2000th of the step become one mark if there are too many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from undertow.timeline.model import Lane, RankTrace, Step, Trace, Wire
from undertow.timeline.path import Link
from undertow.timeline.spending import Day
from undertow.timeline.words import name_tensors

# A tick is so small a part of the step that no screen shows less.
TICKS = 40_000
# More marks than this in all steps of a page are merged: each takes about 25 bytes.
MOST_MARKS = 80_000
# Of the step: what is closer looks like one mark anyway.  Where that is not enough, twice as much, and so on.
CLOSE = 2000
# What a mark can be; the order is the page's, which draws and names them by number.
KINDS = (*(lane.value for lane in Lane), "script", "push", "result", "pull", "value", "report")
NOBODY = -1


class Mark(NamedTuple):
    """One bar; written to the page as six numbers."""

    begin: int
    length: int
    kind: int
    name: int  # its place in `names`
    peer: int
    size_bytes: int  # of a merged mark: of all of them


class RankPicture(msgspec.Struct, frozen=True):
    rank: int
    host: str
    begin: int  # where its own step begins and ends
    end: int
    thread: tuple[Mark, ...]
    out: tuple[Mark, ...]
    into: tuple[Mark, ...]


class PathMark(NamedTuple):
    begin: int
    length: int
    cause: str
    rank: int
    peer: int
    name: int


class Picture(msgspec.Struct, frozen=True):
    """One step of all ranks."""

    step: int
    why: str  # it is shown: median, fastest, slowest, chosen
    length_ns: int  # of the whole picture
    ticks: int
    is_merged: bool
    ranks: tuple[RankPicture, ...]
    path: tuple[PathMark, ...]


class Album:
    """Pictures that share their names."""

    def __init__(self, trace: Trace, days: Mapping[int, Day]) -> None:
        self._trace = trace
        self._days = days
        self._names: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def draw_all(self, shown: Mapping[str, int], paths: Mapping[int, Iterable[Link]]) -> list[Picture]:
        """Few enough marks for all of them together."""
        pictures = [self._draw(number, why, paths[number]) for why, number in shown.items()]
        distance = TICKS // CLOSE
        while sum(map(count_marks, pictures)) > MOST_MARKS:
            pictures = [_merge(picture, distance) for picture in pictures]
            distance *= 2
        return pictures

    def _draw(self, number: int, why: str, path: Iterable[Link]) -> Picture:
        steps = {rank: known.steps[number] for rank, known in self._trace.ranks.items()}
        window = Step(
            number, min(step.begin_ns for step in steps.values()), max(step.end_ns for step in steps.values())
        )
        scale = _Scale(window)
        ranks = [self._draw_rank(known, steps[rank], scale) for rank, known in self._trace.ranks.items()]
        return Picture(
            step=number,
            why=why,
            length_ns=window.length_ns,
            ticks=TICKS,
            is_merged=False,
            ranks=tuple(ranks),
            path=tuple(self._draw_path(path, scale)),
        )

    def _draw_rank(self, known: RankTrace, step: Step, scale: _Scale) -> RankPicture:
        return RankPicture(
            rank=known.rank,
            host=known.header.host,
            begin=scale.place(step.begin_ns),
            end=scale.place(step.end_ns),
            thread=tuple(self._draw_thread(known, scale)),
            out=tuple(self._draw_wires(known.outs, scale)),
            into=tuple(self._draw_wires(known.ins, scale)),
        )

    def _draw_thread(self, known: RankTrace, scale: _Scale) -> Iterator[Mark]:
        """Each moment is what the sums count it as; of the steps before and after as much as the picture reaches."""
        for part in self._days[known.rank].cut(scale.begin_ns, scale.end_ns):
            kind, name = ("script", "between layers") if part.span is None else (part.span.cat, part.span.name)
            begin, length = scale.measure(part.begin_ns, part.end_ns)
            yield Mark(begin, length, KINDS.index(kind), self._number(name), NOBODY, 0)

    def _draw_wires(self, wires: Iterable[Wire], scale: _Scale) -> Iterator[Mark]:
        for wire in wires:
            if wire.end_ns > scale.begin_ns and wire.begin_ns < scale.end_ns:
                begin, length = scale.measure(wire.begin_ns, wire.end_ns)
                kind = KINDS.index(wire.kind) if wire.kind in KINDS else KINDS.index("value")
                yield Mark(begin, length, kind, self._number(name_tensors(wire.tensors)), wire.peer, wire.size_bytes)

    def _draw_path(self, path: Iterable[Link], scale: _Scale) -> Iterator[PathMark]:
        for link in path:
            begin, length = scale.measure(link.begin_ns, link.end_ns)
            peer = NOBODY if link.peer is None else link.peer
            yield PathMark(begin, length, link.cause.value, link.rank, peer, self._number(link.name))

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


class _Scale:
    """Nanoseconds to ticks."""

    def __init__(self, window: Step) -> None:
        self.begin_ns, self.end_ns = window.begin_ns, window.end_ns
        self._tick_ns = max(1, window.length_ns) / TICKS

    def place(self, time_ns: int) -> int:
        return round((min(max(time_ns, self.begin_ns), self.end_ns) - self.begin_ns) / self._tick_ns)

    def measure(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        begin = self.place(begin_ns)
        return begin, self.place(end_ns) - begin


def count_marks(picture: Picture) -> int:
    return sum(len(rank.thread) + len(rank.out) + len(rank.into) for rank in picture.ranks)


def _merge(picture: Picture, distance: int) -> Picture:
    ranks = []
    for rank in picture.ranks:
        lanes = {name: merge(getattr(rank, name), distance) for name in ("thread", "out", "into")}
        ranks.append(msgspec.structs.replace(rank, **lanes))
    return msgspec.structs.replace(picture, ranks=tuple(ranks), is_merged=True)


def merge(marks: Iterable[Mark], distance: int) -> tuple[Mark, ...]:
    """Short ones that begin within this distance become one; long ones stay what they are."""
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
    """Named after the longest of the kind that takes most of the time."""
    lengths: Counter[int] = Counter()
    for mark in marks:
        lengths[mark.kind] += mark.length
    kind = lengths.most_common(1)[0][0]
    named = max((mark for mark in marks if mark.kind == kind), key=lambda mark: mark.length)
    begin, end = marks[0].begin, max(mark.begin + mark.length for mark in marks)
    return named._replace(begin=begin, length=end - begin, size_bytes=sum(mark.size_bytes for mark in marks))
