"""The emulated network: hosts with a link each, and the switch between them.

In: how many hosts, how fast their links are.  Out: hosts to start processes and sockets in,
and what the kernel counted on every link.
Each host is a network namespace (its own interfaces, addresses, ports and loopback) and a host
name.  The switch is a bridge in the namespace of the calling process, with a port per host.
No namespace has a name; open files hold them, and they are gone when these are closed.
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
    address_of,
    lay_cable,
    list_names,
    name_of,
    port_of,
    run_batch,
    set_up_host,
    set_up_switch,
    shape_command,
    take_down,
)
from undertow.tools.lab.namespaces import NEWNET, NEWUTS, kept, open_namespace, replaced_file, set_namespace, unshare

LOOPBACK = "127.0.0.1"
# Ethernet, IPv4, and TCP with its timestamps: 14 + 20 + 32 bytes in front of at most 1448.
HEADER_BYTES = 66


@dataclass(frozen=True)
class Counters:
    """Counters of one host: what it has sent and received so far by the kernel's count, headers included.

    A packet is what the kernel handles as one: up to 64 KiB that a real card would cut into frames.
    """

    bytes_out: int
    bytes_in: int
    packets_out: int
    packets_in: int

    @property
    def payload_out(self) -> int:
        """Bytes sent without headers: the same for a packet that the kernel cut and for one that it did not."""
        return self.bytes_out - HEADER_BYTES * self.packets_out

    @property
    def payload_in(self) -> int:
        return self.bytes_in - HEADER_BYTES * self.packets_in


@dataclass(frozen=True)
class Host:
    index: int
    name: str
    address: str
    namespaces: tuple[int, ...] = ()  # open files that hold its network and its name; none on loopback

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside of the block the calling thread is on this host, and so is every socket and process it makes."""
        if not self.namespaces:
            yield
            return
        with kept("net", "uts"):
            for fd in self.namespaces:
                set_namespace(fd)
            yield


class Network(ABC):
    """Hosts and links that a lab runs on."""

    is_shaped: bool  # the hosts have links of their own, which `shape` limits

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    @abstractmethod
    def shape(self, rate_bits_per_s: float | None) -> None:
        """Limit both directions of every link, from now on; None takes the limit off."""

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
    """Network whose hosts are all this one.  The kernel does not tell their bytes apart: each gets an equal share."""

    is_shaped = False

    def shape(self, rate_bits_per_s: float | None) -> None:
        pass

    def counters(self) -> list[Counters]:
        count = len(self.hosts)
        devices = {}
        with suppress(OSError):
            devices = read_devices()
        all_ = devices.get("lo", Counters(0, 0, 0, 0))
        share = (all_.bytes_out // count, all_.bytes_in // count, all_.packets_out // count, all_.packets_in // count)
        return [Counters(*share)] * count


@contextmanager
def open_network(hosts: int) -> Iterator[Network]:
    """Emulated hosts around a switch; only inside of `run_isolated`, and one at a time."""
    check_size(hosts)
    _silence_ipv6()
    congestion_control = _find_congestion_control()
    with ExitStack() as stack:
        made = [_make_host(index, stack) for index in range(hosts)]
        stack.callback(_take_down)
        cables = [line for host in made for line in lay_cable(host.index, _file(host.namespaces[0]))]
        run_batch("ip", [*set_up_switch(), *cables])
        for host in made:
            with host.entered():
                run_batch("ip", set_up_host(host.index, hosts, congestion_control=congestion_control))
        stack.enter_context(_known_names(hosts))
        yield _Namespaces(made)


@contextmanager
def open_loopback(hosts: int) -> Iterator[Network]:
    """Open a network without root and without links: all hosts are 127.0.0.1."""
    check_size(hosts)
    yield _Loopback([Host(index, name_of(index), LOOPBACK) for index in range(hosts)])


def check_size(hosts: int) -> None:
    """Refuse a number of hosts that the lab does not have."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"{hosts} hosts are not possible: the lab has 1 to {MAX_HOSTS}")


def read_devices() -> dict[str, Counters]:
    """Return what every interface has carried that the calling thread sees."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        numbers = [int(number) for number in rest.split()]
        found[name.strip()] = Counters(numbers[8], numbers[0], numbers[9], numbers[1])
    return found


def _make_host(index: int, stack: ExitStack) -> Host:
    """Make an empty namespace with a name."""
    with kept("net", "uts"):
        unshare(NEWNET | NEWUTS)
        socket.sethostname(name_of(index))
        fds = tuple(map(open_namespace, ("net", "uts")))
        for fd in fds:
            stack.callback(os.close, fd)
        _silence_ipv6()
    return Host(index, name_of(index), address_of(index), fds)


def _file(fd: int) -> str:
    """Return a path to an open file of ours, for `ip`, which is another process."""
    return f"/proc/{os.getpid()}/fd/{fd}"


@contextmanager
def _known_names(hosts: int) -> Iterator[None]:
    """Let the hosts find each other by name; many programs ask for the address of their own."""
    file = Path("/etc/hosts")
    if not file.is_file():
        yield
        return
    with replaced_file(file, list_names(hosts) + file.read_text(errors="replace")):
        yield


def _take_down() -> None:
    """Remove the network.  The kernel would do it as well, but later: another one could not be opened at once."""
    with suppress(LabError):  # nothing is there if the set-up has failed: its error is the one to show
        run_batch("ip", take_down())


def _silence_ipv6() -> None:
    """Interfaces made from now on have no IPv6: its announcements would be in the counters.  Loopback keeps it."""
    with suppress(FileNotFoundError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def _find_congestion_control() -> str | None:
    """Return what most Linux hosts have, whatever this machine's default: figures of two machines must compare."""
    available = ""
    with suppress(OSError):
        available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    return "cubic" if "cubic" in available.split() else None
