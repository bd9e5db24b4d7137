"""The emulated network: hosts with a link each, and the switch between them.

In: the number of hosts, the rate of their links.  Out: hosts in which to start processes and
sockets, and the kernel's counters of every link.
Each host is a network namespace (its own interfaces, addresses, ports and loopback) and a host
name.  The switch is a bridge in the namespace of the calling process, with a port per host.
No namespace has a name: open files hold them, and they disappear when the files are closed.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from undertow.errors import ConfigError, LabError
from undertow.tools.lab.iproute import (
    INTERFACE,
    MAX_HOSTS,
    add_link,
    address_of,
    format_hosts_file,
    name_of,
    port_of,
    remove_links,
    run_batch,
    set_up_host,
    set_up_switch,
    shape_command,
)
from undertow.tools.lab.namespaces import (
    NEWNET,
    NEWUTS,
    open_namespace,
    replaced_file,
    restored_namespaces,
    set_namespace,
    unshare,
)

LOOPBACK = "127.0.0.1"
# Ethernet, IPv4, and TCP with its timestamps: 14 + 20 + 32 bytes in front of at most 1448.
HEADER_BYTES = 66


@dataclass(frozen=True)
class Counters:
    """Bytes and packets that one host has sent and received so far, by the kernel's count, headers included.

    A packet is the kernel's unit: up to 64 KiB, which a real card would split into frames.
    """

    bytes_out: int
    bytes_in: int
    packets_out: int
    packets_in: int

    @property
    def payload_out(self) -> int:
        """Bytes sent without headers; the same whether or not the kernel has split a packet."""
        return self.bytes_out - HEADER_BYTES * self.packets_out

    @property
    def payload_in(self) -> int:
        return self.bytes_in - HEADER_BYTES * self.packets_in


def count_sent(before: Sequence[Counters], after: Sequence[Counters]) -> list[int]:
    """Return the bytes without headers that each host sent between two readings."""
    return [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]


@dataclass(frozen=True)
class Host:
    index: int
    name: str
    address: str
    namespaces: tuple[int, ...] = ()  # open files of its network and its name; none on loopback

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread to this host inside the block, with every socket and process that it creates."""
        if not self.namespaces:
            yield
            return
        with restored_namespaces("net", "uts"):
            for fd in self.namespaces:
                set_namespace(fd)
            yield


class Network(ABC):
    """Hosts and links that a lab runs on."""

    is_shaped: bool  # hosts have links of their own, which `shape` limits

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    @abstractmethod
    def shape(self, rate_bits_per_s: float | None) -> None:
        """Limit both directions of every link; None removes the limit."""

    @abstractmethod
    def counters(self) -> list[Counters]:
        """Return the counters of every host."""


class _Namespaces(Network):
    """Hosts with links of their own."""

    is_shaped = True
    _is_limited = False

    def shape(self, rate_bits_per_s: float | None) -> None:
        if rate_bits_per_s is None and not self._is_limited:
            return
        ports = [port_of(host.index) for host in self.hosts]
        run_batch("tc", [shape_command(port, rate_bits_per_s, is_port=True) for port in ports])
        for host in self.hosts:
            with host.entered():
                run_batch("tc", [shape_command(INTERFACE, rate_bits_per_s, is_port=False)])
        self._is_limited = rate_bits_per_s is not None

    def counters(self) -> list[Counters]:
        devices = read_devices()
        # What a port of the switch receives is what the host at its other end has sent.
        swapped = [devices[port_of(host.index)] for host in self.hosts]
        return [Counters(port.bytes_in, port.bytes_out, port.packets_in, port.packets_out) for port in swapped]


class _Loopback(Network):
    """Network whose hosts are all this machine.  The kernel counts their bytes together: each gets an equal share."""

    is_shaped = False

    def shape(self, rate_bits_per_s: float | None) -> None:
        pass

    def counters(self) -> list[Counters]:
        count = len(self.hosts)
        devices = {}
        with suppress(OSError):
            devices = read_devices()
        total = devices.get("lo", Counters(0, 0, 0, 0))
        share = [value // count for value in (total.bytes_out, total.bytes_in, total.packets_out, total.packets_in)]
        return [Counters(*share)] * count


@contextmanager
def open_network(hosts: int) -> Iterator[Network]:
    """Open emulated hosts around a switch.  Works only inside `run_isolated`, one network at a time."""
    check_size(hosts)
    _silence_ipv6()
    congestion_control = _find_congestion_control()
    with ExitStack() as stack:
        made = [_make_host(index, stack) for index in range(hosts)]
        stack.callback(_remove)
        cables = [line for host in made for line in add_link(host.index, _file(host.namespaces[0]))]
        run_batch("ip", [*set_up_switch(), *cables])
        for host in made:
            with host.entered():
                run_batch("ip", set_up_host(host.index, hosts, congestion_control=congestion_control))
        stack.enter_context(_host_names(hosts))
        yield _Namespaces(made)


@contextmanager
def open_loopback(hosts: int) -> Iterator[Network]:
    """Open a network without root and without links: all hosts are 127.0.0.1."""
    check_size(hosts)
    yield _Loopback([Host(index, name_of(index), LOOPBACK) for index in range(hosts)])


def check_size(hosts: int) -> None:
    """Raise `ConfigError` if the lab cannot have this many hosts."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"{hosts} hosts are not possible: the lab has 1 to {MAX_HOSTS}")


def read_devices() -> dict[str, Counters]:
    """Return the counters of every interface that the calling thread sees."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        numbers = [int(number) for number in rest.split()]
        found[name.strip()] = Counters(numbers[8], numbers[0], numbers[9], numbers[1])
    return found


def _make_host(index: int, stack: ExitStack) -> Host:
    """Create a host: a network namespace without links, and a host name."""
    with restored_namespaces("net", "uts"):
        unshare(NEWNET | NEWUTS)
        socket.sethostname(name_of(index))
        fds = tuple(map(open_namespace, ("net", "uts")))
        for fd in fds:
            stack.callback(os.close, fd)
        _silence_ipv6()
    return Host(index, name_of(index), address_of(index), fds)


def _file(fd: int) -> str:
    """Return a path by which `ip`, another process, can open our file."""
    return f"/proc/{os.getpid()}/fd/{fd}"


@contextmanager
def _host_names(hosts: int) -> Iterator[None]:
    """Add the hosts to /etc/hosts: many programs look up the address of their own name."""
    file = Path("/etc/hosts")
    if not file.is_file():
        yield
        return
    with replaced_file(file, format_hosts_file(hosts) + file.read_text(errors="replace")):
        yield


def _remove() -> None:
    """Remove the network.  The kernel would do so too, but later, and another could not be opened immediately."""
    with suppress(LabError):  # after a failed set-up, nothing may be there to remove
        run_batch("ip", remove_links())


def _silence_ipv6() -> None:
    """Disable IPv6 on future interfaces: its announcements would be in the counters.  Loopback keeps it."""
    with suppress(FileNotFoundError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def _find_congestion_control() -> str | None:
    """Return the default of most Linux hosts, if available, so that figures of different machines are comparable."""
    available = ""
    with suppress(OSError):
        available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    return "cubic" if "cubic" in available.split() else None
