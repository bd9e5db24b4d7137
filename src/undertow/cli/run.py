"""`undertow run`: turns the command line into a `Job` and launches it."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence

import typer

from undertow.cli import options, run_options
from undertow.cli.errors import one_line_errors
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import Job, choose_master, read_job_settings
from undertow.launch.launcher import launch
from undertow.launch.launcher_output import notify
from undertow.launch.worker_environment import SharingOptions, WorkerOptions
from undertow.observe.live.opening import open_view
from undertow.runtime.foreign import refuse_hosts

# Options that users write after the script by mistake, where they belong to the script.
_SIZES = {"-n": "nproc", "--nproc-per-node": "nproc", "--nnodes": "nnodes", "--node-rank": "node_rank"}


def run(
    context: typer.Context,
    script: run_options.Script,
    args: options.ScriptArguments = None,
    nproc: run_options.Nproc = 1,
    is_module: run_options.IsModule = False,
    nnodes: run_options.Nnodes = 1,
    node_rank: run_options.NodeRank = 0,
    master_addr: run_options.MasterAddr = None,
    master_port: run_options.MasterPort = None,
    start_timeout: run_options.StartTimeout = None,
    quiet_ranks: options.QuietRanks = False,
    batch: run_options.Batch = None,
    overlap: run_options.Overlap = False,
    seed_per_rank: run_options.SeedPerRank = False,
    plain: run_options.Plain = None,
    ddp: run_options.Ddp = None,
    horovod: run_options.Horovod = None,
    trace: options.TraceFolder = None,
    trace_steps: options.TraceSteps = None,
    shares: run_options.Share = False,
    weight: run_options.Weight = None,
    urgent: run_options.Urgent = False,
    share_name: run_options.ShareName = None,
    check: run_options.Check = False,
    live: options.Live = False,
    live_port: options.LivePort = None,
    debug: options.Debug = False,
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
        workers = WorkerOptions(
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
        environ |= workers.to_environment()
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
        _check_sizes(job, context)
        return launch(job, environ, open_view, lambda assignment: _check(job, assignment, environ))


def _check_sizes(job: Job, context: typer.Context) -> None:
    """Refuse a foreign launcher's other hosts, and notify of sizes that were given after the script."""
    sources = {name: context.get_parameter_source(name) for name in _SIZES.values()}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if "nnodes" not in given:
        refuse_hosts(os.environ, script=job.script, nproc=job.nproc if "nproc" in given else None)
    if misplaced := find_misplaced(job.args, given):
        started = "1 worker is" if job.nproc == 1 else f"{job.nproc} workers are"
        notify(
            f"{misplaced} after the script belongs to the script; {started} started. "
            f"Put it before {job.script} if you meant undertow's"
        )


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
