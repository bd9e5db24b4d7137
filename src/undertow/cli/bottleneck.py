"""`undertow bottleneck`: is the network the limit?  An answer that can be checked with a pencil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer
from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import open_console
from undertow.cli.quantities import format_count, parse_count, parse_time
from undertow.errors import ConfigError
from undertow.lab.bandwidth import format_bandwidth
from undertow.plain_text import clean_json
from undertow.plan.bottleneck import Bottleneck, Flow, Grade, Job, Verdict, find_bottleneck
from undertow.report.safe_text import Text
from undertow.report.table import start_table
from undertow.zoo import find_model


def bottleneck(
    params: Annotated[
        str | None, typer.Option("--params", help="How many parameters, such as 61.5M, 143e6 or 1.2B.")
    ] = None,
    iteration: Annotated[
        str | None,
        typer.Option("--iteration", help="Compute of one iteration, such as 0.25s or 250ms."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A model of the zoo instead: its parameters and, without --iteration, its published time."
        ),
    ] = None,
    hosts: Annotated[
        int,
        figure("--hosts", bounds=bounds.PEERS, help="Number of hosts, with one worker and one shard each."),
    ] = 4,
    bytes_per_param: Annotated[
        int,
        figure("--bytes-per-param", bounds=bounds.NUMBER_BYTES, help="Bytes of one number on the wire: 4 for float32."),
    ] = 4,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words and a table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Work out what the network must carry, step by step, and which Ethernet is fast enough.

    Example: undertow bottleneck --params 61.5M --iteration 0.25s --hosts 8

    Example: undertow bottleneck --model vgg19 --hosts 16
    """
    with one_line_errors("undertow bottleneck", debug=debug):
        job = _read_job(params, iteration, model, hosts=hosts, bytes_per_param=bytes_per_param)
        found = find_bottleneck(job)
        if is_json:
            print(clean_json(found.to_json()))
            return 0
        console = open_console()
        console.print(Text(explain(found)))
        console.print(make_grade_table(found))
        return 0
    raise AssertionError("one_line_errors ends the command")


def _read_job(params: str | None, iteration: str | None, model: str | None, *, hosts: int, bytes_per_param: int) -> Job:
    iteration_s = None if iteration is None else parse_time(iteration, "--iteration")
    if model is not None and params is None:
        known = find_model(model)
        count, iteration_s = float(known.parameters), iteration_s or known.iteration_s
    elif params is not None and iteration_s is not None and model is None:
        count = parse_count(params, "--params")
    else:
        raise ConfigError("give --params and --iteration, or --model with the name of a model")
    return Job(params=count, iteration_s=iteration_s, hosts=hosts, bytes_per_param=bytes_per_param)


def explain(found: Bottleneck) -> str:
    """The formula with its numbers, one line for each thing that travels."""
    job = found.job
    made, remote = format_count(found.made.floats_per_s), f"{job.hosts - 1}/{job.hosts}"
    lines = (
        f"{format_count(job.params)} parameters of {job.bytes_per_param} bytes, {job.iteration_s:.4g} s of compute per "
        f"iteration, {job.hosts} hosts with a worker and 1/{job.hosts} of the parameters each",
        "",
        f"a worker makes   {format_count(job.params)} / {job.iteration_s:.4g} s = {made} floats/s of gradients",
        f"out of a host    2 x {remote} x {made} = {_show(found.outgoing)}",
        f"                 {remote} of its gradients to the shards of the others, and as much again: what its own",
        f"                 shard, 1/{job.hosts} of the parameters, answers to {_count_others(job.hosts)}",
        f"into a host      2 x {remote} x {made} = {_show(found.incoming)}",
        "                 the mirror image: the gradients of the others for its shard, and the answers of theirs",
        f"both together    4 x {remote} x {made} = {_show(found.both)}",
        "                 as Poseidon (ATC 2017) counts: its example, AlexNet on 8 machines, comes to 26 Gbit/s, with",
        "                 246 M rounded down to 240",
        "",
        "Ethernet carries both directions at once, so a link is fast enough from "
        f"{format_bandwidth(found.outgoing.bits_per_s)} each way on.",
        _conclude(found.grades),
        "",
    )
    return "\n".join(lines)


def _conclude(grades: tuple[Grade, ...]) -> str:
    """Which of the grades that are sold will do."""
    enough = [grade for grade in grades if grade.verdict is not Verdict.LIMIT]
    if not enough:
        return f"Even {_name(grades[-1])} is the limit: only fewer bytes help (see `undertow plan`)."
    if len(enough) == len(grades):
        return f"Even {_name(enough[0])} can be hidden."
    slower = grades[len(grades) - len(enough) - 1]
    return f"Up to {_name(slower)} the network is the limit; from {_name(enough[0])} on it can be hidden."


_COLUMNS: tuple[tuple[str, Literal["left", "right"], Callable[[Grade], str]], ...] = (
    ("Ethernet", "right", lambda grade: _name(grade)),
    ("carries, floats/s", "right", lambda grade: format_count(grade.floats_per_s)),
    ("each way, ms", "right", lambda grade: _round(grade.transfer_s * 1e3)),
    ("of iteration", "right", lambda grade: f"{_round(grade.share * 100)} %"),
    ("serial", "right", lambda grade: f"{grade.serial:.2f} x"),
    ("overlapped", "right", lambda grade: f"{grade.bound:.2f} x"),
    ("the network is", "left", lambda grade: grade.verdict.value),
)


def make_grade_table(found: Bottleneck) -> Table:
    """One row for each grade of Ethernet, what the columns mean below."""
    table = start_table(
        "",
        "each way: one iteration's gradients and answers at the nominal rate; headers take another 4 %\n"
        "serial: iteration as multiple of compute, if the network waits until compute has ended\n"
        "overlapped: the same at the very best, as long as gradients travel whole\n"
        "hidden: it fits under the backward pass, two thirds of compute",
    )
    for heading, justify, _ in _COLUMNS:
        table.add_column(Text(heading), justify=justify)
    for grade in found.grades:
        style = "" if grade.verdict is Verdict.HIDDEN else "yellow" if grade.bound == 1 else "red"
        table.add_row(*(Text(show(grade), style) for _, _, show in _COLUMNS))
    return table


def _show(flow: Flow) -> str:
    return f"{format_count(flow.floats_per_s)} floats/s = {format_bandwidth(flow.bits_per_s)}"


def _name(grade: Grade) -> str:
    return format_bandwidth(grade.gbit_per_s * 1e9)


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _count_others(hosts: int) -> str:
    return "the other worker" if hosts == 2 else f"each of the {hosts - 1} other workers"
