"""What the doctor finds about several hosts: cards, which reach each other, and the links between them."""

from __future__ import annotations

import pytest

from tests.support.doctor_facts import NO, VERSIONS, A, B, C, among, card, carried, link
from undertow.tools.doctor.cluster import judge_cluster
from undertow.tools.doctor.findings import Finding, Level
from undertow.tools.doctor.link_measurement import ConnectResult
from undertow.tools.doctor.pairs import Survey
from undertow.tools.doctor.rendezvous import HostCard


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
