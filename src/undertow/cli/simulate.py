"""`undertow simulate` and `undertow papers`: predict how fast models train on clusters, also those of the papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import SHARING, Debug, ResultsFile, Urgent, Weights, ZooBatch, number_option
from undertow.cli.progress import open_console, open_progress
from undertow.cli.results import check_file, read_command_line, read_counts, show_results, split_names
from undertow.cli.simulate_search import show_bandwidths, show_hosts
from undertow.cli.simulate_sharing import read_tenants, show_sharing
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.launch.traces import describe_trace
from undertow.observe.report.columns import show_bandwidth
from undertow.observe.report.machine import describe_run
from undertow.observe.report.points import Point, Results, read_results
from undertow.observe.report.table import Justify, fill_table
from undertow.tools.sim import papers as published
from undertow.tools.sim.predictions import Pair, can_predict, describe, predict_points
from undertow.tools.sim.schedules import Schedule, find_schedule, list_schedules
from undertow.tools.sim.subject import Subject, find_subject, read_subject
from undertow.tools.sim.sweep import Noise, Setting, list_runs, make_points, weigh
from undertow.tools.sim.topology import LATENCY_S, Topology, make_topology, read_topology
from undertow.tools.sim.traces import trace_run
from undertow.units import format_bandwidth, format_ms_figure, parse_bandwidths, parse_share, parse_time

_SYSTEMS, _SHARING_SYSTEMS = "ddp,undertow", "plain,undertow"  # defaults of --systems
# Panels of the help, beside those in options.py.
_NOISE = "Noise"
_QUESTIONS = "Searches and comparisons"


def simulate(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Simulate a model of the zoo; `undertow bench --list` lists them.", metavar="NAME"
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="Simulate your own model from a file that `undertow plan --save-profile FILE script.py` wrote.",
            metavar="FILE",
        ),
    ] = None,
    hosts: Annotated[
        str, typer.Option("--hosts", help="Simulate this many hosts, such as 4 or 1,2,4,8.", metavar="N,...")
    ] = "1,2,4,8",
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            help="Simulate links of these speeds, each way, such as 10gbit or 1,2,4gbit.",
            metavar="SPEED,...",
        ),
    ] = "10gbit",
    latency: Annotated[
        str,
        typer.Option("--latency", help="Set the one-way latency between hosts, such as 50us or 0.1ms.", metavar="TIME"),
    ] = f"{LATENCY_S * 1e6:g}us",
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            help="Read unequal links, slow hosts and racks from this file (docs/simulator.md).",
            metavar="FILE.json",
        ),
    ] = None,
    batch: ZooBatch = None,
    systems: Annotated[
        str | None,
        typer.Option(
            "--systems",
            help=f"Compare these systems; --list shows their names. Default: {_SYSTEMS}; with --share, "
            f"{_SHARING_SYSTEMS}.",
            metavar="NAME,...",
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            "--share",
            help="Share the hosts with jobs of these models, such as vgg19.",
            metavar="MODEL,...",
            rich_help_panel=SHARING,
        ),
    ] = None,
    weights: Weights = None,
    urgent: Urgent = None,
    jitter: Annotated[
        str,
        typer.Option(
            "--jitter",
            help="Vary the times of each worker's steps by this standard deviation, such as 5%.",
            metavar="SHARE",
            rich_help_panel=_NOISE,
        ),
    ] = "0",
    stragglers: Annotated[
        str,
        typer.Option(
            "--stragglers",
            help="Slow each worker down in this share of its steps, such as 1%.",
            metavar="SHARE",
            rich_help_panel=_NOISE,
        ),
    ] = "0",
    straggle: Annotated[
        float,
        number_option(
            "--straggle",
            bounds=bounds.STRAGGLE,
            help="Slow stragglers down by this factor.",
            metavar="FACTOR",
            panel=_NOISE,
        ),
    ] = 2.0,
    seed: Annotated[
        int,
        number_option(
            "--seed",
            bounds=bounds.SEED,
            help="Seed jitter and stragglers; equal seeds give equal steps.",
            metavar="SEED",
            panel=_NOISE,
        ),
    ] = 0,
    steps: Annotated[
        int | None,
        number_option(
            "--steps", bounds=bounds.STEPS, help="Simulate N steps that count. Default: as many as the result needs."
        ),
    ] = None,
    efficiency: Annotated[
        str | None,
        typer.Option(
            "--find-bandwidth",
            help="Find the bandwidth that is needed for this share of linear speed-up.",
            metavar="90%",
            rich_help_panel=_QUESTIONS,
        ),
    ] = None,
    worth: Annotated[
        str | None,
        typer.Option(
            "--find-hosts",
            help="Find the largest number of hosts at which each added host still gains this share of a host's speed.",
            metavar="50%",
            rich_help_panel=_QUESTIONS,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="Predict every point that `undertow bench` measured in this file, and compare.",
            metavar="FILE.json",
            rich_help_panel=_QUESTIONS,
        ),
    ] = None,
    out: ResultsFile = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Record a few steps of one cluster in this folder, like `undertow run --trace`.",
            metavar="DIR",
        ),
    ] = None,
    wants_list: Annotated[bool, typer.Option("--list", help="List the systems.")] = False,
    debug: Debug = False,
) -> int:
    """Predict the speed of training on any cluster, with undertow's planner and engine on a virtual clock and network.

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
        schedules = _find_schedules(systems, _SYSTEMS if share is None else _SHARING_SYSTEMS)
        noise = Noise(
            jitter=parse_share(jitter, "--jitter", bounds.JITTER),
            straggler_share=parse_share(stragglers, "--stragglers", bounds.SHARE),
            straggler_factor=straggle,
            seed=seed,
        )
        setting = Setting(latency_s=parse_time(latency, "--latency", bounds.LATENCY_S), noise=noise, steps=steps)
        counts, links = read_counts(hosts), _read_links(bandwidth)
        if share is None and (weights, urgent) != (None, None):
            raise ConfigError("--weights and --urgent are for jobs that share: name the others with --share")
        if (efficiency, worth) != (None, None):
            _check_search(share, is_plain=(cluster, out, trace) == (None, None, None))
        if efficiency is not None:
            goal = parse_share(efficiency, "--find-bandwidth", bounds.GOAL)
            return show_bandwidths(subject, counts, schedules, goal, setting)
        if worth is not None:
            return show_hosts(subject, links, schedules, parse_share(worth, "--find-hosts", bounds.GOAL), setting)
        check_file(out)
        topologies = [make_topology(count, rate, latency_s=setting.latency_s) for count in counts for rate in links]
        if cluster is not None:
            topologies = [read_topology(cluster)]
        if trace is not None:
            _check_traceable(topologies, share)
        if share is not None:
            job_lists = read_tenants(subject, share, schedules, weights=weights, urgent=urgent)
            return show_sharing(job_lists, topologies, setting, out)
        points = _simulate(subject, topologies, [schedule.name for schedule in schedules], setting)
        notes = _make_notes(subject, cluster)
        show_results(Results(**describe_run(read_command_line()), points=points, notes=notes), out)
        if trace is not None:
            _write_trace(trace, subject, topologies[0], schedules[-1], noise)
        return 0


