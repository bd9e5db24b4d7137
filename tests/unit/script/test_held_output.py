"""What a rank says is held back, shown or dropped, and never twice."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from undertow.script import held_output as module
from undertow.script.held_output import HeldOutput, OutputMode


class File(io.RawIOBase):
    """In place of the file below a stream; takes a few bytes at a time, as a pipe may."""

    name, mode = "<fake>", "wb"

    def __init__(self) -> None:
        self.said = b""

    def write(self, data: Any) -> int:
        taken = bytes(data)[:5]
        self.said += taken
        return len(taken)

    def writable(self) -> bool:
        return True


@contextmanager
def speaking(*, at_once: bool = True) -> Iterator[tuple[HeldOutput, File]]:
    """A held output, not started yet, and the file below stdout; stderr is no ordinary stream."""
    file = File()
    with pytest.MonkeyPatch.context() as patch:
        # Not by a fixture: pytest puts streams of its own in place after those.
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), "utf-8", write_through=at_once))
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(module.atexit, "register", lambda function: None)
        patch.setattr(os, "register_at_fork", lambda **functions: None)
        yield HeldOutput(), file


def say(words: str) -> None:
    print(words, end="", flush=True)


def test_words_are_held_until_they_are_shown_in_order() -> None:
    with speaking() as (output, file):
        own = sys.stdout
        say("before, ")
        output.start()
        assert sys.stdout is not own
        say("first, ")
        say("second, ")
        assert file.said == b"before, "
        output.show()
        say("third")
        assert file.said == b"before, first, second, third"


def test_what_waits_in_a_stream_was_said_before() -> None:
    with speaking(at_once=False) as (output, file):
        output.start()
        print("dropped")
        output.drop()
        print("dropped as well")
        output.show_all()
        say("shown")
        assert file.said == b"shown"


def test_dropped_words_stay_dropped() -> None:
    with speaking() as (output, file):
        output.start()
        say("a")
        output.drop()
        say("b")
        output.show()
        say("c")
        assert (file.said, output.mode) == (b"", OutputMode.DROP)


def test_dropped_words_can_be_recalled() -> None:
    with speaking() as (output, file):
        output.start()
        say("a")
        output.drop()
        say("b")
        output.recall()
        assert file.said == b""
        output.stop()
        say("c")
        assert file.said == b"abc"


def test_only_the_last_of_what_is_dropped_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (output, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        output.start()
        output.drop()
        for word in ("first,", "second,", "third"):
            say(word)
        output.recall()
        output.stop()
        assert file.said.endswith(b"was kept\nthird")


def test_without_anything_dropped_there_is_nothing_to_recall() -> None:
    with speaking() as (output, file):
        output.start()
        output.drop()
        output.recall()
        output.stop()
        output.recall()
        assert (file.said, output.mode) == (b"", OutputMode.SHOW)


def test_stop_gives_the_streams_back_but_not_those_of_the_script() -> None:
    with speaking() as (output, file):
        own = sys.stdout
        output.start()
        ours = sys.stdout
        say("a")
        output.stop()
        assert sys.stdout is own
        print("b", end="", file=ours, flush=True)  # a logging handler, say, has kept it
        assert file.said == b"ab"
        output.start()
        theirs = sys.stdout = io.StringIO()
        output.stop()
        assert sys.stdout is theirs


def test_it_starts_once() -> None:
    with speaking() as (output, _):
        output.start()
        ours = sys.stdout
        output.start()
        assert sys.stdout is ours
        assert isinstance(sys.stderr, io.StringIO)


def test_too_many_words_are_no_longer_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (output, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        output.start()
        say("0123456789")
        assert file.said == b""
        say("x")
        assert file.said == b"0123456789x"
        say("y")
        assert file.said == b"0123456789xy"


def test_a_forked_child_neither_repeats_nor_waits() -> None:
    with speaking() as (output, file):
        output.start()
        say("the parent's")
        with output._lock:  # some thread of the parent's had it, and is not here
            thread = threading.Thread(target=lambda: (output._forget(), say("own")))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        output.show()
        assert file.said == b"own"


def test_a_child_of_a_quiet_one_is_quiet() -> None:
    with speaking() as (output, file):
        output.start()
        output.drop()
        output._forget()
        say("x")
        assert file.said == b""


@pytest.mark.parametrize("end", ["close", "detach"])
def test_a_stream_that_the_script_has_ended_is_no_obstacle(end: str) -> None:
    with speaking() as (output, file):
        output.start()
        say("x")
        getattr(sys.stdout, end)()
        output.show()
        assert file.said == b"x"


def test_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (output, file):

        def refuse(data: bytes) -> int:
            raise BrokenPipeError

        output.start()
        say("x")
        monkeypatch.setattr(file, "write", refuse)
        output.show()
        assert output.mode is OutputMode.SHOW


@pytest.mark.parametrize("stream", [None, io.StringIO(), io.TextIOWrapper(io.BytesIO())], ids=["none", "text", "bytes"])
def test_streams_without_a_file_are_left_alone(stream: Any) -> None:
    with speaking() as (output, _):
        closed, sys.stdout = sys.stdout, stream
        output.start()
        assert sys.stdout is stream
        closed.close()
        sys.stdout = closed
        output.start()
        assert sys.stdout is closed
