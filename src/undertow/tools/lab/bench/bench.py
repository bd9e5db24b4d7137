"""Runs a whole bench, one series after another.

In: series.  Out: results; those measured before a failure are kept.
There are two presets.  `quick` shows in a few minutes where the network is the limit and where it is not.
`papers` measures what the papers report (Poseidon, ATC 2017; P3, MLSys 2019), as far as a
single machine can emulate it: their models, hosts and bandwidths, compared with torch DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from undertow.errors import ConfigError, UndertowError
from undertow.observe.report.machine import describe_run
from undertow.observe.report.points import Point, Results
from undertow.progress import Progress
from undertow.tools.lab.bench.series import Series, measure
from undertow.tools.lab.network import Network

UNSHAPED = (
    "Unshaped: all workers communicated over this machine's loopback, no link was limited, and bytes per host are "
    "equal shares of the total."
)

SYSTEMS = ("ddp", "undertow")
# P3 throttles its network to between 1 and 30 Gbit/s; Poseidon's has 40 Gbit/s.
P3_GBIT = (2.0, 4.0, 10.0, 15.0, 20.0, 30.0)

OpenNetwork = Callable[[int], AbstractContextManager[Network]]


class BenchAborted(Exception):
    """Error that ended a bench early, with the results so far."""

    def __init__(self, results: Any, reason: str) -> None:
        super().__init__(reason)
        self.results = results


@contextmanager
def keep_results(make_results: Callable[[str], Any]) -> Iterator[None]:
    """Turn an error inside the block into `BenchAborted`, with the results of `make_results` and a note."""
    try:
        yield
    except (UndertowError, OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise BenchAborted(make_results(f"Aborted: {reason.splitlines()[0]}"), reason) from error


def run_bench(
    plan: Sequence[Series], *, environ: Mapping[str, str], open_network: OpenNetwork, progress: Progress, command: str
) -> Results:
    """Measure everything.  Raises `BenchAborted`, with the results so far, if something fails."""
    points: list[Point] = []
    refusals: list[str] = []
    progress.expect(sum(series.laps for series in plan))

    def results(*notes: str) -> Results:
        unshaped = [UNSHAPED] if any(not point.is_shaped for point in points) else []
        return Results(**describe_run(command), points=points, notes=[*unshaped, *refusals, *notes])

    with keep_results(results):
        for series in plan:
            with open_network(series.hosts) as network:
                for result in measure(series, network, environ=environ, progress=progress):
                    points += result.points
                    refusals += filter(None, [result.refusal])
    if refusals:
        raise BenchAborted(results(), "not everything could be measured: " + "; ".join(refusals))
    return results()


def find_preset(name: str) -> list[Series]:
    presets = {"quick": _quick, "papers": _papers}
    if name not in presets:
        raise ConfigError(f"unknown preset {name!r}; known: {', '.join(presets)}")
    return presets[name]()


def _quick() -> list[Series]:
    wanted = {"resnet50": (4.0, 10.0), "vgg19": (10.0,)}
    return [
        Series(model=model, hosts=4, bandwidths_gbit=speeds, scale=10.0, systems=SYSTEMS, rounds=2, lap_s=2.0)
        for model, speeds in wanted.items()
    ]


def _papers() -> list[Series]:
    p3 = [
        Series(model=model, hosts=4, bandwidths_gbit=P3_GBIT, scale=10.0, systems=SYSTEMS, rounds=2)
        for model in ("resnet50", "inception-v3", "vgg19", "sockeye")
    ]
    p3.append(Series(model="vgg19", hosts=8, bandwidths_gbit=(10.0,), scale=20.0, systems=SYSTEMS, rounds=2))
    # All hosts share the same few cores: the more hosts there are, the smaller everything must be.
    poseidon = [
        Series(model="vgg19-22k", hosts=hosts, bandwidths_gbit=(10.0, 40.0), scale=scale, systems=SYSTEMS, rounds=2)
        for hosts, scale in ((4, 20.0), (8, 50.0), (16, 100.0))
    ]
    poseidon += [
        Series(model=model, hosts=8, bandwidths_gbit=(40.0,), scale=50.0, systems=SYSTEMS, rounds=2)
        for model in ("inception-v3", "resnet152", "googlenet", "alexnet")
    ]
    return [*p3, *poseidon]
