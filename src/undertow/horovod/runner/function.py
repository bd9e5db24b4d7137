"""`horovod.run(func, num_proc=4)`: call a function on several workers of this host and collect what it returns.

In: a function and its arguments.  Out: the results, in rank order.  The workers are those of `undertow run`, which is
started as a process of its own; their output goes to this process's.  If this process is killed, a guard ends them and
removes the folder of the results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from undertow.coordinator.meeting import name_ranks
from undertow.errors import ConfigError
from undertow.hidden import read_environment
from undertow.horovod.errors import RunFailed
from undertow.horovod.runner.box import Box
from undertow.horovod.runner.options import check_alone, check_options, check_start_timeout, count_workers
from undertow.launch.guard import Guard
from undertow.launch.job import read_job_settings


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
    are ended, and `RunFailed` (a RuntimeError) names the rank that failed first and its exception.

    The arguments are those of Horovod, in its order.  Not all are possible, see `options`.
    """
    check_options(
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        hostfile=hostfile,
        host_discovery_script=host_discovery_script,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        output_filename=output_filename,
        use_mpi=use_mpi,
        mpi_args=mpi_args,
        min_np=min_np,
        max_np=max_np,
    )
    check_alone(read_environment())
    size = count_workers(num_proc if np is None else np, hosts)
    check_start_timeout(start_timeout)
    read_job_settings(os.environ)  # raises here what the launcher could only print
    # The folder is readable by this user only.
    with closing(Guard()) as guard, tempfile.TemporaryDirectory(prefix="undertow-run-") as folder:
        guard.remove(Path(folder).absolute())
        box = Box(folder)
        box.put_task(func, args, kwargs or {})
        code = _launch(guard, _build_command(executable or sys.executable, folder, size, start_timeout))
        return _collect(box, size, code)


def _build_command(executable: str, folder: str, size: int, start_timeout_s: float | None) -> list[str]:
    patience = [] if start_timeout_s is None else ["--start-timeout", f"{start_timeout_s:g}"]
    # --nnodes: variables of a launcher around this process do not concern this job.
    options = ["-n", str(size), "--nnodes", "1", "--horovod", "on", "--plain", "off", *patience]
    return [executable, "-P", "-m", "undertow", "run", *options, "-m", "undertow.horovod.runner.task", folder]


def _launch(guard: Guard, command: Sequence[str]) -> int:
    """Run the workers to their end; returns the launcher's exit code."""
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
            launcher.wait()  # Popen itself would not wait for long after an interrupt
            guard.forget(launcher.pid)
            raise
    guard.forget(launcher.pid)
    return code


def _collect(box: Box, size: int, code: int) -> list[Any]:
    failure = box.find_failure(size)
    if failure is not None:
        verb = "lost another worker" if failure.follows else "failed"
        raise RunFailed(f"horovod.run: rank {failure.rank} {verb}: {failure.text}\n{failure.trace}")
    silent = [rank for rank in range(size) if not box.has_result(rank)]
    if len(silent) == size and not box.has_started():
        raise RunFailed(f"horovod.run: the launcher ended with exit code {code} before any worker ran; see its output")
    if code or silent:
        lost = f"; no result of {name_ranks(silent)}" if silent else ""
        raise RunFailed(f"horovod.run: the job of {size} workers ended with exit code {code}{lost}; see its output")
    return [box.get_result(rank) for rank in range(size)]
