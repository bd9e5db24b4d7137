"""Judges the hosts together: whether versions and settings agree, all can reach each other, and the links are good.

In: the cards of the hosts that took part, the survey.  Out: findings, the same on all hosts; those about links are one
for each cause, not one for each pair.  Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence

from undertow.plain_text import list_words
from undertow.tools.doctor.findings import Finding, fail, note, ok, warn
from undertow.tools.doctor.link_measurement import DESCRIPTIONS, ConnectResult, LinkMeasurement
from undertow.tools.doctor.pairs import Survey
from undertow.tools.doctor.rendezvous import HostCard
from undertow.units import format_bandwidth, format_ms, format_seconds

_SAME = "install the same on all hosts"
FAR_S = 0.010  # a round trip within one building takes less than a millisecond
CLOCKS_APART_S = 0.1
SLOW_BYTES_PER_S = 0.5e9 / 8
# Less than this share of the interfaces' nominal speed cannot be explained by the overhead of protocols.
POOR_SHARE = 0.5
# A link with less than this share of the median of all links has a fault of its own.
ODD_SHARE = 0.3
LISTED_LINKS = 3


def judge_cluster(cards: Sequence[HostCard], survey: Survey) -> list[Finding]:
    findings = [*_judge_versions(cards), *_judge_settings(cards), *_judge_machines(cards)]
    if survey.error:
        cure = "start the doctor again on all hosts, and see what the other hosts print"
        findings.append(fail("pairs", f"the check was not finished: {survey.error}", cure))
    findings += _judge_reach(cards, survey.reach)
    findings += _judge_mtu(cards)
    return [*findings, *judge_links(cards, survey.measured)]


def describe_values(cards: Sequence[HostCard], values: Sequence[str]) -> str:
    """List values with the hosts that have them: `2.4 on a and b, 2.5 on c`."""
    groups: dict[str, list[str]] = {}
    for card, value in zip(cards, values, strict=True):
        groups.setdefault(value, []).append(card.name)
    return ", ".join(f"{value or 'none'} on {list_words(names)}" for value, names in groups.items())


def _judge_versions(cards: Sequence[HostCard]) -> Iterator[Finding]:
    if differ := _find_difference(cards, [str(card.protocol) for card in cards]):
        yield fail("versions", f"undertow has different protocol versions: {differ}", f"undertow: {_SAME}")
    elif differ := _find_difference(cards, [card.versions.get("undertow", "") for card in cards]):
        yield warn("versions", f"undertow differs: {differ}", f"undertow: {_SAME}")
    if differ := _find_difference(cards, [card.versions.get("torch", "") for card in cards]):
        yield warn("versions", f"torch differs: {differ}; results may then differ in their last bits", _SAME)
    if differ := _find_difference(cards, [card.versions.get("python", "") for card in cards]):
        yield note("versions", f"python differs: {differ}")


def _find_difference(cards: Sequence[HostCard], values: Sequence[str]) -> str:
    return describe_values(cards, values) if len(set(values)) > 1 else ""


def _judge_settings(cards: Sequence[HostCard]) -> Iterator[Finding]:
    for variable in sorted({variable for card in cards for variable in card.settings}):
        values = [card.settings.get(variable, "") for card in cards]
        if differ := _find_difference(cards, values):
            yield warn("settings", f"{variable} differs: {differ}", f"give {variable} the same value on all hosts")


def _judge_machines(cards: Sequence[HostCard]) -> Iterator[Finding]:
    for one, other in itertools.combinations(cards, 2):
        if one.mark == other.mark:
            text = f"{one.name} and {other.name} are the same machine: no network is measured between them"
            yield note("hosts", text)


def _judge_reach(cards: Sequence[HostCard], reach: Sequence[Sequence[ConnectResult]]) -> Iterator[Finding]:
    cure = "allow TCP on all ports between the hosts, at least on those that the system chooses (see: ports)"
    is_tried = False
    for high in range(len(cards)):
        for low in range(high):
            there, back = reach[high][low], reach[low][high]
            if ConnectResult.NOT_TRIED in (there, back):
                continue
            is_tried = True
            if there is not ConnectResult.REACHED:
                text = f"{cards[high].name} cannot connect to {cards[low].name}: {DESCRIPTIONS[there]}"
                other = f"; in the other direction, from {cards[low].name}: {DESCRIPTIONS.get(back)}"
                works = " (the other direction works)"
                yield fail("firewall", text + (works if back is ConnectResult.REACHED else other), cure)
            elif back is not ConnectResult.REACHED:
                text = f"{cards[low].name} cannot connect to {cards[high].name}: {DESCRIPTIONS[back]}"
                yield warn("firewall", f"{text}; that is not needed as long as the hosts are in this order", cure)
    if is_tried and all(one is ConnectResult.REACHED for row in reach for one in row):
        yield ok("firewall", "every host can connect to every other on a port that the system chose")


def _judge_mtu(cards: Sequence[HostCard]) -> Iterator[Finding]:
    if not all(card.mtu for card in cards):
        return
    if differ := _find_difference(cards, [str(card.mtu) for card in cards]):
        cure = "give all interfaces in use, and the switch, the same MTU (ip link set ... mtu ...)"
        yield warn("MTU", f"it differs: {differ}; TCP takes the smaller one, if the switch carries it", cure)
    else:
        yield ok("MTU", f"{cards[0].mtu} on all hosts")


def judge_links(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    yield from _judge_stalls(cards, measured)
    yield from _judge_ends(cards, measured)
    yield from _judge_latency(cards, measured)
    yield from _judge_clocks(cards, measured)
    yield from _judge_rates(cards, measured)


def list_rates(measured: Sequence[LinkMeasurement]) -> Mapping[tuple[int, int], float]:
    """Return bytes per second by (sender, receiver), without links on which nothing arrived."""
    rates = {}
    for one in measured:
        for sender, receiver in ((one.dialer, one.listener), (one.listener, one.dialer)):
            if rate := one.rate_bytes_per_s(sender):
                rates[sender, receiver] = rate
    return rates


def _judge_stalls(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    """Judge links on which bulk data hangs.  Small messages passed, so large packets may be dropped there."""
    links = [link for one in measured for link in _list_stalled(one)]
    if not links:
        return
    size_bytes = min(cards[host].mtu for link in links for host in link) or 1500
    named = _list_some([f"{cards[sender].name} to {cards[receiver].name}" for sender, receiver in links])
    text = f"small messages pass, but bulk data hangs from {named}: packets of {size_bytes} bytes may be dropped there"
    cure = "if jumbo frames are on, set the hosts' MTU to what the switch carries: ip link set ... mtu 1500"
    yield fail("MTU", text, cure)


def _list_stalled(one: LinkMeasurement) -> list[tuple[int, int]]:
    links = (((one.dialer, one.listener), one.outward), ((one.listener, one.dialer), one.inward))
    return [link for link, received in links if received is not None and received.is_stalled]


def _judge_ends(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    for one in measured:
        if one.error and not _list_stalled(one):
            names = f"{cards[one.dialer].name} and {cards[one.listener].name}"
            cure = "start the doctor again; if it fails again, look for packet loss on the link (ip -s link)"
            yield fail("pairs", f"measuring between {names} failed: {one.error}", cure)


def _judge_latency(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    far = [one for one in measured if one.median_s > FAR_S]
    if far:
        links = [
            f"{cards[one.dialer].name} and {cards[one.listener].name} ({format_ms(one.median_s)})"
            for one in sorted(far, key=lambda one: -one.median_s)
        ]
        text = f"the round trip takes long between {_list_some(links)}"
        yield warn(
            "latency", text, "train on hosts in one building, or find out what delays packets (ping; another job?)"
        )
    elif times := [one.median_s for one in measured if one.median_s]:
        yield ok("latency", f"round trips of {format_ms(max(times))} at most")


def _judge_clocks(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    """Compare each clock with the median clock, so that one wrong clock is one finding."""
    ahead_s = {0: 0.0}
    for one in measured:
        if one.median_s and 0 in (one.dialer, one.listener):
            ahead_s[one.dialer or one.listener] = one.offset_s if one.dialer == 0 else -one.offset_s
    if len(ahead_s) < 2:
        return
    middle_s = statistics.median_low(ahead_s.values())
    cure = "let NTP set it (timedatectl); training does not need it, but the times of logs and traces would not agree"
    wrong = {host: s - middle_s for host, s in ahead_s.items() if abs(s - middle_s) > CLOCKS_APART_S}
    for host, off_s in sorted(wrong.items()):
        side = "ahead of" if off_s > 0 else "behind"
        others = "that of the other" if len(ahead_s) == 2 else "those of the others"
        yield warn("clocks", f"the clock of {cards[host].name} is {format_seconds(abs(off_s))} {side} {others}", cure)
    if not wrong:
        widest_s = max(ahead_s.values()) - min(ahead_s.values())
        yield ok("clocks", f"at most {format_ms(widest_s, 2)} apart")


def _judge_rates(cards: Sequence[HostCard], measured: Sequence[LinkMeasurement]) -> Iterator[Finding]:
    rates = {
        (sender, receiver): rate
        for (sender, receiver), rate in list_rates(measured).items()
        if cards[sender].mark != cards[receiver].mark
    }
    if not rates:
        return
    usual = statistics.median(rates.values())
    slow = {link: rate for link, rate in rates.items() if rate < SLOW_BYTES_PER_S}
    odd = {link: rate for link, rate in rates.items() if rate < ODD_SHARE * usual and link not in slow}
    if slow:
        cure = "check cables and switch (ethtool); `undertow simulate` predicts what such a link costs"
        yield warn("bandwidth", f"slow links: {_list_links(cards, slow)}", cure)
    if odd:
        text = f"slower than the median of {format_bandwidth(8 * usual)}: {_list_links(cards, odd)}"
        cure = "all hosts wait for the slowest: check these cables and switch ports (ethtool), or leave a host out"
        yield warn("bandwidth", text, cure)
    if slow or odd:
        return
    nominal = min(cards[host].speed_mbit for link in rates for host in link) * 1e6
    least = f"at least {format_bandwidth(8 * min(rates.values()))}"
    if 8 * min(rates.values()) < POOR_SHARE * nominal:
        hint = "the cause may be busy cores, another job or a limit in the network"
        yield note("bandwidth", f"{least}, though the interfaces have {format_bandwidth(nominal)}: {hint}")
    else:
        yield ok("bandwidth", f"{least} each way")


def _list_links(cards: Sequence[HostCard], rates: Mapping[tuple[int, int], float]) -> str:
    """Name the links with their rates, the slowest first."""
    links = sorted(rates.items(), key=lambda item: item[1])
    return _list_some([f"{cards[a].name} to {cards[b].name} ({format_bandwidth(8 * rate)})" for (a, b), rate in links])


def _list_some(words: Sequence[str]) -> str:
    more = len(words) - LISTED_LINKS
    return ", ".join(words[:LISTED_LINKS]) + (f" and {more} more" if more > 0 else "")
