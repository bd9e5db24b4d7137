"""Findings about several hosts: names, cards, which can reach each other, and the links between them."""

from __future__ import annotations

import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from undertow.engine.coordinator.rendezvous import RendezvousServer
from undertow.errors import ConfigError, MismatchError, Refused
from undertow.tools.doctor.cluster import judge_cluster
from undertow.tools.doctor.facts import AddressChoice, Network
from undertow.tools.doctor.findings import Finding, Level
from undertow.tools.doctor.job_check import make_names_unique
from undertow.tools.doctor.link_measurement import (
    ConnectResult,
    LinkMeasurement,
    RoundTrip,
    classify,
    estimate_offset_s,
    explain_absence,
)
from undertow.tools.doctor.pairs import Survey, list_pairs
from undertow.tools.doctor.probe_protocol import Received
from undertow.tools.doctor.rendezvous import DoctorRendezvous, HostCard, decode, join_rendezvous, lead_rendezvous
from undertow.tools.doctor.request import DoctorRequest, cannot_join, check_apart, find_own_rank, split_hosts

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


def find(cards: list[HostCard], survey: Survey, subject: str) -> Finding:
    order = list(Level)
    found = [finding for finding in judge_cluster(cards, survey) if finding.subject == subject]
    return max(found, key=lambda finding: order.index(finding.level))


BULK_HANGS = {"outward": carried(0, is_stalled=True)}
LATE = card("b", settings={"UNDERTOW_BATCH": "split"}, versions={**VERSIONS, "python": "3.11.2"})
CASES = [
    # Can all hosts connect to each other?
    ([A, B], among(2), "firewall", Level.OK, "every host can connect to every other"),
    (
        [A, B],
        among(2, [], b_a=NO, a_b=ConnectResult.REFUSED),
        "firewall",
        Level.FAILURE,
        "b cannot connect to a: no answer",
    ),
    ([A, B], among(2, [], b_a=NO), "firewall", Level.FAILURE, "the other direction works"),
    ([A, B], among(2, a_b=NO), "firewall", Level.WARNING, "a cannot connect to b: no answer"),
    # MTU: of the interfaces, and of the path.
    ([A, B], among(2), "MTU", Level.OK, "1500 on all hosts"),
    ([A, card("b", mtu=9000), C], among(3), "MTU", Level.WARNING, "1500 on a and c, 9000 on b"),
    (
        [A, B],
        among(2, [link(1, 0, **BULK_HANGS)]),
        "MTU",
        Level.FAILURE,
        "bulk data hangs from b to a: packets of 1500 by",
    ),
    ([A, B], among(2, [link(1, 0, inward=carried(0, is_stalled=True))]), "MTU", Level.FAILURE, "hangs from a to b"),
    # Was the survey finished?
    ([A, B], among(2, error="rank 1 did not arrive"), "pairs", Level.FAILURE, "not finished: rank 1 did not arrive"),
    ([A, B], among(2, [link(1, 0, error="reset")]), "pairs", Level.FAILURE, "measuring between b and a failed: reset"),
    # Latency and clocks.
    ([A, B], among(2), "latency", Level.OK, "round trips of 0.2 ms at most"),
    ([A, B], among(2, [link(1, 0, median_s=0.025)]), "latency", Level.WARNING, "between b and a (25 ms)"),
    ([A, B], among(2, [link(1, 0, offset_s=0.09)]), "clocks", Level.OK, "at most 90 ms apart"),
    (
        [A, B],
        among(2, [link(1, 0, offset_s=3.5)]),
        "clocks",
        Level.WARNING,
        "the clock of a is 3.5 s ahead of that of the",
    ),
    ([A, B], among(2, [link(0, 1, offset_s=3.5)]), "clocks", Level.WARNING, "the clock of b is 3.5 s ahead"),
    # The clock of a is wrong, that of b and c agree: one finding, and not of b and c.
    (
        [A, B, C],
        among(3, [link(1, 0, offset_s=-2.0), link(2, 0, offset_s=-2.0), link(2, 1)]),
        "clocks",
        Level.WARNING,
        "the clock of a is 2 s behind those of the others",
    ),
    # Bandwidth.
    ([A, B], among(2), "bandwidth", Level.OK, "at least 930 Mbit/s each way"),
    (
        [A, B],
        among(2, [link(1, 0, outward=carried(0.09))]),
        "bandwidth",
        Level.WARNING,
        "slow links: b to a (90 Mbit/s)",
    ),
    (
        [A, B],
        among(2, [link(1, 0, inward=carried(0.09))]),
        "bandwidth",
        Level.WARNING,
        "slow links: a to b (90 Mbit/s)",
    ),
    (
        [card("a", speed_mbit=10_000), card("b", speed_mbit=10_000)],
        among(2),
        "bandwidth",
        Level.NOTE,
        "though the interfaces have 10 Gbit/s",
    ),
    ([card("a", speed_mbit=0), B], among(2), "bandwidth", Level.OK, "each way"),
    (
        [A, B, C],
        among(
            3, [link(1, 0, outward=carried(9), inward=carried(9)), link(2, 0, outward=carried(9), inward=carried(1))]
        ),
        "bandwidth",
        Level.WARNING,
        "slower than the median of 9 Gbit/s: a to c (1 Gbit/s)",
    ),
    # Do the hosts' versions and settings agree?
    ([A, card("b", protocol=2)], among(2), "versions", Level.FAILURE, "different protocol versions: 1 on a, 2 on b"),
    ([A, card("b", versions={**VERSIONS, "undertow": "0.2"})], among(2), "versions", Level.WARNING, "undertow differs"),
    (
        [A, card("b", versions={**VERSIONS, "torch": "2.7"})],
        among(2),
        "versions",
        Level.WARNING,
        "2.6.0 on a, 2.7 on b",
    ),
    ([A, LATE], among(2), "versions", Level.NOTE, "python differs: 3.12.1 on a, 3.11.2 on b"),
    (
        [card("a", settings={"UNDERTOW_BATCH": "same"}), LATE],
        among(2),
        "settings",
        Level.WARNING,
        "same on a, split on b",
    ),
    ([A, card("b", mark="a")], among(2), "hosts", Level.NOTE, "a and b are the same machine"),
]


