"""Topology of a cluster: its machines and the links between them.

In: figures, or a file.  Out: for any two workers, the links between them.
Every host has one full-duplex link to its switch.  Each rack has a switch with one uplink, which may be slower than its
hosts together; without racks there is one switch, which is never a bottleneck.
Users describe a topology in JSON; an error names the file and the field:

    {
      "latency_us": 100,
      "racks": {"left": "20gbit", "right": "20gbit"},
      "hosts": [
        {"count": 6, "bandwidth": "10gbit", "rack": "left"},
        {"count": 2, "bandwidth": "1gbit", "rack": "right", "slowdown": 1.5, "workers": 2}
      ]
    }
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from undertow import bounds
from undertow.bounds import HOSTS, SIMULATED, show
from undertow.decoding import Decoder, Format
from undertow.errors import ConfigError, Garbled
from undertow.plan.cluster import PAYLOAD_SHARE
from undertow.tools.sim.network import Link, Message, Port
from undertow.tools.virtual.world import Clock
from undertow.units import parse_bandwidth

LATENCY_S = 0.0001  # one way, as the planner assumes it
# Between workers of one host: a copy through memory.
LOCAL_BYTES_PER_S = 4e9
LOCAL_LATENCY_S = 0.00002
# More channels than any job uses.
CHANNELS = 4


@dataclass(frozen=True, kw_only=True)
class Host:
    """Host of a topology: its link and its workers."""

    bandwidth_bits_per_s: float
    slowdown: float = 1.0  # factor on the computing times of the profile
    workers: int = 1
    rack: str = ""

    def __post_init__(self) -> None:
        bounds.RATE.check_range(f"a host with a link of {self.bandwidth_bits_per_s:g} bit/s", self.bandwidth_bits_per_s)
        bounds.PACE.check_range(f"a host with a slowdown of {self.slowdown:g}", self.slowdown)
        bounds.HOSTS.check_range(f"a host with {bounds.show(self.workers)} workers", self.workers)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hosts of a cluster and the links between them."""

    hosts: tuple[Host, ...]
    latency_s: float = LATENCY_S
    uplinks_bits_per_s: dict[str, float] = field(default_factory=dict)  # of each rack
    goodput: float = PAYLOAD_SHARE  # the share of a link's rate that is left for messages

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ConfigError("a cluster without hosts is not possible")
        if len(self.hosts) > bounds.HOSTS.most:
            raise ConfigError(f"a cluster of {len(self.hosts)} hosts is not possible: give {bounds.HOSTS.describe()}")
        bounds.DELAY_S.check_range(f"a latency of {self.latency_s * 1e6:g} us", self.latency_s)
        for host in self.hosts:
            if host.rack and host.rack not in self.uplinks_bits_per_s:
                raise ConfigError(f"a host is in rack {host.rack!r}, whose uplink is not given")
            if self.uplinks_bits_per_s and not host.rack:
                raise ConfigError("some hosts are in a rack and others in none: put each host into a rack")

    @property
    def places(self) -> list[int]:
        """Host of each worker, by rank."""
        return [index for index, host in enumerate(self.hosts) for _ in range(host.workers)]

    @property
    def is_uniform(self) -> bool:
        """Whether all hosts are equal, so that all workers do the same at the same time."""
        return self.has_equal_links and len({host.slowdown for host in self.hosts}) == 1

    @property
    def has_equal_links(self) -> bool:
        links = {(host.bandwidth_bits_per_s, host.workers) for host in self.hosts}
        return len(links) == 1 and len(self.uplinks_bits_per_s) <= 1

    @property
    def slowest_bits_per_s(self) -> float:
        """A worker's share of the slowest link."""
        return min(host.bandwidth_bits_per_s / host.workers for host in self.hosts)


def make_topology(hosts: int, bandwidth_bits_per_s: float, **options: Any) -> Topology:
    """Return a topology of equal hosts at one switch."""
    bounds.HOSTS.check_range(f"a cluster of {bounds.show(hosts)} hosts", hosts)
    return Topology(hosts=(Host(bandwidth_bits_per_s=bandwidth_bits_per_s),) * hosts, **options)


