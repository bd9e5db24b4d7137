"""`undertow run`: turns the command line into a `Job` and launches it."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Annotated

import typer

from undertow import bounds
from undertow.cli.errors import one_line_errors
from undertow.cli.figures import figure
from undertow.cli.options import Live, LivePort, TraceFolder, TraceSteps
from undertow.launch.changes import Changes, Switch
from undertow.launch.foreign import refuse_hosts
from undertow.launch.job import Job, choose_master, read_job_settings
from undertow.launch.launcher import launch
from undertow.launch.nodes import Seat
from undertow.launch.sharing import Wishes
from undertow.launch.speech import notify
from undertow.settings import Batch, Horovod, PlainScripts

# Options that are easily written after the script, where nothing would tell that they were not ours.
_SIZES = {"-n": "nproc", "--nproc-per-node": "nproc", "--nnodes": "nnodes", "--node-rank": "node_rank"}


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script (or module, with -m).", metavar="SCRIPT")],
    args: Annotated[
        list[str] | None, typer.Argument(help="Everything after SCRIPT belongs to the script.", metavar="ARGS")
    ] = None,
    nproc: Annotated[
        int, figure("-n", "--nproc-per-node", bounds=bounds.WORKERS_PER_HOST, help="Workers on this host.")
    ] = 1,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    nnodes: Annotated[int, figure("--nnodes", bounds=bounds.NODES, help="Number of hosts.")] = 1,
    node_rank: Annotated[
        int, figure("--node-rank", bounds=bounds.NODE_RANK, help="This host's number, 0 to nnodes - 1.")
    ] = 0,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", help="Address of host 0; else MASTER_ADDR, else 127.0.0.1.")
    ] = None,
    master_port: Annotated[
        int | None,
        figure(
            "--master-port",
            bounds=bounds.ANY_PORT,
            help="A free port of host 0; else MASTER_PORT, else 29500. One host alone takes any.",
        ),
    ] = None,
    start_timeout: Annotated[
        float | None,
        figure(
            "--start-timeout", bounds=bounds.TIMEOUT_S, help="Seconds to wait for all workers to arrive.", metavar="S"
        ),
    ] = None,
    quiet_ranks: Annotated[
        bool, typer.Option("--quiet-ranks", help="Show rank 0's output only (and the error of a rank that fails).")
    ] = False,
    batch: Annotated[
        Batch | None,
        typer.Option(
            "--batch",
            help="For scripts that know nothing of workers: each one keeps the batch size (same), or all share it "
            "(split): then results are those of one process.",
        ),
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Let the next forward start early: parallelize, for unchanged scripts.")
    ] = False,
    seed_per_rank: Annotated[
        bool,
        typer.Option(
            "--seed-per-rank", help="For single-process scripts that draw their own batches: others per rank."
        ),
    ] = False,
    plain: Annotated[
        PlainScripts | None,
        typer.Option(
            "--plain",
            help="on: it is a single-process script, hide RANK from it; off: leave such scripts alone, each worker "
            "runs one by itself.",
        ),
    ] = None,
    ddp: Annotated[Switch | None, typer.Option("--ddp", help="off: a script's torch DDP stays torch's own.")] = None,
    horovod: Annotated[
        Horovod | None,
        typer.Option("--horovod", help="on: import horovod.torch finds undertow's, also where Horovod is; off: never."),
    ] = None,
    trace: TraceFolder = None,
    trace_steps: TraceSteps = None,
    shares: Annotated[
        bool, typer.Option("--share", help="Take turns on the devices with other jobs that do: see undertow share.")
    ] = False,
    weight: Annotated[
        float | None,
        figure("--weight", bounds=bounds.WEIGHT, help="With --share: how many times an equal share of device time."),
    ] = None,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="With --share: the others fill this job's gaps only.")
    ] = False,
    share_name: Annotated[
        str | None, typer.Option("--share-name", help="With --share: what the job is called; else as its script.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="First examine all hosts, as undertow doctor; no start if it would fail.")
    ] = False,
    live: Live = False,
    live_port: LivePort = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a launcher error.")] = False,
) -> int:
    """Start a job's workers on this host, watch them, and end them together.

    Example, 4 workers here: undertow run -n 4 train.py --epochs 3

    Example, two hosts: undertow run -n 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    (and on the other host the same with --node-rank 1)

    Example, a script for one process: undertow run -n 4 --batch split train.py

    Example, beside another job: undertow share up; undertow run --share -n 4 train.py
    """
    with one_line_errors("undertow run", debug=debug):
        wishes = Wishes(shares=shares, weight=weight, urgent=urgent, name=share_name)
        changes = Changes(
            batch=batch,
            overlap=overlap,
            seed_per_rank=seed_per_rank,
            plain=plain,
            ddp=ddp,
            horovod=horovod,
            trace=trace,
            trace_steps=trace_steps,
        )
        environ = {**os.environ, **wishes.to_environment(script, is_module=is_module, environ=os.environ)}
        environ |= changes.to_environment()
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
        given = {name for name in _SIZES.values() if _is_given(context, name)}
        if "nnodes" not in given:
            refuse_hosts(os.environ, script=script, nproc=nproc if "nproc" in given else None)
        if misplaced := find_misplaced(job.args, given):
            started = "1 worker is" if nproc == 1 else f"{nproc} workers are"
            words = f"{misplaced} after the script belongs to the script; {started} started"
            notify(f"{words}. Put it before {script} if you meant undertow's")
        return launch(job, environ, lambda seat: _check(job, seat, environ))


def _check(job: Job, seat: Seat, environ: Mapping[str, str]) -> None:
    from undertow.cli.doctor import check_job  # only who asks for it waits for its import

    check_job(job, seat, environ)


def find_misplaced(args: Sequence[str], given: Container[str]) -> str | None:
    """The first of the script's arguments that looks like one of our sizes, unless that was given to us as well."""
    for arg in args:
        option = re.sub(r"^-n\d+$", "-n", arg.partition("=")[0])
        name = _SIZES.get(option.replace("_", "-"))
        if name and name not in given:
            return option
    return None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