@pytest.mark.parametrize(("cards", "survey", "subject", "level", "words"), CASES)
def test_cards_and_measurements_lead_to_their_finding(
    cards: list[HostCard], survey: Survey, subject: str, level: Level, words: str
) -> None:
    finding = find(cards, survey, subject)
    assert finding.level is level, finding
    assert words in finding.text
    assert bool(finding.advice) is (level in (Level.WARNING, Level.FAILURE))


def test_a_cause_is_one_finding_however_many_links_it_concerns() -> None:
    slow = {"outward": carried(0.1), "inward": carried(0.1)}
    stalled = {"outward": carried(0, is_stalled=True), "inward": carried(0, is_stalled=True)}
    for fields, words in ((slow, "and 3 more"), (stalled, "and 3 more")):
        survey = among(3, [link(1, 0, **fields), link(2, 0, **fields), link(2, 1, **fields)])
        bad = [
            finding for finding in judge_cluster([A, B, C], survey) if finding.level in (Level.WARNING, Level.FAILURE)
        ]
        assert len(bad) == 1
        assert words in bad[0].text


def test_bandwidth_within_a_machine_is_not_judged() -> None:
    survey = among(2, [link(1, 0, outward=carried(0.01))])
    assert not [one for one in judge_cluster([A, card("b", mark="a")], survey) if one.subject == "bandwidth"]


def test_every_pair_is_measured_once_and_the_later_host_dials_if_it_can() -> None:
    assert list_pairs([[YES] * 3 for _ in range(3)]) == [(1, 0), (2, 0), (2, 1)]
    blocked = [[YES, YES, NO], [NO, YES, YES], [NO, YES, YES]]
    assert list_pairs(blocked) == [(0, 1), (2, 1)]


def test_the_fastest_round_trip_decides_about_the_offset() -> None:
    round_trips = [RoundTrip(10.0, 15.9, 1.0), RoundTrip(20.0, 25.0625, 0.125), RoundTrip(30.0, 35.1, 2.0)]
    assert estimate_offset_s(round_trips) == 5.0


@pytest.mark.parametrize(
    ("error", "reach"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), ConnectResult.REFUSED),
        (TimeoutError("timed out"), ConnectResult.SILENT),
        (TimeoutError(errno.ETIMEDOUT, ""), ConnectResult.SILENT),
        (OSError(errno.EHOSTUNREACH, ""), ConnectResult.NO_ROUTE),
        (OSError(errno.ENETUNREACH, ""), ConnectResult.NO_ROUTE),
        (PermissionError(errno.EACCES, ""), ConnectResult.FORBIDDEN),
        (socket.gaierror(socket.EAI_NONAME, ""), ConnectResult.UNKNOWN),
        (Refused("wrong token"), ConnectResult.STRANGER),
        (ConnectionResetError(errno.ECONNRESET, ""), ConnectResult.FAILED),
    ],
)
def test_an_error_says_why_a_connection_failed(error: Exception, reach: ConnectResult) -> None:
    assert classify(error) is reach


@pytest.mark.parametrize("reach", ConnectResult)
def test_every_kind_of_absence_has_an_explanation_and_advice(reach: ConnectResult) -> None:
    text, cure = explain_absence(reach, "b", 29500)
    assert text
    assert cure


def test_kinds_of_absence_are_distinguished() -> None:
    assert "nothing listens at port 29500" in explain_absence(ConnectResult.REFUSED, "b", 29500)[0]
    assert "a firewall drops packets" in explain_absence(ConnectResult.SILENT, "b", 29500)[0]
    assert "/etc/hosts" in explain_absence(ConnectResult.UNKNOWN, "b", 29500)[1]


def test_hosts_are_names_with_commas() -> None:
    assert split_hosts("a, b,[fd00::1]") == ["a", "b", "fd00::1"]


