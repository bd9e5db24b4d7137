"""Rendezvous: every process brings a payload and receives the payloads of all.

In: the address of a rendezvous server, the job's token, a rank in a named rendezvous.
Out: all payloads in rank order, or an error that names the ranks that did not arrive.
The order of starts does not matter: the client retries until the rendezvous server is up.
It never sleeps for more than 50 ms at a time and never waits beyond its timeout.
"""

from __future__ import annotations

import re
import socket
import time

from undertow.decoding import Decoder
from undertow.engine.coordinator.rendezvous_server import RendezvousServer
from undertow.engine.coordinator.rendezvous_table import MAX_PAYLOAD_BYTES, MAX_SIZE, Join, JoinFailure, Reply
from undertow.engine.wire.auth import introduce
from undertow.engine.wire.streams import pack, read_message
from undertow.errors import ConfigError, Garbled, MismatchError, PeerLost, Refused, UndertowError

__all__ = ["RendezvousServer", "attend", "parse_address"]

RETRY_PAUSE_S = 0.05
# Timeout of one attempt to connect or to shake hands: a lost packet or a hung server must not cost the whole timeout.
ATTEMPT_S = 5.0
# After the deadline the rendezvous server reports the absent ranks; its answer needs a moment to arrive.
ANSWER_SLACK_S = 2.0

_replies: Decoder[Reply] = Decoder(Reply)


def attend(
    address: str, token: bytes, *, name: str, rank: int, size: int, payload: bytes, timeout_s: float
) -> list[bytes]:
    """Join the rendezvous `name` as `rank` of `size`; return the payloads of all ranks, in rank order.

    Raises `PeerLost` if a rank did not arrive within `timeout_s`, `ConfigError` if the rank is
    taken, `MismatchError` if the others expect another size, `Refused` if the token is wrong.
    """
    _check(rank=rank, size=size, payload=payload)
    where = parse_address(address)
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            with _connect(where, token, deadline_s=deadline_s) as sock:
                left_s = max(0.0, deadline_s - time.monotonic())
                sock.settimeout(left_s + ANSWER_SLACK_S)
                sock.sendall(pack(Join(name, rank, size, payload, timeout_s, left_s)))
                reply = _read_reply(sock, size)
        except OSError as error:
            if time.monotonic() + RETRY_PAUSE_S >= deadline_s:
                raise _make_timeout(address, rank=rank, timeout_s=timeout_s, error=error) from None
            time.sleep(RETRY_PAUSE_S)
            continue
        except Refused as error:
            raise Refused(error.reason, address=address) from None
        if reply.failure:
            raise _make_error(reply.failure, reply)
        return reply.payloads


def _make_error(failure: JoinFailure, reply: Reply) -> UndertowError:
    match failure:
        case JoinFailure.ABSENT:
            return PeerLost(ranks=reply.ranks, event=reply.text)
        case JoinFailure.TAKEN:
            return ConfigError(reply.text)
        case JoinFailure.DISAGREE:
            return MismatchError(reply.text, matter="the number of ranks", ranks=reply.ranks)


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`."""
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{address!r} is not an address: expected host:port, such as 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def _is_host(host: str) -> bool:
    """Whether this can be the name of a host: for other strings the system raises errors that are no `OSError`."""
    try:
        return bool(host.encode("idna")) and host.isprintable()
    except UnicodeError:
        return False


def _check(*, rank: int, size: int, payload: bytes) -> None:
    if not 1 <= size <= MAX_SIZE or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} is not possible: ranks are 0 to size - 1, size at most {MAX_SIZE}")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"a payload of {len(payload)} bytes is too long (at most {MAX_PAYLOAD_BYTES})")


def _connect(where: tuple[str, int], token: bytes, *, deadline_s: float) -> socket.socket:
    sock = socket.create_connection(where, timeout=_attempt_s(deadline_s))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.settimeout(_attempt_s(deadline_s))
    return introduce(sock, token)


def _attempt_s(deadline_s: float) -> float:
    return min(ATTEMPT_S, max(RETRY_PAUSE_S, deadline_s - time.monotonic()))


def _read_reply(sock: socket.socket, size: int) -> Reply:
    body = read_message(sock, (size + 1) * (MAX_PAYLOAD_BYTES + 16), f"an answer with {size} payloads")
    try:
        reply = _replies.decode(body)
        if not reply.failure and len(reply.payloads) != size:
            raise Garbled(f"it has {len(reply.payloads)} payloads of {size} ranks")
        return reply
    except Garbled as error:
        raise Refused(
            f"the rendezvous server's answer is not valid ({error}): install the same undertow on all hosts"
        ) from None


def _make_timeout(address: str, *, rank: int, timeout_s: float, error: OSError) -> PeerLost:
    reason = error.strerror or str(error) or type(error).__name__
    return PeerLost(
        f"rank {rank} could not join the rendezvous at {address} within {timeout_s:g} s: {reason}; "
        "is the first host's `undertow run` alive, and can this host reach that address?"
    )
