"""`undertow simulate`: what a cluster would do that is not there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import open_console, open_watch
from undertow.cli.quantities import parse_share, parse_time
from undertow.cli.questions import show_bandwidths, show_hosts
from undertow.cli.results import check_file, read_counts, show_results, split_names
from undertow.cli.simulate_sharing import read_tenants, show_sharing
from undertow.cli.simulate_trace import check_traceable, write_trace
from undertow.errors import ConfigError
from undertow.lab.bandwidth import format_bandwidth, parse_bandwidths
from undertow.report.columns import show_bandwidth, show_ms
from undertow.report.points import Point, Results, describe_machine, list_versions, read_results
from undertow.report.safe_text import Text
from undertow.report.table import start_table
from undertow.sim.against import Pair, can_predict, describe, predict_points
from undertow.sim.cluster_file import read_topology
from undertow.sim.noise import Noise
from undertow.sim.schedules import find_schedule, list_schedules
from undertow.sim.subject import Subject, find_subject, read_subject
from undertow.sim.sweep import Setting, list_runs, make_points, weigh
from undertow.sim.topology import LATENCY_S, Topology, make_topology

_SYSTEMS, _SHARING_SYSTEMS = "ddp,undertow", "plain,undertow"  # if nobody names any


def simulate(
    model: Annotated[
        str | None, typer.Option("--model", help="A model of the zoo; `undertow bench --list` names them.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="Your own instead: what `undertow plan script.py --save-profile FILE` wrote.",
            metavar="FILE",
        ),
    ] = None,
    hosts: Annotated[str, typer.Option("--hosts", help="Numbers of hosts, such as 4 or 1,2,4,8.")] = "1,2,4,8",
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Speeds of every link, each way, such as 10gbit or 1,2,4gbit.")
    ] = "10gbit",
    latency: Annotated[
        str, typer.Option("--latency", help="From one host to another, one way.")
    ] = f"{LATENCY_S * 1e6:g}us",
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            help="Instead of --hosts and --bandwidth: unequal links, slow hosts, racks; see docs/simulator.md.",
            metavar="FILE.json",
        ),
    ] = None,
    batch: Annotated[
        int | None, figure("--batch", bounds=bounds.BATCH, help="Samples per host and step; else as published.")
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option("--systems", help="What to compare; see --list. Else ddp,undertow; with --share plain,undertow."),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            "--share",
            help="Models of jobs that share the hosts with this one, such as resnet50,vgg19.",
            metavar="MODELS",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="With --share: each job's share of a device, such as 1,2.")
    ] = None,
    urgent: Annotated[
        int | None,
        figure(
            "--urgent",
            bounds=bounds.JOB,
            help="With --share: a job whose gaps the others fill; 0 is that of --model.",
            metavar="N",
        ),
    ] = None,
    jitter: Annotated[
        str, typer.Option("--jitter", help="How much the time of a step varies from worker to worker, such as 5%.")
    ] = "0",
    stragglers: Annotated[
        str, typer.Option("--stragglers", help="How often a worker straggles, such as 1% of its steps.")
    ] = "0",
    straggle: Annotated[
        float, figure("--straggle", bounds=bounds.STRAGGLE, help="How many times longer a straggler takes.")
    ] = 2.0,
    seed: Annotated[
        int, figure("--seed", bounds=bounds.SEED, help="Of jitter and stragglers: the same seed, the same steps.")
    ] = 0,
    steps: Annotated[
        int | None, figure("--steps", bounds=bounds.STEPS, help="How many steps to simulate and count.")
    ] = None,
    efficiency: Annotated[
        str | None,
        typer.Option(
            "--find-bandwidth", help="What bandwidth is needed for so much of linear speed-up?", metavar="90%"
        ),
    ] = None,
    worth: Annotated[
        str | None,
        typer.Option(
            "--find-hosts",
            help="How many hosts are worth it, if each added one must bring so much of a host?",
            metavar="50%",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="Predict every point that `undertow bench` has measured.", metavar="FILE.json"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the results as JSON, a picture and a page beside it.", metavar="FILE.json"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Record some steps here, as `undertow run --trace` would, of one cluster; see undertow report.",
            metavar="DIR",
        ),
    ] = None,
    wants_list: Annotated[bool, typer.Option("--list", help="List the systems.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Predict a cluster that is not there: undertow's own planner, slicer and engine on a virtual clock and network.

    Example: undertow simulate --model vgg19-22k --hosts 1,2,4,8,16,32 --bandwidth 10gbit --systems ps,wfbp,ddp,undertow

    Example: undertow simulate --profile mine.json --hosts 8 --find-bandwidth 90%

    Example: undertow simulate --model resnet50 --share vgg19 --hosts 4 --bandwidth 4gbit
    """
    with one_line_errors("undertow simulate", debug=debug):
        if wants_list:
            return _show_list()
        if against is not None:
            return _check_against(against, None if profile is None else read_subject(profile))
        subject = _find_subject(model, profile, batch)
        names = split_names((_SYSTEMS if share is None else _SHARING_SYSTEMS) if systems is None else systems)
        schedules = [find_schedule(name) for name in names]
        if not schedules:
            raise ConfigError("--systems is empty: name one at least, such as undertow")
        noise = Noise(
            jitter=parse_share(jitter, "--jitter", bounds.JITTER),
            straggler_share=parse_share(stragglers, "--stragglers", bounds.SHARE),
            straggler_factor=straggle,
            seed=seed,
        )
        setting = Setting(latency_s=parse_time(latency, "--latency", bounds.LATENCY_S), noise=noise, steps=steps)
        counts, links = read_counts(hosts), parse_bandwidths(bandwidth, "--bandwidth")
        for rate in links:
            bounds.SIMULATED.check_range(f"--bandwidth {format_bandwidth(rate)} for a simulation", rate)
        if (efficiency, worth) != (None, None) and (cluster, out, trace) != (None, None, None):
            raise ConfigError(
                "--find-bandwidth and --find-hosts are for equal hosts, and print one table: leave the rest"
            )
        if share is None and (weights, urgent) != (None, None):
            raise ConfigError("--weights and --urgent are for jobs that share: name the others with --share")
        if share is not None and (efficiency, worth) != (None, None):
            raise ConfigError("--find-bandwidth and --find-hosts are for one job: leave --share")
        if efficiency is not None:
            return show_bandwidths(
                subject, counts, schedules, parse_share(efficiency, "--find-bandwidth", bounds.GOAL), setting
            )
        if worth is not None:
            return show_hosts(subject, links, schedules, parse_share(worth, "--find-hosts", bounds.GOAL), setting)
        check_file(out)
        topologies = [make_topology(count, rate, latency_s=setting.latency_s) for count in counts for rate in links]
        if cluster is not None:
            topologies = [read_topology(cluster)]
        if trace is not None:
            check_traceable(topologies, share)
        if share is not None:
            crowds = read_tenants(subject, share, schedules, weights=weights, urgent=urgent)
            return show_sharing(crowds, topologies, setting, out)
        points = _simulate(subject, topologies, names, setting)
        show_results(_make_results(points, _make_notes(subject, cluster)), out)
        if trace is not None:
            write_trace(trace, subject, topologies[0], schedules[-1], noise)
        return 0
    raise AssertionError("one_line_errors ends the command")