@pytest.mark.parametrize(("text", "words"), [("", "empty"), ("a,,b", "empty"), ("a,b,a", "names a twice")])
def test_impossible_lists_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        split_hosts(text)


RESOLVED = {"a": ["10.0.0.1"], "b": ["10.0.0.2", "fd00::2"], "c": [], "d": ["127.0.1.1"], "e": ["10.0.0.1"]}


@pytest.mark.parametrize(
    ("names", "own", "rank"),
    [
        (["a", "b", "c"], ["10.0.0.2"], 1),
        (["a", "b"], ["192.168.0.1", "fd00::2"], 1),
        (["b", "d"], ["10.0.0.7"], 1),  # the address that Debian gives a host's own name
    ],
)
def test_a_host_finds_itself(names: list[str], own: list[str], rank: int) -> None:
    assert find_own_rank(names, RESOLVED, own) == rank


@pytest.mark.parametrize(
    ("names", "own", "words"),
    [
        (["a", "b"], ["127.0.0.1", "10.9.9.9"], r"none of a, b is this host \(its addresses: 10.9.9.9\)"),
        (["a", "b"], ["127.0.0.1"], "none but loopback"),
        (["a", "b"], ["10.0.0.1", "10.0.0.2"], "a and b of --hosts are both this host: .* --node-rank"),
    ],
)
def test_a_host_that_does_not_find_itself_says_so(names: list[str], own: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_own_rank(names, RESOLVED, own)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"node_rank": 0}, "give --hosts as well"),
        ({"timeout_s": 0}, "--timeout 0 is not possible"),
        ({"duration_s": 0}, "--seconds 0 is not possible"),
        ({"duration_s": 61}, "--seconds 61 is not possible"),
        ({"duration_s": float("nan")}, "--seconds nan is not possible"),
        ({"timeout_s": float("nan")}, "--timeout nan is not possible"),
        ({"port": 70000}, "--port 70000 is not possible: give a port"),
        ({"port": 0}, "--port 0 is not possible: give a port"),
        ({"nproc": 0}, "-n 0 is not possible"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DoctorRequest(**options)


def test_two_names_of_one_address_are_refused() -> None:
    check_apart(["a", "b", "c"], RESOLVED)
    with pytest.raises(ConfigError, match=r"a and e of --hosts have the same address, 10\.0\.0\.1"):
        check_apart(["a", "b", "e"], RESOLVED)


def rendezvous(rank: int, address: str = "10.0.0.1", *, is_local: bool = False) -> DoctorRendezvous:
    names = ["a", "b"]
    return DoctorRendezvous(names=names, rank=rank, address=address, port=1, guard=b"", timeout_s=1, is_local=is_local)


@pytest.mark.parametrize(
    ("network", "where", "is_impossible"),
    [
        (Network([], AddressChoice("10.0.0.1", "")), rendezvous(0), False),
        (Network([], AddressChoice("10.0.0.1", ""), master_error="taken"), rendezvous(0), True),
        (Network([], AddressChoice("127.0.1.1", "")), rendezvous(0, "127.0.1.1"), True),
        (Network([], AddressChoice("127.0.0.1", "")), rendezvous(0, "127.0.0.1", is_local=True), False),
        (Network([], AddressChoice("", "", "no route")), rendezvous(1), True),
        (
            Network([], AddressChoice("10.9.9.9", ""), bind_error="not ours"),
            rendezvous(1),
            False,
        ),  # the other hosts see it among the findings
    ],
)
def test_no_host_waits_for_a_rendezvous_that_is_impossible(
    network: Network, where: DoctorRendezvous, is_impossible: bool
) -> None:
    assert cannot_join(network, where) is is_impossible


def test_hosts_with_the_same_name_are_distinguished() -> None:
    assert [one.name for one in make_names_unique([A, B, A])] == ["a (host 0)", "b", "a (host 2)"]


def test_a_card_of_a_newer_version_is_read_and_nonsense_is_not() -> None:
    newer = {**msgspec.to_builtins(A), "more": 1}
    assert decode(msgspec.msgpack.encode(newer), HostCard) == A
    with pytest.raises(MismatchError, match="install the same undertow"):
        decode(b"\x01", HostCard)


def test_hosts_with_different_lists_of_hosts_are_named() -> None:
    def meet(rank: int, names: list[str]) -> list[Finding]:
        where = DoctorRendezvous(names=names, rank=rank, address="127.0.0.1", port=port, guard=b"", timeout_s=10)
        own = card(names[rank], hosts=len(names), timeout_s=10.0)
        return (lead_rendezvous if rank == 0 else join_rendezvous)(where, own, lambda text: None)[1]

    point = RendezvousServer("127.0.0.1", 0, b"")
    port = int(point.address.rpartition(":")[2])
    point.start()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(meet, range(2), (["a", "b"], ["a", "b", "c"]))
    point.close()
    assert [finding.text for finding in first] == ["b: b was given 3 hosts, this one 2"]
    assert [finding.text for finding in second] == ["a was given 2 hosts, this one 3"]
