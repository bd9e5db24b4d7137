"""Options of `undertow run` alone."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from undertow import bounds, settings
from undertow.cli.options import option, sharing
from undertow.launch.worker_environment import OnOff

# Options that the help shows in panels of their own.
_hosts = functools.partial(option, panel="Hosts and workers")
_scripts = functools.partial(option, panel="Scripts that were not written for undertow")

Script = Annotated[str, typer.Argument(help="Run this training script (or module, with -m).", metavar="SCRIPT")]
IsModule = Annotated[bool, option("-m --module", "Run SCRIPT as a module, like python -m.")]
Check = Annotated[
    bool, option("--check", "Examine all hosts first, like undertow doctor, and stop if training would fail.")
]

# Hosts and workers

Nproc = Annotated[int, _hosts("-n --nproc-per-node N", "Start N workers on this host.", bounds=bounds.WORKERS_PER_HOST)]
Nnodes = Annotated[int, _hosts("--nnodes N", "Train on N hosts.", bounds=bounds.NODES)]
NodeRank = Annotated[
    int, _hosts("--node-rank N", "Set this host's number, from 0 to nnodes - 1.", bounds=bounds.NODE_RANK)
]
MasterAddr = Annotated[
    str | None, _hosts("--master-addr ADDRESS", "Set the address of host 0. Default: MASTER_ADDR, else 127.0.0.1.")
]
MasterPort = Annotated[
    int | None,
    _hosts(
        "--master-port PORT",
        "Use this free port of host 0. Default: MASTER_PORT, else 29500; on a single host, any free port.",
        bounds=bounds.ANY_PORT,
    ),
]
StartTimeout = Annotated[
    float | None,
    _hosts(
        "--start-timeout S",
        "Wait S seconds for all workers to start. Default: UNDERTOW_START_TIMEOUT, else 120.",
        bounds=bounds.TIMEOUT_S,
    ),
]

# Scripts that were not written for undertow

Batch = Annotated[
    settings.Batch | None,
    _scripts(
        "--batch",
        "Keep a single-process script's batch size on each worker (same, the default), or divide each batch "
        "among the workers (split), which gives the results of one process.",
    ),
]
Overlap = Annotated[
    bool, _scripts("--overlap", "Start the next forward pass before all gradients have arrived, as parallelize() does.")
]
SeedPerRank = Annotated[
    bool,
    _scripts(
        "--seed-per-rank",
        "Seed each rank differently, for single-process scripts that draw random batches on their own.",
    ),
]
Plain = Annotated[
    settings.PlainScripts | None,
    _scripts(
        "--plain",
        "Train single-process scripts on all workers (auto, the default), also hide RANK from them (on), or "
        "let each worker run them independently (off).",
    ),
]
Ddp = Annotated[
    OnOff | None,
    _scripts("--ddp", "Replace torch's DistributedDataParallel with undertow's (on, the default), or keep it (off)."),
]
Horovod = Annotated[
    settings.Horovod | None,
    _scripts(
        "--horovod",
        "Import undertow as horovod.torch unless Horovod is installed (auto, the default), always (on) or never (off).",
    ),
]

# Jobs that share devices

Share = Annotated[
    bool, sharing("--share", "Take turns on the devices with other jobs that use --share; see undertow share.")
]
Weight = Annotated[
    float | None,
    sharing(
        "--weight W", "Take W times an equal share of device time, with --share. Default: 1.", bounds=bounds.WEIGHT
    ),
]
Urgent = Annotated[bool, sharing("--urgent", "Let other jobs compute only while this one waits, with --share.")]
ShareName = Annotated[
    str | None,
    sharing("--share-name NAME", "Name the job for other jobs, with --share. Default: the name of its script."),
]
