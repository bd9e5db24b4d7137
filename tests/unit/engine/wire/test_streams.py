"""Messages and lines are extracted from a stream, however it is divided, and their length is limited."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest

from undertow.engine.wire.streams import LENGTH_BYTES, Lines, Messages, pack, read_exactly, read_message
from undertow.errors import Garbled, Refused


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(10.0)
        yield one, other


@pytest.mark.parametrize("size", [1, 3, 100])
def test_messages_come_out_whole_whatever_the_pieces(size: int) -> None:
    data = b"".join(map(pack, ("one", ["two"], 3)))
    messages = Messages(100)
    bodies: list[bytes] = []
    for begin in range(0, len(data), size):
        messages.feed(data[begin : begin + size])
        bodies += iter(messages.take, None)
    assert [msgspec.msgpack.decode(body) for body in bodies] == ["one", ["two"], 3]


def test_what_is_missing_ends_with_the_first_message() -> None:
    messages = Messages(100)
    assert messages.missing_bytes == LENGTH_BYTES
    messages.feed(pack("four")[:-3])
    assert messages.missing_bytes == 3
    messages.feed(pack("four")[-3:] + pack("next"))
    assert messages.missing_bytes == 0
    messages.take()
    assert messages.missing_bytes == 0


@pytest.mark.parametrize("length", [0, 11, 1 << 31])
def test_an_impossible_length_is_refused_before_anything_else_comes(length: int) -> None:
    messages = Messages(10, "a request")
    messages.feed(length.to_bytes(LENGTH_BYTES, "little"))
    with pytest.raises(Refused, match=rf"a request of {length} bytes is not possible \(at most 10\)"):
        messages.take()


def test_reading_a_message_leaves_what_comes_behind_it(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    other.sendall(pack("first") + b"behind")
    assert msgspec.msgpack.decode(read_message(one, 100)) == "first"
    assert read_exactly(one, 6) == b"behind"


def test_a_stream_that_ends_within_a_message_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    other.sendall(pack("first")[:-1])
    other.close()
    with pytest.raises(ConnectionResetError, match="the peer has closed the connection"):
        read_message(one, 100)


def test_lines_come_out_whole_whatever_the_pieces() -> None:
    lines = Lines(100)
    assert [lines.feed(data) for data in (b"a", b"b\nc", b"\n\n", b"d")] == [[], [b"ab"], [b"c", b""], []]
    assert lines.rest == b"d"


def test_of_a_long_line_the_end_is_kept() -> None:
    lines = Lines(3)
    assert lines.feed(b"12345\n6789") == [b"345"]
    assert lines.rest == b"789"


@pytest.mark.parametrize("data", [b"12345\n", b"1\n2345"])
def test_a_long_line_is_refused_where_it_would_be_damaged(data: bytes) -> None:
    with pytest.raises(Garbled, match="a line of more than 3 bytes"):
        Lines(3, refuses=True).feed(data)
