"""Any header survives packing and unpacking; a wrong byte is detected at any position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import HEADER_BYTES, Garbled, Header, Kind, pack, unpack

U8, U32, U64 = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    key=U32,
    step=U32,
    rank=U32,
    present=U64,
    length=U64,
    dtype=st.sampled_from(DType),
    flags=U8,
    job=U32,
    received=U64,
    body_checksum=st.just(0),
)


@given(HEADERS, U64)
def test_what_is_packed_is_unpacked(header: Header, received: int) -> None:
    assert unpack(pack(header, received)) == header._replace(received=received)


@given(HEADERS, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_any_single_wrong_byte_is_detected(header: Header, at: int, change: int) -> None:
    damaged = bytearray(pack(header))
    damaged[at] ^= change
    with pytest.raises(Garbled):
        unpack(damaged)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_bytes_of_anybody_are_garbled_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(Garbled):
        unpack(data)
