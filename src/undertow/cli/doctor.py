"""`undertow doctor`: checks whether training would work on this host, and between several hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import Debug, number_option
from undertow.cli.progress import WIDE, open_console, open_progress
from undertow.errors import UndertowError
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import Job
from undertow.launch.launcher_output import print_log_records, say
from undertow.tools.doctor.findings import exit_code
from undertow.tools.doctor.job_check import examine_job
from undertow.tools.doctor.request import DoctorRequest, examine
from undertow.tools.doctor.view import show, to_json


def doctor(
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            help="Examine these hosts, given by name or address; start the same command on each.",
            metavar="HOST,...",
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        number_option(
            "--node-rank",
            bounds=bounds.NODE_RANK,
            help="Set this host's position in --hosts, from 0. Default: found by its names and addresses.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        number_option(
            "--port",
            bounds=bounds.PORT,
            help="Meet at this port of the first host. Default: MASTER_PORT, else 29500.",
            metavar="PORT",
        ),
    ] = None,
    nproc: Annotated[
        int,
        number_option("-n", "--nproc-per-node", bounds=bounds.WORKERS_PER_HOST, help="Check for N workers per host."),
    ] = 1,
    timeout: Annotated[
        float,
        number_option(
            "--timeout", bounds=bounds.DOCTOR_WAIT_S, help="Wait S seconds for the other hosts.", metavar="S"
        ),
    ] = 60.0,
    seconds: Annotated[
        float,
        number_option(
            "--seconds",
            bounds=bounds.PROBE_S,
            help="Measure the bandwidth of each pair of hosts for S seconds each way.",
            metavar="S",
        ),
    ] = 0.5,
    every_setting: Annotated[
        bool, typer.Option("--all", "-v", help="Show all settings, not only those that differ from their defaults.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
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
            say("undertow doctor: interrupted")
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
