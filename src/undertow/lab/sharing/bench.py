"""The whole of `undertow share bench`: one speed of the links after the other, all arrangements in turns.

In: a plan.  Out: results; what was measured before something went wrong is kept too.
Every arrangement has its lap in every round, in an order that changes, so that a machine's moods meet all alike.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from undertow.errors import LabError, UndertowError
from undertow.lab.bandwidth import format_bandwidth
from undertow.lab.bench.bench import UNSHAPED, BrokenOff, OpenNetwork
from undertow.lab.bench.series import CHECKS
from undertow.lab.link_check import check_links
from undertow.lab.sharing.calibration import TRIES, correct_rate, estimate_rate, is_close
from undertow.lab.sharing.fleets import Fleets, Site, open_fleets
from undertow.lab.sharing.heats import REHEARSALS, Heat, warm_up
from undertow.lab.sharing.occupancy import make_devices
from undertow.lab.sharing.plan import GIGA, Mode, SharePlan
from undertow.lab.sharing.results import Case, ShareResults
from undertow.lab.sharing.summary import summarise
from undertow.report.machine import describe_machine, list_versions
from undertow.watch import Watch

# A guess of a step of real compute, for patience only.
REAL_STEP_S = 3.0


def run_share_bench(
    plan: SharePlan, *, environ: Mapping[str, str], open_network: OpenNetwork, watch: Watch, command: str
) -> ShareResults:
    """Measure everything.  Raises `BrokenOff` if something fails on the way."""
    cases: list[Case] = []

    def results(*notes: str) -> ShareResults:
        unshaped = [UNSHAPED] if any(case.bandwidth_gbit is None for case in cases) else []
        return ShareResults(
            machine=describe_machine(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            versions=list_versions(),
            command=command,
            cases=cases,
            notes=[*unshaped, *notes],
        )

    try:
        with open_network(plan.hosts) as network, tempfile.TemporaryDirectory(prefix="undertow-") as folder:
            make_devices(Path(folder), plan.hosts)
            site = Site(network=network, environ=environ, devices=folder, watch=watch)
            cases.extend(_measure(plan, site))
    except (UndertowError, OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise BrokenOff(results(f"Broken off: {reason.splitlines()[0]}"), reason) from error
    return results()


def _measure(plan: SharePlan, site: Site) -> Iterator[Case]:
    """One speed of the links after the other."""
    site.watch.expect(_count_laps(plan))
    speeds = _calibrate(plan, site) if plan.ratios else [(None, speed) for speed in plan.bandwidths_gbit]
    site.network.shape(plan.link_rate(speeds[0][1]))
    with open_fleets(plan, site) as fleets:
        for ratio, bandwidth_gbit in speeds:
            _shape(site, plan.link_rate(bandwidth_gbit))
            site.watch.lap()
            heats = _prepare(plan, fleets, site)
            _run_rounds(plan, heats, site.watch, _describe(plan, bandwidth_gbit))
            fleets.check_turns()
            yield summarise(plan, heats, fleets.ready, bandwidth_gbit=bandwidth_gbit, ratio=ratio)


def _count_laps(plan: SharePlan) -> int:
    """Of whatever takes about as long as a lap: to start workers, to warm them up, to check the links, to rehearse."""
    search = 1 + TRIES * len(plan.ratios) if plan.ratios else 0
    fleets = len(plan.jobs) * (4 if plan.is_real else 3)
    rehearsals = REHEARSALS * sum(arrangement.is_company for arrangement in plan.arrangements)
    case = 1 + fleets + rehearsals + plan.lap_count
    return search + fleets + case * len(plan.ratios or plan.bandwidths_gbit)


def _calibrate(plan: SharePlan, site: Site) -> list[tuple[float | None, float | None]]:
    """For each ratio the bandwidth at which the first job, plain and alone, waits for so much of its computing."""
    job = plan.jobs[0]
    found: list[tuple[float | None, float | None]] = []
    site.watch.say(f"starting {job.model}, to find the bandwidth")
    with site.open_fleet(plan, job, Mode.PLAIN.value) as fleet:
        ready = fleet.wait_until_ready()
        site.watch.lap()
        assert ready.compute_s is not None
        for ratio in plan.ratios:
            wanted_s = ratio * ready.compute_s
            rate = estimate_rate(ready.gradient_bytes, hosts=plan.hosts, exposed_s=wanted_s)
            for left in reversed(range(TRIES)):
                site.watch.say(f"looking for m/c = {ratio:g}: {rate * plan.scale * plan.slowdown / GIGA:.3g} Gbit/s")
                site.network.shape(rate)
                exposed_s = warm_up(fleet, ready.compute_s + wanted_s) - ready.compute_s
                site.watch.lap()
                if is_close(exposed_s, wanted_s):
                    site.watch.lap(left)
                    break
                rate = correct_rate(rate, found_s=exposed_s, wanted_s=wanted_s)
            found.append((ratio, rate * plan.scale * plan.slowdown / GIGA))
    return found


def _describe(plan: SharePlan, bandwidth_gbit: float | None) -> str:
    link = "unshaped" if bandwidth_gbit is None else format_bandwidth(bandwidth_gbit * GIGA)
    return f"{', '.join(plan.labels)}, {plan.hosts} hosts, {link}"


def _shape(site: Site, rate_bits_per_s: float | None) -> None:
    """Hold the links to this speed.  Raises `LabError` if they are not to be trusted."""
    if rate_bits_per_s is None:
        return
    site.watch.say("checking the links")
    site.network.shape(rate_bits_per_s)
    for number in range(CHECKS):
        try:
            check_links(site.network, rate_bits_per_s)
            return
        except LabError:
            if number == CHECKS - 1:
                raise


def _prepare(plan: SharePlan, fleets: Fleets, site: Site) -> list[Heat]:
    """Everybody is warm, and the pace of all is known."""
    expected_s = [(ready.compute_s or REAL_STEP_S) * 3 for ready in fleets.ready]
    paces_s = {}
    for group in fleets.by_arrangement.values():
        for fleet, step_s in zip(group, expected_s, strict=True):
            if fleet not in paces_s:
                site.watch.say(f"warming up: {fleet.name}")
                paces_s[fleet] = warm_up(fleet, step_s)
                site.watch.lap()
    heats = []
    for arrangement in plan.arrangements:
        group = fleets.by_arrangement[arrangement]
        if arrangement.is_company:
            doubled_s = [2 * paces_s[fleet] for fleet in group]
            heats.append(Heat(arrangement, arrangement.value, group, site.network, doubled_s))
            site.watch.say(f"rehearsing: {arrangement.value}")
            heats[-1].rehearse(plan.lap_s)
            site.watch.lap(REHEARSALS)
        else:
            heats += [
                Heat(arrangement, f"{arrangement.value}, {label}", [fleet], site.network, [paces_s[fleet]])
                for fleet, label in zip(group, plan.labels, strict=True)
            ]
    return heats


def _run_rounds(plan: SharePlan, heats: Sequence[Heat], watch: Watch, title: str) -> None:
    for number in range(plan.rounds):
        first = number * len(heats) // plan.rounds
        for heat in (*heats[first:], *heats[:first]):
            watch.say(f"{title}: {heat.title}, round {number + 1}")
            heat.run(plan.lap_s)
            watch.lap()
