"""`horovod.run(func, num_proc=4)`: calls a function on several workers of this host and collects the results.

In: a function and its arguments.  Out: the results, in rank order.  The workers are started by `undertow run` in a
process of its own; their output goes to that of this process.  If this process is killed, a guard ends them and removes
the folder with the results.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from undertow import bounds
from undertow.errors import ConfigError, name_ranks
from undertow.hidden import read_environment
from undertow.horovod.errors import RunFailed
from undertow.horovod.runner.exchange_folder import ExchangeFolder
from undertow.launch.cleanup_guard import CleanupGuard
from undertow.launch.job import read_job_settings

_ELASTIC = "elastic training is not supported yet: give num_proc, the number of workers"
_HOSTS = "horovod.run starts workers on this host only: for several hosts, start a script with `undertow run --nnodes`"
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
    "output_filename": "the output of the workers goes to that of this process: redirect this process",
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Any = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` workers of this host; return their results in rank order.

    The function is pickled, with cloudpickle if that is installed.  Results are unpickled here: they come from the
    workers that this call has started, through a folder that only this user can read.  If a worker fails, the others
    are stopped, and `RunFailed` (a RuntimeError) names the rank that failed first and its exception.

    The arguments are Horovod's, in Horovod's order.  Not all are supported, see `_REFUSED`.
    """
    given = dict(locals())
    _check_options(given)
    _check_alone(read_environment())
    size = count_workers(num_proc if np is None else np, hosts)
    if start_timeout is not None:  # else undertow's own setting
        bounds.TIMEOUT_S.check("horovod.run: start_timeout", start_timeout)
    read_job_settings(os.environ)  # raises an error here that the launcher could only print
    # Only this user can read the folder.
    with closing(CleanupGuard()) as guard, tempfile.TemporaryDirectory(prefix="undertow-run-") as folder:
        guard.remove(Path(folder).absolute())
        exchange = ExchangeFolder(folder)
        exchange.put_task(func, args, kwargs or {})
        code = _launch(guard, _build_command(executable or sys.executable, folder, size, start_timeout))
        return _collect(exchange, size, code)


def _check_options(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that are not supported.

    `use_gloo`, `disable_cache`, `verbose` and the network interfaces are ignored: they choose between implementations
    that undertow does not have.
    """
    for name, advice in _REFUSED.items():
        if given[name]:
            raise ConfigError(f"horovod.run({name}={given[name]!r}) is not supported: {advice}")


def _check_alone(environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` in a worker of a job, because each worker would start workers of its own."""
    size = bounds.read_count(environ.get("WORLD_SIZE", "")) or 1
    if size > 1:
        raise ConfigError(
            f"horovod.run starts workers itself, but this process is already one of {size} workers (WORLD_SIZE), each "
            "of which would start its own: start the script once, with `python -m undertow script.py`"
        )


def count_workers(num_proc: Any, hosts: str | None) -> int:
    """Return the number of workers to start; raise `ConfigError` unless `hosts` is this host with slots for them."""
    size: int = bounds.WORKERS_PER_HOST.check("horovod.run: num_proc", num_proc)
    if hosts is None:
        return size
    slots = sum(_read_slots(entry) for entry in hosts.split(","))
    if slots < size:
        raise ConfigError(f"horovod.run: hosts={hosts!r} has {slots} slots, but num_proc is {size}")
    return size


def _read_slots(entry: str) -> int:
    name, _, slots = entry.strip().partition(":")
    if name not in ("localhost", "127.0.0.1", socket.gethostname()):
        raise ConfigError(f"horovod.run: {name!r} in hosts is another host. {_HOSTS}")
    count = bounds.read_count(slots or "1")
    if count is None:
        raise ConfigError(f"horovod.run: {entry!r} in hosts is not HOST:WORKERS, as in localhost:4")
    return count


def _build_command(executable: str, folder: str, size: int, start_timeout_s: float | None) -> list[str]:
    timeout = [] if start_timeout_s is None else ["--start-timeout", f"{start_timeout_s:g}"]
    # --nnodes 1: the job ignores variables of a launcher that started this process.
    options = ["-n", str(size), "--nnodes", "1", "--horovod", "on", "--plain", "off", *timeout]
    return [executable, "-P", "-m", "undertow", "run", *options, "-m", "undertow.horovod.runner.task", folder]


def _launch(guard: CleanupGuard, command: Sequence[str]) -> int:
    """Run the workers until they end; return the launcher's exit code."""
    try:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ConfigError(f"horovod.run: executable {command[0]!r} cannot be started: {error.strerror}") from None
    with started as launcher:
        guard.watch_launcher(launcher.pid)
        try:
            code = launcher.wait()
        except BaseException:
            launcher.terminate()  # it ends its workers
            launcher.wait()  # Popen itself waits only briefly after an interrupt
            guard.forget(launcher.pid)
            raise
    guard.forget(launcher.pid)
    return code


def _collect(exchange: ExchangeFolder, size: int, code: int) -> list[Any]:
    failure = exchange.find_failure(size)
    if failure is not None:
        verb = "lost another worker" if failure.follows else "failed"
        raise RunFailed(f"horovod.run: rank {failure.rank} {verb}: {failure.text}\n{failure.trace}")
    silent = [rank for rank in range(size) if not exchange.has_result(rank)]
    if len(silent) == size and not exchange.has_started():
        raise RunFailed(f"horovod.run: the launcher ended with exit code {code} before any worker ran; see its output")
    if code or silent:
        lost = f"; no result of {name_ranks(silent)}" if silent else ""
        raise RunFailed(f"horovod.run: the job of {size} workers ended with exit code {code}{lost}; see its output")
    return [exchange.get_result(rank) for rank in range(size)]
