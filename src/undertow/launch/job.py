"""Options of one job, checked once, before anything is started.

In: the command line's values and the environment.  Out: a frozen `Job`.
Impossible values raise `ConfigError` here; later stages trust a `Job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from undertow import bounds
from undertow.errors import ConfigError
from undertow.settings import Settings, read_settings

# Runs a script as Python would, in a process that undertow has prepared.  Started by its path, because -m would put the
# current folder first on the import path, where a user's random.py may be.
RUNNER = (str(Path(__file__).parents[1] / "script" / "__main__.py"),)
# torchrun's default, so that a cluster's firewall rules keep working.
DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Job:
    """An `undertow run` on one host."""

    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    nproc: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0  # 0: any free port, on a single host only
    token: str = ""  # empty: the first host makes one
    start_timeout_s: float = 120.0
    quiet_ranks: bool = False
    is_checked: bool = False  # --check: the hosts are examined before any worker starts
    live: bool = False  # show a dashboard instead of the output
    live_port: int | None = None  # serve a page at this port; 0: at any free port

    def __post_init__(self) -> None:
        bounds.WORKERS_PER_HOST.check("-n", self.nproc)
        bounds.NODES.check("--nnodes", self.nnodes)
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"--node-rank {self.node_rank} is outside of 0 to {self.nnodes - 1} (--nnodes {self.nnodes})"
            )
        bounds.ANY_PORT.check("--master-port", self.master_port)
        check_live_port(self.live_port)
        bounds.TIMEOUT_S.check("--start-timeout", self.start_timeout_s)
        if not self.is_module and not Path(self.script).is_file():
            what = "is a folder" if Path(self.script).is_dir() else "does not exist"
            raise ConfigError(f"script {self.script!r} {what}; give the path of a Python file, or -m and a module")

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments after the interpreter on a worker's command line."""
        return (*RUNNER, *(("-m",) if self.is_module else ()), self.script, *self.args)


def check_live_port(port: int | None) -> None:
    if port is not None:
        bounds.ANY_PORT.check("--live-port", port)


def read_job_settings(environ: Mapping[str, str]) -> Settings:
    """Read a launcher's settings; ignore rank variables in the environment, which belong to an outer job."""
    return read_settings(environ, rank=0, world_size=1, local_rank=0, local_world_size=1)


def choose_master(settings: Settings, *, nnodes: int, addr: str | None, port: int | None) -> tuple[str, int]:
    """Return rank 0's address and port: argument, then environment, then default; with one host, any free port."""
    if nnodes == 1:
        return addr or "127.0.0.1", port or 0
    return addr or settings.master_addr, port or settings.master_port or DEFAULT_MASTER_PORT
