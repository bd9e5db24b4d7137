"""Hosts meet and hand each other their cards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.support.doctor_facts import A, card
from undertow.engine.coordinator.rendezvous import RendezvousServer
from undertow.errors import MismatchError
from undertow.tools.doctor.findings import Finding
from undertow.tools.doctor.rendezvous import DoctorRendezvous, HostCard, decode, join_rendezvous, lead_rendezvous


def test_a_card_of_a_newer_version_is_read_and_nonsense_is_not() -> None:
    newer = {**msgspec.to_builtins(A), "more": 1}
    assert decode(msgspec.msgpack.encode(newer), HostCard, sender=1) == A
    with pytest.raises(MismatchError, match="install the same undertow") as caught:
        decode(b"\x01", HostCard, sender=1)
    assert caught.value.matter == "the version of undertow"
    assert caught.value.ranks == (1,)


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
