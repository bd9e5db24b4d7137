"""`undertow lab`: a cluster of emulated hosts on this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli import options
from undertow.cli.errors import FAILED_RUN, one_line_errors, show_help
from undertow.cli.options import option
from undertow.cli.progress import open_progress
from undertow.launch.job import read_job_settings
from undertow.launch.worker_environment import WorkerOptions
from undertow.tools.lab.isolation import find_obstacle, run_isolated
from undertow.tools.lab.link_check import measure_link
from undertow.tools.lab.network import open_network
from undertow.tools.lab.runner import LabJob, find_command, run_in_lab
from undertow.units import format_bandwidth, parse_bandwidth

lab = typer.Typer(add_completion=False, rich_markup_mode="rich")


@lab.callback(invoke_without_command=True)
def _lab(context: typer.Context) -> None:
    """Emulate a cluster on this machine: hosts with links of a given speed.

    Example: undertow lab run --hosts 4 --bandwidth 1gbit train.py
    """
    show_help(context)


_Command = Annotated[
    list[str], typer.Argument(help="Run this Python file or command with its arguments.", metavar="CMD")
]
_Hosts = Annotated[int, option("--hosts N", "Emulate N hosts, 1 to 250; each runs CMD once.", bounds=bounds.LAB_HOSTS)]
_Bandwidth = Annotated[
    str | None,
    option(
        "--bandwidth SPEED", "Limit every link to this speed, each way, such as 1gbit or 400mbit. Default: no limit."
    ),
]


# Everything after CMD belongs to CMD.
@lab.command("run", context_settings={"allow_interspersed_args": False})
def run_command(
    command: _Command,
    hosts: _Hosts = 4,
    bandwidth: _Bandwidth = None,
    unshaped: options.Unshaped = False,
    no_check: Annotated[bool, option("--no-check", "Skip measuring the links before CMD starts.")] = False,
    quiet_ranks: options.QuietRanks = False,
    trace: options.TraceFolder = None,
    trace_steps: options.TraceSteps = None,
    live: options.Live = False,
    live_port: options.LivePort = None,
    debug: options.Debug = False,
) -> int:
    """Run CMD on every host of an emulated cluster, like `undertow run` on real hosts.

    Every host has its own addresses, ports, loopback and name (host0, host1, ...), and one worker; all hosts share
    the file system. OMP_NUM_THREADS is 1 on each host, unless you set it. The hosts are removed at the end.

    Example: undertow lab run --hosts 4 --bandwidth 1gbit train.py --epochs 3

    Example, any command: undertow lab run --hosts 2 -- ip address
    """
    with one_line_errors("undertow lab run", debug=debug):
        environ = {**os.environ, **WorkerOptions(trace=trace, trace_steps=trace_steps).to_environment()}
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
        return run_in_lab(job, environ, open_progress)


@lab.command("check")
def check_machine(debug: options.Debug = False) -> int:
    """Check whether hosts can be emulated on this machine, and measure how fast a link can be.

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
