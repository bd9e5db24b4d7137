"""The handshake admits peers that know the token, and no others."""

from __future__ import annotations

import socket
import threading

import pytest

from undertow.engine.wire.auth import (
    GREETING_BYTES,
    MAGIC,
    PROOF_BYTES,
    VERSION,
    WELCOME,
    Handshake,
    Role,
    shake_hands,
)
from undertow.errors import Refused


def converse(dialer: Handshake, listener: Handshake, *, piece_bytes: int = 1000) -> list[bytes]:
    """Pass messages between both ends until both are done; returns them in order."""
    messages = [dialer.start()]
    receiver, other = listener, dialer
    while messages[-1]:
        answer = b""
        for start in range(0, len(messages[-1]), piece_bytes):
            answer += receiver.feed(messages[-1][start : start + piece_bytes])
        messages.append(answer)
        receiver, other = other, receiver
    return messages


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_equal_tokens_agree_in_pieces_of_any_size(piece_bytes: int) -> None:
    dialer, listener = Handshake(Role.DIALER, b"secret"), Handshake(Role.LISTENER, b"secret")
    messages = converse(dialer, listener, piece_bytes=piece_bytes)
    assert dialer.done
    assert listener.done
    assert [len(message) for message in messages] == [GREETING_BYTES, GREETING_BYTES + PROOF_BYTES, PROOF_BYTES, 1, 0]


def test_token_never_crosses_the_wire() -> None:
    messages = converse(Handshake(Role.DIALER, b"secret"), Handshake(Role.LISTENER, b"secret"))
    assert not any(b"secret" in message for message in messages)


def test_dialer_refuses_a_listener_with_another_token() -> None:
    dialer, listener = Handshake(Role.DIALER, b"secret"), Handshake(Role.LISTENER, b"other")
    with pytest.raises(Refused, match="wrong token"):
        dialer.feed(listener.feed(dialer.start()))
    assert not dialer.done


def test_listener_refuses_a_proof_made_with_another_token() -> None:
    listener = Handshake(Role.LISTENER, b"secret")
    listener.feed(Handshake(Role.DIALER, b"other").start())
    with pytest.raises(Refused, match="wrong token"):
        listener.feed(bytes(PROOF_BYTES))
    assert not listener.done


def test_every_other_version_is_refused_in_the_same_words() -> None:
    words = set()
    for version in range(VERSION + 1, VERSION + 50):
        with pytest.raises(Refused, match=f"does not speak version {VERSION}") as refused:
            Handshake(Role.LISTENER, b"secret").feed(MAGIC + version.to_bytes(2, "little") + bytes(16))
        words.add(str(refused.value))
    assert len(words) == 1  # a stranger cannot fill the log with them


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n    ", b"\x16\x03\x01", b"X", bytes(22)])
def test_garbage_is_refused_at_its_first_bytes(garbage: bytes) -> None:
    with pytest.raises(Refused, match="not an undertow peer"):
        Handshake(Role.LISTENER, b"secret").feed(garbage)


def test_reflected_proof_is_refused() -> None:
    """A stranger opens two connections and hands the listener's own proof back to it."""
    listener = Handshake(Role.LISTENER, b"secret", nonce=b"a" * 16)
    answer = listener.feed(MAGIC + VERSION.to_bytes(2, "little") + b"b" * 16)
    with pytest.raises(Refused, match="wrong token"):
        listener.feed(answer[GREETING_BYTES:])


def test_replayed_handshake_is_refused() -> None:
    greeting, _, proof, _, _ = converse(Handshake(Role.DIALER, b"secret"), Handshake(Role.LISTENER, b"secret"))
    later = Handshake(Role.LISTENER, b"secret")
    later.feed(greeting)
    with pytest.raises(Refused, match="wrong token"):
        later.feed(proof)


def test_dialer_needs_the_welcome() -> None:
    dialer, listener = Handshake(Role.DIALER, b"secret"), Handshake(Role.LISTENER, b"secret")
    dialer.feed(listener.feed(dialer.start()))
    assert not dialer.done
    with pytest.raises(Refused, match="did not accept"):
        dialer.feed(bytes([WELCOME[0] ^ 1]))


def test_wants_never_reads_beyond_the_handshake() -> None:
    listener = Handshake(Role.LISTENER, b"secret")
    assert listener.wants == GREETING_BYTES
    listener.feed(MAGIC)
    assert listener.wants == GREETING_BYTES - len(MAGIC)
    converse(Handshake(Role.DIALER, b"s"), done := Handshake(Role.LISTENER, b"s"))
    assert done.wants == 0


def shake_both(dialer_token: bytes, listener_token: bytes) -> list[Exception | None]:
    ends = socket.socketpair()
    verdicts: list[Exception | None] = [None, None]

    def shake(index: int, role: Role, token: bytes) -> None:
        ends[index].settimeout(10)
        try:
            shake_hands(ends[index], role, token)
        except (Refused, OSError) as error:
            verdicts[index] = error
            ends[index].close()  # as the owner of a refused connection does

    threads = [
        threading.Thread(target=shake, args=(0, Role.DIALER, dialer_token)),
        threading.Thread(target=shake, args=(1, Role.LISTENER, listener_token)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for end in ends:
        end.close()
    return verdicts


def test_sockets_with_equal_tokens_agree() -> None:
    assert shake_both(b"secret", b"secret") == [None, None]


def test_sockets_with_different_tokens_are_refused_at_both_ends() -> None:
    verdicts = shake_both(b"secret", b"other")
    assert isinstance(verdicts[0], Refused)
    assert verdicts[1] is not None
