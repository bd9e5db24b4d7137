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
    SHARING,
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

# Options that users write after the script by mistake, where they belong to the script.
_SIZES = {"-n": "nproc", "--nproc-per-node": "nproc", "--nnodes": "nnodes", "--node-rank": "node_rank"}
# Panels of the help, beside those in options.py.
_HOSTS = "Hosts and workers"
_SCRIPTS = "Scripts that were not written for undertow"


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="Run this training script (or module, with -m).", metavar="SCRIPT")],
    args: ScriptArguments = None,
    nproc: Annotated[
        int,
        number_option(
            "-n", "--nproc-per-node", bounds=bounds.WORKERS_PER_HOST, help="Start N workers on this host.", panel=_HOSTS
        ),
    ] = 1,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="Run SCRIPT as a module, like python -m.")] = False,
    nnodes: Annotated[int, number_option("--nnodes", bounds=bounds.NODES, help="Train on N hosts.", panel=_HOSTS)] = 1,
    node_rank: Annotated[
        int,
        number_option(
            "--node-rank", bounds=bounds.NODE_RANK, help="Set this host's number, from 0 to nnodes - 1.", panel=_HOSTS
        ),
    ] = 0,
    master_addr: Annotated[
        str | None,
        typer.Option(
            "--master-addr",
            help="Set the address of host 0. Default: MASTER_ADDR, else 127.0.0.1.",
            metavar="ADDRESS",
            rich_help_panel=_HOSTS,
        ),
    ] = None,
    master_port: Annotated[
        int | None,
        number_option(
            "--master-port",
            bounds=bounds.ANY_PORT,
            help="Use this free port of host 0. Default: MASTER_PORT, else 29500; on a single host, any free port.",
            metavar="PORT",
            panel=_HOSTS,
        ),
    ] = None,
    start_timeout: Annotated[
        float | None,
        number_option(
            "--start-timeout",
            bounds=bounds.TIMEOUT_S,
            help="Wait S seconds for all workers to start. Default: UNDERTOW_START_TIMEOUT, else 120.",
            metavar="S",
            panel=_HOSTS,
        ),
    ] = None,
    quiet_ranks: QuietRanks = False,
    batch: Annotated[
        Batch | None,
        typer.Option(
            "--batch",
            help="Keep a single-process script's batch size on each worker (same, the default), or divide each batch "
            "among the workers (split), which gives the results of one process.",
            rich_help_panel=_SCRIPTS,
        ),
    ] = None,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap",
            help="Start the next forward pass before all gradients have arrived, as parallelize() does.",
            rich_help_panel=_SCRIPTS,
        ),
    ] = False,
    seed_per_rank: Annotated[
        bool,
        typer.Option(
            "--seed-per-rank",
            help="Seed each rank differently, for single-process scripts that draw random batches on their own.",
            rich_help_panel=_SCRIPTS,
        ),
    ] = False,
    plain: Annotated[
        PlainScripts | None,
        typer.Option(
            "--plain",
            help="Train single-process scripts on all workers (auto, the default), also hide RANK from them (on), or "
            "let each worker run them independently (off).",
            rich_help_panel=_SCRIPTS,
        ),
    ] = None,
    ddp: Annotated[
        OnOff | None,
        typer.Option(
            "--ddp",
            help="Replace torch's DistributedDataParallel with undertow's (on, the default), or keep it (off).",
            rich_help_panel=_SCRIPTS,
        ),
    ] = None,
    horovod: Annotated[
        Horovod | None,
        typer.Option(
            "--horovod",
            help="Import undertow as horovod.torch unless Horovod is installed (auto, the default), always (on) or "
            "never (off).",
            rich_help_panel=_SCRIPTS,
        ),
    ] = None,
    trace: TraceFolder = None,
    trace_steps: TraceSteps = None,
    shares: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Take turns on the devices with other jobs that use --share; see undertow share.",
            rich_help_panel=SHARING,
        ),
    ] = False,
    weight: Annotated[
        float | None,
        number_option(
            "--weight",
            bounds=bounds.WEIGHT,
            help="Take W times an equal share of device time, with --share. Default: 1.",
            metavar="W",
            panel=SHARING,
        ),
    ] = None,
    urgent: Annotated[
        bool,
        typer.Option(
            "--urgent", help="Let other jobs compute only while this one waits, with --share.", rich_help_panel=SHARING
        ),
    ] = False,
    share_name: Annotated[
        str | None,
        typer.Option(
            "--share-name",
            help="Name the job for other jobs, with --share. Default: the name of its script.",
            metavar="NAME",
            rich_help_panel=SHARING,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Examine all hosts first, like undertow doctor, and stop if training would fail."),
    ] = False,
    live: Live = False,
    live_port: LivePort = None,
    debug: Debug = False,
) -> int:
    """Start the workers of a training job on this host, watch them, and end them together.

    Example, 4 workers on this host: undertow run -n 4 train.py --epochs 3

    Example, two hosts: undertow run -n 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    (and the same on the other host with --node-rank 1)

    Example, a single-process script: undertow run -n 4 --batch split train.py

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
            notify(
                f"{misplaced} after the script belongs to the script; {started} started. "
                f"Put it before {script} if you meant undertow's"
            )
        return launch(job, environ, open_view, lambda assignment: _check(job, assignment, environ))


def _check(job: Job, assignment: HostAssignment, environ: Mapping[str, str]) -> None:
    from undertow.cli.doctor import check_job  # imported only with --check, because it takes time

    check_job(job, assignment, environ)


def find_misplaced(args: Sequence[str], given: Container[str]) -> str | None:
    """Return the script's first argument that looks like one of `_SIZES`, unless that option was given as well."""
    for arg in args:
        option = re.sub(r"^-n\d+$", "-n", arg.partition("=")[0])
        name = _SIZES.get(option.replace("_", "-"))
        if name and name not in given:
            return option
    return None
