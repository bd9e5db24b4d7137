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

from undertow.script import voice as module
from undertow.script.voice import Manner, Voice


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
def speaking(*, at_once: bool = True) -> Iterator[tuple[Voice, File]]:
    """A voice, not started yet, and the file below stdout; stderr is somebody's own invention."""
    file = File()
    with pytest.MonkeyPatch.context() as patch:
        # Not by a fixture: pytest puts streams of its own in place after those.
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), "utf-8", write_through=at_once))
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(module.atexit, "register", lambda function: None)
        patch.setattr(os, "register_at_fork", lambda **functions: None)
        yield Voice(), file


def say(words: str) -> None:
    print(words, end="", flush=True)


def test_words_are_held_until_they_are_shown_in_order() -> None:
    with speaking() as (voice, file):
        own = sys.stdout
        say("before, ")
        voice.start()
        assert sys.stdout is not own
        say("first, ")
        say("second, ")
        assert file.said == b"before, "
        voice.show()
        say("third")
        assert file.said == b"before, first, second, third"


def test_what_waits_in_a_stream_was_said_before() -> None:
    with speaking(at_once=False) as (voice, file):
        voice.start()
        print("dropped")
        voice.drop()
        print("dropped as well")
        voice.speak_up()
        say("shown")
        assert file.said == b"shown"


def test_dropped_words_stay_dropped() -> None:
    with speaking() as (voice, file):
        voice.start()
        say("a")
        voice.drop()
        say("b")
        voice.show()
        say("c")
        assert (file.said, voice.manner) == (b"", Manner.DROP)


def test_dropped_words_can_be_recalled() -> None:
    with speaking() as (voice, file):
        voice.start()
        say("a")
        voice.drop()
        say("b")
        voice.recall()
        assert file.said == b""
        voice.stop()
        say("c")
        assert file.said == b"abc"


def test_only_the_last_of_what_is_dropped_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (voice, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        voice.start()
        voice.drop()
        for word in ("first,", "second,", "third"):
            say(word)
        voice.recall()
        voice.stop()
        assert file.said.endswith(b"was kept\nthird")


def test_without_anything_dropped_there_is_nothing_to_recall() -> None:
    with speaking() as (voice, file):
        voice.start()
        voice.drop()
        voice.recall()
        voice.stop()
        voice.recall()
        assert (file.said, voice.manner) == (b"", Manner.SHOW)


def test_stop_gives_the_streams_back_but_not_those_of_the_script() -> None:
    with speaking() as (voice, file):
        own = sys.stdout
        voice.start()
        ours = sys.stdout
        say("a")
        voice.stop()
        assert sys.stdout is own
        print("b", end="", file=ours, flush=True)  # somebody has kept it: a logging handler, say
        assert file.said == b"ab"
        voice.start()
        theirs = sys.stdout = io.StringIO()
        voice.stop()
        assert sys.stdout is theirs


def test_it_starts_once() -> None:
    with speaking() as (voice, _):
        voice.start()
        ours = sys.stdout
        voice.start()
        assert sys.stdout is ours
        assert isinstance(sys.stderr, io.StringIO)


def test_too_many_words_are_no_longer_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (voice, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        voice.start()
        say("0123456789")
        assert file.said == b""
        say("x")
        assert file.said == b"0123456789x"
        say("y")
        assert file.said == b"0123456789xy"


def test_a_forked_child_neither_repeats_nor_waits() -> None:
    with speaking() as (voice, file):
        voice.start()
        say("the parent's")
        with voice._lock:  # some thread of the parent's had it, and is not here
            thread = threading.Thread(target=lambda: (voice._forget(), say("own")))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        voice.show()
        assert file.said == b"own"


def test_a_child_of_a_quiet_one_is_quiet() -> None:
    with speaking() as (voice, file):
        voice.start()
        voice.drop()
        voice._forget()
        say("x")
        assert file.said == b""


@pytest.mark.parametrize("end", ["close", "detach"])
def test_a_stream_that_the_script_has_ended_is_no_obstacle(end: str) -> None:
    with speaking() as (voice, file):
        voice.start()
        say("x")
        getattr(sys.stdout, end)()
        voice.show()
        assert file.said == b"x"


def test_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as (voice, file):

        def refuse(data: bytes) -> int:
            raise BrokenPipeError

        voice.start()
        say("x")
        monkeypatch.setattr(file, "write", refuse)
        voice.show()
        assert voice.manner is Manner.SHOW


@pytest.mark.parametrize("stream", [None, io.StringIO(), io.TextIOWrapper(io.BytesIO())], ids=["none", "text", "bytes"])
def test_streams_without_a_file_are_left_alone(stream: Any) -> None:
    with speaking() as (voice, _):
        closed, sys.stdout = sys.stdout, stream
        voice.start()
        assert sys.stdout is stream
        closed.close()
        sys.stdout = closed
        voice.start()
        assert sys.stdout is closed