class Fabric:
    """Links of a topology, and the path between any two workers."""

    def __init__(self, clock: Clock, topology: Topology) -> None:
        self._clock = clock
        self._places = topology.places
        self._racks = [host.rack for host in topology.hosts]
        rates = [host.bandwidth_bits_per_s / 8 * topology.goodput for host in topology.hosts]
        self._ports = [Port(clock, Link(rate), topology.latency_s) for rate in rates]
        self._ways_in = [Link(rate) for rate in rates]
        self._memory = [Link(LOCAL_BYTES_PER_S) for _ in rates]
        uplinks = {rack: bits / 8 * topology.goodput for rack, bits in topology.uplinks_bits_per_s.items()}
        self._out_of_rack = {rack: Link(rate) for rack, rate in uplinks.items()}
        self._into_rack = {rack: Link(rate) for rack, rate in uplinks.items()}
        self._paths: dict[tuple[str, int], list[Link]] = {}  # from a rack to a host
        self._first_channel = 0

    def for_job(self, job: int) -> Fabric:
        """Return the fabric of one of several jobs: its own streams, over the same links."""
        own = copy.copy(self)
        own._first_channel = job * CHANNELS
        return own

    def send(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        arrive: Callable[[float, Any], None],
        item: Any,
        channel: int = 0,
    ) -> None:
        """Send a message; `arrive(time_s, item)` is called as soon as the arrival of its last byte is known.

        Messages of one channel stay in order, but a message of a few bytes may overtake one that waits for a link
        behind the first.
        """
        start, end = self._places[sender], self._places[receiver]
        if start == end:
            arrive(self._memory[start].carry(self._clock.now_s + LOCAL_LATENCY_S, size_bytes), item)
            return
        workers, port = len(self._places), self._ports[start]
        stream = ((self._first_channel + channel) * workers + sender) * workers + receiver
        arrival_s = port.lets_pass(stream, size_bytes)
        if arrival_s is not None:
            arrive(arrival_s, item)
            return
        rack = self._racks[start]
        path = self._paths.get((rack, end)) or self._find_path(rack, end)
        port.send(Message(stream, size_bytes, path, arrive, item))

    def _find_path(self, source: str, end: int) -> list[Link]:
        """Return the links behind the sender's own link."""
        target, path = self._racks[end], [self._ways_in[end]]
        if source != target:
            path = [self._out_of_rack[source], self._into_rack[target], *path]
        self._paths[source, end] = path
        return path

    @property
    def bytes_out(self) -> list[int]:
        """Bytes that each host has sent so far."""
        return [port.link.carried_bytes for port in self._ports]


class _Hosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bandwidth: str
    count: int = 1
    slowdown: float = 1.0
    workers: int = 1
    rack: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: list[_Hosts]
    racks: dict[str, str] = {}
    latency_us: float = LATENCY_S * 1e6


_files: Decoder[_File] = Decoder(_File, format=Format.JSON)


def read_topology(path: str | os.PathLike[str]) -> Topology:
    name = os.fspath(path)
    try:
        return _make(_files.decode(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"the cluster {name} cannot be read: {error.strerror}") from None
    except Garbled as error:
        raise ConfigError(f"{name} describes no cluster: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _make(read: _File) -> Topology:
    hosts: list[Host] = []
    for number, kind in enumerate(read.hosts):
        try:
            hosts += _make_hosts(kind)
        except ConfigError as error:
            raise ConfigError(f"hosts[{number}]: {error}") from None
        if len(hosts) > HOSTS.most:
            raise ConfigError(f"a cluster of more than {HOSTS.most} hosts is not possible")
    uplinks = {rack: parse_bandwidth(text) for rack, text in read.racks.items()}
    return Topology(hosts=tuple(hosts), latency_s=read.latency_us / 1e6, uplinks_bits_per_s=uplinks)


def _make_hosts(kind: _Hosts) -> list[Host]:
    if not 0 <= kind.count <= HOSTS.most:
        raise ConfigError(f"{show(kind.count)} hosts are not possible: give 0 to {HOSTS.most}")
    rate = parse_bandwidth(kind.bandwidth)
    SIMULATED.check_range(f"a bandwidth of {kind.bandwidth!r} for a simulation", rate)
    host = Host(bandwidth_bits_per_s=rate, slowdown=kind.slowdown, workers=kind.workers, rack=kind.rack)
    return [host] * kind.count
