"""TensorBoard events of a rank other than 0 are held, dropped, or written."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from undertow.script import event_files as module
from undertow.script.event_files import EventFiles


class Writer:
    """A stand-in for tensorboard's EventFileWriter."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_event(self, event: str) -> None:
        self.calls.append(event)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class Folder:
    """A folder that makes writers and records them."""

    def __init__(self) -> None:
        self.made: list[Writer] = []

    def make(self) -> Writer:
        self.made.append(Writer())
        return self.made[-1]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(module.atexit, "register", lambda function: None)
    return Folder()


def test_no_event_file_is_created_while_events_are_held(folder: Folder) -> None:
    events = EventFiles(1)
    held = events.open(folder.make, "runs")
    held.add_event("a")
    held.flush()
    assert (held.get_logdir(), folder.made) == ("runs", [])
    events.write()
    held.add_event("b")
    held.close()
    assert folder.made[0].calls == ["a", "flush", "b", "close"]
    events.open(folder.make, "runs").add_event("c")
    assert folder.made[1].calls == ["c"]


def test_dropped_events_are_not_written_at_the_end(folder: Folder) -> None:
    events = EventFiles(1)
    held = events.open(folder.make, "runs")
    held.add_event("a")
    events.drop()
    held.add_event("b")
    held.close()
    events._end()
    assert folder.made == []
    events.write()  # the script joins the other workers itself later
    assert folder.made[0].calls == ["a", "b", "close", "flush"]


def test_held_events_are_written_at_the_end(folder: Folder) -> None:
    events = EventFiles(1)
    events.open(folder.make, "runs").add_event("a")
    events._end()
    assert folder.made[0].calls == ["a", "flush"]


class Event(str):
    """A stand-in for tensorboard's event, with its size in the file."""

    def ByteSize(self) -> int:  # noqa: N802
        return 10


@pytest.mark.parametrize(("bound", "most"), [("MOST_HELD_EVENTS", 2), ("MOST_HELD_BYTES", 20)])
def test_the_number_and_size_of_held_events_are_limited(
    bound: str, most: int, folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, bound, most)
    for drops in (False, True):
        events = EventFiles(1)
        held = events.open(folder.make, "runs")
        if drops:
            events.drop()
        for event in "abc":
            held.add_event(Event(event))
        events.write()
    assert [writer.calls for writer in folder.made] == [["a", "b", "flush", "c"], ["b", "c", "flush"]]
    (line,) = capsys.readouterr().err.splitlines()
    assert "rank 1 has lost the first event for runs" in line


def test_events_of_other_threads_come_after_the_held_ones(folder: Folder) -> None:
    events = EventFiles(1)
    threads: list[threading.Thread] = []

    class Slow(Writer):
        def add_event(self, event: str) -> None:
            super().add_event(event)
            if event == "a":
                threads.append(threading.Thread(target=held.add_event, args=("late",)))
                threads[0].start()
                threads[0].join(0.1)  # it has to wait until this call is done

    writer = Slow()
    held = events.open(lambda: writer, "runs")
    held.add_event("a")
    held.add_event("b")
    events.write()
    threads[0].join()
    assert writer.calls == ["a", "b", "flush", "late"]
