"""The arguments of `horovod.run` beside the function: which are refused, and how many workers there are.

Pure.  In: what the caller gave.  Out: the number of workers, or `ConfigError` in words.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from undertow import bounds
from undertow.errors import ConfigError

_ELASTIC = "elastic training is not there yet: give num_proc, the number of workers"
_HOSTS = "horovod.run starts workers on this host only: for several hosts start a script with `undertow run --nnodes`"
_REFUSED = {
    "min_num_proc": _ELASTIC,
    "max_num_proc": _ELASTIC,
    "min_np": _ELASTIC,
    "max_np": _ELASTIC,
    "slots": _ELASTIC,
    "reset_limit": _ELASTIC,
    "cooldown_range": _ELASTIC,
    "host_discovery_script": _ELASTIC,
    "hostfile": _HOSTS,
    "ssh_port": _HOSTS,
    "ssh_identity_file": _HOSTS,
    "use_mpi": "MPI is not used: leave it out",
    "mpi_args": "MPI is not used: leave it out",
    "output_filename": "the output of the workers goes to this process's: redirect that",
}


def check_options(**options: Any) -> None:
    """Raise for what was asked for and is not there.

    `use_gloo`, `disable_cache`, `verbose` and the network's interfaces are not looked at: they choose between ways that
    undertow does not have.
    """
    for name, value in options.items():
        if value:
            raise ConfigError(f"horovod.run({name}={value!r}) is not possible: {_REFUSED[name]}")


def check_alone(environ: Mapping[str, str]) -> None:
    """Raise in one of several workers: each of them would start workers of its own."""
    size = bounds.read_count(environ.get("WORLD_SIZE", "")) or 1
    if size > 1:
        raise ConfigError(
            f"horovod.run starts workers itself, but this process is one of {size} already (WORLD_SIZE), and each "
            "would start its own: start the script once, with `python -m undertow script.py`"
        )


def count_workers(num_proc: Any, hosts: str | None) -> int:
    """How many workers to start, if `hosts` names this one and has room for them."""
    size: int = bounds.WORKERS_PER_HOST.check("horovod.run: num_proc", num_proc)
    if hosts is None:
        return size
    room = sum(_read_slots(entry) for entry in hosts.split(","))
    if room < size:
        raise ConfigError(f"horovod.run: hosts={hosts!r} has room for {room} workers, but num_proc is {size}")
    return size


def check_start_timeout(seconds: Any) -> None:
    """None leaves it to undertow's own setting."""
    if seconds is not None:
        bounds.TIMEOUT_S.check("horovod.run: start_timeout", seconds)


def _read_slots(entry: str) -> int:
    name, _, slots = entry.strip().partition(":")
    if name not in ("localhost", "127.0.0.1", socket.gethostname()):
        raise ConfigError(f"horovod.run: {name!r} in hosts is another host. {_HOSTS}")
    count = bounds.read_count(slots or "1")
    if count is None:
        raise ConfigError(f"horovod.run: {entry!r} in hosts is not HOST:WORKERS, as in localhost:4")
    return count
