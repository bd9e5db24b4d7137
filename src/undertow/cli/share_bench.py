"""`undertow share bench`: turns the command line into a plan, runs it, and shows what came out."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.bench import choose_scale
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.measuring import measure_in_lab
from undertow.cli.progress import open_console
from undertow.cli.quantities import parse_numbers
from undertow.cli.results import check_file
from undertow.errors import ConfigError
from undertow.lab.bandwidth import parse_bandwidths
from undertow.lab.sharing.bench import run_share_bench
from undertow.lab.sharing.plan import GIGA, Job, Mode, SharePlan
from undertow.lab.sharing.results import ShareResults, write_share_results
from undertow.lab.sharing.table import make_share_table
from undertow.launch.speech import notify
from undertow.report.safe_text import Text


def bench(
    jobs: Annotated[
        str,
        typer.Option("--jobs", help="Models that share the hosts, with commas between them; the same may come twice."),
    ] = "resnet50,resnet50",
    hosts: Annotated[int, figure("--hosts", bounds=bounds.LAB_HOSTS, help="Number of hosts.")] = 4,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", help="Speeds of every link, such as 1,2gbit, before scaling.")
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(
            "--ratio",
            help="Instead: links on which the first job, plain and alone, waits for so much of its computing time, "
            "such as 0.2,0.5,1. Default 0.5.",
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="plain: a job hides nothing by itself; everything: all that undertow can.")
    ] = "plain",
    weights: Annotated[
        str | None, typer.Option("--weights", help="Of each job how many times an equal share, such as 1,2.")
    ] = None,
    urgent: Annotated[
        int | None,
        figure(
            "--urgent", bounds=bounds.JOB, help="The number of a job, from 0, whose gaps the others fill.", metavar="N"
        ),
    ] = None,
    scale: Annotated[
        float | None,
        figure(
            "--scale", bounds=bounds.SCALE, help="Divide sizes and bandwidths by this. Default 10; 1 for real compute."
        ),
    ] = None,
    slowdown: Annotated[
        float, figure("--slowdown", bounds=bounds.SCALE, help="Let devices and links be so many times slower.")
    ] = 1.0,
    rounds: Annotated[
        int, figure("--rounds", bounds=bounds.ROUNDS, help="How often each arrangement has its lap.")
    ] = 4,
    lap: Annotated[
        float, figure("--lap", bounds=bounds.LAP_S, help="Seconds of one lap, at least four steps.", metavar="S")
    ] = 6.0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the results as JSON.", metavar="FILE.json")] = None,
    unshaped: Annotated[
        bool, typer.Option("--unshaped", help="No emulated hosts, all over loopback: needs no root, shapes nothing.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Measure what sharing devices is worth: jobs one after the other, together, and taking turns.

    Example: sudo undertow share bench --jobs resnet50,vgg19 --ratio 0.5 --out share.json

    Example: sudo undertow share bench --jobs resnet50,resnet50 --bandwidth 2gbit --mode everything --urgent 0
    """
    with one_line_errors("undertow share bench", debug=debug):
        models = _split(jobs)
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
    raise AssertionError("one_line_errors ends the command")


def _split(text: str) -> list[str]:
    """Names with commas between them; the same one may come twice."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _make_jobs(models: list[str], weights: str | None, urgent: int | None) -> tuple[Job, ...]:
    counts = parse_numbers(weights, "--weights", bounds.WEIGHT) if weights is not None else (1.0,) * len(models)
    if len(counts) != len(models):
        raise ConfigError(f"--weights has {len(counts)} numbers and --jobs {len(models)} models: give one for each")
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
        raise ConfigError(f"--mode {text!r} is not known: plain or everything") from None


def _read_bandwidths(bandwidth: str | None, ratio: str | None, *, is_unshaped: bool) -> tuple[float | None, ...]:
    if is_unshaped and (bandwidth, ratio) != (None, None):
        raise ConfigError("--unshaped links have no speed: leave --bandwidth and --ratio out")
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
        write_share_results(results, out)
        notify(f"written: {out}")
