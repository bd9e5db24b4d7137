"""Which machines there are and how they are joined.

In: figures.  Out: for two workers, the links between them.
Every host has one full-duplex link to its switch.  Switches of several racks are joined by one link each, which may be
narrower than what its hosts could send together; without racks there is one switch, which is never in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from undertow import bounds
from undertow.errors import ConfigError
from undertow.plan.cluster import PAYLOAD_SHARE
from undertow.sim.clock import Clock
from undertow.sim.network import Link, Message, Port

LATENCY_S = 0.0001  # one way, as the planner assumes it
# Between workers of one host: a copy through memory.
LOCAL_BYTES_PER_S = 4e9
LOCAL_LATENCY_S = 0.00002
# More than any job has.
CHANNELS = 4


@dataclass(frozen=True, kw_only=True)
class Host:
    bandwidth_bits_per_s: float
    slowdown: float = 1.0  # how many times longer it computes than the profile says
    workers: int = 1
    rack: str = ""

    def __post_init__(self) -> None:
        bounds.RATE.check_range(f"a host with a link of {self.bandwidth_bits_per_s:g} bit/s", self.bandwidth_bits_per_s)
        bounds.PACE.check_range(f"a host with a slowdown of {self.slowdown:g}", self.slowdown)
        bounds.HOSTS.check_range(f"a host with {bounds.show(self.workers)} workers", self.workers)


@dataclass(frozen=True, kw_only=True)
class Topology:
    hosts: tuple[Host, ...]
    latency_s: float = LATENCY_S
    uplinks_bits_per_s: dict[str, float] = field(default_factory=dict)  # of each rack
    goodput: float = PAYLOAD_SHARE  # how much of a link's rate is left for messages

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
                raise ConfigError("some hosts are in a rack and others in none: put all of them into one")

    @property
    def places(self) -> list[int]:
        """The host of each worker, by rank."""
        return [index for index, host in enumerate(self.hosts) for _ in range(host.workers)]

    @property
    def is_uniform(self) -> bool:
        """Whether all hosts are alike, so that all workers do the same at the same time."""
        return self.has_equal_links and len({host.slowdown for host in self.hosts}) == 1

    @property
    def has_equal_links(self) -> bool:
        links = {(host.bandwidth_bits_per_s, host.workers) for host in self.hosts}
        return len(links) == 1 and len(self.uplinks_bits_per_s) <= 1

    @property
    def slowest_bits_per_s(self) -> float:
        """What a worker has of the slowest link."""
        return min(host.bandwidth_bits_per_s / host.workers for host in self.hosts)


def make_topology(hosts: int, bandwidth_bits_per_s: float, **options: Any) -> Topology:
    """Equal hosts at one switch."""
    bounds.HOSTS.check_range(f"a cluster of {bounds.show(hosts)} hosts", hosts)
    return Topology(hosts=(Host(bandwidth_bits_per_s=bandwidth_bits_per_s),) * hosts, **options)


class Sends(Protocol):
    """The network, as workers of one job see it."""

    def send(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        arrive: Callable[[float, Any], None],
        item: Any,
        channel: int = 0,
    ) -> None: ...


class Fabric:
    """The links of a topology, and the way from each worker to each other."""

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

    def send(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        arrive: Callable[[float, Any], None],
        item: Any,
        channel: int = 0,
    ) -> None:
        """`arrive(time_s, item)` is told when the last byte will be there.

        Messages of one channel stay in order, but for a few bytes, which may overtake what waits for a link further on.
        """
        start, end = self._places[sender], self._places[receiver]
        if start == end:
            arrive(self._memory[start].carry(self._clock.now_s + LOCAL_LATENCY_S, size_bytes), item)
            return
        workers, port = len(self._places), self._ports[start]
        stream = (channel * workers + sender) * workers + receiver
        arrival_s = port.lets_pass(stream, size_bytes)
        if arrival_s is not None:
            arrive(arrival_s, item)
            return
        rack = self._racks[start]
        path = self._paths.get((rack, end)) or self._find_path(rack, end)
        port.send(Message(stream, size_bytes, path, arrive, item))

    def _find_path(self, source: str, end: int) -> list[Link]:
        """Behind the sender's own link."""
        target, path = self._racks[end], [self._ways_in[end]]
        if source != target:
            path = [self._out_of_rack[source], self._into_rack[target], *path]
        self._paths[source, end] = path
        return path

    @property
    def bytes_out(self) -> list[int]:
        """Of each host so far."""
        return [port.link.carried_bytes for port in self._ports]


class Lane:
    """What one of several jobs sends: streams of its own, over the same links."""

    def __init__(self, fabric: Fabric, job: int) -> None:
        self._fabric = fabric
        self._first = job * CHANNELS

    def send(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        arrive: Callable[[float, Any], None],
        item: Any,
        channel: int = 0,
    ) -> None:
        self._fabric.send(sender, receiver, size_bytes, arrive, item, self._first + channel)
