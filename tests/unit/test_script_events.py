"""TensorBoard events of a rank that is not the first: held, dropped, or written."""

from __future__ import annotations

from typing import Any

import pytest

from undertow.script import events as module
from undertow.script.events import Events


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
    events = Events()
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
    events = Events()
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
    events = Events()
    events.open(folder.make, "runs").add_event("a")
    events._end()
    assert folder.made[0].calls == ["a", "flush"]


def test_no_more_than_so_many_are_held(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD_EVENTS", 2)
    for drops in (False, True):
        events = Events()
        held = events.open(folder.make, "runs")
        if drops:
            events.drop()
        for event in "abc":
            held.add_event(event)
        events.write()
    assert [writer.calls for writer in folder.made] == [["a", "b", "flush", "c"], ["b", "c", "flush"]]
