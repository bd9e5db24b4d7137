"""`undertow run`: turns the command line into a `Job` and launches it."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.options import (
    Debug,
    Live,
    LivePort,
    QuietRanks,
    ScriptArguments,
    TraceFolder,
    TraceSteps,
    number_option,
)
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import Job, choose_master, read_job_settings
from undertow.launch.launcher import launch
from undertow.launch.launcher_output import notify
from undertow.launch.worker_environment import OnOff, SharingOptions, WorkerOptions
from undertow.observe.live.opening import open_view
from undertow.runtime.foreign import refuse_hosts
from undertow.settings import Batch, Horovod, PlainScripts

# Options that users write after the script by mistake, where they would be the script's without a warning.
_SIZES = {"-n": "nproc", "--nproc-per-node": "nproc", "--nnodes": "nnodes", "--node-rank": "node_rank"}


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="Run this training script (or module, with -m).", metavar="SCRIPT")],
    args: ScriptArguments = None,
    nproc: Annotated[
        int,
        number_option("-n", "--nproc-per-node", bounds=bounds.WORKERS_PER_HOST, help="Start this many workers here."),
    ] = 1,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="Run SCRIPT as a module, like python -m.")] = False,
    nnodes: Annotated[int, number_option("--nnodes", bounds=bounds.NODES, help="Train on this many hosts.")] = 1,
    node_rank: Annotated[
        int, number_option("--node-rank", bounds=bounds.NODE_RANK, help="Set this host's number, 0 to nnodes - 1.")
    ] = 0,
    master_addr: Annotated[
        str | None,
        typer.Option("--master-addr", help="Set the address of host 0. Default: MASTER_ADDR, else 127.0.0.1."),
    ] = None,
    master_port: Annotated[
        int | None,
        number_option(
            "--master-port",
            bounds=bounds.ANY_PORT,
            help="Set a free port of host 0. Default: MASTER_PORT, else 29500; on a single host any free port.",
        ),
    ] = None,
    start_timeout: Annotated[
        float | None,
        number_option(
            "--start-timeout", bounds=bounds.TIMEOUT_S, help="Wait S seconds for all workers to arrive.", metavar="S"
        ),
    ] = None,
    quiet_ranks: QuietRanks = False,
    batch: Annotated[
        Batch | None,
        typer.Option(
            "--batch",
            help="Keep a single-process script's batch size on each worker (same), or divide the batch among the "
            "workers (split), which gives the results of one process.",
        ),
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Start the next forward pass early, as parallelize() does.")
    ] = False,
    seed_per_rank: Annotated[
        bool,
        typer.Option(
            "--seed-per-rank",
            help="Seed each rank differently, for single-process scripts that draw their own batches.",
        ),
    ] = False,
    plain: Annotated[
        PlainScripts | None,
        typer.Option(
            "--plain",
            help="Treat the script as single-process and hide RANK from it (on), or do not adapt such scripts, so that "
            "each worker trains by itself (off).",
        ),
    ] = None,
    ddp: Annotated[
        OnOff | None, typer.Option("--ddp", help="Replace the script's torch DDP by undertow's (on), or keep it (off).")
    ] = None,
    horovod: Annotated[
        Horovod | None,
        typer.Option(
            "--horovod", help="Import undertow as horovod.torch even if Horovod is installed (on), or never (off)."
        ),
    ] = None,
    trace: TraceFolder = None,
    trace_steps: TraceSteps = None,
    shares: Annotated[
        bool, typer.Option("--share", help="Take turns on the devices with other such jobs; see undertow share.")
    ] = False,
    weight: Annotated[
        float | None,
        number_option(
            "--weight", bounds=bounds.WEIGHT, help="Take this many times an equal share of device time (--share)."
        ),
    ] = None,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Let other jobs compute only while this one waits (--share).")
    ] = False,
    share_name: Annotated[
        str | None, typer.Option("--share-name", help="Name the job (--share). Default: the name of its script.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Examine all hosts first, like undertow doctor; stop if training would fail."),
    ] = False,
    live: Live = False,
    live_port: LivePort = None,
    debug: Debug = False,
) -> int:
    """Start a job's workers on this host, watch them, and end them together.

    Example, 4 workers on this host: undertow run -n 4 train.py --epochs 3

    Example, two hosts: undertow run -n 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    (and on the other host the same with --node-rank 1)

    Example, a script for one process: undertow run -n 4 --batch split train.py

    Example, beside another job: undertow share up; undertow run --share -n 4 train.py
    """
    with one_line_errors("undertow run", debug=debug):
        sharing = SharingOptions(shares=shares, weight=weight, urgent=urgent, name=share_name)
        options = WorkerOptions(
            batch=batch,
            overlap=overlap,
            seed_per_rank=seed_per_rank,
            plain=plain,
            ddp=ddp,
            horovod=horovod,
            trace=trace,
            trace_steps=trace_steps,
        )
        environ = {**os.environ, **sharing.to_environment(script, is_module=is_module, environ=os.environ)}
        environ |= options.to_environment()
        settings = read_job_settings(environ)
        addr, port = choose_master(settings, nnodes=nnodes, addr=master_addr, port=master_port)
        job = Job(
            script=script,
            args=tuple(args or ()),
            is_module=is_module,
            nproc=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=addr,
            master_port=port,
            token=settings.token,
            start_timeout_s=settings.start_timeout_s if start_timeout is None else start_timeout,
            quiet_ranks=quiet_ranks,
            is_checked=check,
            live=live,
            live_port=live_port,
        )
        sources = {name: context.get_parameter_source(name) for name in _SIZES.values()}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        if "nnodes" not in given:
            refuse_hosts(os.environ, script=script, nproc=nproc if "nproc" in given else None)
        if misplaced := find_misplaced(job.args, given):
            started = "1 worker is" if nproc == 1 else f"{nproc} workers are"
            words = f"{misplaced} after the script belongs to the script; {started} started"
            notify(f"{words}. Put it before {script} if you meant undertow's")
        return launch(job, environ, open_view, lambda assignment: _check(job, assignment, environ))


def _check(job: Job, assignment: HostAssignment, environ: Mapping[str, str]) -> None:
    from undertow.cli.doctor import check_job  # imported only with --check, because it takes time

    check_job(job, assignment, environ)


def find_misplaced(args: Sequence[str], given: Container[str]) -> str | None:
    """Return the first of the script's arguments that looks like one of `_SIZES`, unless that one was given as well."""
    for arg in args:
        option = re.sub(r"^-n\d+$", "-n", arg.partition("=")[0])
        name = _SIZES.get(option.replace("_", "-"))
        if name and name not in given:
            return option
    return None
