"""Answers to "what would I need": a bandwidth for so much of linear speed-up, a number of hosts that is worth it.

In: what is trained, a system, a wish.  Out: a figure, or that no figure will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from undertow.errors import ConfigError
from undertow.sim.schedules import Schedule
from undertow.sim.subject import Subject
from undertow.sim.sweep import Setting, run, weigh
from undertow.sim.topology import make_topology
from undertow.watch import NOBODY, Watch

SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 1e8, 8e11
# Where the answer is known to this factor it is known well enough.
PRECISION = 1.03
MOST_HOSTS = 256
# Both ends, then halves of what is between them, until that is narrow enough.
_SEARCH = 2 + math.ceil(math.log2(math.log(FASTEST_BITS_PER_S / SLOWEST_BITS_PER_S) / math.log(PRECISION)))


def find_bandwidth(
    subject: Subject,
    hosts: int,
    schedule: Schedule,
    *,
    efficiency: float,
    setting: Setting,
    watch: Watch = NOBODY,
) -> float | None:
    """The least bandwidth, in bits per second, with which so many hosts are so much of them; None: no bandwidth is.

    Tells `weigh_search` laps, however soon it is done, and leaves it to the caller to expect them.
    """
    _check_share(efficiency)
    runs = 0

    def is_enough(bits_per_s: float) -> bool:
        nonlocal runs
        runs += 1
        watch.say(f"{schedule.name} on {hosts} hosts: {bits_per_s / 1e9:.3g} Gbit/s")
        topology = make_topology(hosts, bits_per_s, latency_s=setting.latency_s)
        outcome = run(subject, topology, schedule, setting, watch)
        return subject.profile.compute_s / outcome.iteration_s >= efficiency

    found = _search(is_enough)
    watch.lap(weigh_search(hosts, setting) * (1 - runs / _SEARCH))
    return found


def _search(is_enough: Callable[[float], bool]) -> float | None:
    low, high = SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S
    if not is_enough(high):
        return None
    if is_enough(low):
        return low
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def weigh_search(hosts: int, setting: Setting) -> float:
    """How many laps `find_bandwidth` is."""
    return _SEARCH * weigh(make_topology(hosts, FASTEST_BITS_PER_S), setting)


def find_hosts(
    subject: Subject,
    bandwidth_bits_per_s: float,
    schedule: Schedule,
    *,
    worth: float,
    setting: Setting,
    watch: Watch = NOBODY,
) -> tuple[int, float]:
    """So many hosts that each of the last that were added still brings `worth` of a host; and the speed-up of all.

    Hosts are added by half and by a third in turn (2, 3, 4, 6, 8, ...), as people do, up to 256.  The first step from
    one host to two pays for the whole network at once, so it takes two that are not worth it in a row to give up.
    When that will be nobody knows: there are no laps to expect.
    """
    _check_share(worth)
    best, best_speedup = 1, 1.0
    before, speedup, failures = 1, 1.0, 0
    for hosts in _list_hosts():
        watch.say(f"{schedule.name} on {hosts} hosts")
        topology = make_topology(hosts, bandwidth_bits_per_s, latency_s=setting.latency_s)
        outcome = run(subject, topology, schedule, setting)
        reached = hosts * subject.profile.compute_s / outcome.iteration_s
        is_worth_it = reached - speedup >= worth * (hosts - before)
        failures = 0 if is_worth_it else failures + 1
        if failures == 2:
            break
        if is_worth_it and reached > best_speedup:
            best, best_speedup = hosts, reached
        before, speedup = hosts, reached
    return best, best_speedup


def _list_hosts() -> list[int]:
    hosts = sorted({2**power for power in range(1, 9)} | {3 * 2**power for power in range(7)})
    return [count for count in hosts if count <= MOST_HOSTS]


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"{share:g} is no share: give more than 0 and at most 100 %")
