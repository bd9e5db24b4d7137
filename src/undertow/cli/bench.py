"""`undertow bench`: turns the command line into a plan, runs it, and shows what came out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.measuring import measure_in_lab
from undertow.cli.progress import open_console
from undertow.cli.results import check_file, read_counts, show_results, split_names
from undertow.errors import ConfigError
from undertow.lab.bandwidth import parse_bandwidths
from undertow.lab.bench.bench import run_bench
from undertow.lab.bench.presets import find_preset
from undertow.lab.bench.series import GIGA, Series
from undertow.lab.real.names import REAL_NAMES
from undertow.lab.systems import find_system, list_systems
from undertow.report.compare import compare, list_differences, make_comparison_table
from undertow.report.points import read_results
from undertow.zoo import MODELS


def bench(
    files: Annotated[
        list[str] | None, typer.Argument(help="With --compare: the older file and the newer one.", metavar="[A B]")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Models, with commas between them; see --list.")] = "resnet50",
    hosts: Annotated[str, typer.Option("--hosts", help="Numbers of hosts, such as 4 or 2,4,8.")] = "4",
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Speeds of every link, such as 1,2,4,10gbit, before scaling.")
    ] = "1,2,4,5,10,15,20,40gbit",
    scale: Annotated[
        float | None,
        figure(
            "--scale",
            bounds=bounds.SCALE,
            help="Divide sizes, bandwidths, buckets and slices by this: ratios stay. Default 10; 1 for real compute.",
        ),
    ] = None,
    slowdown: Annotated[
        float,
        figure(
            "--slowdown",
            bounds=bounds.SLOWDOWN,
            help="Let devices and links be so many times slower: for more hosts than this machine feeds.",
        ),
    ] = 1.0,
    systems: Annotated[str, typer.Option("--systems", help="What to compare; see --list.")] = "ddp,undertow",
    batch: Annotated[
        int | None, figure("--batch", bounds=bounds.BATCH, help="Samples per host and step; else as published.")
    ] = None,
    rounds: Annotated[int, figure("--rounds", bounds=bounds.ROUNDS, help="How often each system takes its turn.")] = 4,
    lap: Annotated[
        float, figure("--lap", bounds=bounds.LAP_S, help="Seconds of one turn, at least four steps.", metavar="S")
    ] = 3.0,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="quick (three minutes) or papers (half an hour) instead of all the above."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the results as JSON, a picture and a page beside it.", metavar="FILE.json"),
    ] = None,
    unshaped: Annotated[
        bool, typer.Option("--unshaped", help="No emulated hosts, all over loopback: needs no root, shapes nothing.")
    ] = False,
    is_comparison: Annotated[
        bool, typer.Option("--compare", help="Show what got faster or slower from file A to file B.")
    ] = False,
    wants_list: Annotated[bool, typer.Option("--list", help="List the models and systems.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Measure undertow beside torch DDP on emulated hosts, and say where each stands.

    Example: sudo undertow bench --model resnet50 --hosts 4 --bandwidth 1,4,10gbit --scale 10 --out bench.json

    Example: undertow bench --compare before.json after.json
    """
    with one_line_errors("undertow bench", debug=debug):
        if wants_list:
            return _show_list()
        if is_comparison:
            return _compare(files or [])
        if files:
            raise ConfigError(f"{files[0]!r} is not an option; two files go with --compare")
        links = [rate / GIGA for rate in parse_bandwidths(bandwidth, "--bandwidth")]
        common = {"systems": split_names(systems), "batch": batch, "rounds": rounds, "lap_s": lap, "slowdown": slowdown}
        asked = itertools.product(split_names(model), read_counts(hosts))
        plan = find_preset(preset) if preset else _make_plan(asked, links, scale, **common)
        if unshaped:
            plan = [dataclasses.replace(series, bandwidths_gbit=(None,)) for series in plan]
        _check_systems(plan)
        check_file(out)
        return measure_in_lab(
            "undertow bench",
            functools.partial(run_bench, plan),
            lambda results: show_results(results, out),
            is_unshaped=unshaped,
        )
    raise AssertionError("one_line_errors ends the command")


def _make_plan(
    asked: Iterable[tuple[str, int]], links: Sequence[float], scale: float | None, **common: Any
) -> list[Series]:
    """One series for each model on each number of hosts."""
    plan = [
        Series(model=model, hosts=hosts, bandwidths_gbit=tuple(links), scale=choose_scale(model, scale), **common)
        for model, hosts in asked
    ]
    if not plan:
        raise ConfigError("nothing to measure: --model and --hosts need at least one value each")
    return plan


def _compare(files: Sequence[str]) -> int:
    if len(files) != 2:
        raise ConfigError("--compare needs two files: the older one and the newer one")
    before, after = (read_results(Path(name)) for name in files)
    open_console().print(make_comparison_table(compare(before, after), notes=list_differences(before, after)))
    return 0


def _show_list() -> int:
    print("replayed models (published times and sizes):")
    for name, model in MODELS.items():
        print(f"  {name:<18} {model.parameters / 1e6:6.1f} M parameters, {model.iteration_s * 1e3:4.0f} ms per step")
    print(f"really trained on the CPU: {', '.join(REAL_NAMES)}")
    print("systems:")
    for name in list_systems():
        print(f"  {name:<22} {_describe_system(name)}")
    return 0


def _describe_system(name: str) -> str:
    try:
        system = find_system(name)
    except ConfigError as error:  # another package's
        return str(error)
    obstacle = system.find_obstacle()
    return f"{system.about} ({obstacle})" if obstacle else system.about


def choose_scale(model: str, given: float | None) -> float:
    """Small enough for any machine, unless the user knows better."""
    return given if given is not None else 1.0 if model in REAL_NAMES else 10.0


def _check_systems(plan: Sequence[Series]) -> None:
    for name in dict.fromkeys(name for series in plan for name in series.systems):
        if obstacle := find_system(name).find_obstacle():
            raise ConfigError(f"system {name!r} cannot run here: {obstacle}")
