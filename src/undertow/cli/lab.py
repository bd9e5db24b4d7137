"""`undertow lab`: a cluster of emulated hosts on this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import FAILED_RUN, USAGE_ERROR, one_line_errors
from undertow.cli.figures import figure
from undertow.cli.options import Live, LivePort, TraceFolder, TraceSteps
from undertow.cli.progress import open_watch
from undertow.lab.bandwidth import format_bandwidth, parse_bandwidth
from undertow.lab.isolation import find_obstacle, run_isolated
from undertow.lab.link_check import measure_link
from undertow.lab.network import open_network
from undertow.lab.runner import LabJob, find_command, run_in_lab
from undertow.launch.changes import Changes
from undertow.launch.job import read_job_settings

lab = typer.Typer(add_completion=False, rich_markup_mode="rich")


@lab.callback(invoke_without_command=True)
def _lab(context: typer.Context) -> None:
    """Emulate a cluster on this machine: hosts with links of a given speed.

    Example: undertow lab run --hosts 4 --bandwidth 1gbit train.py
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE_ERROR)


# Everything after the command belongs to the command.
@lab.command("run", context_settings={"allow_interspersed_args": False})
def run_command(
    command: Annotated[
        list[str], typer.Argument(help="A Python file, or a command that is in PATH, and its arguments.", metavar="CMD")
    ],
    hosts: Annotated[
        int, figure("--hosts", bounds=bounds.LAB_HOSTS, help="Number of hosts, 1 to 250; each runs CMD once.")
    ] = 4,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth",
            help="Speed of every link, each way, such as 1gbit or 400mbit; else as fast as this machine can.",
        ),
    ] = None,
    unshaped: Annotated[
        bool, typer.Option("--unshaped", help="No emulated hosts, all over loopback: needs no root, shapes nothing.")
    ] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not measure the links before CMD starts.")] = False,
    quiet_ranks: Annotated[
        bool, typer.Option("--quiet-ranks", help="Show rank 0's output only (and the error of a rank that fails).")
    ] = False,
    trace: TraceFolder = None,
    trace_steps: TraceSteps = None,
    live: Live = False,
    live_port: LivePort = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error of the lab.")] = False,
) -> int:
    """Run CMD on every host of an emulated cluster, as `undertow run` would on real ones.

    Every host has its own addresses, ports, loopback and name (host0, host1, ...), and one worker; the
    file system is shared. OMP_NUM_THREADS is 1 in each, unless you set it. Nothing is left behind.

    Example: undertow lab run --hosts 4 --bandwidth 1gbit train.py --epochs 3

    Example, any command: undertow lab run --hosts 2 -- ip address
    """
    with one_line_errors("undertow lab run", debug=debug):
        environ = {**os.environ, **Changes(trace=trace, trace_steps=trace_steps).to_environment()}
        job = LabJob(
            command=find_command(command, os.environ),
            hosts=hosts,
            rate_bits_per_s=None if bandwidth is None else parse_bandwidth(bandwidth, "--bandwidth"),
            is_unshaped=unshaped,
            is_checked=not no_check,
            start_timeout_s=read_job_settings(environ).start_timeout_s,
            quiet_ranks=quiet_ranks,
            live=live,
            live_port=live_port,
            title=command[0],
        )
        return run_in_lab(job, environ, open_watch)


@lab.command("check")
def check_machine(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error of the lab.")] = False,
) -> int:
    """Can hosts be emulated here, and how fast can a link be?

    Example: sudo undertow lab check
    """
    if obstacle := find_obstacle():
        print(f"no: {obstacle}")
        return FAILED_RUN
    with one_line_errors("undertow lab check", debug=debug):
        return run_isolated(_measure_machine)


def _measure_machine() -> int:
    with open_network(2) as network:
        print("yes: root, ip, tc and namespaces are there, and two hosts came up")
        measured = measure_link(network, (0, 1), duration_s=1.0)
    speed = format_bandwidth(measured.payload_bits_per_s)
    print(f"one link alone carries {speed} on this machine ({os.cpu_count()} cores)")
    return 0
