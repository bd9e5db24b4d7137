"""`undertow simulate --find-bandwidth` and `--find-hosts`: search for a bandwidth or a number of hosts."""

from __future__ import annotations

from collections.abc import Sequence

from undertow.bounds import GOAL
from undertow.cli.progress import open_console, open_progress
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import start_table
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.subject import Subject
from undertow.tools.sim.sweep import Setting
from undertow.tools.sim.whatif import (
    FASTEST_BITS_PER_S,
    MOST_HOSTS,
    SLOWEST_BITS_PER_S,
    find_bandwidth,
    find_hosts,
    weigh_search,
)
from undertow.units import format_bandwidth, format_percent, parse_share


def show_bandwidths(
    subject: Subject, hosts: Sequence[int], schedules: Sequence[Schedule], share: str, setting: Setting
) -> int:
    efficiency = parse_share(share, "--find-bandwidth", GOAL)
    table = start_table(
        f"{subject.name}: bandwidth of every link for {format_percent(efficiency)} of linear speed-up",
        "the lowest bandwidth that is enough, each way, to within 3 %",
        [("hosts", "right"), *((schedule.name, "right") for schedule in schedules)],
    )
    with open_progress() as progress:
        progress.expect(len(schedules) * sum(weigh_search(count, setting) for count in hosts))
        for count in hosts:
            found = [
                find_bandwidth(subject, count, schedule, efficiency=efficiency, setting=setting, progress=progress)
                for schedule in schedules
            ]
            table.add_row(Text(str(count)), *map(Text, map(_show_need, found)))
    open_console().print(table)
    return 0


def _show_need(bits_per_s: float | None) -> str:
    if bits_per_s is None:
        return f"more than {format_bandwidth(FASTEST_BITS_PER_S)}"
    if bits_per_s <= SLOWEST_BITS_PER_S:
        return f"{format_bandwidth(bits_per_s)} or less"
    return format_bandwidth(bits_per_s)


def show_hosts(
    subject: Subject, links: Sequence[float], schedules: Sequence[Schedule], share: str, setting: Setting
) -> int:
    worth = parse_share(share, "--find-hosts", GOAL)
    table = start_table(
        f"{subject.name}: hosts that are worth it, and their speed-up",
        f"the most hosts at which each added host still gains {format_percent(worth)} of a host's speed; "
        f"tried up to {MOST_HOSTS}",
        [("link", "right"), *((schedule.name, "right") for schedule in schedules)],
    )
    with open_progress() as progress:
        for rate in links:
            found = [
                find_hosts(subject, rate, schedule, worth=worth, setting=setting, progress=progress)
                for schedule in schedules
            ]
            cells = (f"{count} ({speedup:.1f} x)" for count, speedup in found)
            table.add_row(Text(format_bandwidth(rate)), *map(Text, cells))
    open_console().print(table)
    return 0
