"""Search for what a job needs: the bandwidth for a given efficiency, the number of hosts that is worth it.

In: a subject, a system, a target.  Out: a figure, or None if no figure is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from undertow.errors import ConfigError
from undertow.progress import SILENT, Progress
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.subject import Subject
from undertow.tools.sim.sweep import Setting, run, weigh
from undertow.tools.sim.topology import make_topology
from undertow.units import format_bandwidth

SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 1e8, 8e11
# The search ends when the answer is known within this factor.
PRECISION = 1.03
# Each number is half or a third more than the previous one.
_HOSTS = sorted({2**power for power in range(1, 9)} | {3 * 2**power for power in range(7)})
MOST_HOSTS = _HOSTS[-1]
# Runs of a search: both ends, then a bisection down to PRECISION.
_SEARCH = 2 + math.ceil(math.log2(math.log(FASTEST_BITS_PER_S / SLOWEST_BITS_PER_S) / math.log(PRECISION)))


def find_bandwidth(
    subject: Subject,
    hosts: int,
    schedule: Schedule,
    *,
    efficiency: float,
    setting: Setting,
    progress: Progress = SILENT,
) -> float | None:
    """Return the least bandwidth, in bits per second, at which these hosts reach this efficiency; None if none does.

    Advances by `weigh_search` units even if it ends early; the caller announces them with `expect`.
    """
    _check_share(efficiency)
    runs = 0

    def is_enough(bits_per_s: float) -> bool:
        nonlocal runs
        runs += 1
        progress.say(f"{schedule.name} on {hosts} hosts: {format_bandwidth(bits_per_s)}")
        topology = make_topology(hosts, bits_per_s, latency_s=setting.latency_s)
        outcome = run(subject, topology, schedule, setting, progress)
        return subject.profile.compute_s / outcome.iteration_s >= efficiency

    found = _search(is_enough)
    progress.advance(weigh_search(hosts, setting) * (1 - runs / _SEARCH))
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
    """Return the units of progress of `find_bandwidth`."""
    return _SEARCH * weigh(make_topology(hosts, FASTEST_BITS_PER_S), setting)


def find_hosts(
    subject: Subject,
    bandwidth_bits_per_s: float,
    schedule: Schedule,
    *,
    worth: float,
    setting: Setting,
    progress: Progress = SILENT,
) -> tuple[int, float]:
    """Return the largest number of hosts at which each added host still adds `worth` of a host, and the speed-up.

    It tries 2, 3, 4, 6, 8, ... hosts, up to 256, and gives up after two numbers in a row that are not worth it: the
    step from one host to two bears the whole cost of the network.  The number of runs is not known in advance, so it
    announces no units of progress.
    """
    _check_share(worth)
    best, best_speedup = 1, 1.0
    before, speedup, failures = 1, 1.0, 0
    for hosts in _HOSTS:
        progress.say(f"{schedule.name} on {hosts} hosts")
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


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"{share:g} is not a share: give more than 0 and at most 100 %")
