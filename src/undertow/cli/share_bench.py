"""`undertow share bench`: measures what the command line describes, and shows the results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.bench import choose_scale
from undertow.cli.errors import one_line_errors
from undertow.cli.measuring import measure_in_lab
from undertow.cli.options import Debug, Lap, Rounds, Scale, Unshaped, Urgent, Weights, number_option
from undertow.cli.progress import open_console
from undertow.cli.results import check_file, split_list
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.observe.report.points import write_results
from undertow.observe.report.safe_text import Text
from undertow.tools.lab.sharing.bench import run_share_bench
from undertow.tools.lab.sharing.plan import Job, Mode, SharePlan
from undertow.tools.lab.sharing.results import ShareResults, make_share_table
from undertow.units import GIGA, parse_bandwidths, parse_numbers


def bench(
    jobs: Annotated[
        str,
        typer.Option("--jobs", help="Train these models together; a model may be named twice.", metavar="MODEL,..."),
    ] = "resnet50,resnet50",
    hosts: Annotated[int, number_option("--hosts", bounds=bounds.LAB_HOSTS, help="Emulate N hosts.")] = 4,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth",
            help="Limit every link to these speeds, before scaling, such as 1,2gbit.",
            metavar="SPEED,...",
        ),
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(
            "--ratio",
            help="Choose links on which the first job, alone and in plain mode, waits for this fraction of its "
            "computing time, such as 0.2,0.5,1. Default: 0.5.",
            metavar="RATIO,...",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="Overlap none of a job's communication with its computing (plain), or all (everything).",
            metavar="MODE",
        ),
    ] = "plain",
    weights: Weights = None,
    urgent: Urgent = None,
    scale: Scale = None,
    slowdown: Annotated[
        float,
        number_option(
            "--slowdown",
            bounds=bounds.SCALE,
            help="Slow devices and links down by this factor, so that a small machine can emulate more hosts.",
            metavar="FACTOR",
        ),
    ] = 1.0,
    rounds: Rounds = 4,
    lap: Lap = 6.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the results as JSON to this file.", metavar="FILE.json")
    ] = None,
    unshaped: Unshaped = False,
    debug: Debug = False,
) -> int:
    """Measure what sharing devices gains: jobs one after another, together, and taking turns.

    Example: sudo undertow share bench --jobs resnet50,vgg19 --ratio 0.5 --out share.json

    Example: sudo undertow share bench --jobs resnet50,resnet50 --bandwidth 2gbit --mode everything --urgent 0
    """
    with one_line_errors("undertow share bench", debug=debug):
        models = split_list(jobs)
        plan = SharePlan(
            jobs=_make_jobs(models, weights, urgent),
            mode=_read_mode(mode),
            hosts=hosts,
            bandwidths_gbit=_read_bandwidths(bandwidth, ratio, is_unshaped=unshaped),
            ratios=_read_ratios(bandwidth, ratio, is_unshaped=unshaped),
            scale=choose_scale(models[0] if models else "", scale),
            slowdown=slowdown,
            rounds=rounds,
            lap_s=lap,
        )
        check_file(out)
        return measure_in_lab(
            "undertow share bench",
            functools.partial(run_share_bench, plan),
            lambda results: _show(results, out),
            is_unshaped=unshaped,
        )


def _make_jobs(models: list[str], weights: str | None, urgent: int | None) -> tuple[Job, ...]:
    counts = parse_numbers(weights, "--weights", bounds.WEIGHT) if weights is not None else (1.0,) * len(models)
    if len(counts) != len(models):
        raise ConfigError(f"--weights has {len(counts)} numbers and --jobs {len(models)} models: give one for each job")
    if urgent is not None and not 0 <= urgent < len(models):
        raise ConfigError(f"--urgent {urgent}: the jobs are 0 to {len(models) - 1}")
    return tuple(
        Job(model=model, weight=weight, is_urgent=number == urgent)
        for number, (model, weight) in enumerate(zip(models, counts, strict=True))
    )


def _read_mode(text: str) -> Mode:
    try:
        return Mode[text.upper()]
    except KeyError:
        raise ConfigError(f"--mode {text!r} is not known: use plain or everything") from None


def _read_bandwidths(bandwidth: str | None, ratio: str | None, *, is_unshaped: bool) -> tuple[float | None, ...]:
    if is_unshaped and (bandwidth, ratio) != (None, None):
        raise ConfigError("--unshaped limits no link: leave --bandwidth and --ratio out")
    if is_unshaped:
        return (None,)
    return tuple(rate / GIGA for rate in parse_bandwidths(bandwidth, "--bandwidth")) if bandwidth is not None else ()


def _read_ratios(bandwidth: str | None, ratio: str | None, *, is_unshaped: bool) -> tuple[float, ...]:
    if is_unshaped or (bandwidth is not None and ratio is None):
        return ()
    return parse_numbers("0.5" if ratio is None else ratio, "--ratio", bounds.RATIO)


def _show(results: ShareResults, out: Path | None) -> None:
    console = open_console()
    for case in results.cases:
        console.print(make_share_table(case))
    for note in results.notes:
        console.print(Text(note))
    if out is not None and results.cases:
        write_results(results, out)
        notify(f"written: {out}")
