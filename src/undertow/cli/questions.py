"""The questions of `undertow simulate`: what bandwidth, how many hosts."""

from __future__ import annotations

from collections.abc import Sequence

from undertow.cli.progress import open_console, open_watch
from undertow.lab.bandwidth import format_bandwidth
from undertow.report.safe_text import Text
from undertow.report.table import start_table
from undertow.sim.schedules import Schedule
from undertow.sim.subject import Subject
from undertow.sim.sweep import Setting
from undertow.sim.whatif import (
    FASTEST_BITS_PER_S,
    MOST_HOSTS,
    SLOWEST_BITS_PER_S,
    find_bandwidth,
    find_hosts,
    weigh_search,
)


def show_bandwidths(
    subject: Subject, hosts: Sequence[int], schedules: Sequence[Schedule], efficiency: float, setting: Setting
) -> int:
    table = start_table(
        f"{subject.name}: bandwidth of every link for {efficiency:.0%} of linear speed-up",
        "the least that is enough, each way, to within 3 %",
    )
    for heading in ("hosts", *(schedule.name for schedule in schedules)):
        table.add_column(Text(heading), justify="right")
    with open_watch() as watch:
        watch.expect(len(schedules) * sum(weigh_search(count, setting) for count in hosts))
        for count in hosts:
            found = [
                find_bandwidth(subject, count, schedule, efficiency=efficiency, setting=setting, watch=watch)
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
    subject: Subject, links: Sequence[float], schedules: Sequence[Schedule], worth: float, setting: Setting
) -> int:
    table = start_table(
        f"{subject.name}: hosts that are worth it, and their speed-up",
        f"so many that each of the last that were added brings {worth:.0%} of a host; up to {MOST_HOSTS} were tried",
    )
    for heading in ("link", *(schedule.name for schedule in schedules)):
        table.add_column(Text(heading), justify="right")
    with open_watch() as watch:
        for rate in links:
            found = [
                find_hosts(subject, rate, schedule, worth=worth, setting=setting, watch=watch) for schedule in schedules
            ]
            cells = (f"{count} ({speedup:.1f} x)" for count, speedup in found)
            table.add_row(Text(format_bandwidth(rate)), *map(Text, cells))
    open_console().print(table)
    return 0
