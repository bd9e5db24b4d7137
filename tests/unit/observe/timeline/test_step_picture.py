"""The picture of a step: few marks for any number of ranks, without losing visible details."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.timeline_samples import Job, make_trace, spans, write_trace
from undertow.observe.timeline import step_picture
from undertow.observe.timeline.analysis import Study, study
from undertow.observe.timeline.step_picture import KINDS, TICKS, Mark, PictureDrawer, StepPicture, count_marks, merge
from undertow.observe.timeline.trace_reader import read_trace

WAIT, APPLY = KINDS.index("wait"), KINDS.index("apply")


def draw(found: Study) -> tuple[list[StepPicture], list[str]]:
    drawer = PictureDrawer(found.trace, found.threads)
    return drawer.draw_all(found.steps.shown, found.paths), drawer.names


@pytest.fixture
def found(tmp_path: Path) -> Study:
    trace = read_trace(write_trace(tmp_path, make_trace(Job(ranks=3, steps=9, jitter=0.3))))
    assert trace is not None
    return study(trace)


def test_every_wire_is_drawn_where_it_was(found: Study, tmp_path: Path) -> None:
    (median, *_), names = draw(found)
    events = make_trace(Job(ranks=3, steps=9, jitter=0.3))[0]
    steps = [rank.steps[median.step] for rank in found.trace.ranks.values()]
    begin_ns, end_ns = min(step.begin_ns for step in steps), max(step.end_ns for step in steps)
    sent = [event for event in spans(events, "wire-out") if event["ts"] * 1000 < end_ns]
    sent = [event for event in sent if (event["ts"] + event["dur"]) * 1000 > begin_ns]
    marks = median.ranks[0].out
    assert len(marks) == len(sent) > 0
    for mark, event in zip(marks, sent, strict=True):
        assert names[mark.name] == event["name"]
        assert (mark.peer, mark.size_bytes) == (event["args"]["to"], event["args"]["bytes"])
        if event["ts"] * 1000 >= begin_ns:
            assert mark.begin == pytest.approx((event["ts"] * 1000 - begin_ns) / (end_ns - begin_ns) * TICKS, abs=1)


def test_a_thread_has_no_gap(found: Study) -> None:
    for picture in draw(found)[0]:
        for rank in picture.ranks:
            for before, after in itertools.pairwise(rank.thread):
                assert before.begin + before.length == after.begin


def test_the_path_is_drawn_from_end_to_end(found: Study) -> None:
    for picture in draw(found)[0]:
        assert picture.path[-1].begin + picture.path[-1].length == TICKS
        assert len(picture.path) == len(found.paths[picture.step])


def test_too_many_marks_are_merged(found: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = draw(found)
    assert not any(picture.is_merged for picture in whole)
    monkeypatch.setattr(step_picture, "MOST_MARKS", 40)
    merged, _ = draw(found)
    assert all(picture.is_merged for picture in merged)
    assert sum(map(count_marks, merged)) <= 40 < sum(map(count_marks, whole))
    for before, after in zip(whole, merged, strict=True):
        for one, other in zip(before.ranks, after.ranks, strict=True):
            assert sum(mark.size_bytes for mark in one.out) == sum(mark.size_bytes for mark in other.out)
            assert one.thread[-1].begin + one.thread[-1].length == other.thread[-1].begin + other.thread[-1].length


def mark(begin: int, length: int, kind: int = WAIT, name: int = 0) -> Mark:
    return Mark(begin, length, kind, name, 1, 10)


def test_short_neighbours_become_their_most_common_kind() -> None:
    marks = [mark(0, 2, APPLY, 1), mark(2, 5, WAIT, 2), mark(8, 6, WAIT, 3), mark(15, 4, APPLY, 4)]
    assert merge(marks, 20) == (Mark(0, 19, WAIT, 3, 1, 40),)


def test_long_and_distant_marks_are_not_merged() -> None:
    marks = [mark(0, 2), mark(2, 50), mark(52, 2), mark(80, 2)]
    assert merge(marks, 20) == tuple(marks)
