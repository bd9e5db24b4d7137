"""`undertow doctor`: would training work here, and between these hosts?"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.progress import WIDE, open_console, open_watch
from undertow.doctor.findings import exit_code
from undertow.doctor.job_check import examine_job
from undertow.doctor.request import Request, answer
from undertow.doctor.view import show, to_json
from undertow.errors import UndertowError
from undertow.launch.job import Job
from undertow.launch.nodes import Seat
from undertow.launch.speech import say, speak_for_the_log


def doctor(
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", help="Names or addresses, the first host first; type the same on each.", metavar="A,B"),
    ] = None,
    node_rank: Annotated[
        int | None,
        figure(
            "--node-rank",
            bounds=bounds.NODE_RANK,
            help="Which of --hosts this is, from 0, where its name does not tell.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        figure("--port", bounds=bounds.PORT, help="Where the hosts meet, on the first; else MASTER_PORT, else 29500."),
    ] = None,
    nproc: Annotated[
        int, figure("-n", "--nproc-per-node", bounds=bounds.WORKERS_PER_HOST, help="Workers per host that are planned.")
    ] = 1,
    timeout: Annotated[
        float,
        figure("--timeout", bounds=bounds.DOCTOR_WAIT_S, help="Seconds to wait for the other hosts.", metavar="S"),
    ] = 60.0,
    seconds: Annotated[
        float,
        figure(
            "--seconds", bounds=bounds.PROBE_S, help="Time to measure the bandwidth of a pair, each way.", metavar="S"
        ),
    ] = 0.5,
    every_setting: Annotated[
        bool, typer.Option("--all", "-v", help="Show all settings, not only those that were changed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Would training work? Says what is wrong and what to do; exits with 1 if it would fail.

    Looks at Python, torch, packages, interfaces, ports, cores, files and settings; with --hosts also at the ways
    between the hosts: firewall, latency, bandwidth, clocks, MTU. Changes nothing.

    Example, this host: undertow doctor -n 4

    Example, typed on each of three hosts: undertow doctor --hosts 10.0.0.1,10.0.0.2,10.0.0.3
    """
    with one_line_errors("undertow doctor", debug=debug):
        request = Request(
            hosts=hosts, node_rank=node_rank, port=port, nproc=nproc, timeout_s=timeout, duration_s=seconds
        )
        speak_for_the_log()
        try:
            with open_watch() as watch:
                report = answer(request, os.environ, watch)
        except KeyboardInterrupt:
            say("undertow doctor: interrupted")
            return 128 + signal.SIGINT
        if as_json:
            print(to_json(report))
        else:
            show(report, open_console(), every_setting=every_setting)
        return exit_code(report.findings)


def check_job(job: Job, seat: Seat, environ: Mapping[str, str]) -> None:
    """For `undertow run --check`: on stderr, because stdout is the workers'.  Raises if training would fail."""
    with open_watch() as watch:
        report = examine_job(job, seat, (environ, os.environ), watch)
    console = Console(stderr=True)
    show(report, console if console.is_terminal else Console(stderr=True, width=WIDE))
    if exit_code(report.findings):
        raise UndertowError("nothing was started, because of what --check has found; without it the job would try")
