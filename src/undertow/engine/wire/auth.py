"""The handshake: both ends prove that they know the job's token.

In: bytes from a new connection.  Out: bytes to send back, then acceptance or refusal.
Nothing that a stranger sends is parsed: its messages have fixed sizes
and are only compared.  The token itself is never sent.

    dialer   -> listener   magic, version, nonce_d            (22 bytes)
    listener -> dialer     magic, version, nonce_l, proof_l   (54 bytes)
    dialer   -> listener   proof_d                            (32 bytes)
    listener -> dialer     0x01                               ( 1 byte)

proof_x = HMAC-SHA256(token, role, nonce_d, nonce_l).  The roles differ, so a proof
cannot be reflected; the nonces are fresh, so it cannot be replayed.
"""

from __future__ import annotations

import enum
import hmac
import os
import socket

from undertow.engine.core.version import MAGIC, VERSION
from undertow.errors import Refused

NONCE_BYTES = 16
PROOF_BYTES = 32
GREETING_BYTES = len(MAGIC) + 2 + NONCE_BYTES
WELCOME = b"\x01"


class Role(enum.Enum):
    """Role of one end of a connection."""

    DIALER = b"dialer"
    LISTENER = b"listener"


class Handshake:
    """One end of a handshake, without a socket: `feed` takes the bytes received and returns the bytes to send.

    Raises `Refused` as soon as the peer has shown that it does not belong to the job.
    """

    def __init__(self, role: Role, token: bytes, nonce: bytes | None = None) -> None:
        self.role = role
        self.done = False
        self._token = token
        self._nonce = nonce or os.urandom(NONCE_BYTES)
        self._peer_nonce = b""
        self._received = bytearray()
        self._stage = 0

    def start(self) -> bytes:
        """Return the bytes to send first; the listener has none."""
        return self._greeting() if self.role is Role.DIALER else b""

    @property
    def wants(self) -> int:
        """The number of bytes to read now; any after them may not belong to the handshake."""
        return 0 if self.done else self._stage_size() - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the peer, at most `wants`; return the answer."""
        self._received += data
        if self._stage == 0 and not _may_become_greeting(self._received):
            raise Refused("not an undertow peer: its first bytes are not ours")
        if self.wants:
            return b""
        message, self._received = bytes(self._received), bytearray()
        self._stage += 1
        if self.role is Role.LISTENER:
            return self._listen(message)
        return self._dial(message)

    def _listen(self, message: bytes) -> bytes:
        if self._stage == 1:
            self._peer_nonce = _read_greeting(message)
            return self._greeting() + self._proof(Role.LISTENER)
        self._check(message, Role.DIALER)
        self.done = True
        return WELCOME

    def _dial(self, message: bytes) -> bytes:
        if self._stage == 1:
            self._peer_nonce = _read_greeting(message[:GREETING_BYTES])
            self._check(message[GREETING_BYTES:], Role.LISTENER)
            return self._proof(Role.DIALER)
        if message != WELCOME:
            raise Refused("the peer did not accept this worker")
        self.done = True
        return b""

    def _stage_size(self) -> int:
        if self.role is Role.LISTENER:
            return GREETING_BYTES if self._stage == 0 else PROOF_BYTES
        return GREETING_BYTES + PROOF_BYTES if self._stage == 0 else len(WELCOME)

    def _greeting(self) -> bytes:
        return MAGIC + VERSION.to_bytes(2, "little") + self._nonce

    def _proof(self, role: Role) -> bytes:
        mine, theirs = self._nonce, self._peer_nonce
        dialer, listener = (mine, theirs) if self.role is Role.DIALER else (theirs, mine)
        return hmac.digest(self._token, role.value + dialer + listener, "sha256")

    def _check(self, proof: bytes, role: Role) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise Refused("wrong token: the peer does not belong to this job")


def _may_become_greeting(received: bytearray) -> bool:
    size = min(len(received), len(MAGIC))
    return received[:size] == MAGIC[:size]


def _read_greeting(message: bytes) -> bytes:
    version = int.from_bytes(message[4:6], "little")
    if version != VERSION:
        # The stranger's version is left out: refusals are counted by reason, and each new reason is logged.
        raise Refused(f"the peer does not speak version {VERSION}: install the same undertow on all hosts")
    return message[6:]


def shake_hands(sock: socket.socket, role: Role, token: bytes) -> None:
    """Run the handshake on a blocking socket, whose timeout the caller has set.

    Raises `Refused`, or `OSError` if the connection fails or times out.
    """
    handshake = Handshake(role, token)
    if role is Role.DIALER:
        sock.sendall(handshake.start())
    while not handshake.done:
        data = sock.recv(handshake.wants)
        if not data:
            raise Refused("the peer closed the connection during the handshake: wrong token or version?")
        answer = handshake.feed(data)
        if answer:  # after its last message the peer may close, and then even an empty send fails
            sock.sendall(answer)


def introduce(sock: socket.socket, token: bytes, introduction: bytes = b"") -> socket.socket:
    """Run the handshake as the dialer, and send the introduction; return the socket, or close it and raise."""
    try:
        shake_hands(sock, Role.DIALER, token)
        if introduction:  # without one, as in `shake_hands`
            sock.sendall(introduction)
    except BaseException:
        sock.close()
        raise
    return sock
