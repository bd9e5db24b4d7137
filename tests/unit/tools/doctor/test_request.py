"""What the doctor is asked to do: lists of hosts, and options that are impossible."""

from __future__ import annotations

from typing import Any

import pytest

from undertow.errors import ConfigError
from undertow.tools.doctor.facts import AddressChoice, Network
from undertow.tools.doctor.rendezvous import DoctorRendezvous
from undertow.tools.doctor.request import DoctorRequest, cannot_join, check_apart, find_own_rank, split_hosts


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
