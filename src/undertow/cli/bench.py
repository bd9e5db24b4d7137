"""`undertow bench`: measures or compares what the command line describes, and shows the results."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from undertow.cli import options
from undertow.cli.errors import one_line_errors
from undertow.cli.measuring import measure_in_lab
from undertow.cli.options import option
from undertow.cli.progress import open_console
from undertow.cli.results import check_file, read_counts, show_results, split_names
from undertow.errors import ConfigError
from undertow.observe.report.compare import compare, list_differences, make_comparison_table
from undertow.observe.report.points import read_results
from undertow.tools.lab.bench.bench import find_preset, run_bench
from undertow.tools.lab.bench.series import Series
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.systems import find_system, list_systems
from undertow.tools.zoo import MODELS
from undertow.units import GIGA, format_count, format_ms, parse_bandwidths

_Files = Annotated[
    list[str] | None,
    typer.Argument(help="Compare the older file A with the newer file B, with --compare.", metavar="[A B]"),
]
_Models = Annotated[str, option("--model NAME,...", "Measure these models; --list shows their names.")]
_Hosts = Annotated[str, option("--hosts N,...", "Emulate this many hosts, such as 4 or 2,4,8.")]
_Systems = Annotated[str, option("--systems NAME,...", "Compare these systems; --list shows their names.")]
_Preset = Annotated[
    str | None, option("--preset NAME", "Use a preset instead of the options above: quick (3 min) or papers (30 min).")
]
_Compare = Annotated[bool, option("--compare", "Show which points became faster or slower from file A to file B.")]
_List = Annotated[bool, option("--list", "List the models and systems.")]


def bench(
    files: _Files = None,
    model: _Models = "resnet50",
    hosts: _Hosts = "4",
    bandwidth: options.LinkSpeeds = "1,2,4,5,10,15,20,40gbit",
    scale: options.Scale = None,
    slowdown: options.Slowdown = 1.0,
    systems: _Systems = "ddp,undertow",
    batch: options.ZooBatch = None,
    rounds: options.Rounds = 4,
    lap: options.Lap = 3.0,
    preset: _Preset = None,
    out: options.ResultsFile = None,
    unshaped: options.Unshaped = False,
    is_comparison: _Compare = False,
    wants_list: _List = False,
    debug: options.Debug = False,
) -> int:
    """Measure undertow and torch DDP on emulated hosts, and compare them.

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


def _make_plan(
    asked: Iterable[tuple[str, int]], links: Sequence[float], scale: float | None, **common: Any
) -> list[Series]:
    """Make one series for each model on each number of hosts."""
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
    print("replayed models (with their published times and sizes):")
    for name, model in MODELS.items():
        parameters, step = format_count(model.parameters), format_ms(model.iteration_s)
        print(f"  {name:<18} {parameters:>8} parameters, {step:>7} per step")
    print(f"models that really train on the CPU: {', '.join(REAL_NAMES)}")
    print("systems:")
    for name in list_systems():
        print(f"  {name:<22} {_describe_system(name)}")
    return 0


def _describe_system(name: str) -> str:
    try:
        system = find_system(name)
    except ConfigError as error:  # a system of another package
        return str(error)
    obstacle = system.find_obstacle()
    return f"{system.about} ({obstacle})" if obstacle else system.about


def choose_scale(model: str, given: float | None) -> float:
    """Return the scale that was given, else one that any machine is fast enough for."""
    return given if given is not None else 1.0 if model in REAL_NAMES else 10.0


def _check_systems(plan: Sequence[Series]) -> None:
    for name in dict.fromkeys(name for series in plan for name in series.systems):
        if obstacle := find_system(name).find_obstacle():
            raise ConfigError(f"system {name!r} cannot run here: {obstacle}")
