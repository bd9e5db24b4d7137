"""The output of a rank is held, shown or dropped, and never shown twice."""

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
    """A stand-in for the file below a stream; takes a few bytes at a time, as a pipe may."""

    name, mode = "<fake>", "wb"

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: Any) -> int:
        taken = bytes(data)[:5]
        self.written += taken
        return len(taken)

    def writable(self) -> bool:
        return True


@contextmanager
def held_stdout(*, at_once: bool = True) -> Iterator[tuple[HeldOutput, File]]:
    """Yield a held output, not started yet, and the file below stdout; stderr is not an ordinary stream."""
    file = File()
    with pytest.MonkeyPatch.context() as patch:
        # Not in a fixture: pytest replaces the streams after fixtures have run.
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), "utf-8", write_through=at_once))
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(module.atexit, "register", lambda function: None)
        patch.setattr(os, "register_at_fork", lambda **functions: None)
        yield HeldOutput(), file


def print_now(words: str) -> None:
    print(words, end="", flush=True)


def test_output_is_held_until_it_is_shown_in_order() -> None:
    with held_stdout() as (output, file):
        own = sys.stdout
        print_now("before, ")
        output.start()
        assert sys.stdout is not own
        print_now("first, ")
        print_now("second, ")
        assert file.written == b"before, "
        output.show()
        print_now("third")
        assert file.written == b"before, first, second, third"


def test_buffered_output_is_treated_as_written_before() -> None:
    with held_stdout(at_once=False) as (output, file):
        output.start()
        print("dropped")
        output.drop()
        print("dropped as well")
        output.show_all()
        print_now("shown")
        assert file.written == b"shown"


def test_dropped_output_stays_dropped() -> None:
    with held_stdout() as (output, file):
        output.start()
        print_now("a")
        output.drop()
        print_now("b")
        output.show()
        print_now("c")
        assert (file.written, output.mode) == (b"", OutputMode.DROP)


def test_dropped_output_can_be_recalled() -> None:
    with held_stdout() as (output, file):
        output.start()
        print_now("a")
        output.drop()
        print_now("b")
        output.recall()
        assert file.written == b""
        output.stop()
        print_now("c")
        assert file.written == b"abc"


def test_only_the_last_dropped_output_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_stdout() as (output, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        output.start()
        output.drop()
        for word in ("first,", "second,", "third"):
            print_now(word)
        output.recall()
        output.stop()
        assert file.written.endswith(b"was kept\nthird")


def test_recall_without_dropped_output_does_nothing() -> None:
    with held_stdout() as (output, file):
        output.start()
        output.drop()
        output.recall()
        output.stop()
        output.recall()
        assert (file.written, output.mode) == (b"", OutputMode.SHOW)


def test_stop_restores_the_streams_unless_the_script_replaced_them() -> None:
    with held_stdout() as (output, file):
        own = sys.stdout
        output.start()
        ours = sys.stdout
        print_now("a")
        output.stop()
        assert sys.stdout is own
        print("b", end="", file=ours, flush=True)  # a logging handler, for example, may have kept it
        assert file.written == b"ab"
        output.start()
        theirs = sys.stdout = io.StringIO()
        output.stop()
        assert sys.stdout is theirs


def test_a_second_start_changes_nothing() -> None:
    with held_stdout() as (output, _):
        output.start()
        ours = sys.stdout
        output.start()
        assert sys.stdout is ours
        assert isinstance(sys.stderr, io.StringIO)


def test_too_much_output_is_no_longer_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_stdout() as (output, file):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
        output.start()
        print_now("0123456789")
        assert file.written == b""
        print_now("x")
        assert file.written == b"0123456789x"
        print_now("y")
        assert file.written == b"0123456789xy"


def test_a_forked_child_neither_repeats_output_nor_waits() -> None:
    with held_stdout() as (output, file):
        output.start()
        print_now("the parent's")
        with output._lock:  # held by a thread of the parent that the child lacks
            thread = threading.Thread(target=lambda: (output._forget(), print_now("own")))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        output.show()
        assert file.written == b"own"


def test_a_forked_child_continues_to_drop_output() -> None:
    with held_stdout() as (output, file):
        output.start()
        output.drop()
        output._forget()
        print_now("x")
        assert file.written == b""


@pytest.mark.parametrize("end", ["close", "detach"])
def test_output_is_shown_even_if_the_script_has_closed_the_stream(end: str) -> None:
    with held_stdout() as (output, file):
        output.start()
        print_now("x")
        getattr(sys.stdout, end)()
        output.show()
        assert file.written == b"x"


def test_a_pipe_without_a_reader_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_stdout() as (output, file):

        def refuse(data: bytes) -> int:
            raise BrokenPipeError

        output.start()
        print_now("x")
        monkeypatch.setattr(file, "write", refuse)
        output.show()
        assert output.mode is OutputMode.SHOW


@pytest.mark.parametrize("stream", [None, io.StringIO(), io.TextIOWrapper(io.BytesIO())], ids=["none", "text", "bytes"])
def test_streams_without_a_file_are_left_alone(stream: Any) -> None:
    with held_stdout() as (output, _):
        closed, sys.stdout = sys.stdout, stream
        output.start()
        assert sys.stdout is stream
        closed.close()
        sys.stdout = closed
        output.start()
        assert sys.stdout is closed
