"""Options of `undertow run` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from undertow import bounds, settings
from undertow.cli.options import SHARING, option
from undertow.launch.worker_environment import OnOff

# Panels that group options in the help.
_HOSTS = "Hosts and workers"
_SCRIPTS = "Scripts that were not written for undertow"

Script = Annotated[str, typer.Argument(help="Run this training script (or module, with -m).", metavar="SCRIPT")]
IsModule = Annotated[bool, option("-m --module", "Run SCRIPT as a module, like python -m.")]
Check = Annotated[
    bool, option("--check", "Examine all hosts first, like undertow doctor, and stop if training would fail.")
]

# Hosts and workers

Nproc = Annotated[
    int, option("-n --nproc-per-node N", "Start N workers on this host.", bounds=bounds.WORKERS_PER_HOST, panel=_HOSTS)
]
Nnodes = Annotated[int, option("--nnodes N", "Train on N hosts.", bounds=bounds.NODES, panel=_HOSTS)]
NodeRank = Annotated[
    int, option("--node-rank N", "Set this host's number, from 0 to nnodes - 1.", bounds=bounds.NODE_RANK, panel=_HOSTS)
]
MasterAddr = Annotated[
    str | None,
    option("--master-addr ADDRESS", "Set the address of host 0. Default: MASTER_ADDR, else 127.0.0.1.", panel=_HOSTS),
]
MasterPort = Annotated[
    int | None,
    option(
        "--master-port PORT",
        "Use this free port of host 0. Default: MASTER_PORT, else 29500; on a single host, any free port.",
        bounds=bounds.ANY_PORT,
        panel=_HOSTS,
    ),
]
StartTimeout = Annotated[
    float | None,
    option(
        "--start-timeout S",
        "Wait S seconds for all workers to start. Default: UNDERTOW_START_TIMEOUT, else 120.",
        bounds=bounds.TIMEOUT_S,
        panel=_HOSTS,
    ),
]

# Scripts that were not written for undertow

Batch = Annotated[
    settings.Batch | None,
    option(
        "--batch",
        "Keep a single-process script's batch size on each worker (same, the default), or divide each batch "
        "among the workers (split), which gives the results of one process.",
        panel=_SCRIPTS,
    ),
]
Overlap = Annotated[
    bool,
    option(
        "--overlap",
        "Start the next forward pass before all gradients have arrived, as parallelize() does.",
        panel=_SCRIPTS,
    ),
]
SeedPerRank = Annotated[
    bool,
    option(
        "--seed-per-rank",
        "Seed each rank differently, for single-process scripts that draw random batches on their own.",
        panel=_SCRIPTS,
    ),
]
Plain = Annotated[
    settings.PlainScripts | None,
    option(
        "--plain",
        "Train single-process scripts on all workers (auto, the default), also hide RANK from them (on), or "
        "let each worker run them independently (off).",
        panel=_SCRIPTS,
    ),
]
Ddp = Annotated[
    OnOff | None,
    option(
        "--ddp",
        "Replace torch's DistributedDataParallel with undertow's (on, the default), or keep it (off).",
        panel=_SCRIPTS,
    ),
]
Horovod = Annotated[
    settings.Horovod | None,
    option(
        "--horovod",
        "Import undertow as horovod.torch unless Horovod is installed (auto, the default), always (on) or never (off).",
        panel=_SCRIPTS,
    ),
]

# Jobs that share devices

Share = Annotated[
    bool,
    option("--share", "Take turns on the devices with other jobs that use --share; see undertow share.", panel=SHARING),
]
Weight = Annotated[
    float | None,
    option(
        "--weight W",
        "Take W times an equal share of device time, with --share. Default: 1.",
        bounds=bounds.WEIGHT,
        panel=SHARING,
    ),
]
Urgent = Annotated[
    bool, option("--urgent", "Let other jobs compute only while this one waits, with --share.", panel=SHARING)
]
ShareName = Annotated[
    str | None,
    option(
        "--share-name NAME",
        "Name the job for other jobs, with --share. Default: the name of its script.",
        panel=SHARING,
    ),
]
