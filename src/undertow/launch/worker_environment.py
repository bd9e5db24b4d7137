"""Environment of a worker.

In: the launcher's own environment, options of `undertow run`, the host's assignment, a local rank.  Out: the variables
to set; where an option is not given, the user's variable stays.
A rank's variables have the names that torchrun uses, so scripts and frameworks written for torchrun work unchanged.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from undertow.errors import ConfigError
from undertow.launch.host_rendezvous import HostAssignment
from undertow.launch.job import read_job_settings
from undertow.settings import Batch, Horovod, PlainScripts, is_given
from undertow.tracing.window import parse_window


def build_environment(base: Mapping[str, str], assignment: HostAssignment, *, local_rank: int) -> dict[str, str]:
    """Return `base` plus the worker's own variables; a thread count that the user set stays."""
    own = {
        "RANK": str(assignment.first_rank + local_rank),
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(assignment.nproc),
        "GROUP_RANK": str(assignment.node_rank),
        "MASTER_ADDR": assignment.master_addr,
        "MASTER_PORT": str(assignment.master_port),
        "UNDERTOW_RENDEZVOUS": assignment.rendezvous,
        "UNDERTOW_TOKEN": assignment.token,
        "UNDERTOW_START_TIMEOUT": f"{assignment.start_timeout_s:g}",
        "PYTHONUNBUFFERED": "1",
    }
    # Scripts take labels and files from sets of strings, whose order must be the same in all workers.
    own |= {} if base.get("PYTHONHASHSEED") else {"PYTHONHASHSEED": str(zlib.crc32(assignment.token.encode()))}
    threads = {"OMP_NUM_THREADS": "1"} if limits_threads(base, nproc=assignment.nproc) else {}
    return {**base, **threads, **own}


def limits_threads(base: Mapping[str, str], *, nproc: int) -> bool:
    """Whether OMP_NUM_THREADS is set to 1, as torchrun does: several workers with a thread per core slow each other."""
    return nproc > 1 and not base.get("OMP_NUM_THREADS")


class OnOff(enum.Enum):
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options that become variables of the workers' environment; None and False mean not given."""

    batch: Batch | None = None
    overlap: bool = False
    seed_per_rank: bool = False
    plain: PlainScripts | None = None
    ddp: OnOff | None = None
    horovod: Horovod | None = None
    trace: Path | None = None
    trace_steps: str | None = None

    def to_environment(self) -> dict[str, str]:
        if self.trace_steps is not None:
            parse_window(self.trace_steps)
        variables = {
            "UNDERTOW_BATCH": self.batch and self.batch.value,
            "UNDERTOW_OVERLAP": self.overlap and "on",
            "UNDERTOW_SEED_PER_RANK": self.seed_per_rank and "on",
            "UNDERTOW_PLAIN": self.plain and self.plain.value,
            "UNDERTOW_DDP": self.ddp and self.ddp.value,
            "UNDERTOW_HOROVOD": self.horovod and self.horovod.value,
            "UNDERTOW_TRACE": self.trace and str(self.trace),
            "UNDERTOW_TRACE_STEPS": self.trace_steps,
        }
        return {variable: value for variable, value in variables.items() if value}


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """Options about sharing devices; None and False mean not given."""

    shares: bool = False
    weight: float | None = None
    urgent: bool = False
    name: str | None = None

    def to_environment(self, script: str, *, is_module: bool, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to set; raise `ConfigError` for an option that only makes sense with --share."""
        made: dict[str, str] = {}
        if self.shares:
            made["UNDERTOW_SHARE"] = "1"
            if not is_given("share_name", environ):
                made["UNDERTOW_SHARE_NAME"] = script.rpartition(".")[2] if is_module else Path(script).stem
        elif (option := self._find_option()) and not read_job_settings(environ).share:
            raise ConfigError(f"{option} is for jobs that share their devices: add --share, or leave it out")
        if self.weight is not None:
            made["UNDERTOW_SHARE_WEIGHT"] = str(self.weight)
        if self.urgent:
            made["UNDERTOW_SHARE_URGENT"] = "1"
        if self.name is not None:
            made["UNDERTOW_SHARE_NAME"] = self.name
        return made

    def _find_option(self) -> str | None:
        given = {"--weight": self.weight is not None, "--urgent": self.urgent, "--share-name": self.name is not None}
        return next((option for option, is_set in given.items() if is_set), None)
