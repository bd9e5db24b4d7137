"""The recorder of trace events, and the pump that takes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from undertow.observe.trace.pump import BATCH, EventPump
from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.recorder import Recorder


def make_event(number: int) -> TraceEvent:
    return events.Pushed(float(number), number, 1)


def test_notes_are_taken_once_and_in_order() -> None:
    recorder = Recorder()
    recorder.start()
    for number in range(3):
        recorder.record(make_event(number))
    assert recorder.take() == [make_event(0), make_event(1), make_event(2)]
    recorder.record(make_event(3))
    assert recorder.take() == [make_event(3)]
    assert recorder.take() == []


def test_a_new_record_begins_empty_and_one_that_stopped_stays() -> None:
    recorder = Recorder()
    recorder.start()
    recorder.record(make_event(1))
    assert recorder.stop() == [make_event(1)]
    assert not recorder.is_on
    assert recorder.events() == [make_event(1)]
    recorder.start()
    assert recorder.events() == []


def test_nothing_is_lost_when_many_threads_note() -> None:
    recorder, taken = Recorder(), []
    threads = [
        threading.Thread(target=lambda base=base: [recorder.record(make_event(base + n)) for n in range(2000)])
        for base in (0, 2000, 4000)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += recorder.take()
    taken += recorder.take()
    assert sorted(one.key for one in taken) == list(range(6000))  # type: ignore[attr-defined]


def test_what_is_noted_while_notes_are_taken_stays_for_the_next_time() -> None:
    class Busy(list[TraceEvent]):
        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            taken = super().__getitem__(index)  # type: ignore[index]
            self.append(make_event(9))
            return taken

    recorder = Recorder()
    recorder._events = Busy([make_event(1)])
    assert recorder.take() == [make_event(1)]
    assert recorder.events() == [make_event(9)]


def test_only_the_first_group_gets_the_record() -> None:
    recorder = Recorder()
    recorder.start()
    assert recorder.lend() is recorder
    assert recorder.lend().is_on is False
    recorder.give_back()
    assert recorder.lend() is recorder


class Reader:
    title = "the book"

    def __init__(self, fails_at: int = -1) -> None:
        self.taken: list[TraceEvent] = []
        self.pieces: list[int] = []
        self.is_closed = False
        self._fails_at = fails_at

    def take(self, taken: Sequence[TraceEvent]) -> None:
        self.taken += taken
        self.pieces.append(len(taken))
        if 0 <= self._fails_at < len(self.taken):
            raise OSError("the disk is full")

    def close(self) -> None:
        self.is_closed = True


def run(*readers: Reader, count: int = 200) -> Recorder:
    recorder = Recorder()
    pump = EventPump(recorder)
    for reader in readers:
        pump.add(reader)
    assert recorder.is_on
    for number in range(count):
        recorder.record(make_event(number))
    pump.close()
    pump.close()
    assert not recorder.is_on
    return recorder


def test_every_reader_gets_every_note_in_small_pieces() -> None:
    readers = Reader(), Reader()
    run(*readers)
    for reader in readers:
        assert reader.taken == [make_event(number) for number in range(200)]
        assert reader.is_closed
        assert max(reader.pieces) <= BATCH


def test_what_was_noted_before_there_was_a_reader_is_not_lost() -> None:
    recorder, reader = Recorder(), Reader()
    recorder.start()
    recorder.record(make_event(1))
    pump = EventPump(recorder)
    pump.add(reader)
    pump.close()
    assert reader.taken == [make_event(1)]


def test_a_reader_that_fails_is_named_and_gets_no_more_events(caplog: pytest.LogCaptureFixture) -> None:
    broken, other = Reader(fails_at=10), Reader()
    run(broken, other)
    assert len(broken.taken) < 200
    assert not broken.is_closed
    assert len(other.taken) == 200
    assert caplog.messages == ["the book failed and has ended; training continues: the disk is full"]


def test_when_the_last_reader_has_failed_nothing_is_recorded() -> None:
    recorder = Recorder()
    pump = EventPump(recorder)
    pump.add(Reader(fails_at=0))
    recorder.record(make_event(1))
    pump._hand_over()
    assert not recorder.is_on
    pump.close()


def test_without_readers_nothing_is_recorded() -> None:
    recorder, reader = Recorder(), Reader()
    pump = EventPump(recorder)
    assert not recorder.is_on
    pump.add(reader)
    pump.remove(reader)
    assert not recorder.is_on
    pump.close()
    assert not reader.is_closed
