"""The hosts together: do they fit, and can all reach all?

In: the cards of those who came, the survey.  Out: findings.  Pure; the same on all hosts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from undertow.doctor.cards import Card
from undertow.doctor.findings import Finding, fail, note, ok, warn
from undertow.doctor.pairs import Survey
from undertow.doctor.reach import WORDS, Reach
from undertow.doctor.ways import judge_ways

_SAME = "install the same on all hosts"


def judge_cluster(cards: Sequence[Card], survey: Survey) -> list[Finding]:
    findings = [*_judge_versions(cards), *_judge_settings(cards), *_judge_machines(cards)]
    if survey.error:
        cure = "start the doctor again on all hosts, and look at what the others say"
        findings.append(fail("pairs", f"the check was not finished: {survey.error}", cure))
    findings += _judge_reach(cards, survey.reach)
    findings += _judge_mtu(cards)
    return [*findings, *judge_ways(cards, survey.measured)]


def describe_values(cards: Sequence[Card], values: Sequence[str]) -> str:
    """`2.4 on a and b, 2.5 on c`."""
    groups: dict[str, list[str]] = {}
    for card, value in zip(cards, values, strict=True):
        groups.setdefault(value, []).append(card.name)
    return ", ".join(f"{value or 'none'} on {_list(names)}" for value, names in groups.items())


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _judge_versions(cards: Sequence[Card]) -> Iterator[Finding]:
    if differ := _find_difference(cards, [str(card.protocol) for card in cards]):
        yield fail("versions", f"undertow speaks different protocols: {differ}", f"undertow: {_SAME}")
    elif differ := _find_difference(cards, [card.versions.get("undertow", "") for card in cards]):
        yield warn("versions", f"undertow differs: {differ}", f"undertow: {_SAME}")
    if differ := _find_difference(cards, [card.versions.get("torch", "") for card in cards]):
        yield warn("versions", f"torch differs: {differ}; the same product may then differ in its last bits", _SAME)
    if differ := _find_difference(cards, [card.versions.get("python", "") for card in cards]):
        yield note("versions", f"python differs: {differ}")


def _find_difference(cards: Sequence[Card], values: Sequence[str]) -> str:
    return describe_values(cards, values) if len(set(values)) > 1 else ""


def _judge_settings(cards: Sequence[Card]) -> Iterator[Finding]:
    for variable in sorted({variable for card in cards for variable in card.settings}):
        values = [card.settings.get(variable, "") for card in cards]
        if differ := _find_difference(cards, values):
            yield warn("settings", f"{variable} differs: {differ}", f"give {variable} the same value on all hosts")


def _judge_machines(cards: Sequence[Card]) -> Iterator[Finding]:
    for one, other in itertools.combinations(cards, 2):
        if one.mark == other.mark:
            yield note("hosts", f"{one.name} and {other.name} are one machine: its link to itself says nothing")


def _judge_reach(cards: Sequence[Card], reach: Sequence[Sequence[Reach]]) -> Iterator[Finding]:
    cure = "let TCP pass on all ports between the hosts, at least on those that the system gives (see: ports)"
    is_tried = False
    for high in range(len(cards)):
        for low in range(high):
            there, back = reach[high][low], reach[low][high]
            if Reach.NOT_TRIED in (there, back):
                continue
            is_tried = True
            if there is not Reach.REACHED:
                text = f"{cards[high].name} met {cards[low].name} but cannot connect to it: {WORDS[there]}"
                yield fail("firewall", _add_back(text, cards[low].name, back), cure)
            elif back is not Reach.REACHED:
                text = f"{cards[low].name} cannot connect to {cards[high].name}: {WORDS[back]}"
                yield warn("firewall", f"{text}; it need not, as long as the hosts are in this order", cure)
    if is_tried and all(one is Reach.REACHED for row in reach for one in row):
        yield ok("firewall", "every host can connect to every other on a port that the system gave")


def _add_back(text: str, name: str, back: Reach) -> str:
    if back is Reach.REACHED:
        return f"{text} (the other way works)"
    return f"{text}; the other way, from {name}: {WORDS[back]}"


def _judge_mtu(cards: Sequence[Card]) -> Iterator[Finding]:
    if not all(card.mtu for card in cards):
        return
    if differ := _find_difference(cards, [str(card.mtu) for card in cards]):
        cure = "give all interfaces in use, and the switch, the same MTU (ip link set ... mtu ...)"
        yield warn("MTU", f"it differs: {differ}; TCP takes the smaller one, if the switch carries it", cure)
    else:
        yield ok("MTU", f"{cards[0].mtu} on all hosts")
