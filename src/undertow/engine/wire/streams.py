"""Messages on a stream of bytes, either prefixed with their length or terminated by a newline.

In: bytes, any number at a time.  Out: whole messages, in order.
Every reader has a limit, so that no peer can exhaust the memory.  The code is pure except for the functions with a
socket, which must be a blocking one.  Nothing is ever unpickled.

A length-prefixed message is 4 bytes of length (little-endian), then msgpack.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from undertow.errors import Garbled, Refused

LENGTH_BYTES = 4
CHUNK_BYTES = 1 << 20


def pack(message: object) -> bytes:
    """Encode a message, prefixed with its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class Messages:
    """Splitter of length-prefixed messages.  `what` describes a message in errors."""

    def __init__(self, most_bytes: int, what: str = "a message") -> None:
        self._most_bytes = most_bytes
        self._what = what
        self._received = bytearray()

    @property
    def missing_bytes(self) -> int:
        """The number of bytes that the length prefix or the body of the first message still lacks; 0 if complete.

        Raises `Refused` if the length is not possible.
        """
        if len(self._received) < LENGTH_BYTES:
            return LENGTH_BYTES - len(self._received)
        length = int.from_bytes(self._received[:LENGTH_BYTES], "little")
        if not 0 < length <= self._most_bytes:
            raise Refused(f"{self._what} of {length} bytes is not possible (at most {self._most_bytes})")
        return max(0, LENGTH_BYTES + length - len(self._received))

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._received += data

    def take(self) -> bytes | None:
        """Remove the first message and return its body; None if it is not complete."""
        if self.missing_bytes:
            return None
        end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "little")
        body = bytes(self._received[LENGTH_BYTES:end])
        del self._received[:end]
        return body


def read_message(sock: socket.socket, most_bytes: int, what: str = "a message") -> bytes:
    """Read one message and return its body; read no byte beyond it."""
    messages = Messages(most_bytes, what)
    while missing_bytes := messages.missing_bytes:
        messages.feed(read_exactly(sock, missing_bytes))
    return messages.take() or b""


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read this many bytes from a blocking socket; raise `ConnectionResetError` if the stream ends earlier."""
    received = bytearray()
    while len(received) < count:
        data = sock.recv(min(count - len(received), CHUNK_BYTES))
        if not data:
            raise ConnectionResetError("the peer has closed the connection")
        received += data
    return bytes(received)


def discard_unsent(sock: socket.socket) -> None:
    """Make `close` discard unsent data, so that a link is empty for the next measurement."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Lines:
    """Splitter of lines.  A line that is too long loses its beginning or, with `refuses`, is an error."""

    def __init__(self, most_bytes: int, *, refuses: bool = False) -> None:
        self.rest = b""  # the unfinished line
        self._most_bytes = most_bytes
        self._refuses = refuses

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes that have arrived; return the lines that they complete, without line ends."""
        lines = (self.rest + data).split(b"\n")
        if self._refuses and max(map(len, lines)) > self._most_bytes:
            raise Garbled(f"a line of more than {self._most_bytes} bytes")
        *whole, self.rest = (line[-self._most_bytes :] for line in lines)
        return whole
