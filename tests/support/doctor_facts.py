"""Facts for tests of the doctor: a healthy host, and hosts that reach each other over healthy links."""

from __future__ import annotations

from typing import Any

from undertow.tools.doctor.facts import (
    AddressChoice,
    Host,
    Interface,
    Machine,
    Network,
    Package,
    Software,
    Torch,
    Variables,
)
from undertow.tools.doctor.link_measurement import ConnectResult, LinkMeasurement
from undertow.tools.doctor.pairs import Survey
from undertow.tools.doctor.probe_protocol import Received
from undertow.tools.doctor.rendezvous import HostCard

LO = Interface("lo", True, True, 65536, ["127.0.0.1", "::1"])
ETH0 = Interface("eth0", True, False, 1500, ["10.0.0.1"], 10_000)
TORCH = Torch(Package("torch", "2.4", "2.6.0"), threads=8, build="CPU build")
HEALTHY = Host(
    Software(Package("python", "3.11", "3.12.1"), "0.1.0", [Package("numpy", "1.26", "2.1.0")], TORCH),
    Network(
        [LO, ETH0],
        AddressChoice("10.0.0.1", "the route to 10.0.0.9 (MASTER_ADDR) leaves there"),
        port_range=(32768, 60999),
    ),
    Machine(cores=8, quota_cores=0.0, omp_num_threads="", open_files=1024),
    Variables([]),
)

GIGABIT = 1e9 / 8
VERSIONS = {"undertow": "0.1.0", "torch": "2.6.0", "python": "3.12.1"}


def card(name: str, **fields: Any) -> HostCard:
    given = {"probe_address": f"{name}:1", "mark": name, "protocol": 1, "versions": VERSIONS}
    return HostCard(name=name, **{**given, "mtu": 1500, "speed_mbit": 1000, **fields})


A, B, C = card("a"), card("b"), card("c")
YES, NO = ConnectResult.REACHED, ConnectResult.SILENT


def carried(gigabits_per_s: float, *, is_stalled: bool = False) -> Received:
    return Received(int(gigabits_per_s * GIGABIT), 1.0, is_stalled)


def link(dialer: int, listener: int, **fields: Any) -> LinkMeasurement:
    given: dict[str, Any] = {"least_s": 1e-4, "median_s": 2e-4, "outward": carried(0.94), "inward": carried(0.93)}
    return LinkMeasurement(dialer, listener, **{**given, **fields})


def among(
    count: int, measured: list[LinkMeasurement] | None = None, error: str = "", **unlike: ConnectResult
) -> Survey:
    """Return a survey of hosts that all reach each other, apart from exceptions such as `b_a`, from b to a."""
    reach = [[YES] * count for _ in range(count)]
    for pair, result in unlike.items():
        reach["abc".index(pair[0])]["abc".index(pair[2])] = result
    return Survey(reach, [link(1, 0)] if measured is None else measured, error)


def three(**fields: Any) -> list[LinkMeasurement]:
    return [link(1, 0), link(2, 0), link(2, 1, **fields)]
