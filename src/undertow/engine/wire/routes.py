"""Addresses of a peer, and the local address from which a peer is reached.

In: a peer's name or address.  Out: its addresses; the local address on the route to it; an identifier of this host.
Separate from `formation`, so that the launcher and the doctor can use it without the engine.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from undertow.errors import ConfigError


def look_up(host: str, port: int | None = None, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[Any]:
    """Return a host's addresses, like `socket.getaddrinfo`.

    Unlike that function, it raises `socket.gaierror`, an `OSError`, for impossible names too.
    """
    try:
        return list(socket.getaddrinfo(host, port, type=kind))
    except ValueError:  # of which UnicodeError is one
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from None


def route_to(host: str) -> str:
    """Return the local address from which a host is reached, which identifies the interface in use."""
    try:
        family, kind, protocol, _, address = look_up(host, 9, socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known here: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing on a datagram socket; the kernel only chooses the route
        return str(probe.getsockname()[0])


def same_host_mark() -> str:
    """Return an identifier of this host: processes with the same one share a loopback interface."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
