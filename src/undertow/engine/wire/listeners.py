"""Listening sockets, each on one interface only, and the text of their addresses.

In: where to listen.  Out: a socket that listens and never blocks, or an error that says what to change.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from undertow.engine.wire.routes import look_up
from undertow.errors import ConfigError

# Small packets pass even if a switch drops jumbo frames that the interfaces allow.  So the hosts find each other, and a
# later check can name the cause.
SEGMENT_BYTES = 1200


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(sock: socket.socket, where: Any, backlog: int) -> socket.socket:
    """Bind a socket and have it listen without blocking; return it, or close it and raise `OSError`."""
    try:
        sock.bind(where)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def open_listener(host: str, port: int) -> socket.socket:
    """Listen on the interface with this address, for processes of other hosts that start a job."""
    try:
        family, _, _, _, where = look_up(host, port)[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r}: {error.strerror}; give a name or address of this host") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted job needs the same port at once
    with contextlib.suppress(OSError):  # optional; applies to both directions of each connection
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    try:
        return listen(sock, where, 1024)
    except OSError as error:
        reason = f"{error.strerror}; choose a free port"
        if error.errno == errno.EADDRNOTAVAIL:
            reason = f"{host} is not an address of this host; give one that is (see: ip address)"
        raise ConfigError(f"cannot listen on {format_address(host, port)}: {reason}") from None
