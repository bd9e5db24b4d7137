"""Pairs of hosts: each is measured once, and a survey that breaks off says why."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.doctor_facts import NO, YES, card, link
from undertow.errors import MismatchError, PeerLost, Refused, UndertowError
from undertow.progress import SILENT
from undertow.tools.doctor.pairs import _read_results, list_pairs, survey
from undertow.tools.doctor.rendezvous import HostGroup


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PeerLost(ranks=[1], event="did not arrive; give it more time with --start-timeout"), "b stopped answering"),
        (PeerLost("is the first host's `undertow run` alive?"), "a stopped answering"),
        (Refused("wrong token"), "wrong token (ranks count the hosts from 0)"),
    ],
)
def test_a_survey_that_is_not_finished_says_why(error: UndertowError, words: str) -> None:
    def exchange(name: str, payload: bytes, timeout_s: float) -> list[bytes]:
        raise error

    alone = [card("a", probe_address=""), card("b", probe_address="")]
    surveyed = survey(HostGroup(0, alone, b"", exchange), duration_s=0.1, progress=SILENT)
    assert surveyed.error == words


def test_results_of_hosts_that_do_not_exist_name_their_sender() -> None:
    with pytest.raises(MismatchError) as caught:
        _read_results(msgspec.msgpack.encode([link(3, 0)]), 2, sender=1)
    assert caught.value.ranks == (1,)


def test_every_pair_is_measured_once_and_the_later_host_dials_if_it_can() -> None:
    assert list_pairs([[YES] * 3 for _ in range(3)]) == [(1, 0), (2, 0), (2, 1)]
    blocked = [[YES, YES, NO], [NO, YES, YES], [NO, YES, YES]]
    assert list_pairs(blocked) == [(0, 1), (2, 1)]
