"""What the doctors of two hosts say to each other on a connection, after the handshake.

In: structs.  Out: bytes, 4 of length (little endian) and msgpack, and back.
One request per connection, from the one who dialled.  Sizes and numbers have limits; nothing is unpickled.
"""

from __future__ import annotations

import socket
import struct
from typing import Annotated, TypeVar

import msgspec

from undertow.core.decoding import Decoder
from undertow.doctor.bulk import LONGEST_S
from undertow.errors import Garbled, Refused

LONGEST_LETTER = 256
MOST_ECHOES = 1000
LENGTH = struct.Struct("<I")
STAMP = struct.Struct("<d")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]
T = TypeVar("T")


class Echo(msgspec.Struct, frozen=True, tag=True):
    """I send this many small messages: answer each with your clock."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_ECHOES)]


class Take(msgspec.Struct, frozen=True, tag=True):
    """I send all I can: tell me what arrives in so many seconds."""

    duration_s: Seconds


class Give(msgspec.Struct, frozen=True, tag=True):
    """Send all you can for so long."""

    duration_s: Seconds


Request = Echo | Take | Give


def send_letter(sock: socket.socket, letter: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(letter)
    sock.sendall(LENGTH.pack(len(body)) + body)


def read_letter(sock: socket.socket, decoder: Decoder[T]) -> T:
    """Raises `Refused` at what is no such letter."""
    (length,) = LENGTH.unpack(read_exactly(sock, LENGTH.size))
    if not 0 < length <= LONGEST_LETTER:
        raise Refused(f"a letter of {length} bytes is not possible (at most {LONGEST_LETTER})")
    try:
        return decoder.decode(read_exactly(sock, length))
    except Garbled as error:
        raise Refused(f"a letter makes no sense ({error}): install the same undertow on all hosts") from None


def read_exactly(sock: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = sock.recv(count - len(received))
        if not data:
            raise ConnectionResetError("the other host has closed the connection")
        received += data
    return received
