"""Survey of all pairs of hosts: which can reach each other, and how fast.

In: a group of hosts with open probe servers.  Out: a `Survey`, the same on all of them.
First every host tries to connect to every other, all at the same time, which needs little bandwidth.  Then one pair at
a time measures its link while the others wait; their order follows from the first result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from undertow.errors import MismatchError, PeerLost, UndertowError
from undertow.plain_text import list_words
from undertow.tools.doctor.link_measurement import CONNECT_S, ConnectResult, LinkMeasurement, measure, try_connection
from undertow.tools.doctor.probe_protocol import STALL_S
from undertow.tools.doctor.rendezvous import HostGroup, decode, run_all, run_one
from undertow.units import format_quantity

if TYPE_CHECKING:
    from undertow.progress import Progress

# How late a busy host may be.
SLACK_S = 20.0


class Survey(msgspec.Struct, frozen=True):
    """Connections and measurements between the hosts of a group; hosts are numbered as in the group."""

    reach: list[list[ConnectResult]]  # [from][to]
    measured: list[LinkMeasurement] = []
    error: str = ""  # why it is not complete


def survey(group: HostGroup, *, duration_s: float, progress: Progress) -> Survey:
    size = len(group.cards)
    reach = [[ConnectResult.NOT_TRIED] * size for _ in range(size)]
    own: list[LinkMeasurement] = []
    try:
        rows = _exchange(group, "reach", msgspec.msgpack.encode(_try_all(group)), CONNECT_S + SLACK_S)
        reach = [_read_row(row, size, sender=rank) for rank, row in enumerate(rows)]
        pairs = list_pairs(reach)
        progress.expect(len(pairs))
        timeout_s = 2 * (duration_s + 3 * STALL_S) + SLACK_S
        for number, (dialer, listener) in enumerate(pairs):
            _exchange(group, f"pair {number}", b"", timeout_s)
            progress.advance(min(number, 1))  # the previous pair is done once all hosts have reached this one
            names = f"{group.cards[dialer].name} and {group.cards[listener].name}"
            progress.say(f"measuring {format_quantity(len(pairs), 'pair')} of hosts: {names}")
            if dialer == group.rank:
                own.append(_measure(group, listener, duration_s))
        results = _exchange(group, "results", msgspec.msgpack.encode(own), timeout_s)
        read = [_read_results(result, size, sender=rank) for rank, result in enumerate(results)]
        return Survey(reach, [one for result in read for one in result])
    except PeerLost as error:
        # The rendezvous' own message gives advice on `undertow run`.  Without ranks, it is the first host that is lost.
        lost = [card.name for rank, card in enumerate(group.cards) if rank in (error.ranks or (0,))]
        return Survey(reach, own, f"{list_words(lost)} stopped answering")
    except UndertowError as error:
        return Survey(reach, own, f"{error} (ranks count the hosts from 0)")


def _read_row(payload: bytes, size: int, *, sender: int) -> list[ConnectResult]:
    row = decode(payload, list[ConnectResult], sender=sender)
    if len(row) != size:
        text = f"a host has tried {len(row)} hosts of {size}: install the same undertow on all"
        raise MismatchError(text, matter="the number of hosts", ranks=[sender])
    return row


def _read_results(payload: bytes, size: int, *, sender: int) -> list[LinkMeasurement]:
    results = decode(payload, list[LinkMeasurement], sender=sender)
    for one in results:
        if max(one.dialer, one.listener) >= size:
            text = f"a host has measured hosts {one.dialer} and {one.listener} of {size}"
            raise MismatchError(text, matter="the number of hosts", ranks=[sender])
    return results


def list_pairs(reach: Sequence[Sequence[ConnectResult]]) -> list[tuple[int, int]]:
    """List the pairs as (dialer, listener).  The later host dials the earlier one, as workers do, if it can."""
    pairs = []
    for high in range(len(reach)):
        for low in range(high):
            if reach[high][low] is ConnectResult.REACHED:
                pairs.append((high, low))
            elif reach[low][high] is ConnectResult.REACHED:
                pairs.append((low, high))
    return pairs


def _try_all(group: HostGroup) -> list[ConnectResult]:
    row = [ConnectResult.REACHED if host == group.rank else ConnectResult.NOT_TRIED for host in range(len(group.cards))]
    others = [host for host, card in enumerate(group.cards) if host != group.rank and card.probe_address]
    for host, call in run_all(lambda host: try_connection(group.cards[host].probe_address, group.token), others):
        row[host] = call.result()
    return row


def _measure(group: HostGroup, listener: int, duration_s: float) -> LinkMeasurement:
    address = group.cards[listener].probe_address
    return run_one(lambda: measure((group.rank, listener), address, group.token, duration_s=duration_s))


def _exchange(group: HostGroup, what: str, payload: bytes, timeout_s: float) -> list[bytes]:
    return run_one(lambda: group.exchange(f"doctor: {what}", payload, timeout_s))