def papers(debug: Debug = False) -> int:
    """Simulate the measurements of Poseidon (ATC 2017) and P3 (MLSys 2019), and print both, as in docs/papers.md.

    Example: undertow papers
    """
    with one_line_errors("undertow papers", debug=debug):
        with open_progress() as progress:
            sections = list(published.make_sections(progress))
        for section in sections:
            print(section.to_markdown())
        print(published.describe(sections))
        return 0


def _find_schedules(systems: str | None, default: str) -> list[Schedule]:
    schedules = [find_schedule(name) for name in split_names(default if systems is None else systems)]
    if not schedules:
        raise ConfigError("--systems is empty: name at least one, such as undertow")
    return schedules


def _read_links(bandwidth: str) -> list[float]:
    links = parse_bandwidths(bandwidth, "--bandwidth")
    for rate in links:
        bounds.SIMULATED.check_range(f"--bandwidth {format_bandwidth(rate)} for a simulation", rate)
    return list(links)


def _check_search(share: str | None, *, is_plain: bool) -> None:
    """Refuse options that --find-bandwidth and --find-hosts cannot be combined with."""
    if not is_plain:
        raise ConfigError(
            "--find-bandwidth and --find-hosts are for equal hosts and only print a table: leave --cluster, --out and "
            "--trace out"
        )
    if share is not None:
        raise ConfigError("--find-bandwidth and --find-hosts are for one job: leave --share out")


