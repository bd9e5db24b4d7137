"""The recorder of trace events."""

from __future__ import annotations

import threading

from undertow.tracing import events
from undertow.tracing.events import TraceEvent
from undertow.tracing.recorder import Recorder


def make_event(number: int) -> TraceEvent:
    return events.Written(float(number), 0, 1, number, 1)


def test_notes_are_taken_once_and_in_order() -> None:
    recorder = Recorder()
    recorder.start()
    for number in range(3):
        recorder.record(make_event(number))
    assert recorder.take() == [make_event(0), make_event(1), make_event(2)]
    recorder.record(make_event(3))
    assert recorder.take() == [make_event(3)]
    assert recorder.take() == []


def test_the_clock_is_read_only_while_recording() -> None:
    recorder = Recorder(clock=lambda: 7.0)
    assert recorder.read_clock() == 0.0
    recorder.start()
    assert recorder.read_clock() == 7.0


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
