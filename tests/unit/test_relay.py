"""The relay carries everything, whatever its reader and leftover processes do."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from undertow.launch.output import Shown
from undertow.launch.relay import CHUNK_BYTES, Relay, count_readable

JOIN_S = 30.0  # a hang guard


class Pipes:
    """A worker's stream (written by the test) and where it goes (read by the test)."""

    def __init__(self) -> None:
        self.source, self.worker = os.pipe()
        self.reader, self.target = os.pipe()

    def read_all(self) -> bytes:
        os.close(self.target)
        with os.fdopen(self.reader, "rb") as stream:
            return stream.read()


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    os.close(pipes.worker)


def test_what_was_written_before_the_end_arrives_though_the_pipe_stays_open(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=Shown.RAW)
    filler = bytes(CHUNK_BYTES)
    os.write(pipes.target, filler)  # full: the relay's first write blocks
    os.write(pipes.worker, b"a" * CHUNK_BYTES)
    relay.start()
    os.write(pipes.worker, b"b" * 1000)  # possible once the relay has taken the first piece, and hangs on it
    relay.finish(0.01)
    received = b""
    while len(received) < 2 * CHUNK_BYTES + 1000:
        received += os.read(pipes.reader, CHUNK_BYTES)
    relay.wait(JOIN_S)
    assert received == filler + b"a" * CHUNK_BYTES + b"b" * 1000
    assert pipes.read_all() == b""


def test_the_tail_is_complete_though_the_relay_hangs_on_a_slow_reader(pipes: Pipes) -> None:
    relay = Relay()
    failing, failed = os.pipe()
    relay.add(pipes.source, pipes.target, rank=0, shown=Shown.RAW)
    relay.add(failing, 2, rank=1, shown=Shown.HIDDEN)
    os.write(pipes.target, bytes(CHUNK_BYTES))  # full: the relay's first write blocks
    os.write(pipes.worker, b"a" * CHUNK_BYTES)
    relay.start()
    os.write(pipes.worker, b"b")  # possible once the relay has taken the first piece, and hangs on it
    os.write(failed, b"ValueError: the very first cause\n")
    os.close(failed)
    relay.finish(0.01)
    assert relay.tail(1) == ("ValueError: the very first cause",)
    received = b""
    while len(received) < 2 * CHUNK_BYTES + 1:
        received += os.read(pipes.reader, CHUNK_BYTES)
    relay.wait(JOIN_S)
    assert received.endswith(b"ab")
    assert relay.tail(1) == ("ValueError: the very first cause",)
    assert pipes.read_all() == b""


def test_a_partial_last_line_is_shown_at_the_end(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=Shown.PREFIXED, prefix=b"> ")
    relay.start()
    os.write(pipes.worker, b"one\ntwo")
    relay.finish(JOIN_S)
    assert pipes.read_all() == b"> one\n> two\n"


def test_a_hidden_stream_is_read_all_the_same(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=Shown.HIDDEN)
    relay.start()
    os.write(pipes.worker, bytes(10 * CHUNK_BYTES))  # would block for ever if nobody read
    relay.finish(JOIN_S)
    assert pipes.read_all() == b""


def test_a_muted_target_gets_nothing_more_and_is_read_all_the_same(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=Shown.PREFIXED, prefix=b"> ")
    relay.start()
    os.write(pipes.worker, b"before\n")
    assert os.read(pipes.reader, CHUNK_BYTES) == b"> before\n"
    relay.mute(pipes.target)
    os.write(pipes.worker, bytes(10 * CHUNK_BYTES))  # would block for ever if nobody read
    relay.finish(JOIN_S)
    assert pipes.read_all() == b""


def test_only_stderr_has_a_tail() -> None:
    relay = Relay()
    streams = [os.pipe(), os.pipe()]
    for target_fd, (source, _) in enumerate(streams, 1):
        relay.add(source, target_fd, rank=7, shown=Shown.HIDDEN)
    relay.start()
    for number, (_, worker) in enumerate(streams, 1):
        os.write(worker, b"from %d\n" % number)
        os.close(worker)
    relay.wait(JOIN_S)
    assert relay.tail(7) == ("from 2",)
    assert relay.tail(8) == ()


def test_waiting_bytes_are_counted(pipes: Pipes) -> None:
    assert count_readable(pipes.source) == 0
    os.write(pipes.worker, b"12345")
    assert count_readable(pipes.source) == 5
    for fd in (pipes.source, pipes.reader, pipes.target):
        os.close(fd)
