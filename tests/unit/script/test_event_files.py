"""TensorBoard events of a rank that is not the first: held, dropped, or written."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from undertow.script import event_files as module
from undertow.script.event_files import EventFiles


class Writer:
    """As tensorboard's EventFileWriter."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_event(self, event: str) -> None:
        self.calls.append(event)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class Folder:
    """Makes writers, and knows which were made."""

    def __init__(self) -> None:
        self.made: list[Writer] = []

    def make(self) -> Writer:
        self.made.append(Writer())
        return self.made[-1]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(module.atexit, "register", lambda function: None)
    return Folder()


def test_no_file_is_made_until_it_is_known(folder: Folder) -> None:
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


def test_what_is_dropped_is_not_written_at_the_end(folder: Folder) -> None:
    events = EventFiles(1)
    held = events.open(folder.make, "runs")
    held.add_event("a")
    events.drop()
    held.add_event("b")
    held.close()
    events._end()
    assert folder.made == []
    events.write()  # the script joins the others itself after all
    assert folder.made[0].calls == ["a", "b", "close", "flush"]


def test_what_is_held_is_written_at_the_end(folder: Folder) -> None:
    events = EventFiles(1)
    events.open(folder.make, "runs").add_event("a")
    events._end()
    assert folder.made[0].calls == ["a", "flush"]


class Event(str):
    """As tensorboard's: it knows how many bytes it takes in a file."""

    def ByteSize(self) -> int:  # noqa: N802
        return 10


@pytest.mark.parametrize(("bound", "most"), [("MOST_HELD_EVENTS", 2), ("MOST_HELD_BYTES", 20)])
def test_no_more_than_so_much_is_held(
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


def test_what_a_thread_logs_meanwhile_comes_after_what_was_held(folder: Folder) -> None:
    events = EventFiles(1)
    threads: list[threading.Thread] = []

    class Slow(Writer):
        def add_event(self, event: str) -> None:
            super().add_event(event)
            if event == "a":
                threads.append(threading.Thread(target=held.add_event, args=("late",)))
                threads[0].start()
                threads[0].join(0.1)  # it has to wait, until this is done

    writer = Slow()
    held = events.open(lambda: writer, "runs")
    held.add_event("a")
    held.add_event("b")
    events.write()
    threads[0].join()
    assert writer.calls == ["a", "b", "flush", "late"]
