"""Addresses: those of a peer, and the address of this host from which a peer is reached.

In: a peer's name or address.  Out: its addresses; the own address from which it is reached; a mark of this host.
Separate from `formation`, so that the launcher and the doctor can ask without the engine.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from undertow.errors import ConfigError


def look_up(host: str, port: int | None = None, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[Any]:
    """Ask the system for a host's addresses, as `socket.getaddrinfo` does.

    Raises `socket.gaierror` for impossible names, too, for which `getaddrinfo` raises errors that are no `OSError`.
    """
    try:
        return list(socket.getaddrinfo(host, port, type=kind))
    except ValueError:  # of which UnicodeError is one
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from None


def route_to(host: str) -> str:
    """Return the own address from which a host is reached, which tells the interface in use."""
    try:
        family, kind, protocol, _, address = look_up(host, 9, socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known here: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket sends nothing here; the kernel only picks the route
        return str(probe.getsockname()[0])


def same_host_mark() -> str:
    """Return a mark of this host: two processes with the same mark share a network stack's loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
