"""`undertow bottleneck`: calculates whether the network is the bottleneck, and shows every step of the calculation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from rich.table import Table

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import Debug, option
from undertow.cli.progress import open_console
from undertow.errors import ConfigError
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import Justify, fill_table
from undertow.plain_text import clean_json
from undertow.plan.bottleneck import Bottleneck, Grade, NetworkVerdict, Throughput, Workload, find_bottleneck
from undertow.tools.zoo import find_model
from undertow.units import format_bandwidth, format_count, format_ms_figure, format_share, parse_count, parse_time

_Params = Annotated[str | None, option("--params COUNT", "Set the number of parameters, such as 61.5M, 143e6 or 1.2B.")]
_Iteration = Annotated[
    str | None, option("--iteration TIME", "Set the computing time of one iteration, such as 0.25s or 250ms.")
]
_Model = Annotated[
    str | None,
    option("--model NAME", "Use the parameters of a model of the zoo and, without --iteration, its published time."),
]
_Hosts = Annotated[
    int, option("--hosts N", "Set the number of hosts, with one worker and one shard each.", bounds=bounds.PEERS)
]
_BytesPerParam = Annotated[
    int, option("--bytes-per-param N", "Send N bytes per parameter: 4 for float32.", bounds=bounds.NUMBER_BYTES)
]


def bottleneck(
    params: _Params = None,
    iteration: _Iteration = None,
    model: _Model = None,
    hosts: _Hosts = 4,
    bytes_per_param: _BytesPerParam = 4,
    is_json: Annotated[bool, option("--json", "Print JSON instead of text and a table.")] = False,
    debug: Debug = False,
) -> int:
    """Calculate step by step what the network must carry, and which Ethernet is fast enough.

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


def _read_job(
    params: str | None, iteration: str | None, model: str | None, *, hosts: int, bytes_per_param: int
) -> Workload:
    iteration_s = None if iteration is None else parse_time(iteration, "--iteration")
    if model is not None and params is None:
        known = find_model(model)
        count, iteration_s = float(known.parameters), iteration_s or known.iteration_s
    elif params is not None and iteration_s is not None and model is None:
        count = parse_count(params, "--params")
    else:
        raise ConfigError("give --params and --iteration, or --model with the name of a model")
    return Workload(params=count, iteration_s=iteration_s, hosts=hosts, bytes_per_param=bytes_per_param)


def explain(found: Bottleneck) -> str:
    """Return the formula with its numbers, one line for each direction of the traffic."""
    job = found.job
    made, remote = format_count(found.made.floats_per_s), f"{job.hosts - 1}/{job.hosts}"
    lines = (
        f"{format_count(job.params)} parameters of {job.bytes_per_param} bytes, {job.iteration_s:.4g} s of compute per "
        f"iteration, {job.hosts} hosts with a worker and 1/{job.hosts} of the parameters each",
        "",
        f"a worker makes   {format_count(job.params)} / {job.iteration_s:.4g} s = {made} floats/s of gradients",
        f"out of a host    2 x {remote} x {made} = {_show(found.outgoing)}",
        f"                 {remote} of its gradients to the other shards, and as much again: the answers of its own",
        f"                 shard, which has 1/{job.hosts} of the parameters, to {_count_others(job.hosts)}",
        f"into a host      2 x {remote} x {made} = {_show(found.incoming)}",
        "                 the same in reverse: other workers' gradients for its shard, and other shards' answers",
        f"both together    4 x {remote} x {made} = {_show(found.both)}",
        "                 as Poseidon (ATC 2017) counts: its example, AlexNet on 8 machines, has 26 Gbit/s, because it",
        "                 rounds 246 M down to 240 M",
        "",
        "Ethernet carries both directions at once, so a link is fast enough if it carries at least "
        f"{format_bandwidth(found.outgoing.bits_per_s)} each way.",
        _conclude(found.grades),
        "",
    )
    return "\n".join(lines)


def _conclude(grades: tuple[Grade, ...]) -> str:
    enough = [grade for grade in grades if grade.verdict is not NetworkVerdict.LIMIT]
    if not enough:
        return f"Even {_name(grades[-1])} is too slow: only sending fewer bytes helps (see `undertow plan`)."
    if len(enough) == len(grades):
        return f"Even with {_name(enough[0])} the network can be hidden."
    slower = grades[len(grades) - len(enough) - 1]
    return f"Up to {_name(slower)} the network is the limit; from {_name(enough[0])} on it can be hidden."


_COLUMNS: tuple[tuple[str, Justify, Callable[[Grade], str]], ...] = (
    ("Ethernet", "right", lambda grade: _name(grade)),
    ("carries, floats/s", "right", lambda grade: format_count(grade.floats_per_s)),
    ("each way, ms", "right", lambda grade: format_ms_figure(grade.transfer_s)),
    ("of iteration", "right", lambda grade: format_share(grade.share)),
    ("serial", "right", lambda grade: f"{grade.serial:.2f} x"),
    ("overlapped", "right", lambda grade: f"{grade.bound:.2f} x"),
    ("the network is", "left", lambda grade: grade.verdict.value),
)


def make_grade_table(found: Bottleneck) -> Table:
    """Make a table with one row for each grade of Ethernet, and the meaning of the columns below."""
    return fill_table(
        "",
        "each way: time for one iteration's gradients and answers at the nominal rate; headers add 4 %\n"
        "serial: iteration as a multiple of compute, if communication starts when compute has ended\n"
        "overlapped: iteration as a multiple of compute at best, as long as gradients are sent whole\n"
        "hidden: communication is shorter than the backward pass, which is two thirds of compute",
        _COLUMNS,
        found.grades,
        lambda grade: "" if grade.verdict is NetworkVerdict.HIDDEN else "yellow" if grade.bound == 1 else "red",
    )


def _show(flow: Throughput) -> str:
    return f"{format_count(flow.floats_per_s)} floats/s = {format_bandwidth(flow.bits_per_s)}"


def _name(grade: Grade) -> str:
    return format_bandwidth(grade.gbit_per_s * 1e9)


def _count_others(hosts: int) -> str:
    return "the other worker" if hosts == 2 else f"each of the {hosts - 1} other workers"
