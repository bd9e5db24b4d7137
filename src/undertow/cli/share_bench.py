"""`undertow share bench`: measures what the command line describes, and shows the results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

from undertow import bounds
from undertow.cli import options
from undertow.cli.bench import choose_scale
from undertow.cli.errors import one_line_errors
from undertow.cli.measuring import measure_in_lab
from undertow.cli.options import option
from undertow.cli.progress import open_console
from undertow.cli.results import check_file, read_terms, split_list
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.observe.report.points import write_results
from undertow.observe.report.safe_text import Text
from undertow.tools.lab.sharing.bench import run_share_bench
from undertow.tools.lab.sharing.plan import Job, Mode, SharePlan
from undertow.tools.lab.sharing.results import ShareResults, make_share_table
from undertow.units import GIGA, parse_bandwidths, parse_numbers

_Jobs = Annotated[str, option("--jobs MODEL,...", "Train these models together; a model may be named twice.")]
_Bandwidth = Annotated[
    str | None, option("--bandwidth SPEED,...", "Limit every link to these speeds, before scaling, such as 1,2gbit.")
]
_Ratio = Annotated[
    str | None,
    option(
        "--ratio RATIO,...",
        "Choose links on which the first job, alone and in plain mode, waits for this fraction of its "
        "computing time, such as 0.2,0.5,1. Default: 0.5.",
    ),
]
_Mode = Annotated[
    str, option("--mode MODE", "Overlap none of a job's communication with its computing (plain), or all (everything).")
]
_Out = Annotated[Path | None, option("--out FILE.json", "Write the results as JSON to this file.")]


def bench(
    jobs: _Jobs = "resnet50,resnet50",
    hosts: Annotated[int, option("--hosts N", "Emulate N hosts.", bounds=bounds.LAB_HOSTS)] = 4,
    bandwidth: _Bandwidth = None,
    ratio: _Ratio = None,
    mode: _Mode = "plain",
    weights: options.Weights = None,
    urgent: options.Urgent = None,
    scale: options.Scale = None,
    slowdown: options.Slowdown = 1.0,
    rounds: options.Rounds = 4,
    lap: options.Lap = 6.0,
    out: _Out = None,
    unshaped: options.Unshaped = False,
    debug: options.Debug = False,
) -> int:
    """Measure what sharing devices gains: jobs one after another, together, and taking turns.

    Example: sudo undertow share bench --jobs resnet50,vgg19 --ratio 0.5 --out share.json

    Example: sudo undertow share bench --jobs resnet50,resnet50 --bandwidth 2gbit --mode everything --urgent 0
    """
    with one_line_errors("undertow share bench", debug=debug):
        models = split_list(jobs)
        terms = read_terms(weights, urgent, models)
        bandwidths_gbit, ratios = _read_links(bandwidth, ratio, is_unshaped=unshaped)
        plan = SharePlan(
            jobs=tuple(
                Job(model=model, weight=weight, is_urgent=is_urgent)
                for model, (weight, is_urgent) in zip(models, terms, strict=True)
            ),
            mode=_read_mode(mode),
            hosts=hosts,
            bandwidths_gbit=bandwidths_gbit,
            ratios=ratios,
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


def _read_mode(text: str) -> Mode:
    try:
        return Mode[text.upper()]
    except KeyError:
        raise ConfigError(f"--mode {text!r} is not known: use plain or everything") from None


def _read_links(
    bandwidth: str | None, ratio: str | None, *, is_unshaped: bool
) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """Return the bandwidths in Gbit/s, and the ratios for which bandwidths are still to be chosen."""
    if is_unshaped:
        if (bandwidth, ratio) != (None, None):
            raise ConfigError("--unshaped limits no link: leave --bandwidth and --ratio out")
        return (None,), ()
    if (bandwidth, ratio) == (None, None):
        ratio = "0.5"
    links = () if bandwidth is None else tuple(rate / GIGA for rate in parse_bandwidths(bandwidth, "--bandwidth"))
    return links, () if ratio is None else parse_numbers(ratio, "--ratio", bounds.RATIO)


def _show(results: ShareResults, out: Path | None) -> None:
    console = open_console()
    for case in results.cases:
        console.print(make_share_table(case))
    for note in results.notes:
        console.print(Text(note))
    if out is not None and results.cases:
        write_results(results, out)
        notify(f"written: {out}")
