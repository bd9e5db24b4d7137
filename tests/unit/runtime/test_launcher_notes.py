"""Notes from workers to their launcher: what they wait for, and the loss that ended them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing

import pytest

from undertow.errors import PeerLost
from undertow.horovod.errors import WorkerLost
from undertow.runtime.launcher_notes import LossNote, Mark, StartMarks, note_loss, waiting

LOST = PeerLost("it closed", rank=2, host="b", own_rank=0, step=7)


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch) -> Iterator[LossNote]:
    with closing(LossNote()) as made:
        monkeypatch.setenv("UNDERTOW_LOSS_NOTE", made.path)
        yield made


def caught(how: str) -> BaseException:
    """Return the error that a script ends with after a loss."""
    try:
        try:
            raise LOST
        except PeerLost as loss:
            match how:
                case "because of it":
                    raise RuntimeError("training failed") from loss
                case "while it was handled":
                    {}["a defect of the handler"]
                case "exit":
                    sys.exit(1)
                case "group":
                    raise ExceptionGroup("of several", [ValueError("first"), loss]) from None
                case "suppressed":
                    raise ValueError("of its own") from None
    except BaseException as error:
        return error
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["because of it", "while it was handled", "exit", "group"])
def test_an_error_that_follows_from_a_loss_is_noted_as_that_loss(note: LossNote, how: str) -> None:
    error = caught(how)
    assert any("PeerLost" in line for line in traceback.format_exception(error))
    note_loss(error)
    found = note.read()
    assert found is not None
    assert (str(found), found.rank, found.host, found.step) == (str(LOST), 2, "b", 7)


@pytest.mark.parametrize("error", [ValueError("of its own"), caught("suppressed"), None])
def test_an_error_of_its_own_leaves_no_note(note: LossNote, error: BaseException | None) -> None:
    note_loss(error)
    assert note.read() is None


def test_the_first_error_that_follows_from_a_loss_counts(note: LossNote) -> None:
    note_loss(None, ValueError("none"), PeerLost("first", rank=1), PeerLost("second", rank=2))
    found = note.read()
    assert found is not None
    assert found.rank == 1


def test_a_later_and_shorter_note_replaces_the_first(note: LossNote) -> None:
    note_loss(PeerLost("x" * 1000, rank=1))
    note_loss(WorkerLost("y", rank=2))
    assert str(note.read()) == "rank 2 was lost: y"


def test_errors_that_refer_to_each_other_come_to_an_end(note: LossNote) -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    note_loss(one)
    assert note.read() is None


def test_nonsense_is_no_note(note: LossNote) -> None:
    with open(note.path, "wb") as file:
        file.write(b"nonsense")
    assert note.read() is None


@pytest.mark.parametrize("path", ["", "/nowhere/note", f"/proc/{os.getpid()}/fd/999999"])
def test_a_worker_continues_if_it_cannot_note_its_loss(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("UNDERTOW_LOSS_NOTE", path)
    note_loss(LOST)


@pytest.mark.parametrize("variable", ["RANK", "UNDERTOW_PLAIN"])
def test_a_broken_environment_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "nonsense")
    note_loss(LOST)


def test_where_there_is_no_such_file_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refuse)
    with closing(LossNote()) as note:
        assert (note.path, note.read()) == ("", None)


# Start marks


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
def test_a_worker_continues_if_it_cannot_mark_its_start(path: str) -> None:
    with waiting(path, 0, Mark.WAITS):
        pass


@pytest.mark.parametrize("broken", ["memfd_create", "access"])
def test_workers_that_cannot_mark_their_start_count_as_waiting(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def refuse(*given: object) -> bool:
        if broken == "memfd_create":
            raise PermissionError
        return False

    monkeypatch.setattr(os, broken, refuse)
    with closing(StartMarks()) as marks:
        assert (marks.path, marks.read(2)) == ("", [Mark.WAITS] * 2)
