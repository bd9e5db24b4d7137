"""A cluster as people write it down, in a file of JSON.

In: a file.  Out: a `Topology`; what is wrong with the file is said by name and field.

    {
      "latency_us": 100,
      "racks": {"left": "20gbit", "right": "20gbit"},
      "hosts": [
        {"count": 6, "bandwidth": "10gbit", "rack": "left"},
        {"count": 2, "bandwidth": "1gbit", "rack": "right", "slowdown": 1.5, "workers": 2}
      ]
    }

Without racks there is one switch, which is never in the way.  `slowdown` is how many times longer a host computes.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from undertow.bounds import HOSTS, SIMULATED, show
from undertow.core.decoding import Decoder, Format
from undertow.errors import ConfigError, Garbled
from undertow.lab.bandwidth import parse_bandwidth
from undertow.sim.topology import LATENCY_S, Host, Topology


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
        read = _files.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the cluster {name} cannot be read: {error.strerror}") from None
    except Garbled as error:
        raise ConfigError(f"{name} describes no cluster: {error}") from None
    try:
        return _make(read)
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
    host = Host(
        bandwidth_bits_per_s=rate,
        slowdown=kind.slowdown,
        workers=kind.workers,
        rack=kind.rack,
    )
    return [host] * kind.count
