"""Frames: what was packed can be unpacked, and anything else is detected."""

from __future__ import annotations

import struct
import zlib

import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    WANTS,
    Body,
    Garbled,
    Header,
    Kind,
    check_body,
    pack,
    peek,
    unpack,
)

FULL = Header(
    Kind.RESULT,
    key=2**32 - 1,
    step=7,
    rank=3,
    present=2**64 - 1,
    length=2**40,
    dtype=DType.BFLOAT16,
    flags=255,
    job=2**31,
)


def with_checksum(fields: bytes) -> bytes:
    return fields + struct.pack("<I", zlib.crc32(fields))


@pytest.mark.parametrize("size", [1, 8, 300])
def test_one_flipped_bit_of_a_body_is_noticed(size: int) -> None:
    body = bytes(range(256))[:size].ljust(size)
    header = unpack(pack(Header(Kind.PUSH, length=size), checked_body=Body(body)))
    check_body(header, body)
    for bit in range(8 * size):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Garbled, match=f"a PUSH frame's body of {size} bytes does not match its checksum"):
            check_body(header, damaged)


def test_a_body_without_a_checksum_is_not_checked() -> None:
    check_body(unpack(pack(Header(Kind.PUSH, length=4))), b"body")


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_comes_back_as_it_was_packed(kind: Kind) -> None:
    header = FULL._replace(kind=kind)
    assert unpack(pack(header, received=99)) == header._replace(received=99)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_type_comes_back_as_it_was_packed(dtype: DType) -> None:
    assert unpack(pack(Header(Kind.PUSH, dtype=dtype))).dtype is dtype


def test_a_header_has_always_the_same_size() -> None:
    assert len(pack(Header(Kind.HEARTBEAT))) == len(pack(FULL)) == HEADER_BYTES == 60


def test_the_example_of_the_module_is_what_is_sent() -> None:
    header = Header(Kind.PUSH, key=3, step=1, rank=2, present=1, length=8, dtype=DType.FLOAT32, flags=WANTS)
    expected = (
        "55544f57 03 01 02 01 00000000 03000000 01000000 02000000 0100000000000000 0800000000000000 0000000000000000"
        "0000000000000000"
    )
    assert pack(header)[:-4] == bytes.fromhex(expected)
    assert pack(header) == with_checksum(bytes.fromhex(expected))


def test_a_frame_inside_a_larger_buffer_is_read() -> None:
    assert unpack(memoryview(bytearray(pack(FULL) + b"body"))[:HEADER_BYTES]) == FULL


def test_foreign_bytes_are_garbled_and_shown() -> None:
    with pytest.raises(Garbled, match="starts with b'GET ', not b'UTOW'"):
        unpack(b"GET / HTTP/1.1".ljust(HEADER_BYTES))


def test_a_wrong_checksum_is_garbled() -> None:
    damaged = bytearray(pack(FULL))
    damaged[33] ^= 1
    with pytest.raises(Garbled, match="does not match its checksum"):
        unpack(damaged)


def test_another_version_is_garbled_and_named() -> None:
    fields = bytearray(pack(FULL)[:-4])
    fields[4] = VERSION + 1
    with pytest.raises(Garbled, match="of version 4, expected 3"):
        unpack(with_checksum(bytes(fields)))


@pytest.mark.parametrize(("at", "value"), [(5, 0), (5, 200), (6, 99)])
def test_an_unknown_kind_or_type_is_garbled(at: int, value: int) -> None:
    fields = bytearray(pack(FULL)[:-4])
    fields[at] = value
    with pytest.raises(Garbled, match=f"unknown kind .*{value}|type {value}"):
        unpack(with_checksum(bytes(fields)))


def test_magic_is_what_a_packet_dump_shows() -> None:
    assert pack(FULL).startswith(MAGIC)


def test_peek_reads_kind_key_and_step() -> None:
    header = Header(Kind.VALUE, key=70_001, step=9, rank=3, present=5, length=12, dtype=DType.FLOAT32, flags=3, job=77)
    assert peek(pack(header, received=8)) == (Kind.VALUE, 70_001, 9)