def _find_subject(model: str | None, profile: Path | None, batch: int | None) -> Subject:
    if (model is None) == (profile is None):
        raise ConfigError("give --model with the name of a model, or --profile with a file")
    if model is not None:
        return find_subject(model, batch)
    if batch is not None:
        raise ConfigError("--batch is for models of the zoo: a profile already has a batch; leave --batch out")
    assert profile is not None
    return read_subject(profile)


def _simulate(
    subject: Subject, topologies: Sequence[Topology], systems: Sequence[str], setting: Setting
) -> list[Point]:
    with open_progress() as progress:
        progress.expect(len(list_runs(systems)) * sum(weigh(topology, setting) for topology in topologies))
        return [
            point
            for topology in topologies
            for point in make_points(subject, topology, systems, setting=setting, progress=progress)
        ]


def _make_notes(subject: Subject, cluster: Path | None) -> list[str]:
    notes = []
    if not subject.has_gates:
        notes.append(
            "The profile is of a script that uses DistributedDataParallel, whose backward waits for all gradients: "
            "`undertow-no-gate` predicts its speed, and `undertow` its speed with parallelize()."
        )
    if cluster is not None:
        notes.append(f"The cluster is read from {cluster.name}; Gbit/s are those of its slowest link.")
    return notes


# Against


def _check_against(path: Path, subject: Subject | None) -> int:
    points = read_results(path).points
    with open_progress() as progress:
        pairs = list(predict_points(points, subject, progress))
    if not pairs:
        raise ConfigError(
            f"{path} has no point that can be predicted: a point needs a model of the zoo (or --profile), a system of "
            "`undertow simulate --list`, and links with a limited bandwidth"
        )
    console = open_console()
    console.print(make_pair_table(pairs))
    left_out = sum(not can_predict(point, subject) for point in points)
    if left_out:
        console.print(f"points left out because their model, system or link is unknown: {left_out}")
    return 0


_PAIR_COLUMNS: tuple[tuple[str, Justify, Callable[[Pair], str]], ...] = (
    ("model", "left", lambda pair: pair.measured.model),
    ("hosts", "right", lambda pair: str(pair.measured.hosts)),
    ("Gbit/s", "right", lambda pair: show_bandwidth(pair.measured)),
    ("system", "left", lambda pair: pair.measured.system),
    ("measured ms", "right", lambda pair: "~" * pair.measured.is_noisy + format_ms_figure(pair.measured.iteration_s)),
    ("predicted ms", "right", lambda pair: format_ms_figure(pair.predicted_s)),
    ("error", "right", lambda pair: f"{pair.error:+.1%}"),
)


def make_pair_table(pairs: Sequence[Pair]) -> Table:
    """Make a table of measured and predicted times, side by side."""
    return fill_table("", describe(pairs), _PAIR_COLUMNS, pairs, lambda pair: "" if pair.is_close else "yellow")


def _show_list() -> int:
    for name in list_schedules():
        print(f"  {name:<22} {find_schedule(name).about}")
    return 0


def _check_traceable(topologies: Sequence[Topology], share: str | None) -> None:
    if share is not None:
        raise ConfigError("--trace records one job: leave --share out")
    if len(topologies) != 1:
        raise ConfigError("--trace records one cluster: give one number for --hosts and one for --bandwidth")


def _write_trace(folder: Path, subject: Subject, topology: Topology, schedule: Schedule, noise: Noise) -> None:
    try:
        trace_run(folder, subject, topology, schedule, noise)
    except OSError as error:
        raise ConfigError(f"the trace cannot be written to {folder}: {error.strerror}") from None
    notify(describe_trace(schedule.name, folder))
