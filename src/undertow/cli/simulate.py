"""`undertow simulate` and `undertow papers`: predict how fast models train on clusters, also those of the papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from undertow import bounds
from undertow.cli import options, simulate_options
from undertow.cli.errors import one_line_errors
from undertow.cli.progress import open_console, open_progress
from undertow.cli.results import check_file, read_command_line, read_counts, show_results, split_names
from undertow.cli.simulate_search import show_bandwidths, show_hosts
from undertow.cli.simulate_sharing import read_tenants, show_sharing
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.launch.traces import describe_trace
from undertow.observe.report.columns import show_bandwidth
from undertow.observe.report.machine import describe_run
from undertow.observe.report.points import Results, read_results
from undertow.observe.report.table import Justify, fill_table
from undertow.tools.sim import papers as published
from undertow.tools.sim.predictions import Pair, can_predict, describe, predict_points
from undertow.tools.sim.schedules import Schedule, find_schedule, list_schedules
from undertow.tools.sim.subject import Subject, find_subject, read_subject
from undertow.tools.sim.sweep import Noise, Setting, list_runs, make_points, weigh
from undertow.tools.sim.topology import LATENCY_S, Topology, make_topology, read_topology
from undertow.tools.sim.traces import trace_run
from undertow.units import format_bandwidth, format_change, format_ms_figure, parse_bandwidths, parse_share, parse_time


def simulate(
    model: simulate_options.Model = None,
    profile: simulate_options.Profile = None,
    hosts: simulate_options.Hosts = "1,2,4,8",
    bandwidth: simulate_options.Bandwidth = "10gbit",
    latency: simulate_options.Latency = f"{LATENCY_S * 1e6:g}us",
    cluster: simulate_options.ClusterFile = None,
    batch: options.ZooBatch = None,
    systems: simulate_options.Systems = None,
    share: simulate_options.Share = None,
    weights: options.Weights = None,
    urgent: options.Urgent = None,
    jitter: simulate_options.Jitter = "0",
    stragglers: simulate_options.Stragglers = "0",
    straggle: simulate_options.Straggle = 2.0,
    seed: simulate_options.Seed = 0,
    steps: simulate_options.Steps = None,
    efficiency: simulate_options.FindBandwidth = None,
    worth: simulate_options.FindHosts = None,
    against: simulate_options.Against = None,
    out: options.ResultsFile = None,
    trace: simulate_options.Trace = None,
    wants_list: simulate_options.ListSystems = False,
    debug: options.Debug = False,
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
        schedules = _find_schedules(systems, share)
        noise = Noise(
            jitter=parse_share(jitter, "--jitter", bounds.JITTER),
            straggler_share=parse_share(stragglers, "--stragglers", bounds.SHARE),
            straggler_factor=straggle,
            seed=seed,
        )
        setting = Setting(latency_s=parse_time(latency, "--latency", bounds.LATENCY_S), noise=noise, steps=steps)
        counts, links = read_counts(hosts), _read_links(bandwidth)
        _check_terms(share, weights, urgent)
        if (efficiency, worth) != (None, None):
            _check_search(share, is_plain=(cluster, out, trace) == (None, None, None))
        if efficiency is not None:
            return show_bandwidths(subject, counts, schedules, efficiency, setting)
        if worth is not None:
            return show_hosts(subject, links, schedules, worth, setting)
        check_file(out)
        topologies = _make_topologies(counts, links, cluster, latency_s=setting.latency_s)
        _check_trace(trace, topologies, share)
        if share is not None:
            job_lists = read_tenants(subject, share, schedules, weights=weights, urgent=urgent)
            return show_sharing(job_lists, topologies, setting, out)
        _simulate(subject, topologies, schedules, setting, notes=_make_notes(subject, cluster), out=out)
        if trace is not None:
            _write_trace(trace, subject, topologies[0], schedules[-1], noise)
        return 0


def papers(debug: options.Debug = False) -> int:
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


def _find_schedules(systems: str | None, share: str | None) -> list[Schedule]:
    default = simulate_options.SYSTEMS if share is None else simulate_options.SHARING_SYSTEMS
    schedules = [find_schedule(name) for name in split_names(default if systems is None else systems)]
    if not schedules:
        raise ConfigError("--systems is empty: name at least one, such as undertow")
    return schedules


def _read_links(bandwidth: str) -> list[float]:
    links = parse_bandwidths(bandwidth, "--bandwidth")
    for rate in links:
        bounds.SIMULATED.check_range(f"--bandwidth {format_bandwidth(rate)} for a simulation", rate)
    return list(links)


def _make_topologies(
    counts: Sequence[int], links: Sequence[float], cluster: Path | None, *, latency_s: float
) -> list[Topology]:
    if cluster is not None:
        return [read_topology(cluster)]
    return [make_topology(count, rate, latency_s=latency_s) for count in counts for rate in links]


def _check_terms(share: str | None, weights: str | None, urgent: int | None) -> None:
    if share is None and (weights, urgent) != (None, None):
        raise ConfigError("--weights and --urgent are for jobs that share: name the others with --share")


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
    subject: Subject,
    topologies: Sequence[Topology],
    schedules: Sequence[Schedule],
    setting: Setting,
    *,
    notes: list[str],
    out: Path | None,
) -> None:
    """Simulate each system on each cluster, and show the results."""
    systems = [schedule.name for schedule in schedules]
    with open_progress() as progress:
        progress.expect(len(list_runs(systems)) * sum(weigh(topology, setting) for topology in topologies))
        points = [
            point
            for topology in topologies
            for point in make_points(subject, topology, systems, setting=setting, progress=progress)
        ]
    show_results(Results(**describe_run(read_command_line()), points=points, notes=notes), out)


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
    ("error", "right", lambda pair: format_change(pair.error)),
)


def make_pair_table(pairs: Sequence[Pair]) -> Table:
    """Make a table of measured and predicted times, side by side."""
    return fill_table("", describe(pairs), _PAIR_COLUMNS, pairs, lambda pair: "" if pair.is_close else "yellow")


def _show_list() -> int:
    for name in list_schedules():
        print(f"  {name:<22} {find_schedule(name).about}")
    return 0


def _check_trace(trace: Path | None, topologies: Sequence[Topology], share: str | None) -> None:
    if trace is None:
        return
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
