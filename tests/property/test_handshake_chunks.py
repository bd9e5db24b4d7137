"""The handshake, divided into chunks of any size, and with any bytes replaced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.engine.core.frames import MAGIC, VERSION
from undertow.engine.wire.auth import Handshake, Role
from undertow.errors import Refused

GREETING = MAGIC + VERSION.to_bytes(2, "little") + bytes(16)
TOKENS = st.binary(min_size=1, max_size=40)


def converse(ends: dict[Role, Handshake], random) -> None:  # type: ignore[no-untyped-def]
    """Carry bytes both ways, some at a time, until there are no more."""
    on_the_way = {Role.LISTENER: ends[Role.DIALER].start(), Role.DIALER: b""}
    while any(on_the_way.values()):
        to = random.choice([role for role, data in on_the_way.items() if data])
        size = min(random.randint(1, len(on_the_way[to])), ends[to].wants)
        piece, on_the_way[to] = on_the_way[to][:size], on_the_way[to][size:]
        back = Role.DIALER if to is Role.LISTENER else Role.LISTENER
        on_the_way[back] += ends[to].feed(piece)


@given(TOKENS, st.randoms(use_true_random=False))
def test_equal_tokens_agree_however_the_bytes_are_cut(token: bytes, random) -> None:  # type: ignore[no-untyped-def]
    ends = {role: Handshake(role, token) for role in Role}
    converse(ends, random)
    assert all(end.done for end in ends.values())
    assert all(end.wants == 0 for end in ends.values())


@given(TOKENS, TOKENS, st.randoms(use_true_random=False))
def test_different_tokens_are_refused_however_the_bytes_are_cut(ours, theirs, random) -> None:  # type: ignore[no-untyped-def]
    ends = {Role.DIALER: Handshake(Role.DIALER, ours), Role.LISTENER: Handshake(Role.LISTENER, theirs)}
    if ours == theirs:
        return
    with pytest.raises(Refused, match="wrong token"):
        converse(ends, random)
    assert not any(end.done for end in ends.values())


@given(TOKENS, st.sampled_from([b"", GREETING]), st.binary(max_size=100), st.randoms(use_true_random=False))
def test_who_does_not_know_the_token_never_gets_through(token, start, rest, random) -> None:  # type: ignore[no-untyped-def]
    listener, data = Handshake(Role.LISTENER, token), start + rest
    while data:
        size = min(random.randint(1, len(data)), listener.wants)
        try:
            listener.feed(data[:size])
        except Refused:
            break
        data = data[size:]
    assert not listener.done
