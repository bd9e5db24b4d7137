"""The whole bench: one series after the other, then a table, a file and a picture.

In: series.  Out: results; what was measured before something went wrong is kept too.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from undertow.errors import UndertowError
from undertow.lab.bench.series import Series, measure
from undertow.lab.network import Network
from undertow.report.points import Point, Results, describe_machine, list_versions
from undertow.watch import Watch

UNSHAPED = (
    "Unshaped: all workers talked over this machine's loopback, no link was held to a speed, and bytes per host "
    "are an equal share of all that passed there."
)

OpenNetwork = Callable[[int], AbstractContextManager[Network]]


class BrokenOff(Exception):
    """A bench did not get to its end; these are its results so far."""

    def __init__(self, results: Any, reason: str) -> None:
        super().__init__(reason)
        self.results = results


def run_bench(
    plan: Sequence[Series], *, environ: Mapping[str, str], open_network: OpenNetwork, watch: Watch, command: str
) -> Results:
    """Measure everything.  Raises `BrokenOff` if something fails on the way."""
    points: list[Point] = []
    refusals: list[str] = []
    watch.expect(sum(series.laps for series in plan))

    def results(*notes: str) -> Results:
        unshaped = [UNSHAPED] if any(not point.is_shaped for point in points) else []
        return Results(
            machine=describe_machine(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            versions=list_versions(),
            command=command,
            points=points,
            notes=[*unshaped, *refusals, *notes],
        )

    try:
        for series in plan:
            with open_network(series.hosts) as network:
                for leg in measure(series, network, environ=environ, watch=watch):
                    points += leg.points
                    refusals += filter(None, [leg.refusal])
    except (UndertowError, OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise BrokenOff(results(f"Broken off: {reason.splitlines()[0]}"), reason) from error
    if refusals:
        raise BrokenOff(results(), "not everything could be measured: " + "; ".join(refusals))
    return results()
