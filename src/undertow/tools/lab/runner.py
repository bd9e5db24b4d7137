"""Runs `undertow lab run`: opens the hosts, checks their links, and starts one worker on each.

In: a checked `LabJob`.  Out: an exit code like that of `undertow run`; nothing of the hosts is left.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from undertow.errors import ConfigError
from undertow.launch.exit_report import make_exit_report
from undertow.launch.job import RUNNER, check_live_port, read_job_settings
from undertow.launch.launcher import supervise
from undertow.launch.launcher_output import notify, print_lines, print_log_records
from undertow.launch.traces import clear_traces, conclude_traces
from undertow.launch.worker import WorkerSpec
from undertow.observe.live.opening import open_view
from undertow.progress import OpenProgress, Progress, open_silently
from undertow.tools.lab.isolation import find_obstacle, run_isolated
from undertow.tools.lab.link_check import check_links
from undertow.tools.lab.network import Network, check_size, open_loopback, open_network
from undertow.tools.lab.worker_environments import open_rendezvous
from undertow.units import format_bandwidth, format_bytes, format_percent, format_quantity

if TYPE_CHECKING:
    from undertow.observe.live.live_view import LiveView

# More figures than this do not fit on a line.
LISTED_HOSTS = 8


@dataclass(frozen=True, kw_only=True)
class LabJob:
    """Command to run on every host of a lab."""

    command: tuple[str, ...]
    hosts: int
    rate_bits_per_s: float | None = None  # None: as fast as this machine allows
    is_unshaped: bool = False  # loopback instead of emulated hosts
    is_checked: bool = True
    start_timeout_s: float = 120.0
    quiet_ranks: bool = False
    live: bool = False  # a dashboard in place of the output
    live_port: int | None = None  # and a page; 0: at any free port
    title: str = ""  # of the job, in the live view

    def __post_init__(self) -> None:
        check_size(self.hosts)
        check_live_port(self.live_port)


def find_command(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command to start: a Python file with this Python, anything else as a shell would find it."""
    name = words[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ConfigError(f"script {name!r} does not exist; give the path of a Python file, or a command")
        return (sys.executable, "-u", *RUNNER, *words)
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise ConfigError(f"command {name!r} is not found; give a Python file, or a command that is in PATH")
    return (found, *words[1:])


def run_in_lab(job: LabJob, environ: Mapping[str, str], open_progress: OpenProgress = open_silently) -> int:
    """Run the job and return its exit code.  Progress is shown until its workers start."""
    print_log_records()
    if job.is_unshaped:
        with open_view(job.title, environ, live=job.live, port=job.live_port) as (view, environ):
            return _run(job, environ, open_loopback(job.hosts), open_progress, view=view)
    if obstacle := find_obstacle():
        raise ConfigError(f"{obstacle}; or use --unshaped: no emulated hosts, everything over loopback")
    # Opened outside the lab's network, where a browser can reach it.
    with open_view(job.title, environ, live=job.live, port=job.live_port) as (view, environ):
        return run_isolated(lambda: _run(job, environ, open_network(job.hosts), open_progress, view=view))


def _run(
    job: LabJob,
    environ: Mapping[str, str],
    open_hosts: AbstractContextManager[Network],
    open_progress: OpenProgress,
    *,
    view: LiveView | None,
) -> int:
    settings = read_job_settings(environ)
    clear_traces(settings)
    try:
        with open_hosts as network:
            with open_progress() as progress:
                links = _prepare(network, job, progress)
            notify(links)
            before = [counters.bytes_out for counters in network.counters()]

            def conclude() -> None:
                sent = [counters.bytes_out for counters in network.counters()]
                notify(describe_traffic([now - then for now, then in zip(sent, before, strict=True)], network))
                conclude_traces(settings, notify)

            workers = _open_workers(network, job, environ)
            return supervise(workers, quiet_ranks=job.quiet_ranks, conclude=conclude, view=view)
    except KeyboardInterrupt:
        verdict = make_exit_report([], interrupted_by=signal.SIGINT)
        print_lines(*verdict.lines)
        return verdict.exit_code


def _prepare(network: Network, job: LabJob, progress: Progress) -> str:
    """Shape and check the links; return a description of them."""
    hosts = format_quantity(job.hosts, "host")
    if not network.is_shaped:
        useless = "" if job.rate_bits_per_s is None else ", so --bandwidth has no effect"
        return f"{hosts} on this machine's loopback: nothing is shaped{useless}"
    if job.rate_bits_per_s is None:
        return f"{hosts}, links as fast as this machine allows (no --bandwidth)"
    network.shape(job.rate_bits_per_s)
    what = f"{hosts}, {format_bandwidth(job.rate_bits_per_s)} each way"
    if not job.is_checked:
        return f"{what}, not checked"
    progress.say("checking the links")
    progress.expect(job.hosts)
    ratio = check_links(network, job.rate_bits_per_s, progress)
    return f"{what}, checked ({format_percent(ratio, 1)} of nominal)"


@contextmanager
def _open_workers(network: Network, job: LabJob, environ: Mapping[str, str]) -> Iterator[list[WorkerSpec]]:
    with open_rendezvous(network, environ, start_timeout_s=job.start_timeout_s) as environments:
        yield [
            WorkerSpec(
                command=job.command,
                environment=environment,
                host=host.name,
                has_stdin=host.index == 0,
                entered=host.entered,
            )
            for host, environment in zip(network.hosts, environments, strict=True)
        ]


def describe_traffic(sent_bytes: Sequence[int], network: Network) -> str:
    """Describe how much every host has sent."""
    if not network.is_shaped:
        return f"this machine's loopback carried {format_bytes(sum(sent_bytes))}, by the kernel's count"
    if len(sent_bytes) > LISTED_HOSTS:
        extremes = f"{format_bytes(min(sent_bytes))} to {format_bytes(max(sent_bytes))}"
        return f"sent, by the kernel's count: {extremes} per host, {format_bytes(sum(sent_bytes))} in all"
    each = (f"{host.name} {format_bytes(count)}" for host, count in zip(network.hosts, sent_bytes, strict=True))
    return f"sent, by the kernel's count: {', '.join(each)}"
