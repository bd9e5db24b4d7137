"""The relay copies all output, whatever its reader and leftover processes do."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from undertow.launch.relay import (
    CHUNK_BYTES,
    TAIL_LINE_BYTES,
    TAIL_LINES,
    PrefixedLines,
    Relay,
    StreamDisplay,
    Tail,
    count_readable,
    make_prefix,
)

JOIN_S = 30.0  # a hang guard


class Pipes:
    """A worker's stream (written by the test) and its target (read by the test)."""

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


def test_all_output_arrives_even_if_the_pipe_stays_open(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=StreamDisplay.RAW)
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


def test_the_tail_is_complete_even_if_the_relay_waits_for_a_slow_reader(pipes: Pipes) -> None:
    relay = Relay()
    failing, failed = os.pipe()
    relay.add(pipes.source, pipes.target, rank=0, shown=StreamDisplay.RAW)
    relay.add(failing, 2, rank=1, shown=StreamDisplay.HIDDEN)
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
    relay.add(pipes.source, pipes.target, rank=0, shown=StreamDisplay.PREFIXED, prefix=b"> ")
    relay.start()
    os.write(pipes.worker, b"one\ntwo")
    relay.finish(JOIN_S)
    assert pipes.read_all() == b"> one\n> two\n"


def test_a_hidden_stream_is_still_read(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=StreamDisplay.HIDDEN)
    relay.start()
    os.write(pipes.worker, bytes(10 * CHUNK_BYTES))  # would block for ever if nobody read
    relay.finish(JOIN_S)
    assert pipes.read_all() == b""


def test_a_muted_stream_is_no_longer_shown_but_still_read(pipes: Pipes) -> None:
    relay = Relay()
    relay.add(pipes.source, pipes.target, rank=0, shown=StreamDisplay.PREFIXED, prefix=b"> ")
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
        relay.add(source, target_fd, rank=7, shown=StreamDisplay.HIDDEN)
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


# Lines keep their bytes and get their prefix; tails keep the last lines


def feed_all(pieces: list[bytes], prefix: bytes = b"> ") -> bytes:
    lines = PrefixedLines(prefix)
    return b"".join(lines.feed(piece) for piece in pieces) + lines.finish()


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb\n"], b"> a\n> b\n"),
        ([b"a", b"b", b"\n", b"c\n"], b"> ab\n> c\n"),
        ([b"no end"], b"> no end\n"),
        ([b"\n\n"], b"> \n> \n"),
        ([b"dos\r\n"], b"> dos\r\n"),
        ([b"dos\r", b"\n"], b"> dos\r\n"),
        ([b"10%\r20%\rdone\n"], b"> 10%\r> 20%\r> done\n"),
        ([b"\r10%", b"\r20%", b"\n"], b"\r> 10%\r> 20%\n"),
        ([b"\xff\xfe\x00\n"], b"> \xff\xfe\x00\n"),
        ([], b""),
    ],
)
def test_lines_get_their_prefix(pieces: list[bytes], shown: bytes) -> None:
    assert feed_all(pieces) == shown


def test_a_complete_line_is_not_held_back() -> None:
    lines = PrefixedLines(b"> ")
    assert lines.feed(b"one\ntw") == b"> one\n"
    assert lines.feed(b"o\n") == b"> two\n"


def test_a_progress_bar_moves_before_its_line_ends() -> None:
    lines = PrefixedLines(b"> ")
    assert lines.feed(b"10%\r") == b""  # it might become \r\n
    assert lines.feed(b"20%") == b"> 10%\r"


def test_chunks_of_any_size_give_the_same_bytes() -> None:
    rng = random.Random(5)
    text = bytes(rng.choice(b"ab\n\r\xff") for _ in range(5000))
    whole = feed_all([text])
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(text)), 200))
        assert feed_all([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole
    assert whole.replace(b"> ", b"").rstrip(b"\n") == text.rstrip(b"\n")


def test_a_line_without_an_end_is_broken_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undertow.launch.relay.MAX_LINE_BYTES", 10)
    lines = PrefixedLines(b"> ")
    assert lines.feed(b"x" * 8) == b""
    assert lines.feed(b"y" * 8) == b"> " + b"x" * 8 + b"y" * 8 + b"\n"
    assert lines.finish() == b""


def test_prefixes_are_coloured_on_request_only() -> None:
    assert make_prefix(2, coloured=False) == b"[rank 2] "
    coloured = make_prefix(2, coloured=True)
    assert coloured.startswith(b"\x1b[")
    assert coloured.endswith(b"[rank 2] \x1b[0m")
    assert make_prefix(1, coloured=True) != make_prefix(0, coloured=True).replace(b"0]", b"1]")


def tail_of(*pieces: bytes) -> tuple[str, ...]:
    tail = Tail()
    for piece in pieces:
        tail.feed(piece)
    return tail.lines()


def test_a_tail_keeps_short_output_whole() -> None:
    assert tail_of(b"a\nb", b"c\n", b"last") == ("a", "bc", "last")


def test_a_tail_keeps_the_last_lines_and_notes_that_some_are_missing() -> None:
    lines = tail_of(b"".join(b"%d\n" % number for number in range(1000)))
    assert lines[0] == "(earlier lines left out)"
    assert lines[1:] == tuple(str(number) for number in range(1000 - TAIL_LINES, 1000))


def test_a_tail_of_exactly_the_limit_is_whole() -> None:
    assert len(tail_of(b"x\n" * TAIL_LINES)) == TAIL_LINES


def test_tail_shows_the_last_state_of_an_overwritten_line() -> None:
    assert tail_of(b"10%\r20%\r30%\n", b"dos\r\n") == ("30%", "dos")


def test_a_tail_accepts_bytes_that_are_not_text_and_endless_lines() -> None:
    assert tail_of(b"\xff\n") == ("\ufffd",)
    assert len(tail_of(b"x" * 1_000_000)[0]) == TAIL_LINE_BYTES
