"""The marks by which workers tell their launcher what they wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from undertow.coordinator.start_marks import Mark, StartMarks, waiting


@pytest.fixture
def marks() -> Iterator[StartMarks]:
    with closing(StartMarks()) as made:
        yield made


def test_a_worker_has_its_mark_while_it_waits(marks: StartMarks) -> None:
    assert marks.read(3) == [Mark.NONE] * 3
    with waiting(marks.path, 2, Mark.WAITS):
        assert marks.read(3) == [Mark.NONE, Mark.NONE, Mark.WAITS]
    assert marks.read(3) == [Mark.NONE] * 3
    with pytest.raises(KeyError), waiting(marks.path, 0, Mark.WAITS_FOR_ALL, then=Mark.MET):
        raise KeyError
    assert marks.read(1) == [Mark.NONE]


def test_a_worker_that_has_met_the_others_stays_so(marks: StartMarks) -> None:
    with waiting(marks.path, 1, Mark.WAITS_FOR_ALL, then=Mark.MET):
        pass
    with waiting(marks.path, 1, Mark.WAITS):
        assert marks.read(2) == [Mark.NONE, Mark.MET]
    marks.clear(1)
    assert marks.read(2) == [Mark.NONE, Mark.MET]


def test_the_mark_of_a_worker_that_has_ended_is_forgotten(marks: StartMarks) -> None:
    with waiting(marks.path, 0, Mark.WAITS):
        marks.clear(0)
        assert marks.read(1) == [Mark.NONE]


def test_nonsense_is_no_mark(marks: StartMarks) -> None:
    with open(marks.path, "r+b") as file:
        file.write(bytes([77, Mark.WAITS]))
    assert marks.read(2) == [Mark.NONE, Mark.WAITS]


@pytest.mark.parametrize("path", ["", "/nowhere/marks", f"/proc/{os.getpid()}/fd/999999"])
def test_a_worker_goes_on_where_it_cannot_tell(path: str) -> None:
    with waiting(path, 0, Mark.WAITS):
        pass


@pytest.mark.parametrize("broken", ["memfd_create", "access"])
def test_where_workers_cannot_tell_all_count_as_waiting(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def refuse(*given: object) -> bool:
        if broken == "memfd_create":
            raise PermissionError
        return False

    monkeypatch.setattr(os, broken, refuse)
    with closing(StartMarks()) as marks:
        assert (marks.path, marks.read(2)) == ("", [Mark.WAITS] * 2)
