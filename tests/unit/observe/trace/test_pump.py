"""The pump: it carries trace events from the recorder to all readers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from undertow.observe.trace.pump import BATCH, EventPump
from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.recorder import Recorder


def make_event(number: int) -> TraceEvent:
    return events.Written(float(number), 0, 1, number, 1)


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
