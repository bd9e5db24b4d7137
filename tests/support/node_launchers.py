"""Jobs of several hosts, all of them this one: a launcher each."""

from __future__ import annotations

import subprocess

from tests.support.command import Cli
from tests.support.ports import free_port


def start_nodes(cli: Cli, script: str, *nprocs: int) -> list[subprocess.Popen[str]]:
    """Start one launcher per number of workers, the last one first, because the order must not matter."""
    path, port = cli.write(script), free_port()
    master = ["--master-addr", "127.0.0.1", "--master-port", port, "--nnodes", len(nprocs)]
    ranks = reversed(range(len(nprocs)))
    started = {rank: cli.start("run", "-n", nprocs[rank], *master, "--node-rank", rank, path) for rank in ranks}
    return [started[rank] for rank in range(len(nprocs))]
