"""Stage 5, the frame: a fixed header and raw bytes.

    offset  size  field
         0     4  magic    "UTOW"
         4     1  version  3
         5     1  kind     see Kind
         6     1  dtype    see DType
         7     1  flags    1 WANTS, 2 ABSENT, 4 RECEIPT, 8 CHECKED
         8     4  job      job and group, so that frames of different groups are never mixed up
        12     4  key      the slice
        16     4  step     the round of that key
        20     4  rank     the sender
        24     8  present  bits of the slice's tensors that hold a value, bit 0 for the first
        32     8  length   size of the body, which follows the header, in bytes
        40     8  received slice bytes that the sender has received on this link so far: credit
        48     8  body     XXH3 checksum of the body if the flag CHECKED is set, else 0
        56     4  checksum CRC-32 of the first 56 bytes

All numbers are little-endian.  A push of the 8 bytes of key 3 at step 1 by rank 2:

    55544f57 03 01 02 01 00000000 03000000 01000000 02000000
    0100000000000000 0800000000000000 0000000000000000 0000000000000000 <crc> <8 bytes>

The header's checksum detects a stream that is out of step before the length field is trusted.
The body's checksum detects damage that TCP's 16-bit checksum misses, and damage between the network card and
memory: without it, one flipped bit would make the sum wrong on all ranks.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Any, NamedTuple

import xxhash

from undertow.engine.core.dtypes import DType
from undertow.engine.core.version import MAGIC, VERSION
from undertow.errors import Garbled as Garbled
from undertow.errors import UndertowError

_FIELDS = struct.Struct("<4sBBBBIIIIQQQQ")
_CHECKSUM = struct.Struct("<I")
_PEEK = struct.Struct("<5xB6xII")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
MAX_CONTROL_BYTES = 64 << 20
_compute_checksum = xxhash.xxh3_64_intdigest


class Kind(enum.IntEnum):
    """Kind of a frame."""

    PUSH = 1  # worker to owner: a contribution to a round
    RESULT = 2  # owner to worker: the round's result, or only the fact that the round is done
    PULL = 3  # worker to owner: a request for the key's value
    VALUE = 7  # owner to worker: the value that was pulled
    RECEIVED = 4  # a receipt: only the field `received`, when no other frame carries it
    CONTROL = 5  # a message with a schema, see coordinator.messages
    HEARTBEAT = 6


# Kinds whose bodies go straight into the receiver's memory.
SLICE_KINDS = (Kind.PUSH, Kind.RESULT, Kind.VALUE)

# Flags
WANTS = 1  # push: answer with the result, not only with the fact that the round is done
ABSENT = 2  # result: a worker had run out of input and did not contribute
RECEIPT = 4  # the sender is short of credit and requests a receipt at once
CHECKED = 8  # the body must match its checksum


class Unexpected(UndertowError):
    """Refusal of a frame or message that is not valid now: it is dropped and counted."""


class Header(NamedTuple):
    """Header of a frame; see the table above."""

    kind: Kind
    key: int = 0
    step: int = 0
    rank: int = 0
    present: int = 0
    length: int = 0
    dtype: DType = DType.BYTES
    flags: int = 0
    job: int = 0
    received: int = 0
    body_checksum: int = 0


class Body:
    """Body of one frame, or of several frames to different peers.

    The checksum is computed once, when the first frame leaves.
    """

    __slots__ = ("_checksum", "data")

    def __init__(self, data: Any) -> None:
        self.data = data
        self._checksum: int | None = None

    @property
    def checksum(self) -> int:
        if self._checksum is None:
            self._checksum = _compute_checksum(self.data)
        return self._checksum


_KINDS = {int(kind): kind for kind in Kind}
_DTYPES = {int(dtype): dtype for dtype in DType}


def pack(header: Header, received: int = 0, flags: int = 0, checked_body: Body | None = None) -> bytes:
    """Return the header's bytes.  `received` and `flags` are parameters because they are known only on departure.

    With a `checked_body`, the header carries its checksum, and the receiver detects even a single flipped bit.
    """
    body_checksum = 0
    if checked_body is not None:
        flags |= CHECKED
        body_checksum = checked_body.checksum
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.dtype,
        header.flags | flags,
        header.job,
        header.key,
        header.step,
        header.rank,
        header.present,
        header.length,
        received,
        body_checksum,
    )
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def peek(data: bytes) -> tuple[int, int, int]:
    """Return kind, key and step of a header that this process packed."""
    kind, key, step = _PEEK.unpack_from(data)
    return kind, key, step


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Parse a header; raise `Garbled` with the reason if it is not valid."""
    fields = _FIELDS.unpack_from(data)
    magic, version, kind, dtype, flags, job, key, step, rank, present, length, received, body_checksum = fields
    if magic != MAGIC:
        raise Garbled(f"a frame starts with {magic!r}, not {MAGIC!r}")
    if _CHECKSUM.unpack_from(data, _FIELDS.size)[0] != zlib.crc32(data[: _FIELDS.size]):
        raise Garbled("a frame's header does not match its checksum")
    if version != VERSION:
        raise Garbled(f"a frame of version {version}, expected {VERSION}")
    if kind not in _KINDS or dtype not in _DTYPES:
        raise Garbled(f"a frame of unknown kind {kind} or type {dtype}")
    return Header(_KINDS[kind], key, step, rank, present, length, _DTYPES[dtype], flags, job, received, body_checksum)


def check_body(header: Header, body: Any) -> None:
    """Raise `Garbled` if the header has a checksum of the body and the body does not match it."""
    if header.flags & CHECKED and _compute_checksum(body) != header.body_checksum:
        raise Garbled(f"a {header.kind.name} frame's body of {header.length} bytes does not match its checksum")
