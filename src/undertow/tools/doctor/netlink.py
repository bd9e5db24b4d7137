"""Reads interfaces and addresses from the kernel, over netlink.

In: nothing.  Out: `Interface`s of this process's network namespace.
Does not use /sys/class/net, which shows the namespace in which it was mounted, or the tool `ip`, which containers
rarely have.  If the kernel does not answer (not Linux, or a sandbox), the list is empty.

A dump is a sequence of messages: a header of 16 bytes (length, type, flags, sequence, port), a fixed struct, then
attributes, each with a header of 4 bytes (length, type) and a value, padded to 4 bytes.  See rtnetlink(7).
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from undertow.tools.doctor.facts import Interface

GETLINK, GETADDR = 18, 22
NEWLINK, NEWADDR, DONE, ERROR = 16, 20, 3, 2
DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
LINK, ADDRESS = struct.Struct("=BxHiII"), struct.Struct("=BBBBI")
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
IFLA_IFNAME, IFLA_MTU = 3, 4
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
SIOCETHTOOL, ETHTOOL_GSET, UNKNOWN_SPEED = 0x8946, 1, 0xFFFF_FFFF
TIMEOUT_S = 2.0
MOST_BYTES = 1 << 22  # of one dump; far more than the interfaces of any host need


def list_interfaces() -> list[Interface]:
    try:
        links, addresses = _dump(GETLINK, LINK.size), _dump(GETADDR, ADDRESS.size)
    except OSError:
        return []
    return [_with_speed(one) for one in parse_interfaces(links, addresses)]


def parse_interfaces(links: bytes, addresses: bytes) -> list[Interface]:
    """Parse the dumps of links and addresses; interfaces come in the kernel's order."""
    by_index: dict[int, list[str]] = {}
    for fixed, attributes in _messages(addresses, NEWADDR, ADDRESS):
        # On a point-to-point link, IFA_LOCAL is this host's address and IFA_ADDRESS the peer's.
        raw = attributes.get(IFA_LOCAL, attributes.get(IFA_ADDRESS, b""))
        with suppress(ValueError):
            by_index.setdefault(fixed[4], []).append(str(ipaddress.ip_address(raw)))
    found = []
    for fixed, attributes in _messages(links, NEWLINK, LINK):
        index, flags = fixed[2], fixed[3]
        name = attributes.get(IFLA_IFNAME, b"?").rstrip(b"\0").decode(errors="replace")
        mtu = int.from_bytes(attributes.get(IFLA_MTU, b""), "little")
        is_up = flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING
        found.append(Interface(name, is_up, bool(flags & IFF_LOOPBACK), mtu, by_index.get(index, [])))
    return found


def _dump(kind: int, fixed_bytes: int) -> bytes:
    """Return all messages of the kernel's answer."""
    received = b""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.sendto(HEADER.pack(HEADER.size + fixed_bytes, kind, DUMP_REQUEST, 1, 0) + bytes(fixed_bytes), (0, 0))
        while len(received) < MOST_BYTES:
            data = sock.recv(1 << 16)
            received += data
            if not data or any(got in (DONE, ERROR) for got, _ in _split(data)):
                break
    return received


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of every message."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return
        yield kind, data[at + HEADER.size : at + length]
        at += _padded(length)


def _messages(data: bytes, kind: int, fixed: struct.Struct) -> Iterator[tuple[tuple[int, ...], dict[int, bytes]]]:
    for got, body in _split(data):
        if got == kind and len(body) >= fixed.size:
            yield fixed.unpack_from(body), dict(_attributes(body[fixed.size :]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size:
            return
        yield kind, data[at + ATTRIBUTE.size : at + length]
        at += _padded(length)


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _with_speed(one: Interface) -> Interface:
    if one.is_loopback or not one.is_up:
        return one
    return Interface(one.name, one.is_up, one.is_loopback, one.mtu, one.addresses, _read_speed_mbit(one.name))


def _read_speed_mbit(name: str) -> int:
    """Return the speed that the card negotiated; 0 if unknown, as for many virtual interfaces."""
    answer = array.array("B", struct.pack("=I40x", ETHTOOL_GSET))
    request = struct.pack("16sP", name.encode()[:15], answer.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCETHTOOL, request)
    except OSError:
        return 0
    low, high = struct.unpack_from("=H", answer, 12)[0], struct.unpack_from("=H", answer, 28)[0]
    speed = high << 16 | low
    return 0 if speed in (0xFFFF, UNKNOWN_SPEED) else speed
