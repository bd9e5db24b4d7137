"""`undertow doctor`: checks whether training would work on this host, and between several hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Annotated

from rich.console import Console

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import Debug, option
from undertow.cli.progress import WIDE, open_console, open_progress
from undertow.errors import UndertowError
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import Job
from undertow.launch.launcher_output import print_lines, print_log_records
from undertow.tools.doctor.findings import exit_code
from undertow.tools.doctor.job_check import examine_job
from undertow.tools.doctor.request import DoctorRequest, examine
from undertow.tools.doctor.view import show, to_json

_Hosts = Annotated[
    str | None,
    option("--hosts HOST,...", "Examine these hosts, given by name or address; start the same command on each."),
]
_NodeRank = Annotated[
    int | None,
    option(
        "--node-rank N",
        "Set this host's position in --hosts, from 0. Default: found by its names and addresses.",
        bounds=bounds.NODE_RANK,
    ),
]
_Port = Annotated[
    int | None,
    option("--port PORT", "Meet at this port of the first host. Default: MASTER_PORT, else 29500.", bounds=bounds.PORT),
]
_Nproc = Annotated[
    int, option("-n --nproc-per-node N", "Check for N workers per host.", bounds=bounds.WORKERS_PER_HOST)
]
_Timeout = Annotated[float, option("--timeout S", "Wait S seconds for the other hosts.", bounds=bounds.DOCTOR_WAIT_S)]
_Seconds = Annotated[
    float,
    option("--seconds S", "Measure the bandwidth of each pair of hosts for S seconds each way.", bounds=bounds.PROBE_S),
]
_All = Annotated[bool, option("--all -v", "Show all settings, not only those that differ from their defaults.")]


def doctor(
    hosts: _Hosts = None,
    node_rank: _NodeRank = None,
    port: _Port = None,
    nproc: _Nproc = 1,
    timeout: _Timeout = 60.0,
    seconds: _Seconds = 0.5,
    every_setting: _All = False,
    as_json: Annotated[bool, option("--json", "Print facts and findings as JSON.")] = False,
    debug: Debug = False,
) -> int:
    """Check whether training would work, and if not, what to do; exit with 1 if it would fail.

    Checks Python, torch, packages, interfaces, ports, cores, files and settings; with --hosts, also the links
    between the hosts: firewall, latency, bandwidth, clocks, MTU. Changes nothing.

    Example, this host: undertow doctor -n 4

    Example, started on each of three hosts: undertow doctor --hosts 10.0.0.1,10.0.0.2,10.0.0.3
    """
    with one_line_errors("undertow doctor", debug=debug):
        request = DoctorRequest(
            hosts=hosts, node_rank=node_rank, port=port, nproc=nproc, timeout_s=timeout, duration_s=seconds
        )
        print_log_records()
        try:
            with open_progress() as progress:
                report = examine(request, os.environ, progress)
        except KeyboardInterrupt:
            print_lines("undertow doctor: interrupted")
            return 128 + signal.SIGINT
        if as_json:
            print(to_json(report))
        else:
            show(report, open_console(), every_setting=every_setting)
        return exit_code(report.findings)


def check_job(job: Job, assignment: HostAssignment, environ: Mapping[str, str]) -> None:
    """Check a job for `undertow run --check`; print to stderr, because stdout is the workers', and raise on failure."""
    with open_progress() as progress:
        report = examine_job(job, assignment, (environ, os.environ), progress)
    console = Console(stderr=True)
    show(report, console if console.is_terminal else Console(stderr=True, width=WIDE))
    if exit_code(report.findings):
        raise UndertowError("nothing was started, because --check found a failure; start without --check to try anyway")