def _find_subject(model: str | None, profile: Path | None, batch: int | None) -> Subject:
    if (model is None) == (profile is None):
        raise ConfigError("give --model with the name of a model, or --profile with a file")
    if model is not None:
        return find_subject(model, batch)
    if batch is not None:
        raise ConfigError("--batch is for models of the zoo: a profile has the batch that it was measured with")
    assert profile is not None
    return read_subject(profile)


def _simulate(
    subject: Subject, topologies: Sequence[Topology], systems: Sequence[str], setting: Setting
) -> list[Point]:
    with open_watch() as watch:
        watch.expect(len(list_runs(systems)) * sum(weigh(topology, setting) for topology in topologies))
        return [
            point
            for topology in topologies
            for point in make_points(subject, topology, systems, setting=setting, watch=watch)
        ]


def _make_results(points: list[Point], notes: list[str]) -> Results:
    return Results(
        machine=describe_machine(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=list_versions(),
        command=shlex.join(["undertow", *sys.argv[1:]]),
        points=points,
        notes=notes,
    )


def _make_notes(subject: Subject, cluster: Path | None) -> list[str]:
    notes = []
    if not subject.has_gates:
        notes.append(
            "The profile is of a script that uses DistributedDataParallel, whose backward waits for all gradients: it "
            "gets what `undertow-no-gate` promises, and with parallelize() what `undertow` does."
        )
    if cluster is not None:
        notes.append(f"The cluster is that of {cluster.name}; Gbit/s are those of its slowest link.")
    return notes


# Against


def _check_against(path: Path, subject: Subject | None) -> int:
    points = read_results(path).points
    with open_watch() as watch:
        pairs = list(predict_points(points, subject, watch))
    if not pairs:
        raise ConfigError(
            f"{path} has no point that can be predicted: it takes a model of the zoo (or --profile), a system of "
            "`undertow simulate --list`, and links that were held to a bandwidth"
        )
    console = open_console()
    console.print(make_pair_table(pairs))
    left_out = sum(not can_predict(point, subject) for point in points)
    if left_out:
        console.print(f"left out, because model, system or link is not known here: {left_out}")
    return 0


def make_pair_table(pairs: Sequence[Pair]) -> Table:
    """Measured and predicted side by side."""
    table = start_table("", describe(pairs))
    for heading, justify in _PAIR_COLUMNS:
        table.add_column(Text(heading), justify=justify)  # type: ignore[arg-type]
    for pair in pairs:
        point = pair.measured
        cells = (
            point.model,
            str(point.hosts),
            show_bandwidth(point),
            point.system,
            f"{'~' if point.is_noisy else ''}{show_ms(point.iteration_s)}",
            show_ms(pair.predicted_s),
            f"{pair.error:+.1%}",
        )
        table.add_row(*(Text(cell, "" if pair.is_close else "yellow") for cell in cells))
    return table


_PAIR_COLUMNS = (
    ("model", "left"),
    ("hosts", "right"),
    ("Gbit/s", "right"),
    ("system", "left"),
    ("measured ms", "right"),
    ("predicted ms", "right"),
    ("error", "right"),
)


def _show_list() -> int:
    for name in list_schedules():
        print(f"  {name:<22} {find_schedule(name).about}")
    return 0
