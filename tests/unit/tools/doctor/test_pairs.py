"""Pairs of hosts: each is measured once."""

from __future__ import annotations

from tests.support.doctor_facts import NO, YES
from undertow.tools.doctor.pairs import list_pairs


def test_every_pair_is_measured_once_and_the_later_host_dials_if_it_can() -> None:
    assert list_pairs([[YES] * 3 for _ in range(3)]) == [(1, 0), (2, 0), (2, 1)]
    blocked = [[YES, YES, NO], [NO, YES, YES], [NO, YES, YES]]
    assert list_pairs(blocked) == [(0, 1), (2, 1)]
