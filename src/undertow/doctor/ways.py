"""How good the ways between the hosts are: stalls, latency, clocks, bandwidth.

In: the cards, what was measured.  Out: findings, one for each cause and not one for each pair.  Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from undertow.doctor.cards import Card
from undertow.doctor.findings import Finding, fail, note, ok, warn
from undertow.doctor.measuring import Measured
from undertow.lab.bandwidth import format_bandwidth

FAR_S = 0.010  # a round trip within one building takes less than a millisecond
CLOCKS_APART_S = 0.1
SLOW_BYTES_PER_S = 0.5e9 / 8
# Of what the cards say that they can: less than this is not the protocols' overhead any more.
POOR_SHARE = 0.5
# A way with less than this part of what is usual among the others has something of its own in it.
ODD_SHARE = 0.3
LISTED_WAYS = 3


def judge_ways(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    yield from _judge_stalls(cards, measured)
    yield from _judge_ends(cards, measured)
    yield from _judge_latency(cards, measured)
    yield from _judge_clocks(cards, measured)
    yield from _judge_rates(cards, measured)


def list_rates(measured: Sequence[Measured]) -> Mapping[tuple[int, int], float]:
    """Bytes per second from one place to another; none where nothing arrived."""
    rates = {}
    for one in measured:
        for sender, receiver in ((one.dialer, one.listener), (one.listener, one.dialer)):
            if rate := one.rate_bytes_per_s(sender):
                rates[sender, receiver] = rate
    return rates


def _judge_stalls(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    """Small messages passed, or nothing would have been measured: a path that drops large packets looks like this."""
    ways = [way for one in measured for way in _list_stalled(one)]
    if not ways:
        return
    size_bytes = min(cards[place].mtu for way in ways for place in way) or 1500
    named = _list_some([f"{cards[sender].name} to {cards[receiver].name}" for sender, receiver in ways])
    text = f"small messages pass, but bulk data hangs from {named}: packets of {size_bytes} bytes may be dropped there"
    cure = "jumbo frames? Set the MTU of the hosts to what the switch carries: ip link set ... mtu 1500"
    yield fail("MTU", text, cure)


def _list_stalled(one: Measured) -> list[tuple[int, int]]:
    ways = (((one.dialer, one.listener), one.outward), ((one.listener, one.dialer), one.inward))
    return [way for way, received in ways if received is not None and received.is_stalled]


def _judge_ends(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    for one in measured:
        if one.error and not _list_stalled(one):
            names = f"{cards[one.dialer].name} and {cards[one.listener].name}"
            cure = "start the doctor again; if it stays, look for loss on the way (ip -s link)"
            yield fail("pairs", f"measuring between {names} failed: {one.error}", cure)


def _judge_latency(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    far = [one for one in measured if one.median_s > FAR_S]
    if far:
        ways = [
            f"{cards[one.dialer].name} and {cards[one.listener].name} ({1e3 * one.median_s:.3g} ms)"
            for one in sorted(far, key=lambda one: -one.median_s)
        ]
        text = f"a message there and back takes long between {_list_some(ways)}"
        yield warn("latency", text, "train on hosts of one building, or see what delays them (ping; another job?)")
    elif times := [one.median_s for one in measured if one.median_s]:
        yield ok("latency", f"at most {1e3 * max(times):.3g} ms there and back")


def _judge_clocks(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    """Each against the middle one, so that a wrong clock is one finding."""
    ahead_s = {0: 0.0}
    for one in measured:
        if one.median_s and 0 in (one.dialer, one.listener):
            ahead_s[one.dialer or one.listener] = one.offset_s if one.dialer == 0 else -one.offset_s
    if len(ahead_s) < 2:
        return
    middle_s = statistics.median_low(ahead_s.values())
    cure = "let NTP set it (timedatectl); training does not mind, but logs and traces do not fit together"
    wrong = {place: s - middle_s for place, s in ahead_s.items() if abs(s - middle_s) > CLOCKS_APART_S}
    for place, off_s in sorted(wrong.items()):
        way = "ahead of" if off_s > 0 else "behind"
        others = "that of the other" if len(ahead_s) == 2 else "those of the others"
        yield warn("clocks", f"the clock of {cards[place].name} is {abs(off_s):.3g} s {way} {others}", cure)
    if not wrong:
        widest_s = max(ahead_s.values()) - min(ahead_s.values())
        yield ok("clocks", f"at most {1e3 * widest_s:.2g} ms apart")


def _judge_rates(cards: Sequence[Card], measured: Sequence[Measured]) -> Iterator[Finding]:
    rates = {
        (sender, receiver): rate
        for (sender, receiver), rate in list_rates(measured).items()
        if cards[sender].mark != cards[receiver].mark
    }
    if not rates:
        return
    usual = statistics.median(rates.values())
    slow = {way: rate for way, rate in rates.items() if rate < SLOW_BYTES_PER_S}
    odd = {way: rate for way, rate in rates.items() if rate < ODD_SHARE * usual and way not in slow}
    if slow:
        cure = "check cables and switch (ethtool); `undertow simulate` says what such a link costs"
        yield warn("bandwidth", f"little is carried from {_list_ways(cards, slow)}", cure)
    if odd:
        text = f"less than the usual {format_bandwidth(8 * usual)} is carried from {_list_ways(cards, odd)}"
        cure = "all wait for the slowest: check the cables and switch ports of these (ethtool), or leave one out"
        yield warn("bandwidth", text, cure)
    if slow or odd:
        return
    nominal = min(cards[place].speed_mbit for way in rates for place in way) * 1e6
    least = f"at least {format_bandwidth(8 * min(rates.values()))}"
    if 8 * min(rates.values()) < POOR_SHARE * nominal:
        hint = "busy cores, another job or a limit on the way may be why"
        yield note("bandwidth", f"{least}, and the interfaces say {format_bandwidth(nominal)}: {hint}")
    else:
        yield ok("bandwidth", f"{least} each way")


def _list_ways(cards: Sequence[Card], rates: Mapping[tuple[int, int], float]) -> str:
    """The slowest first."""
    ways = sorted(rates.items(), key=lambda item: item[1])
    return _list_some([f"{cards[a].name} to {cards[b].name} ({format_bandwidth(8 * rate)})" for (a, b), rate in ways])


def _list_some(words: Sequence[str]) -> str:
    more = len(words) - LISTED_WAYS
    return ", ".join(words[:LISTED_WAYS]) + (f" and {more} more" if more > 0 else "")
